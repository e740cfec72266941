"""Convert a topology and a lab's plan to ordered steps that build the lab. Pure, so its golden tests need no root.

Everything runs in network namespaces named `sos-<lab id>-<part>`. The machine's own namespace therefore contains nothing of a lab,
interface names inside need no random part, and two labs cannot conflict.

    sos-ID-ctl      management bridge `mgmt`, the controllers
    sos-ID-wan      the link emulator, two veth ends per shaped wire
    sos-ID-edge1 .. one per switch: its ovsdb-server, ovs-vswitchd, sos-node
    sos-ID-agent1   one per node of a site without switches: a router with an agent
    sos-ID-client   one per host: `eth0`, an address, cubic
    sos-ID-agent1   one per agent: the interface of its agent-config, the agent
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import PurePosixPath

from sos_compile.documents.agent_config import INTERFACE

from sos_testbed.core import controllers, web
from sos_testbed.core.model import AgentPlace, Host, LabError, Node, Router, Switch, Topology, Wire
from sos_testbed.core.steps import DeleteNamespace, MakeFolder, RemoveTree, Run, Spawn, Step, Stop, WriteFile

BRIDGE = "br-sos"
_FIRST_SWITCH_OCTET = 10
_OVS_TIMEOUT_S = 20
_HOST_OFPORT = 11  # port number of a switch's first host; uplinks have numbers from 1, tunnels from 100, agents from 200 (node-config)
LAN_PORT = "lan0"  # interface of a node without a bridge towards its host (examples/08-routed-wan)
_NODE_SYSCTLS = (
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv4.tcp_rmem", "4096 131072 67108864"),
    ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
)
_ETHERNET_MTU = 1500
_OVS_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Absolute paths of the parts under test, and of the Python that runs the testbed's own helpers."""

    python: str
    controller: str
    node: str
    agent: str
    linkemu: str
    probe: str = ""
    """Program that sends data for `kubectl sos diagnose`."""
    buffers: str = ""
    """Preloaded library that enlarges a switch's receive buffers, as in the image ovs (agent-image/ovs/buffers). Empty in older labs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """Parameters of this module besides the topology. `root` is the lab's state folder."""

    lab_id: str
    root: PurePosixPath
    programs: Programs
    controllers: tuple[str, ...] = (controllers.DEFAULT,)
    rewriting: frozenset[str] = frozenset()
    """Switches that rewrite addresses; these switches and their hosts run without segmentation offload."""
    time_factor: float = 1.0
    """Factor of the time limits of commands (`lifecycle.time_factor`)."""

    def netns(self, part: str) -> str:
        """The namespace of a part."""
        return f"sos-{self.lab_id}-{part}"

    def folder(self, part: str) -> PurePosixPath:
        """The state folder of a part."""
        return self.root / part

    def tls(self, part: str) -> str:
        """The TLS folder of a controller or switch."""
        return str(self.root / "tls" / part)

    def log(self, name: str) -> str:
        """The log file of a program."""
        return str(self.root / "log" / f"{name}.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLink:
    """Interface between a switch and its agent, from the agent-config; sos-node adds `host_name` to the bridge."""

    place: AgentPlace
    interface: str
    address: str
    mac: str
    mtu: int
    host_name: str


def inside(netns: str, *argv: str) -> tuple[str, ...]:
    """Command line that runs `argv` in a namespace. `ip netns exec` replaces itself by the program, so the pid of both is the same."""
    return ("ip", "netns", "exec", netns, *argv)


def build_network(topology: Topology, plan: LabPlan) -> list[Step]:
    """Steps of namespaces, management network and wires."""
    steps = [_folder(plan.root / "log")]
    for part in ("ctl", "wan", *topology.parts()):
        steps += _namespace(plan, part)
    steps += _management(topology, plan)
    for index, wire in enumerate(topology.wires):
        steps += _wire(plan, wire, index)
    for switch in topology.switches:
        steps += _underlay(plan, switch)
    return steps


def build_emulator(topology: Topology, plan: LabPlan) -> list[Step]:
    """Steps of the emulator, one process for all shaped wires; none without shaped wires."""
    if not topology.shaped():
        return []
    argv = [plan.programs.linkemu, "--control", str(control_socket(plan))]
    if any(end.switch in plan.rewriting for wire in topology.shaped() for end in (wire.a, wire.b)):
        argv.append("--no-coalesce")
    for wire in topology.shaped():
        argv += ["--link", _link_argument(topology, wire)]
    return [_spawn(plan, "linkemu", "wan", tuple(argv), "link emulator")]


def control_socket(plan: LabPlan) -> PurePosixPath:
    """Control socket of the emulator."""
    return plan.root / "linkemu.sock"


def build_switches(topology: Topology, plan: LabPlan) -> list[Step]:
    """Steps of switches: a database, a switch daemon and a `sos-node` per switch."""
    steps: list[Step] = []
    for switch in topology.switches:
        steps += _switch(plan, switch, tso=switch.name not in plan.rewriting)
    return steps


def build_hosts(topology: Topology, plan: LabPlan) -> list[Step]:
    """Steps of hosts and nodes: addresses and the congestion control of a default Linux host; no checksum offload for hosts at switches
    that rewrite addresses."""
    steps: list[Step] = []
    for index, host in enumerate(topology.hosts):
        port_no = None if host.switch in {node.name for node in topology.nodes} else _HOST_OFPORT + index
        steps += _host(plan, host, port_no)
        if host.switch in plan.rewriting:
            # in a cluster, sos-node disables the offload of ovs-cni ports
            steps.append(_run(f"host {host.name}", _offload(plan, host.name, "eth0", "off"), _offload(plan, host.name, "eth0", "on")))
    for node in topology.nodes:
        steps += _node(plan, node)
    for router in topology.routers:
        steps += _router(plan, router)
    return steps


def build_agent_links(links: tuple[AgentLink, ...], plan: LabPlan) -> list[Step]:
    """Steps of the veth pair between each agent and its switch."""
    steps: list[Step] = []
    for link in links:
        steps += _agent_link(plan, link)
    return steps


def build_controllers(plan: LabPlan) -> list[Step]:
    """Steps of the controllers; each reads its first configuration from a file."""
    steps: list[Step] = []
    base = plan.root
    for name, address in controllers.addresses(plan.controllers).items():
        program = controllers.program(name)
        argv = (
            plan.programs.controller,
            *("--config", str(base / controllers.config_file(name)), "--keys", str(base / "keys" / "controller")),
            *("--token-file", str(base / "token"), "--state", str(base / program)),
            *("--openflow-listen", f"{address}:{controllers.OPENFLOW_PORT}", "--openflow-tls", plan.tls(program)),
            *("--api-listen", f"{address}:{controllers.API_PORT}"),
        )
        steps += [_folder(base / program), _spawn(plan, program, "ctl", argv, program)]
    return steps


def build_agents(topology: Topology, plan: LabPlan) -> list[Step]:
    """Steps of the agents, each in its own namespace."""
    steps: list[Step] = []
    nodes = {node.name for node in topology.nodes}
    for place in topology.agents:
        steps.append(_folder(plan.folder(place.name)))
        config = plan.root / "agent-config"
        if place.key != place.switch:  # the file with the node's name belongs to the default pool
            config /= f"{place.key}.json"
        argv: tuple[str, ...] = (
            plan.programs.agent,
            *("--config", str(config), "--node", place.switch, "--keys", str(plan.root / "keys" / place.switch)),
            *("--state", str(plan.folder(place.name)), "--attach", "none"),
        )
        pods = [host.name for host in topology.hosts if place.switch in nodes and host.switch == place.switch]
        if pods:
            steps += _pods(plan, place.name, pods)
            argv += ("--netns", str(_pod_folder(plan, place.name)))
        steps.append(_spawn(plan, place.name, place.name, argv, f"agent {place.name}"))
    return steps


def switch_address(topology: Topology, switch: str) -> str:
    """A switch's address on the management network."""
    names = [candidate.name for candidate in topology.switches]
    if switch not in names:
        raise LabError(f"no switch {switch!r}; there are {', '.join(names)}")
    return f"172.31.255.{_FIRST_SWITCH_OCTET + names.index(switch)}"


def ovs(plan: LabPlan, switch: str, tool: str, *argv: str) -> tuple[str, ...]:
    """Command line of an OVS tool for one switch, in the switch's namespace, so that the tool cannot outlive the lab."""
    folder = plan.folder(switch)
    database = (f"--db=unix:{folder}/db.sock",) if tool == "ovs-vsctl" else ()
    limit = f"--timeout={round(_OVS_TIMEOUT_S * plan.time_factor)}"
    return inside(plan.netns(switch), "env", f"OVS_RUNDIR={folder}", tool, limit, *database, *argv)


def build_web(topology: Topology, plan: LabPlan) -> list[Step]:
    """Steps of a web server on every host; each serves the lab's `www` folder."""
    steps = [_folder(plan.folder("www"))]
    servers: list[Host | Router] = [*topology.hosts, *topology.routers]
    for host in servers:
        folder = plan.folder(host.name)
        conf = folder / "nginx.conf"
        steps += [_folder(folder), _file(conf, web.build_config(folder, plan.folder("www")))]
        # -e: nginx opens its compiled-in error log before it reads the configuration
        argv = ("nginx", "-e", "stderr", "-c", str(conf), "-p", str(folder))
        steps.append(_spawn(plan, f"{host.name}-web", host.name, argv, f"web server {host.name}"))
    return steps


def build_files(contents: dict[str, str], mode: int = 0o644) -> list[Step]:
    """Steps that write configuration files atomically."""
    return [_file(PurePosixPath(path), text, mode) for path, text in sorted(contents.items())]


def _folder(path: PurePosixPath) -> Step:
    return Step(title=f"folder {path.name}", do=MakeFolder(path=str(path)), undo=RemoveTree(path=str(path)))


def _file(path: PurePosixPath, text: str, mode: int = 0o644) -> Step:
    return Step(title="configuration", do=WriteFile(path=str(path), text=text, mode=mode), undo=RemoveTree(path=str(path)))


def _spawn(plan: LabPlan, name: str, part: str, argv: tuple[str, ...], title: str) -> Step:
    do = Spawn(name=name, argv=inside(plan.netns(part), *argv), log=plan.log(name))
    return Step(title=title, do=do, undo=Stop(name=name))


def _run(title: str, do: tuple[str, ...], undo: tuple[str, ...]) -> Step:
    return Step(title=title, do=Run(argv=do), undo=Run(argv=undo))


def _namespace(plan: LabPlan, part: str) -> Iterator[Step]:
    name = plan.netns(part)
    title = f"namespace {part}"
    yield Step(title=title, do=Run(argv=("ip", "netns", "add", name)), undo=DeleteNamespace(name=name))
    yield _run(title, ("ip", "-n", name, "link", "set", "lo", "up"), ("ip", "-n", name, "link", "set", "lo", "down"))


def _veth(plan: LabPlan, a: tuple[str, str], b: tuple[str, str], title: str) -> Iterator[Step]:
    """Steps of a veth pair between (part, interface) `a` and `b`, with both ends up, without IPv6."""
    (part_a, name_a), (part_b, name_b) = a, b
    add = ("ip", "link", "add", "name", name_a, "netns", plan.netns(part_a), "type", "veth")
    yield _run(
        title,
        (*add, "peer", "name", name_b, "netns", plan.netns(part_b)),
        ("ip", "-n", plan.netns(part_a), "link", "del", name_a),
    )
    for part, name in (a, b):
        yield _run(
            title,
            ("ip", "-n", plan.netns(part), "link", "set", name, "addrgenmode", "none", "up"),
            ("ip", "-n", plan.netns(part), "link", "set", name, "down"),
        )


def _management(topology: Topology, plan: LabPlan) -> Iterator[Step]:
    ctl = plan.netns("ctl")
    title = "management network"
    yield _run(title, ("ip", "-n", ctl, "link", "add", "mgmt", "type", "bridge"), ("ip", "-n", ctl, "link", "del", "mgmt"))
    for address in controllers.addresses(plan.controllers).values():
        yield from _address(ctl, "mgmt", f"{address}/24", title)
    yield _run(title, ("ip", "-n", ctl, "link", "set", "mgmt", "up"), ("ip", "-n", ctl, "link", "set", "mgmt", "down"))
    for switch in topology.switches:
        yield from _veth(plan, ("ctl", switch.name), (switch.name, "mgmt0"), title)
        yield _run(
            title,
            ("ip", "-n", ctl, "link", "set", switch.name, "master", "mgmt"),
            ("ip", "-n", ctl, "link", "set", switch.name, "nomaster"),
        )
        yield from _address(plan.netns(switch.name), "mgmt0", f"{switch_address(topology, switch.name)}/24", title)


def _address(netns: str, interface: str, address: str, title: str) -> Iterator[Step]:
    yield _run(
        title,
        ("ip", "-n", netns, "address", "replace", address, "dev", interface),
        ("ip", "-n", netns, "address", "del", address, "dev", interface),
    )


def _wire(plan: LabPlan, wire: Wire, index: int) -> Iterator[Step]:
    a, b = (wire.a.switch, wire.a.port), (wire.b.switch, wire.b.port)
    if wire.shape is None:
        yield from _veth(plan, a, b, f"wire {wire.name}")
        return
    near, far = emulator_ends(index)
    yield from _veth(plan, a, ("wan", near), f"wire {wire.name}")
    yield from _veth(plan, ("wan", far), b, f"wire {wire.name}")


def emulator_ends(index: int) -> tuple[str, str]:
    """The two emulator interfaces of wire number `index`."""
    return f"w{index}a", f"w{index}b"


def _link_argument(topology: Topology, wire: Wire) -> str:
    shape = wire.shape
    if shape is None:
        raise LabError(f"wire {wire.name} is not shaped")
    near, far = emulator_ends(topology.wires.index(wire))
    character = f"rate={shape.rate_bps}bit,delay={shape.rtt_us * 500}ns,loss={shape.loss:.9f},queue={shape.queue_bytes}"
    return f"A={near},B={far},name={wire.name},{character}"


def _switch(plan: LabPlan, switch: Switch, *, tso: bool) -> Iterator[Step]:
    folder, name = plan.folder(switch.name), switch.name
    title = f"switch {name}"
    env = ("env", f"OVS_RUNDIR={folder}", f"OVS_DBDIR={folder}", f"OVS_LOGDIR={folder}")
    yield _folder(folder)
    yield _run(title, ("ovsdb-tool", "create", f"{folder}/conf.db", _OVS_SCHEMA), ("rm", "-f", f"{folder}/conf.db"))
    database = (
        *env,
        "ovsdb-server",
        f"{folder}/conf.db",
        f"--remote=punix:{folder}/db.sock",
        f"--pidfile={folder}/ovsdb-server.pid",
        "--no-chdir",
    )
    yield _spawn(plan, f"{name}-ovsdb", name, database, title)
    # ovs-vswitchd reads the TSO setting only at start
    init = ("--retry", "--no-wait", "--", "init", "--", "set", "Open_vSwitch", ".", f"other_config:userspace-tso-enable={str(tso).lower()}")
    yield _run(title, ovs(plan, name, "ovs-vsctl", *init), ("rm", "-f", f"{folder}/conf.db"))
    daemon = (
        *env,
        f"LD_PRELOAD={plan.programs.buffers}",
        "ovs-vswitchd",
        f"unix:{folder}/db.sock",
        f"--pidfile={folder}/ovs-vswitchd.pid",
        "--no-chdir",
    )
    yield _spawn(plan, f"{name}-ovs", name, daemon, title)
    node = (
        plan.programs.node,
        *("--config", str(plan.root / "node-config"), "--node", name, "--state", f"{folder}/node"),
        *("--ovs-rundir", str(folder), "--status-file", f"{folder}/node-status.json", "--openflow-tls", plan.tls(name)),
    )
    yield _folder(folder / "node")
    yield _spawn(plan, f"{name}-node", name, node, f"sos-node {name}")


def _underlay(plan: LabPlan, switch: Switch) -> Iterator[Step]:
    """Steps of the interface that a switch's tunnels use. Its kernel segments tunnelled packets, because the emulator cannot read
    super-frames inside a tunnel (testbed/linkemu)."""
    if switch.underlay is None:
        return
    port, address = switch.underlay
    netns, title = plan.netns(switch.name), f"underlay {switch.name}"
    yield from _address(netns, port, str(address), title)
    for feature in ("tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"):
        argv = inside(netns, "ethtool", "-K", port, feature)
        yield _run(title, (*argv, "off"), (*argv, "on"))


def _node(plan: LabPlan, node: Node) -> Iterator[Step]:
    """Steps of a gateway without a bridge, as docs/concepts/pods.md requires: forwarding, routes, and large socket buffers for streams."""
    netns, title = plan.netns(node.name), f"node {node.name}"
    for name, value in _NODE_SYSCTLS:
        yield _run(title, inside(netns, "sysctl", "-qw", f"{name}={value}"), inside(netns, "true"))
    for port, address in ((LAN_PORT, node.lan), *node.wan):
        yield from _address(netns, port, str(address), title)
    for prefix, gateway in node.routes:
        route = (str(prefix), "via", str(gateway))
        yield _run(title, ("ip", "-n", netns, "route", "add", *route), ("ip", "-n", netns, "route", "del", *route))


def _host(plan: LabPlan, host: Host, port_no: int | None) -> Iterator[Step]:
    """Steps of a host at a switch, or at a node without switch ports (`port_no` None)."""
    netns, title = plan.netns(host.name), f"host {host.name}"
    yield from _veth(plan, (host.name, "eth0"), (host.switch, host.name if port_no is not None else LAN_PORT), title)
    if host.mtu is not None:
        mtu = ("ip", "-n", netns, "link", "set", "eth0", "mtu")
        yield _run(title, (*mtu, str(host.mtu)), (*mtu, str(_ETHERNET_MTU)))
    yield from _address(netns, "eth0", str(host.address), title)
    yield _ordinary(netns, "eth0", host.address, title)
    if host.gateway is not None:
        route = ("default", "via", str(host.gateway))
        yield _run(title, ("ip", "-n", netns, "route", "add", *route, "congctl", "cubic"), ("ip", "-n", netns, "route", "del", *route))
    if port_no is not None:
        yield _port(plan, host.switch, host.name, port_no, title)


def _ordinary(netns: str, interface: str, address: IPv4Interface, title: str) -> Step:
    """Connected route of an address, with the default congestion control of Linux."""
    route = ("ip", "-n", netns, "route", "change", str(address.network), "dev", interface, "proto", "kernel", "scope", "link")
    source = ("src", str(address.ip))
    return _run(title, (*route, *source, "congctl", "cubic"), (*route, *source))


def _pod_folder(plan: LabPlan, agent: str) -> PurePosixPath:
    return plan.folder(agent) / "netns"


def _pods(plan: LabPlan, agent: str, hosts: list[str]) -> Iterator[Step]:
    """Steps of the folder in which an agent finds the network namespaces of its node's hosts, which are the pods of a site with intake
    Pods. The machine's own folder has the hosts of other labs, too."""
    folder, title = _pod_folder(plan, agent), f"pods of {agent}"
    yield _folder(folder)
    for host in hosts:
        name = plan.netns(host)
        yield _run(title, ("ln", "-sfn", f"/run/netns/{name}", f"{folder}/{name}"), ("rm", "-f", f"{folder}/{name}"))


def _router(plan: LabPlan, router: Router) -> Iterator[Step]:
    netns, title = plan.netns(router.name), f"router {router.name}"
    yield from _address(netns, "lo", str(router.address), title)
    for port, address in router.legs:
        yield from _address(netns, port, str(address), title)
        yield _ordinary(netns, port, address, title)
        # the router must send complete checksums, because the emulator would forward partial checksums
        yield _run(title, _offload(plan, router.name, port, "off"), _offload(plan, router.name, port, "on"))


def _offload(plan: LabPlan, part: str, interface: str, state: str) -> tuple[str, ...]:
    return inside(plan.netns(part), "ethtool", "-K", interface, "tx", state)


def _port(plan: LabPlan, switch: str, interface: str, port_no: int, title: str) -> Step:
    wait = ("wait-until", "Bridge", BRIDGE, "--")
    add = ("--may-exist", "add-port", BRIDGE, interface, "--", "set", "Interface", interface, f"ofport_request={port_no}")
    return _run(
        title,
        ovs(plan, switch, "ovs-vsctl", *wait, *add),
        ovs(plan, switch, "ovs-vsctl", "--no-wait", "--if-exists", "del-port", BRIDGE, interface),
    )


def _agent_link(plan: LabPlan, link: AgentLink) -> Iterator[Step]:
    netns, title = plan.netns(link.place.name), f"agent port {link.place.name}"
    yield from _veth(plan, (link.place.name, link.interface), (link.place.switch, link.host_name), title)
    yield _run(
        title,
        ("ip", "-n", netns, "link", "set", link.interface, "address", link.mac, "mtu", str(link.mtu)),
        ("ip", "-n", netns, "link", "set", link.interface, "down"),
    )
    yield from _address(netns, link.interface, link.address, title)


def clear_agent(plan: LabPlan, name: str) -> tuple[str, ...]:
    """Command that deletes the interface of a departed agent, so that the switch detects the loss of the port."""
    find = f"ip link show dev {INTERFACE} >/dev/null 2>&1"
    return inside(plan.netns(name), "sh", "-c", f"! {find} || ip link del {INTERFACE}")
