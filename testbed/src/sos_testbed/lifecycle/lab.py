"""Life cycle of one lab: its folder, its parts, and the wait until all parts are connected.

The folder `${SOS_STATE:-/run/sos-lab}/<id>/` contains the whole state of a lab; later commands read it from there.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from sos_compile import Allocations
from sos_compile.certificates import new_ca
from sos_compile.model.world import Loaded

from sos_testbed.core import controllers, realise
from sos_testbed.core.model import LabError, Topology
from sos_testbed.core.realise import LabPlan, Programs
from sos_testbed.core.steps import Spawn, Step
from sos_testbed.core.topology import BUILDERS, PathOptions, builder
from sos_testbed.lifecycle import certificates, declare, endpoints, northbound, process
from sos_testbed.lifecycle.declare import Documents
from sos_testbed.lifecycle.runner import Report, Runner, lock, run, silent, uninterrupted, write_file
from sos_testbed.lifecycle.time_factor import limit_s, parse_factor

READY_TIMEOUT_S = 90.0  # limit for a lab to become ready: discovery takes a few seconds, the rest is slack for busy machines
PAYLOAD_BYTES = 100_000_000
_POLL_S = 0.2
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_REPOSITORY = Path(__file__).resolve().parents[4]
EXAMPLE = _REPOSITORY / "examples" / "01-two-sites"
BOTH_PATHS = EXAMPLE / "both-paths"  # applied after EXAMPLE: changes its service to use both paths


MORE_AGENTS = EXAMPLE / "more-agents"  # applied after EXAMPLE in a lab of topology pools: three agents at each site

TLS = EXAMPLE / "tls"  # applied after EXAMPLE: the controller requires TLS

REWRITE = EXAMPLE / "rewrite"  # applied after EXAMPLE: the switches of both sites rewrite addresses


ROUTED_WAN = _REPOSITORY / "examples" / "08-routed-wan"
"""Example of topology routed-wan."""

ONE_PATH = ROUTED_WAN / "one-path"  # applied after ROUTED_WAN: changes its service to use only the first path

PODS = ROUTED_WAN / "pods"  # applied after ROUTED_WAN: agents open their sockets inside the hosts, which are pods

PROACTIVE = _REPOSITORY / "examples" / "03-proactive"
"""Example with the sites of EXAMPLE and a service that is set up proactively."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A user's options. With `name=None` the lab has the topology's name, followed by a number if this name is in use."""

    topology: str = "figure8"
    path1: PathOptions | None = None
    path2: PathOptions | None = None
    examples: tuple[Path, ...] = ()
    """Files and folders; if empty, the example folder of the topology."""
    services: bool = True
    name: str | None = None
    datapath: str | None = None
    """Datapath of all switches, one of `declare.DATAPATHS`, instead of the sites' `spec.datapath.type`. None: the value of `SOS_DATAPATH`,
    and without that variable, as declared."""
    stays: bool = False
    """Keep the lab up until `down`. Any other lab belongs to the process that created it; if this process is killed, the next `up` takes
    the lab down."""

    def build(self) -> Topology:
        """Build the topology with these paths."""
        chosen = builder(self.topology)
        return chosen.build(self.path1 or chosen.path1, self.path2 or chosen.path2)

    def files(self) -> tuple[Path, ...]:
        """Folders of the custom resources."""
        chosen = builder(self.topology)
        folder = _REPOSITORY / "examples" / chosen.example
        return self.examples or ((folder, folder / chosen.variant) if chosen.variant else (folder,))

    def chosen_datapath(self, environment: Mapping[str, str]) -> str | None:
        """Datapath of all switches, or None for the declared one; LabError for an unknown name. Letter case does not matter."""
        wanted = self.datapath or environment.get("SOS_DATAPATH")
        if not wanted:
            return None
        if wanted.title() not in declare.DATAPATHS:
            raise LabError(f"no datapath {wanted!r}; there are {', '.join(declare.DATAPATHS)}")
        return wanted.title()


def state_root() -> Path:
    """Folder of all labs."""
    return Path(os.environ.get("SOS_STATE", "/run/sos-lab"))


def find_programs(environment: dict[str, str]) -> Programs:
    """Paths of the parts under test: `SOS_BIN_<NAME>`, or the output of scripts/setup.sh. Raise LabError if a part is missing."""
    target = environment.get("CARGO_TARGET_DIR")
    agent_target = Path(target) if target else _REPOSITORY / "agent-image" / "target"
    linkemu_target = Path(target) if target else _REPOSITORY / "testbed" / "linkemu" / "target"
    paths = {
        "controller": _REPOSITORY / ".venv" / "bin" / "sos-controller",
        "node": agent_target / "release" / "sos-node",
        "agent": agent_target / "release" / "sos-agent",
        "probe": agent_target / "release" / "sos-probe",
        "buffers": agent_target / "release" / "libsos_ovs_buffers.so",
        "linkemu": linkemu_target / "release" / "sos-linkemu",
    }
    found = {name: Path(environment.get(f"SOS_BIN_{name.upper()}", path)) for name, path in paths.items()}
    missing = [str(path) for path in found.values() if not os.access(path, os.X_OK)]
    if missing:
        raise LabError(f"not built: {', '.join(missing)} (scripts/setup.sh builds it)")
    return Programs(python=sys.executable, **{name: str(path) for name, path in found.items()})


class Lab:
    """A lab in its folder. Obtained from `up`, `find` or `every`."""

    def __init__(self, root: Path, report: Report = silent) -> None:
        self.root = root
        self.report = report
        self.runner = Runner(root, report)
        self._facts: dict[str, Any] = {}
        self._documents: Documents | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Contents of lab.json; LabError if the lab is incomplete."""
        if not self._facts:
            try:
                self._facts = json.loads((self.root / "lab.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                raise LabError(f"{self.root.name} is not a complete lab (./lab down --all removes it)") from None
        return self._facts

    @property
    def name(self) -> str:
        """The user's name for the lab, or the folder's name if the lab is incomplete."""
        try:
            return str(self.facts["name"])
        except LabError:
            return self.root.name

    @property
    def topology(self) -> Topology:
        """The network of this lab."""
        paths = [PathOptions(**raw) for raw in self.facts["paths"]]
        return builder(self.facts["topology"]).build(paths[0], paths[1])

    @property
    def plan(self) -> LabPlan:
        """Names, paths and programs of this lab."""
        return LabPlan(
            lab_id=self.root.name,
            root=PurePosixPath(self.root),
            programs=Programs(**self.facts["programs"]),
            controllers=tuple(self.facts.get("controllers", [controllers.DEFAULT])),
            rewriting=frozenset(self.facts.get("rewriting", [])),
            time_factor=parse_factor(os.environ),
        )

    @property
    def documents(self) -> Documents:
        """Documents of the latest declaration."""
        if self._documents is None:
            self._documents = self._compile(self.objects, self.facts["generation"])
        return self._documents

    @property
    def objects(self) -> tuple[Loaded, ...]:
        """Custom resources in force."""
        return tuple(Loaded(**raw) for raw in self.facts["objects"])

    def _compile(self, objects: tuple[Loaded, ...], generation: int) -> Documents:
        allocations = declare.parse_allocations(self.facts["allocations"])
        return declare.compile_lab(objects, self.topology, generation, allocations, self.facts.get("datapath"))

    def exec_argv(self, part: str, command: Iterable[str]) -> tuple[str, ...]:
        """Command line that runs a program in the namespace of a host, agent or switch."""
        known = [*self.topology.parts(), "ctl", "wan"]
        if part not in known:
            raise LabError(f"no {part!r} in this lab; there are {', '.join(known)}")
        return realise.inside(self.plan.netns(part), *command)

    def spawns(self) -> dict[str, Spawn]:
        """Every program of the lab by name, with its command line."""
        plan, topology = self.plan, self.topology
        steps: list[Step] = [
            *realise.build_emulator(topology, plan),
            *realise.build_switches(topology, plan),
            *realise.build_controllers(plan),
            *realise.build_agents(self._manned(self._declared()), plan),
            *realise.build_web(topology, plan),
        ]
        return {step.do.name: step.do for step in steps if isinstance(step.do, Spawn)}

    def start(self, name: str) -> None:
        """Start a program again after `kill`; no effect if it is running."""
        spawn = self.spawns()[name]
        if process.find(self.runner.pid_file(name)) is None:
            process.start(spawn, self.runner.pid_file(name))

    def kill(self, name: str) -> None:
        """Kill one program with SIGKILL."""
        process.kill(self.runner.pid_file(name))

    def is_abandoned(self) -> bool:
        """True if the process that owns this lab has ended."""
        try:
            holder = self.facts.get("holder")
        except LabError:
            return False  # the lab may be starting
        return holder is not None and not process.Pid(**holder).runs()

    def dead(self) -> list[str]:
        """Programs that should run but do not."""
        return [name for name in self.spawns() if process.find(self.runner.pid_file(name)) is None]

    def save(self, **changes: Any) -> None:
        """Update lab.json."""
        self._facts = {**self._facts, **changes}
        self._documents = None
        write_file(self.root / "lab.json", json.dumps(self._facts, indent=1) + "\n")

    def declare(self, objects: tuple[Loaded, ...]) -> Documents:
        """Compile objects, write the files of agents and nodes, and push the next generation to the controllers."""
        with lock(self.root / "lock"):
            before = self.documents
            documents = self._compile(objects, self.facts["generation"] + 1)
            self._refuse_to_hurry(documents)
            if set(documents.controllers) != set(before.controllers):
                raise LabError(f"a lab keeps the controllers it was brought up with: {', '.join(before.controllers)}")
            if documents.rewriting() != before.rewriting():
                raise LabError("what a lab's switches rewrite does not change while it is up: offloads are set when it is built")
            for path, text in declare.files(documents, self.plan.root).items():
                write_file(Path(path), text)
            token = (self.root / "token").read_text(encoding="ascii").strip()
            for document in documents.controllers.values():
                northbound.put_config(self.plan, document, token)
            self._remember(objects, documents)
            self._follow(before, documents)
        return documents

    def leaving(self) -> list[str]:
        """Return undeclared agents that still drain; delete the interfaces of the others, as Kubernetes deletes the namespace of a pod."""
        places = [place for place in self.topology.agents if place.key not in self._declared()]
        busy = [place.name for place in places if process.find(self.runner.pid_file(place.name)) is not None]
        for place in places:
            if place.name not in busy:
                run(realise.clear_agent(self.plan, place.name), what=f"agent port {place.name}")
        return busy

    def _declared(self) -> list[str]:
        """Keys of all declared agents; none in a lab that was interrupted while it was built."""
        return list(self.facts.get("agents", []))

    def _manned(self, keys: Iterable[str]) -> Topology:
        """The topology with only the agent places of these keys."""
        return replace(self.topology, agents=tuple(place for place in self.topology.agents if place.key in set(keys)))

    def _refuse_to_hurry(self, documents: Documents) -> None:
        wanted = {place.name for place in self._manned(documents.agents).agents}
        if busy := wanted.intersection(self.leaving()):
            raise LabError(f"{', '.join(sorted(busy))} still drains the sessions of its previous declaration")

    def _follow(self, before: Documents, documents: Documents) -> None:
        """Start new agents, and drain agents that are no longer declared, as Kubernetes starts and terminates their pods."""
        new = self._manned(documents.agents.keys() - before.agents.keys())
        self.runner.perform(realise.build_agent_links(declare.agent_links(new, documents), self.plan))
        self.runner.perform(realise.build_agents(new, self.plan))
        for place in self._manned(before.agents.keys() - documents.agents.keys()).agents:
            process.ask(self.runner.pid_file(place.name))

    def _remember(self, objects: tuple[Loaded, ...], documents: Documents) -> None:
        self.save(
            objects=[asdict(loaded) for loaded in objects],
            allocations=declare.encode_allocations(documents.allocations),
            generation=documents.generation,
            agents=sorted(documents.agents),
            controllers=list(documents.controllers),
            rewriting=sorted(documents.rewriting()),
        )
        self.save(reach=endpoints.describe(self.topology, self.plan, documents))

    def down(self) -> None:
        """Undo all steps; raise LabError with the steps that could not be undone."""
        with lock(self.root / "lock"), uninterrupted():
            problems = self.runner.undo_all()
        if problems:
            raise LabError(f"lab {self.root.name}: " + "; ".join(problems))


def every() -> list[Lab]:
    """All labs of this machine, complete or not."""
    root = state_root()
    return [Lab(path) for path in sorted(root.iterdir()) if path.is_dir()] if root.is_dir() else []


def find(name: str | None) -> Lab:
    """Find the lab with this name or id; without a name, the only lab. Otherwise raise LabError with the existing labs."""
    labs = every()
    names = ", ".join(sorted(lab.name for lab in labs)) or "none (./lab up)"
    chosen = [lab for lab in labs if name is None or name in {lab.name, lab.root.name}]
    if len(chosen) != 1:
        raise LabError(f"{'which lab' if name is None else f'no lab {name!r}'}? up: {names}" + (" (--lab NAME)" if chosen else ""))
    return chosen[0]


def sweep(report: Report = silent) -> None:
    """Take down abandoned labs. Report labs that could not be removed completely; `down` removes the rest."""
    for lab in every():
        if lab.is_abandoned():
            report(f"taking down lab {lab.name} ({lab.root.name}): its owner process was killed")
            try:
                lab.down()
            except LabError as error:
                report(str(error))


def up(options: Options, report: Report = silent) -> Lab:
    """Build a lab and wait until it works. An interruption undoes all steps; after SIGKILL, the next `up` undoes them."""
    if os.geteuid() != 0:
        raise LabError("a lab needs root: it makes network namespaces")
    topology = options.build()
    objects = declare.load(options.files(), services=options.services)
    datapath = options.chosen_datapath(os.environ)
    documents = declare.compile_lab(objects, topology, 1, Allocations(), datapath)
    programs = find_programs(dict(os.environ))
    sweep(report)
    lab = Lab(_new_folder(), report)
    try:
        with lock(lab.root / "lock"):
            with lock(state_root().with_suffix(".names")):  # two labs that start simultaneously must not choose the same name
                lab.save(**_first_facts(options, topology, programs), datapath=datapath)
            lab._remember(objects, documents)
            _build(lab, topology, documents)
            wait_ready(lab, documents)
            if options.stays:
                lab.save(holder=None)
    except BaseException:
        with uninterrupted():
            report("taking the lab down again")
            lab.runner.undo_all()
        raise
    return lab


def _first_facts(options: Options, topology: Topology, programs: Programs) -> dict[str, Any]:
    chosen = BUILDERS[options.topology]
    names = {lab.name for lab in every()}
    if options.name is not None and options.name in names:
        raise LabError(f"lab {options.name!r} is up already (./lab down {options.name})")
    numbered = (f"{options.topology}-{number}" for number in range(2, len(names) + 3))
    name = options.name or next(name for name in (options.topology, *numbered) if name not in names)
    paths = [asdict(options.path1 or chosen.path1), asdict(options.path2 or chosen.path2)]
    return {
        "name": name,
        "holder": asdict(process.this()),
        "topology": topology.name,
        "paths": paths,
        "programs": asdict(programs),
        "examples": [str(path) for path in options.files()],
    }


def _build(lab: Lab, topology: Topology, documents: Documents) -> None:
    plan = lab.plan
    secret = {**declare.key_files(documents, secrets.token_bytes(32), plan.root), str(plan.root / "token"): secrets.token_hex(32) + "\n"}
    lab.runner.perform(realise.build_files(secret, mode=0o600))
    lab.runner.perform(realise.build_files(declare.files(documents, plan.root)))
    now = datetime.now(UTC)
    for part, files in certificates.folders(documents, new_ca(now), now).items():
        certificates.replace(lab.root, part, files)
    lab.runner.perform(realise.build_network(topology, plan))
    lab.runner.perform(realise.build_emulator(topology, plan))
    lab.runner.perform(realise.build_controllers(plan))
    lab.runner.perform(realise.build_switches(topology, plan))
    lab.runner.perform(realise.build_hosts(topology, plan))
    lab.runner.perform(realise.build_agent_links(declare.agent_links(topology, documents), plan))
    lab.runner.perform(realise.build_agents(lab._manned(documents.agents), plan))
    lab.runner.perform(realise.build_web(topology, plan))
    make_payload(lab.root / "www" / "100M", PAYLOAD_BYTES)


def make_payload(path: Path, size: int) -> None:
    """Write a file of `size` random bytes, which no part of the path can compress."""
    chunk = 1 << 20
    with path.open("wb") as file:
        for offset in range(0, size, chunk):
            file.write(os.urandom(min(chunk, size - offset)))


def missing(lab: Lab, documents: Documents) -> list[str]:
    """Unmet conditions of readiness, in words; empty if ready. Raise LabError if a controller does not answer."""
    waits = [wait for name in documents.controllers for wait in _missing(lab, documents, name)]
    if not documents.controllers:
        places = [place for place in lab.topology.agents if place.key in documents.agents]
        waits = [wait for place in places for wait in _missing_at(lab, place.name, documents.agents[place.key])]
    return waits


def _missing_at(lab: Lab, agent: str, document: dict[str, Any]) -> list[str]:
    """Unmet conditions at an agent without a controller."""
    status = northbound.agent_status(lab.plan, agent, document)
    if status["generation"] != document["generation"]:
        return [f"configuration {document['generation']} at {agent}"]
    return [f"service {service['id']} at {agent}" for service in status["services"] if not service["ready"]]


def _missing(lab: Lab, documents: Documents, controller: str) -> list[str]:
    status = northbound.get(lab.plan, "/v1/status", controller)
    switches = documents.switches(controller)
    waits = []
    if status["config"].get("generation") != documents.generation:
        waits.append(f"configuration {documents.generation}")
    connected = {datapath["dpid"] for datapath in status["datapaths"] if datapath["connected"]}
    if absent := len(set(switches.values()) - connected):
        waits.append(f"{absent} datapaths")
    registered = {agent["id"] for agent in status["agents"] if agent["willing"]}
    if absent := len(documents.agent_ids(controller) - registered):
        waits.append(f"{absent} agents")
    wires = sum(wire.a.switch in switches and wire.b.switch in switches for wire in lab.topology.links())
    if status["links"] < wires:
        waits.append(f"{wires - status['links']} links")
    waits += [f"service {service['id']} ({service['reason']})" for service in status["services"] if service["state"] != "Programmed"]
    return waits


def wait_ready(lab: Lab, documents: Documents, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Wait until datapaths, links, agents and services are up; raise LabError that names unmet conditions or an ended program."""
    deadline = time.monotonic() + limit_s(timeout_s)
    told = ""
    while True:
        try:
            waits = missing(lab, documents)
        except LabError as error:
            waits = [str(error)]
        if not waits:
            return
        if dead := lab.dead():
            raise LabError(f"{dead[0]} has ended: {tail(lab, dead[0])}")
        if time.monotonic() > deadline:
            raise LabError(f"not ready after {limit_s(timeout_s):.0f} s: waiting for {', '.join(waits)}; logs in {lab.root}/log")
        if (line := f"waiting for {', '.join(waits)}") != told and not line.startswith("waiting for controller"):
            lab.report(told := line)
        time.sleep(_POLL_S)


def tail(lab: Lab, program: str, lines: int = 5) -> str:
    """Last part of a program's log, in one line."""
    try:
        text = (lab.root / "log" / f"{program}.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "no log"
    return " | ".join(text.strip().splitlines()[-lines:]) or "its log is empty"


def _new_folder() -> Path:
    root = state_root()
    root.mkdir(parents=True, exist_ok=True)
    while True:
        path = root / "".join(secrets.choice(_ALPHABET) for _ in range(6))
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
