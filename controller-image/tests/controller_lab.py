"""Lab with real switches: private Open vSwitch instances, and hosts in network namespaces with random names. Teardown always runs.

client -- edge1 -- core1 -- edge2 -- server          agent1 on edge1, agent2 on edge2; core2 also connects edge1 and edge2
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sos_controller.files.config import document_hash

SWITCHES = {"edge1": 0x1000000000001, "core1": 0x3000000000003, "core2": 0x4000000000004, "edge2": 0x2000000000002}
WIRES = (("edge1", "core1"), ("core1", "edge2"), ("edge1", "core2"), ("core2", "edge2"))
HOSTS = {
    "client": ("edge1", "10.0.0.11"),
    "server": ("edge2", "10.0.0.139"),
    "agent1": ("edge1", "10.0.0.126"),
    "agent2": ("edge2", "10.0.0.254"),
}
MACS = {"client": "02:00:00:00:00:11", "server": "02:00:00:00:00:39", "agent1": "02:53:80:00:00:26", "agent2": "02:53:80:00:00:fe"}
AGENTS = {"agent1": ("west", 1, bytes(15) + b"\x01"), "agent2": ("east", 2, bytes(15) + b"\x02")}
MORE = {
    **{f"agent1{letter}": ("edge1", f"10.0.0.{125 - n}", f"02:53:80:00:0{n + 1}:26", n + 1) for n, letter in enumerate("bc")},
    **{f"agent2{letter}": ("edge2", f"10.0.0.{253 - n}", f"02:53:80:00:0{n + 1}:fe", n + 1) for n, letter in enumerate("bc")},
}
"""Further agents of the sites (`Lab.more_agents`): switch, address, MAC address, and number within the site."""
SITE_KEYS = {1: bytes(range(32)), 2: bytes(range(1, 33))}
TOKEN = "a-token-for-tests"
DISCOVERY, DISCOVERY_MAC = "198.18.255.254", "02:53:4f:53:00:01"
CONTROLLER = "127.0.0.1"


def run(*command: str, check: bool = True) -> str:
    """Run a command and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout


def wait(what: str, seconds: float, ready: Callable[[], Any]) -> Any:
    """Poll until `ready` returns a true value, and return the value. After the timeout, raise an AssertionError that names `what`."""
    end = time.monotonic() + seconds
    while True:
        got = ready()
        if got:
            return got
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.05)


UNTAGGED = "vlan_tci=0x0000/0x1fff"


def document(generation: int = 1, forwarding: str = "Node", services: bool = True, ports: tuple[int, int] = (5000, 5999)) -> dict[str, Any]:
    """Return the controller-config of the lab."""

    def site(name: str, number: int, switch: str, prefixes: list[str], agent: str | None) -> dict[str, Any]:
        agents = [{"id": AGENTS[agent][2].hex(), "pool": "default", "node": switch, "address": HOSTS[agent][1]}] if agent else []
        return {
            **{"name": name, "id": number, "prefixes": prefixes, "subnet": "10.0.0.0/24" if prefixes else None, "gateway": None},
            **{"transit": not prefixes, "mtu": 1500, "rewrite": "Transparent", "agents": agents},
            "datapaths": [{"dpid": f"{SWITCHES[switch]:016x}", "name": switch, "forwarding": forwarding}],
        }

    service = {
        **{"id": "default/bulk", "priority": 100, "mode": "Accelerate", "percent": 100, "setup": "Reactive", "accept": "Early"},
        **{"from": {"site": "west", "prefixes": ["10.0.0.0/25"]}, "to": {"site": "east", "prefixes": ["10.0.0.128/25"]}},
        **{"ports": [{"first": ports[0], "last": ports[1]}], "paths": {"mode": "Shortest", "max": 1}},
        "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Auto"},
    }
    made = {
        **{"version": "v1alpha1", "generation": generation, "controller": {"name": "default", "id": 1}},
        "discovery": {
            **{"address": DISCOVERY, "mac": DISCOVERY_MAC, "beaconPort": 9875, "orderPort": 9876, "redirectPort": 9877},
            **{"beaconExpirySeconds": 4, "probeIntervalSeconds": 1, "linkExpirySeconds": 3},
        },
        "sites": [
            site("west", 1, "edge1", ["10.0.0.0/25"], "agent1"),
            site("east", 2, "edge2", ["10.0.0.128/25"], "agent2"),
            site("core1", 3, "core1", [], None),
            site("core2", 4, "core2", [], None),
        ],
        "services": [service] if services else [],
        "balances": [],
        "links": [],
    }
    return {**made, "hash": document_hash(made)}


class Lab:
    """Running network of four switches in a ring. The exit stack undoes everything."""

    def __init__(self, stack: ExitStack, forwarding: str, openflow: str = "OpenFlow13", *, tso: bool = True) -> None:
        self._stack = stack
        self.tso = tso
        self.tag = "c" + secrets.token_hex(3)
        self.forwarding = forwarding
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sos-controller-")))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.api = f"http://{CONTROLLER}:8080"
        self.switch_ns = self._namespace("sw")
        self._start_ovs()
        for name, dpid in SWITCHES.items():
            self._bridge(name, dpid, openflow)
        for one, other in WIRES:
            self._wire(one, other)
        for name, (switch, address) in HOSTS.items():
            self._host(name, switch, address, MACS[name], is_agent=name in AGENTS)
        self._connect_switches()  # before the base table: Open vSwitch flushes entries when a bridge gets its first controller
        if forwarding == "Node":
            for name in SWITCHES:
                self._base(name)

    # -- namespaces, processes and switches

    def _namespace(self, name: str) -> str:
        full = f"{self.tag}-{name}"
        run("ip", "netns", "add", full)
        self._stack.callback(run, "ip", "netns", "del", full, check=False)
        run("ip", "-n", full, "link", "set", "lo", "up")
        return full

    def ns(self, name: str) -> str:
        """Return the namespace of a host."""
        return f"{self.tag}-{name}"

    def execute(self, name: str, *command: str, check: bool = True) -> str:
        """Run a command in a host's namespace."""
        return run("ip", "netns", "exec", self.ns(name), *command, check=check)

    def spawn(self, name: str, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a process in a namespace. The exit stack kills it."""
        out = self._stack.enter_context((self.folder / log).open("ab"))
        command = ("ip", "netns", "exec", self.ns(name), *command)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
        self._stack.callback(self.kill, process)
        self.processes.append(process)
        return process

    def running(self, word: str) -> list[subprocess.Popen[bytes]]:
        """Return the lab's running processes whose command contains a word."""
        return [p for p in self.processes if p.poll() is None and any(word in str(a) for a in p.args)]  # type: ignore[union-attr]

    def agents(self) -> list[subprocess.Popen[bytes]]:
        """Return the running fake agents."""
        return self.running("controller_agent")

    def kill_all(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Kill several processes."""
        for process in processes:
            self.kill(process)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill a process of the lab and wait until it has exited."""
        process.kill()
        process.wait(timeout=30)

    def ovs(self, *command: str, check: bool = True) -> str:
        """Run an OVS tool against this lab's database."""
        environment = {"OVS_RUNDIR": str(self.folder)}
        words = [command[0], *([f"--db=unix:{self.folder}/db.sock"] if command[0] == "ovs-vsctl" else []), *command[1:]]
        done = subprocess.run(
            ["ip", "netns", "exec", self.switch_ns, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )
        if check and done.returncode:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    def flows(self, switch: str) -> list[str]:
        """Return the flow entries of a switch in the format of ovs-ofctl."""
        text = self.ovs("ovs-ofctl", "-O", "OpenFlow13", "--no-stats", "dump-flows", f"unix:{self.folder}/{switch}.mgmt")
        return [line.strip() for line in text.splitlines() if "table=" in line or "priority=" in line]

    def cached(self, switch: str, flow: str) -> str:
        """Return the megaflow that a packet from the switch's host creates (ofproto/trace)."""
        host = next(name for name, (where, _) in HOSTS.items() if where == switch)
        traced = self.traced(switch, f"in_port={self.port(switch, 'p-' + host)},{flow}")
        return next(line for line in traced.splitlines() if line.startswith("Megaflow:"))

    def traced(self, switch: str, packet: str, *options: str) -> str:
        """Return the switch's actions on a packet, step by step (ofproto/trace). With `-generate`, the switch also learns from it."""
        return self.ovs("ovs-appctl", f"--target={self.folder}/sw.ctl", "ofproto/trace", switch, packet, *options)

    def ours(self, switch: str, kind: int | None = None) -> list[str]:
        """Return the controller's entries on a switch, optionally of one kind only."""
        found = []
        for line in self.flows(switch):
            cookie = int(line.split("cookie=")[1].split(",")[0], 16)
            if cookie >> 32 == 0x534F0101 and (kind is None or cookie >> 24 & 0xFF == kind):
                found.append(line)
        return found

    def _start_ovs(self) -> None:
        folder = self.folder
        schema = next(
            p
            for p in (Path("/usr/share/openvswitch/vswitch.ovsschema"), Path("/usr/local/share/openvswitch/vswitch.ovsschema"))
            if p.exists()
        )
        run("ovsdb-tool", "create", f"{folder}/conf.db", str(schema))
        db = ["ovsdb-server", f"{folder}/conf.db", f"--remote=punix:{folder}/db.sock", f"--unixctl={folder}/db.ctl"]
        self.spawn("sw", *db, log="ovsdb.log")
        # The socket file exists shortly before ovsdb-server listens on it, so retry.
        self.ovs("ovs-vsctl", "--retry", "--timeout=20", "--no-wait", "init")
        self.ovs("ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".", f"other_config:userspace-tso-enable={str(self.tso).lower()}")
        switch = ["env", f"OVS_RUNDIR={folder}", "ovs-vswitchd", f"unix:{folder}/db.sock", f"--unixctl={folder}/sw.ctl"]
        self.spawn("sw", *switch, log="vswitchd.log")

    def _bridge(self, name: str, dpid: int, openflow: str) -> None:
        self.ovs(
            *("ovs-vsctl", "--timeout=30", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"),
            *(f"protocols={openflow}", f"other-config:datapath-id={dpid:016x}"),
        )

    def _wire(self, one: str, other: str) -> None:
        a, b = f"{one}-{other}", f"{other}-{one}"
        run("ip", "-n", self.switch_ns, "link", "add", a, "type", "veth", "peer", "name", b)
        for end, switch in ((a, one), (b, other)):
            run("ip", "-n", self.switch_ns, "link", "set", end, "up")
            self.ovs("ovs-vsctl", "--timeout=30", "add-port", switch, end)

    def _host(self, name: str, switch: str, address: str, mac: str, *, is_agent: bool) -> None:
        ns, port = self._namespace(name), f"p-{name}"
        run("ip", "-n", self.switch_ns, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns)
        run("ip", "-n", ns, "link", "set", "eth0", "address", mac)
        run("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", ns, "link", "set", "eth0", "up")
        run("ip", "-n", self.switch_ns, "link", "set", port, "up")
        self.ovs("ovs-vsctl", "--timeout=30", "add-port", switch, port)
        run("ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv4.ip_forward=0")
        if is_agent:
            run("ip", "-n", ns, "route", "add", f"{DISCOVERY}/32", "dev", "eth0")
            run("ip", "-n", ns, "neigh", "replace", DISCOVERY, "lladdr", DISCOVERY_MAC, "dev", "eth0", "nud", "permanent")

    def port(self, switch: str, name: str) -> int:
        """Return the OpenFlow number of a port."""
        return int(self.ovs("ovs-vsctl", "--timeout=30", "get", "interface", name, "ofport").strip())

    def _base(self, switch: str) -> None:
        """Install the base table of spec/node-config.md 2. Wires over core1 carry plain traffic, wires over core2 do not."""
        wires = {f"{a}-{b}": "core2" not in (a, b) for pair in WIRES for a, b in (pair, pair[::-1]) if a == switch}
        up = "CONTROLLER:65535"
        flows = [f"table=0,priority=65000,{UNTAGGED},dl_type=0x88cc,actions={up}"]
        flows += [f"table=0,priority=65000,{UNTAGGED},udp,nw_dst={DISCOVERY},tp_dst={p},actions={up}" for p in (9875, 9876)]
        flows += [
            f"table=0,priority=20000,{UNTAGGED},arp,actions={up},resubmit(,1)",
            "table=0,priority=0,actions=resubmit(,1)",
            "table=1,priority=0,actions=NORMAL",
        ]
        for name, base in wires.items():
            number = self.port(switch, name)
            flows.append(f"table=0,priority=45000,in_port={number},actions=resubmit(,1)")
            if not base:
                flows.append(f"table=1,priority=1000,in_port={number},actions=drop")
                self.ovs("ovs-ofctl", "-O", "OpenFlow13", "mod-port", f"unix:{self.folder}/{switch}.mgmt", name, "no-flood")
        for flow in flows:
            self.ovs("ovs-ofctl", "-O", "OpenFlow13", "add-flow", f"unix:{self.folder}/{switch}.mgmt", f"cookie=0x534f000100000000,{flow}")

    # -- the controller

    def start_controller(self, config: dict[str, Any] | None, *extra: str) -> subprocess.Popen[bytes]:
        """Start a controller beside the switches."""
        keys = self.folder / "keys"
        keys.mkdir(exist_ok=True)
        for site, key in SITE_KEYS.items():
            (keys / f"site-{site}-1").write_text(key.hex() + "\n")
        (self.folder / "token").write_text(TOKEN + "\n")
        files = []
        if config is not None:
            (self.folder / "config.json").write_text(json.dumps(config))
            files = ["--config", str(self.folder / "config.json")]
        command = [sys.executable, "-m", "sos_controller", "--keys", str(keys), "--token-file", str(self.folder / "token"), *files]
        command += ["--openflow-listen", f"{CONTROLLER}:6653", "--api-listen", f"{CONTROLLER}:8080", "--log-level", "debug", *extra]
        process = self.spawn("sw", *command, log="controller.log")
        wait("controller", 30, lambda: process.poll() is None and self.get("/healthz", check=False))
        return process

    def _connect_switches(self) -> None:
        """Configure the controller's address on the switches."""
        for name in SWITCHES:
            self.ovs("ovs-vsctl", "--timeout=30", "set-controller", name, f"tcp:{CONTROLLER}:6653")
            self.ovs("ovs-vsctl", "--timeout=30", "set", "controller", name, "max_backoff=1000", "connection_mode=out-of-band")

    def request(self, method: str, path: str, body: bytes | None = None, token: str | None = None, check: bool = True) -> Any:
        """Send a request to the API from the switches' namespace."""
        script = (
            "import sys,json,urllib.request,urllib.error\n"
            "m,u,t=sys.argv[1:4]\n"
            "h={'Authorization':'Bearer '+t} if t else {}\n"
            "b=sys.stdin.buffer.read() or None\n"
            "try:\n  r=urllib.request.urlopen(urllib.request.Request(u,b,h,method=m),timeout=10)\n"
            "  print(r.status); sys.stdout.write(r.read().decode())\n"
            "except urllib.error.HTTPError as e: print(e.code); sys.stdout.write(e.read().decode())\n"
        )
        done = subprocess.run(
            ["ip", "netns", "exec", self.switch_ns, sys.executable, "-c", script, method, self.api + path, token or ""],
            input=body or b"",
            capture_output=True,
            timeout=30,
            check=False,
        )
        status, _, text = done.stdout.decode().partition("\n")
        if not status and not check:
            return None
        assert status, done.stderr.decode()
        return (int(status), json.loads(text) if text.startswith(("{", "[")) else text)

    def get(self, path: str, check: bool = True) -> Any:
        """Return the response to a GET that must succeed."""
        answer = self.request("GET", path, check=check)
        if answer is None:
            return None
        assert answer[0] == 200, answer
        return answer[1]

    def put_config(self, config: dict[str, Any]) -> Any:
        """PUT a configuration."""
        return self.request("PUT", "/v1/config", json.dumps(config).encode(), TOKEN)

    def service_state(self) -> str:
        """Return state/reason of the only service."""
        services = self.get("/v1/status")["services"]
        return f"{services[0]['state']}/{services[0]['reason']}" if services else ""

    def start_agent(self, name: str, *extra: str) -> subprocess.Popen[bytes]:
        """Start a fake agent that speaks the real protocol."""
        _, number, agent_id = AGENTS[name]
        script = Path(__file__).with_name("controller_agent.py")
        arguments = [
            agent_id.hex(),
            str(number),
            SITE_KEYS[number].hex(),
            HOSTS[name][1],
            MACS[name],
            name,
            str(self.folder / f"{name}.jsonl"),
        ]
        return self.spawn(name, sys.executable, str(script), *arguments, *extra, log=f"{name}.log")

    def heard(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return a fake agent's log lines of one kind."""
        path = self.folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["what"] == kind]

    def more_agents(self) -> None:
        """Add two agents to each site, beside its agent, and start them."""
        for name, (switch, address, mac, number) in MORE.items():
            first = name[:6]
            self._host(name, switch, address, mac, is_agent=True)
            _, site, agent_id = AGENTS[first]
            own = (agent_id[:14] + bytes((number, agent_id[15]))).hex()
            script, log = Path(__file__).with_name("controller_agent.py"), str(self.folder / f"{name}.jsonl")
            arguments = [own, str(site), SITE_KEYS[site].hex(), address, mac, name, log]
            self.spawn(name, sys.executable, str(script), *arguments, log=f"{name}.log")

    def namespace(self, name: str) -> str:
        """Create an additional namespace."""
        return self._namespace(name)


@contextmanager
def lab(forwarding: str = "Node", *, tso: bool = True) -> Iterator[Lab]:
    """Yield a lab and tear it down afterwards."""
    with ExitStack() as stack:
        yield Lab(stack, forwarding, tso=tso)
