"""Connection to a switch: Ryu's handshake, our own receive loop.

Messages are framed here and dispatched by type. Frequent messages, and messages that could stall Ryu's parsers, are parsed by `ofp`; only
the handshake goes through Ryu, after its lengths have been checked. Output is collected and written once per read.

After the handshake, the hub calls the connection directly when bytes arrive: waking a green thread costs more than handling most messages.
So message handlers must not block.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from sos_controller.core.flow_tables.budget import MAX_ENTRIES
from sos_controller.core.openflow.election import Demoted, Refused
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.types import DatapathId, Port, PortNo
from sos_controller.openflow import framework, ofp
from sos_controller.openflow.receiver import Receiver

# isort: split
# Ryu comes after `framework`, which makes it importable.
from ryu.controller import ofp_event
from ryu.controller.controller import Datapath
from ryu.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, HANDSHAKE_DISPATCHER, MAIN_DISPATCHER
from ryu.exception import RyuException
from ryu.lib import hub
from ryu.ofproto import ofproto_parser

LOG = logging.getLogger("sos_controller.connection")

READ_BYTES = 65_536
"""Maximum bytes per read: a few hundred SYNs, after which other switches are served."""
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""Maximum backlog of a switch. Beyond it the switch is disconnected; its entries are read and compared again when it reconnects."""
MAX_UNSENT_TO_UNCLAIMED = 256 * 1024
"""Maximum backlog of a switch that no site claims or that has not finished its handshake: such a switch gets echoes only, and there may be
many of them."""
MAX_PORTS = 16_384
ECHO_INTERVAL_S = 5.0
SILENCE_S = 15.0
"""Silence after which a switch is disconnected: three unanswered echoes."""
HANDSHAKE_S = 10.0
"""Time limit of a handshake, which takes three round trips. Checked with each echo."""
REPORTING_S = 5.0
"""Silence after which a switch is assumed to have stopped reporting its entries."""
NEVER = float("-inf")
CHALLENGE_S = 2.0
"""Time limit for a connected switch's echo reply when another connection has the same datapath id."""


class Reading(NamedTuple):
    """A request for entries by cookie, and the entries received so far."""

    xid: int
    cookie: int
    mask: int
    entries: list[FlowEntry]


class SwitchConnection(Datapath):  # type: ignore[misc]
    """A connected switch."""

    def __init__(self, sock: Any, address: Any, controller: Receiver[SwitchConnection], certified_site: str | None = None) -> None:
        self._controller = controller
        self.certified_site = certified_site
        """Site in the switch's certificate; None without TLS."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._sending = False
        self._wake = hub.Event()
        self._began = self.heard = time.monotonic()
        self._challenged = False
        self._over = hub.Event()
        self._wrong: Exception | None = None
        self._rest = b""
        self._reading: Reading | None = None
        self._sizing: tuple[int, dict[int, int]] | None = None
        self._told_at = NEVER
        self._known_ports: dict[PortNo, Port] = {}
        self._xid = 0
        super().__init__(sock, address)

    @property
    def dpid(self) -> DatapathId:
        """Return the datapath id; known once connected."""
        return DatapathId(self.id)

    def known_ports(self) -> tuple[Port, ...]:
        """Return the switch's ports: those of the handshake, and later changes."""
        return tuple(self._known_ports.values())

    # -- sending

    def queue(self, data: bytes) -> None:
        """Append bytes to the output; `kick` sends."""
        if not data:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > MAX_UNSENT_TO_UNCLAIMED and (self._out_bytes > MAX_UNSENT_BYTES or self.is_unclaimed):
            LOG.warning("switch %s does not read: disconnected", self.address)
            self._out.clear()
            self._out_bytes = 0
            self.abort()

    def kick(self) -> None:
        """Write the output: immediately as much as the socket accepts without blocking, the rest in the send loop."""
        if not self._out or self._sending:
            return
        data = b"".join(self._out)
        try:
            sent = self.socket.fd.send(data)
        except OSError:  # buffer full or peer gone: the send loop waits, or detects the loss
            sent = 0
        self._out.clear()
        self._out_bytes = 0
        if sent < len(data):
            self.queue(data[sent:])
            self._wake.set()

    def send(self, buf: bytes, close_socket: bool = False) -> bool:
        """Send a message of the handshake; called by Ryu."""
        self.queue(bytes(buf))
        self.kick()
        if close_socket:
            hub.spawn_after(1, self.abort)
        return True

    def read_entries(self, cookie: int, mask: int) -> bytes:
        """Return the request for the entries of a cookie; the controller receives them when all have arrived."""
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._reading = Reading(self._xid, cookie, mask, [])
        self._told_at = NEVER
        return ofp.flow_stats_request(self._xid, cookie, mask)

    def read_tables(self) -> bytes:
        """Return the request for the tables' capacity. A switch that does not know the request answers only with an error."""
        self._xid = self._xid % 0x7FFFFFFF + 1
        xid = self._xid | 0x80000000  # ids of flow-mods count up from 1: the top bit distinguishes errors about this request
        self._sizing = (xid, {})
        return ofp.table_features_request(xid)

    @property
    def is_reporting(self) -> bool:
        """Return whether the switch has recently sent a part of its entries, with more to come."""
        return self._reading is not None and time.monotonic() - self._told_at < REPORTING_S

    @property
    def is_unclaimed(self) -> bool:
        """Return whether no site claims this datapath, as far as known."""
        return self.state != MAIN_DISPATCHER or not self._controller.claims(self.dpid)

    def challenge(self) -> None:
        """Send an echo request to check whether the switch is still there. If it does not answer, end the connection."""
        if not self._challenged:
            self._challenged = True
            self.queue(ofp.echo_request(0))
            self.kick()
            hub.spawn_after(CHALLENGE_S, self._judge, self.heard)

    def _judge(self, heard: float) -> None:
        self._challenged = False
        if self.heard <= heard and self.state != DEAD_DISPATCHER:
            LOG.info("switch at %s is silent, and another connection replaces it", self.address)
            self.abort()

    def abort(self) -> None:
        """End the connection."""
        self.set_state(DEAD_DISPATCHER)
        try:
            self.socket.shutdown(2)
        except OSError as error:
            LOG.debug("shutdown: %s", error)
        self._wake.set()
        self._over.set()

    # -- Ryu's hooks

    def set_state(self, state: str) -> None:
        """Notify the controller when the handshake is done and when the connection is lost."""
        before = self.state if hasattr(self, "state") else None
        super().set_state(state)
        if state == MAIN_DISPATCHER and before != MAIN_DISPATCHER:
            self._controller.connected(self)
        elif state == DEAD_DISPATCHER and before == MAIN_DISPATCHER:
            self._controller.disconnected(self)

    def _send_loop(self) -> None:
        try:
            while self.state != DEAD_DISPATCHER:
                self._wake.wait()
                self._wake.clear()
                self._sending = True
                while self._out:
                    data = b"".join(self._out)
                    self._out.clear()
                    self._out_bytes = 0
                    self.socket.sendall(data)
                self._sending = False
        except OSError as error:
            LOG.info("cannot send to switch at %s: %s", self.address, error)
            self.abort()

    def _echo_request_loop(self) -> None:
        while self.state != DEAD_DISPATCHER:
            hub.sleep(ECHO_INTERVAL_S)
            now = time.monotonic()
            if now - self.heard > SILENCE_S or (self.state != MAIN_DISPATCHER and now - self._began > HANDSHAKE_S):
                LOG.info("switch at %s is silent: disconnected", self.address)
                self.abort()
                return
            self.queue(ofp.echo_request(0))
            self.kick()

    def _recv_loop(self) -> None:
        try:
            self._receive()
        except ofp.WireError as error:
            LOG.warning("switch at %s sent an invalid message (%s): disconnected", self.address, error)
            self._controller.count("wire_errors", str(error))
        except Exception:
            self._controller.bug("connection")
        finally:
            self.abort()
            self.socket.close()

    def _receive(self) -> None:
        while self.state not in (MAIN_DISPATCHER, DEAD_DISPATCHER):
            try:
                chunk = self.socket.recv(READ_BYTES)
            except TimeoutError:
                continue
            except OSError:
                return
            if not chunk:
                return
            self._take(chunk)
        if self.state != DEAD_DISPATCHER:
            self._listen()

    def _listen(self) -> None:
        """Let the hub call `_readable` until the connection is over; raise the connection's error."""
        main = framework.eventlet.hubs.get_hub()
        over = self._over.set
        listener = main.add(main.READ, self.socket.fileno(), self._readable, lambda *_: over(), over)
        try:
            self._over.wait()
        finally:
            main.remove(listener)
        if self._wrong is not None:
            raise self._wrong

    def _readable(self, _fileno: int) -> None:
        """Read available bytes. Runs in the hub, so it must not block, and passes errors to the connection's own thread."""
        if self._over.is_set():
            return
        try:
            chunk = self.socket.fd.recv(READ_BYTES)
            if chunk:
                self._take(chunk)
                return
        except BlockingIOError:
            return
        except OSError as error:
            LOG.debug("recv: %s", error)
        except Exception as error:
            self._wrong = error
        self._over.set()

    def _take(self, chunk: bytes) -> None:
        self.heard = time.monotonic()
        self._rest = self._split(self._rest + chunk if self._rest else chunk)
        self._controller.was_read(self)

    def _split(self, data: bytes) -> bytes:
        """Handle all complete messages; return the remaining bytes. Consecutive barrier replies are one event."""
        parts, at, sound = ofp.split(data)
        for part in parts:
            if isinstance(part, bytes):
                self._message(part)
            elif self.state == MAIN_DISPATCHER:
                self._controller.barrier_replies(self, part)
        if not sound:  # after the messages before it are handled, however TCP has split the stream
            raise ofp.WireError("bad length")
        return data[at:]

    def _message(self, message: bytes) -> None:
        kind = message[1]
        if message[0] != ofp.VERSION and kind != ofp.HELLO:
            raise ofp.WireError("another version of OpenFlow")
        if kind == ofp.PACKET_IN and self.state == MAIN_DISPATCHER:
            self._controller.packet_in(self, message)
        elif kind == ofp.ECHO_REQUEST:
            self.queue(ofp.echo_reply(int.from_bytes(message[4:8], "big"), message[8:]))
            self.kick()
        elif kind == ofp.ECHO_REPLY and len(message) == ofp.MARKED_REPLY_BYTES and self.state == MAIN_DISPATCHER:
            self._controller.echoed(self, int.from_bytes(message[8:], "big"))
        elif kind == ofp.MULTIPART_REPLY:
            self._multipart(message)
        elif kind == ofp.ERROR:
            self._error(message)
        elif kind == ofp.FLOW_REMOVED and self.state == MAIN_DISPATCHER:
            self._controller.entry_gone(self, *ofp.parse_flow_removed(message))
        elif kind == ofp.PORT_STATUS and self.state == MAIN_DISPATCHER:
            self._port_status(*ofp.parse_port_status(message))
        elif kind == ofp.ROLE_REPLY and self.state == MAIN_DISPATCHER:
            self._controller.role_reported(self, ofp.parse_role_reply(message))
        elif kind in (ofp.HELLO, ofp.FEATURES_REPLY) and self.state != MAIN_DISPATCHER:
            self._handshake(message)

    def _multipart(self, message: bytes) -> None:
        if len(message) < 16:
            raise ofp.WireError("short multipart")
        kind, more = message[8] << 8 | message[9], message[11] & ofp.REPLY_MORE
        if kind == ofp.MULTIPART_PORT_DESC and self.state != MAIN_DISPATCHER:
            self._known_ports.update((port.port_no, port) for port in ofp.parse_ports(message[16:]))
            if len(self._known_ports) > MAX_PORTS:
                raise ofp.WireError("too many ports")
            if self.state != CONFIG_DISPATCHER or self.id is None:
                raise ofp.WireError("out of turn")
            if not more:
                self.set_state(MAIN_DISPATCHER)
        elif kind == ofp.MULTIPART_FLOW and self._reading is not None and self._reading.xid == int.from_bytes(message[4:8], "big"):
            self._entries(self._reading, message, more)
        elif kind == ofp.MULTIPART_TABLE_FEATURES and self.state == MAIN_DISPATCHER:
            self._table_sizes(message, more)

    def _port_status(self, port: Port, gone: bool) -> None:
        if gone:
            self._known_ports.pop(port.port_no, None)
        elif port.port_no in self._known_ports or len(self._known_ports) < MAX_PORTS:
            self._known_ports[port.port_no] = port
        self._controller.port_changed(self, port, gone)

    def _entries(self, reading: Reading, message: bytes, more: int) -> None:
        """Handle a part of the reply to `read_entries`. Some switches ignore the cookie of the request and report all their entries."""
        found = ofp.parse_flow_stats(message[16:])
        reading.entries.extend(entry for entry in found if entry.cookie & reading.mask == reading.cookie)
        self._told_at = time.monotonic()
        if len(reading.entries) > MAX_ENTRIES:
            self._reading = None  # the rest of the reply is not parsed
            self._controller.entries_unreadable(self)
        elif not more:
            self._reading = None
            self._controller.entries_read(self, reading.entries)

    def _table_sizes(self, message: bytes, more: int) -> None:
        """Handle a part of the reply to `read_tables`. Table numbers have eight bits, so the number of tables is bounded."""
        if self._sizing is None or self._sizing[0] != int.from_bytes(message[4:8], "big"):
            return
        sizes = self._sizing[1]
        sizes.update(ofp.parse_table_features(message[16:]))
        if not more:
            self._sizing = None
            self._controller.tables_read(self, sizes)

    def _error(self, message: bytes) -> None:
        kind, code, xid = ofp.parse_error(message)
        if self._sizing is not None and self._sizing[0] == xid and self.state == MAIN_DISPATCHER:
            self._sizing = None  # the request is optional for switches
            return
        if self.state == MAIN_DISPATCHER and ofp.refused_role(message):
            self._controller.role_reported(self, Refused(xid, message[8:12] == ofp.STALE))
            return
        LOG.info("switch %s refused a message: type %d, code %d", self.address, kind, code)
        if self.state == MAIN_DISPATCHER:
            if message[8:12] == ofp.IS_SLAVE:
                self._controller.role_reported(self, Demoted())
            self._controller.rejected(self, xid, ofp.error_name(kind, code), ofp.full_table(message))
        else:
            raise ofp.WireError("error during handshake")

    def _handshake(self, message: bytes) -> None:
        """Pass a message to Ryu, which answers and advances. Each type is accepted once, so that a peer cannot keep slow parsers busy."""
        due = ofp.HELLO if self.state == HANDSHAKE_DISPATCHER else ofp.FEATURES_REPLY if self.id is None else None
        if message[1] != due:
            raise ofp.WireError("out of turn")
        if message[1] == ofp.HELLO:
            ofp.check_hello(message)
            message = ofp.PLAIN_HELLO  # Ryu does not skip the padding of elements, and can loop forever
        elif message[1] == ofp.FEATURES_REPLY and len(message) != 32:
            raise ofp.WireError("bad features reply")
        xid = int.from_bytes(message[4:8], "big")
        try:
            parsed = ofproto_parser.msg(self, message[0], message[1], len(message), xid, message)
        except RyuException as error:
            raise ofp.WireError("unparsable handshake") from error
        if parsed is None:
            raise ofp.WireError("unparsable handshake")
        event = ofp_event.ofp_msg_to_ev(parsed)
        for handler in self.ofp_brick.get_handlers(event):
            if self.state in handler.callers[event.__class__].dispatchers:
                handler(event)


def serve(sock: Any, address: Any, controller: Receiver[SwitchConnection], certified_site: str | None = None) -> None:
    """Serve one connection until it ends. `certified_site`: site in the switch's certificate, None without TLS."""
    connection = SwitchConnection(sock, address, controller, certified_site)
    controller.arrived(connection)
    try:
        connection.serve()
    except (OSError, AssertionError) as error:
        LOG.warning("connection of %s ended: %s", address, error)
    except Exception:
        LOG.exception("connection of %s failed", address)
    finally:
        connection.abort()
        controller.left(connection)


assert framework.eventlet is not None  # noqa: S101 - imported for its effect, before Ryu
