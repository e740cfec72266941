"""Run programs in the network of one scenario, and end all started programs."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sos_testbed.core.model import LabError
from sos_testbed.core.realise import Programs
from sos_testbed.lifecycle import process
from sos_testbed.lifecycle.declare import Documents
from sos_testbed.lifecycle.lab import find_programs
from sos_testbed.lifecycle.runner import Runner, run, uninterrupted, write_file

from sos_harness import agents, network
from sos_harness.results import parse
from sos_harness.scenario import Scenario

STATE = Path("/run/sos-bench-wan")
TRANSFER_TOOL = Path(__file__).resolve().parent / "transfer_tool.py"
LOAD_CLIENT = Path(__file__).resolve().parent / "load_client.py"
START_S = 10.0
ARMED_S = 30.0
STOP_S = 5.0
_POLL_S = 0.05
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Say = Callable[[str], None]


class Site:
    """A running network."""

    def __init__(self, plan: network.Plan, programs: Programs, scenario: Scenario) -> None:
        self.plan = plan
        self.programs = programs
        self.scenario = scenario

    def command(self, part: str, *argv: str, timeout_s: float = START_S) -> str:
        """Run a short command in a part (a namespace of the network) and return its output. Raises LabError if the command fails."""
        return run(self.plan.inside(part, *argv), what=argv[0], timeout_s=timeout_s)

    @contextmanager
    def running(self, name: str, part: str, *argv: str) -> Iterator[int]:
        """Run a program during the block, with output to its log. Yields its pid; ends the program and all its children after the block."""
        Path(self.plan.log(name)).parent.mkdir(parents=True, exist_ok=True)
        with Path(self.plan.log(name)).open("ab") as log:
            started = subprocess.Popen(
                self.plan.inside(part, *argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield started.pid
        finally:
            stop(started)

    def begin(self, part: str, *argv: str) -> subprocess.Popen[str]:
        """Start a program; `finish` collects its output."""
        command = self.plan.inside(part, *argv)
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def transfer_tool(self, part: str, *arguments: str) -> tuple[str, ...]:
        """Command line of transfer_tool.py, for `running` and `begin`."""
        return (part, self.programs.python, str(TRANSFER_TOOL), *arguments)

    def load_client(self, part: str, *arguments: str) -> tuple[str, ...]:
        """Command line of load_client.py, for `running` and `begin`."""
        return (part, self.programs.python, str(LOAD_CLIENT), *arguments)

    def wait_listening(self, part: str, port: int, log: str) -> None:
        """Wait for a listening socket. Raises LabError with the end of the log on a timeout."""
        self.until(lambda: bool(self.command(part, "ss", "-Hltn", f"sport = :{port}").strip()), START_S, f"port {port} of {part}", log)

    def wait_armed(self) -> None:
        """Wait until the ingress agent (part `near`) has streams and accepts connections."""
        self.until(lambda: (parse.metric(self.metrics(), "sos_agent_armed_regions") or 0) >= 1, ARMED_S, "agents", "near")

    def kind(self) -> str:
        """Transport of the ingress agent's streams; empty without streams, or if their transports differ."""
        page = self.metrics()
        streams, encrypted, quic = (parse.metric(page, f"sos_agent_streams{which}") or 0 for which in ("", "_encrypted", "_quic"))
        kinds = {(0, 0): "plain", (streams, 0): "encrypted", (streams, streams): "quic"}
        return kinds.get((encrypted, quic), "") if streams else ""

    def metrics(self) -> str:
        """Metrics page of the ingress agent; empty while the agent does not answer."""
        with contextlib.suppress(LabError):
            return self.command("near", "curl", "-s", f"http://127.0.0.1:{agents.METRICS_PORT}/metrics")
        return ""

    def until(self, holds: Callable[[], bool], within_s: float, what: str, log: str) -> None:
        """Wait until `holds` is true. Raises LabError with `what` and the end of a log on a timeout."""
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline:
                raise LabError(f"waited {within_s:.0f} s for {what}: {self.tail(log)}")
            time.sleep(_POLL_S)

    def tail(self, log: str) -> str:
        """Last lines of a log, joined to one line."""
        path = Path(self.plan.log(log))
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return " | ".join(text.strip().splitlines()[-3:]) or "its log is empty"

    def retransmitted(self, part: str) -> int:
        """Segments that a part has retransmitted so far."""
        return parse.counter(self.command(part, "cat", "/proc/net/snmp"), "Tcp", "RetransSegs")

    def joined(self, part: str) -> int:
        """Number of additional MPTCP subflows that a part has joined so far."""
        return parse.counter(self.command(part, "cat", "/proc/net/netstat"), "MPTcpExt", "MPJoinSynAckRx")

    def accepted(self) -> float:
        """Connections that the ingress agent has accelerated so far."""
        return parse.metric(self.metrics(), "sos_agent_accepted_total") or 0

    def emulator_lost(self) -> int:
        """Packets that the link emulator has lost unintentionally; 0 without an emulator."""
        return parse.emulator_lost(self._emulator()) if self.scenario.emulated else 0

    @contextmanager
    def over(self, path: int | None) -> Iterator[Callable[[], None]]:
        """Route the first path's traffic over this path during the block. Yields a check that must be called before a figure counts: it
        raises LabError if another path carried more bytes than this path."""
        if path is None:
            yield lambda: None
            return
        before = parse.emulator_carried(self._emulator())

        def check() -> None:
            if strays := parse.strays(before, parse.emulator_carried(self._emulator()), f"wan{path}"):
                raise LabError(f"wan{path} should carry the traffic, but {', '.join(strays)} carried more bytes")

        self._lead_over(path)
        try:
            yield check
        finally:
            self._lead_over(0)

    def _lead_over(self, path: int) -> None:
        for router, argv in network.lead_over(path):
            self.command(router, *argv)

    def _emulator(self) -> str:
        """Read the link emulator's counters."""
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(START_S)
            try:
                asked.connect(str(self.plan.control))
                asked.sendall(b'{"op":"stats"}\n')
                with asked.makefile(encoding="utf-8") as answers:
                    return answers.readline()
            except OSError as error:
                raise LabError(f"the link emulator does not answer: {error}") from None

    def flush_tcp_metrics(self, *parts: str) -> None:
        """Flush the kernel's cached TCP metrics, so that a run does not start with values of another scheme."""
        for part in parts:
            self.command(part, "ip", "tcp_metrics", "flush")

    @contextmanager
    def congestion(self, part: str, own: str, name: str) -> Iterator[None]:
        """Set the congestion control of all connections that a host opens or accepts during the block."""
        self.command(part, "ip", "route", "change", *network.route(own, name).split())
        try:
            yield
        finally:
            self.command(part, "ip", "route", "change", *network.route(own, network.LINUX_CONGESTION).split())

    def buffers(self, part: str, buffers: tuple[str, str]) -> None:
        """Set tcp_rmem and tcp_wmem of a part."""
        for name, value in zip(("tcp_rmem", "tcp_wmem"), buffers, strict=True):
            self.command(part, "sysctl", "-q", "-w", f"net.ipv4.{name}={value}")


def cpu_s(pid: int) -> float:
    """CPU time so far of a process and its children (socat forks for each connection). Raises LabError if the process has ended."""
    ticks = parse.cpu_ticks(_of_process(pid, "stat"))
    for child in _of_process(pid, f"task/{pid}/children").split():
        with contextlib.suppress(LabError):  # the child has ended since the listing
            ticks += parse.cpu_ticks(_of_process(int(child), "stat"))
    return ticks * _TICK_S


def resident_kb(pid: int) -> int:
    """Resident memory of a process in kB. Raises LabError if the process has ended."""
    return parse.resident_kb(_of_process(pid, "status"))


def _of_process(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError:
        raise LabError(f"the process {pid} has ended") from None


def stop(program: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a program and its children: SIGTERM, then SIGKILL."""
    with uninterrupted():
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(STOP_S)
                return


def finish(program: subprocess.Popen[str], within_s: float) -> str:
    """Wait until a program ends by itself, and return its output. Raises LabError on a timeout."""
    try:
        return program.communicate(timeout=within_s)[0]
    except subprocess.TimeoutExpired:
        raise LabError(f"still running after {within_s:.0f} s: {program.args!r}") from None
    finally:
        if program.poll() is None:
            stop(program)


def first_line(program: subprocess.Popen[str], within_s: float) -> str:
    """Read the first line of a program that keeps running. Raises LabError on a timeout."""
    if program.stdout is None or not select.select([program.stdout], [], [], within_s)[0]:
        raise LabError(f"no output after {within_s:.0f} s: {program.args!r}")
    return program.stdout.readline()


@contextmanager
def up(scenario: Scenario, say: Say) -> Iterator[Site]:
    """Build the network of a scenario, and remove it completely after the block. Raises LabError if a step fails."""
    if os.geteuid() != 0:
        raise LabError("this benchmark needs root: it makes network namespaces")
    sweep(say)
    programs = find_programs(dict(os.environ))
    found = agents.documents(len(scenario.paths), scenario.resources)
    root = STATE / str(os.getpid())
    prefix = f"wan{os.getpid():x}"
    plan = network.Plan(prefix=prefix, root=PurePosixPath(root), linkemu=programs.linkemu, agents=agents.agents(found))
    runner = Runner(root)
    try:
        runner.perform(network.build(plan, scenario.paths, emulated=scenario.emulated))
        for path, text in _files(scenario, found, plan).items():
            write_file(Path(path), text, 0o600)
        site = Site(plan, programs, scenario)
        if scenario.emulated:
            site.until(Path(plan.control).exists, START_S, "the link emulator", "linkemu")
        yield site
    finally:
        with uninterrupted():
            for problem in runner.undo_all():
                say(problem)


def _files(scenario: Scenario, found: Documents, plan: network.Plan) -> dict[str, str]:
    files = agents.files(found, plan.root)
    if any(scheme.only_path is not None for scheme in scenario.schemes):
        files |= agents.files(agents.documents(1, scenario.resources), plan.alone)
    for policy in {scheme.policy for scheme in scenario.schemes if scheme.policy}:
        files |= agents.policy_files(policy, len(scenario.paths), scenario.resources, plan.root)
    return files


def sweep(say: Say) -> None:
    """Remove networks of killed benchmarks."""
    for folder in sorted(STATE.iterdir()) if STATE.is_dir() else []:
        if folder.name.isdigit() and process.read_pid(int(folder.name)) is None:
            say(f"taking down the network of benchmark {folder.name}, which was killed")
            for problem in Runner(folder).undo_all():
                say(problem)


def missing(*programs: str, congestion: str = "cubic") -> str:
    """Reason why this machine cannot run a peer that needs these programs; empty if nothing is missing."""
    if absent := [name for name in programs if shutil.which(name) is None]:
        return f"{', '.join(absent)}: not installed"
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    return "" if congestion in known else f"this kernel has no {congestion}"
