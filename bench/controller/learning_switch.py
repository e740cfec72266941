"""A typical Ryu learning switch, the peer of the controller benchmark.

`python learning_switch.py PORT`. It uses the framework's receive path, packet library and message objects, as Ryu's documentation does.
It learns the sender's port from each packet-in. For a known destination it installs an entry and forwards the packet; packets to unknown
destinations are flooded.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import eventlet

    eventlet.monkey_patch()
    import eventlet.wsgi

    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):  # Ryu 4.34 imports a name that current eventlet lacks
        eventlet.wsgi.ALREADY_HANDLED = b""
    from ryu import cfg
    from ryu.base import app_manager
    from ryu.controller import ofp_event
    from ryu.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
    from ryu.lib.packet import ether_types, ethernet, packet
    from ryu.ofproto import ofproto_v1_3


class LearningSwitch(app_manager.RyuApp):  # type: ignore[misc]
    """Ryu application that learns ports of source MAC addresses per switch."""

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.port_of: dict[int, dict[str, int]] = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def connected(self, event: Any) -> None:
        """Install the table-miss entry."""
        datapath = event.msg.datapath
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        actions = [parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)]
        self.add(datapath, 0, parser.OFPMatch(), actions)

    def add(self, datapath: Any, priority: int, match: Any, actions: list[Any]) -> None:
        """Install an entry."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        instructions = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)]
        datapath.send_msg(parser.OFPFlowMod(datapath=datapath, priority=priority, match=match, instructions=instructions))

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def packet_in(self, event: Any) -> None:
        """Learn the sender's port, install an entry, forward the packet."""
        message = event.msg
        datapath, in_port = message.datapath, message.match["in_port"]
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        frame = packet.Packet(message.data).get_protocols(ethernet.ethernet)[0]
        if frame.ethertype == ether_types.ETH_TYPE_LLDP:
            return
        known = self.port_of.setdefault(datapath.id, {})
        known[frame.src] = in_port
        out_port = known.get(frame.dst, ofproto.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(out_port)]
        if out_port != ofproto.OFPP_FLOOD:
            self.add(datapath, 1, parser.OFPMatch(in_port=in_port, eth_dst=frame.dst, eth_src=frame.src), actions)
        datapath.send_msg(
            parser.OFPPacketOut(datapath=datapath, buffer_id=ofproto.OFP_NO_BUFFER, in_port=in_port, actions=actions, data=message.data)
        )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # the framework imports the module by its name
    cfg.CONF(args=["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", sys.argv[1]], project="learning-switch", version="")
    app_manager.AppManager.run_apps(["ryu.controller.ofp_handler", "learning_switch"])
