"""The commands of `./lab`: parse arguments, make one call, print lines."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from sos_testbed.core import realise
from sos_testbed.core.flows import parse_flows
from sos_testbed.core.model import LabError
from sos_testbed.core.topology import PathOptions, builder, parse_loss, parse_queue, parse_rate, parse_time_us
from sos_testbed.lifecycle import declare, faults, lab, status
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.lifecycle.runner import run

app = typer.Typer(
    name="lab",
    help="Hosts, switches, agents and emulated links in network namespaces of this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130  # exit status of a shell after SIGINT

LabOption = Annotated[str | None, typer.Option("--lab", help="Name of the lab, if several are up.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Fault(StrEnum):
    """Parts into which faults can be injected."""

    LINK = "link"
    SWITCH = "switch"
    AGENT = "agent"
    CONTROLLER = "controller"


class Network(StrEnum):
    """Topologies of labs."""

    FIGURE8 = "figure8"
    POOLS = "pools"
    ROUTED = "routed"
    ROUTED_WAN = "routed-wan"
    OVERLAY = "overlay"
    LINE = "line"
    GENI = "geni"
    BALANCE = "balance"


class Datapath(StrEnum):
    """Datapaths of Open vSwitch: in the kernel, in user space, or the kernel's where it has one."""

    SYSTEM = "system"
    NETDEV = "netdev"
    AUTO = "auto"


def say(text: str) -> None:
    """Print progress to standard error, so that standard output stays machine-readable."""
    print(text, file=sys.stderr, flush=True)


def _path(base: PathOptions, rate: str | None, rtt: str | None, loss: str | None, queue: str | None) -> PathOptions:
    changes: dict[str, Any] = {}
    if rate is not None:
        changes["rate_bps"] = parse_rate(rate)
    if rtt is not None:
        changes["rtt_us"] = parse_time_us(rtt)
    if loss is not None:
        changes["loss"] = parse_loss(loss)
    if queue is not None:
        changes["queue_bytes"] = parse_queue(queue)
    return replace(base, **changes)


@app.command()
def up(  # noqa: PLR0913, PLR0917 - one parameter per option
    topology: Annotated[Network, typer.Argument(help="The network.")] = Network.FIGURE8,
    rate: Annotated[str | None, typer.Option(help="Rate of the first path, and of the second unless given: 500mbit.")] = None,
    rtt: Annotated[str | None, typer.Option(help="Round trip of the paths: 59ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets lost in each direction: 1% or 0.01.")] = None,
    queue: Annotated[str | None, typer.Option(help="Queue of the long links: bdp or a number of bytes.")] = None,
    path2_rate: Annotated[str | None, typer.Option(help="Rate of the second path.")] = None,
    path2_rtt: Annotated[str | None, typer.Option(help="Round trip of the second path.")] = None,
    path2_loss: Annotated[str | None, typer.Option(help="Loss of the second path.")] = None,
    path2_queue: Annotated[str | None, typer.Option(help="Queue of the second path.")] = None,
    example: Annotated[list[Path] | None, typer.Option(help="Folder or file with custom resources; repeat for more.")] = None,
    no_service: Annotated[bool, typer.Option("--no-service", help="Leave the example's SosServices out.")] = False,
    name: Annotated[str | None, typer.Option("--lab", "--name", help="A name for the lab; the other commands take it as --lab.")] = None,
    datapath: Annotated[Datapath | None, typer.Option(help="Datapath of all switches instead of the declared one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Build a lab and wait until its agents and services are ready."""
    chosen = builder(topology.value)
    options = Options(
        topology=topology.value,
        path1=_path(chosen.path1, rate, rtt, loss, queue),
        path2=_path(chosen.path2, path2_rate or rate, path2_rtt or rtt, path2_loss or loss, path2_queue or queue),
        services=not no_service,
        name=name,
        datapath=None if datapath is None else datapath.value,
        stays=True,
    )
    built = lab.up(replace(options, examples=tuple(example)) if example else options, say)
    _print_status([built], as_json)


@app.command(name="exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    context: typer.Context,
    host: Annotated[str, typer.Argument(help="client, server, agent1, edge1...")],
    which: LabOption = None,
) -> None:
    """Run a command at a host: ./lab exec client -- curl -O http://10.0.0.139/100M."""
    named, command = split_command(context.args)
    if not command:
        raise LabError("nothing to run: ./lab exec HOST -- CMD...")
    argv = lab.find(named or which).exec_argv(host, command)
    os.execvp(argv[0], argv)  # noqa: S606 - the user's own command


def split_command(words: list[str]) -> tuple[str | None, list[str]]:
    """Split the words after a host into the lab that `--lab` names, which may follow the host, too, and the command."""
    named = None
    while words and words[0].startswith("--lab"):
        option, equals, value = words[0].partition("=")
        if option != "--lab" or not (equals or words[1:2]):
            break
        named, words = (value, words[1:]) if equals else (words[1], words[2:])
    return named, words[1:] if words[:1] == ["--"] else words


@app.command(name="status")
def show_status(which: LabOption = None, as_json: JsonOption = False) -> None:
    """Show running labs."""
    _print_status(lab.every() if which is None else [lab.find(which)], as_json)


def _print_status(labs: list[Lab], as_json: bool) -> None:
    found = [status.collect(each) for each in labs]
    if as_json:
        print(json.dumps({"labs": found}, indent=1))
    elif not found:
        print("no lab is up (./lab up)")
    for each in [] if as_json else found:
        print("\n".join(status.lines(each)))


@app.command()
def flows(switch: str, which: LabOption = None, as_json: JsonOption = False) -> None:
    """Show a switch's flow entries."""
    chosen = lab.find(which)
    entries = parse_flows(dump_flows(chosen, switch))
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    for entry in entries:
        head = f"table {entry.table} priority {entry.priority:5} cookie {entry.cookie:#018x} packets {entry.n_packets:8}"
        print(f"{head}  {entry.match or '*'} -> {entry.actions}")


def dump_flows(chosen: Lab, switch: str) -> str:
    """Flow entries of a lab's switch, as printed by ovs-ofctl."""
    realise.switch_address(chosen.topology, switch)
    target = f"unix:{chosen.plan.folder(switch)}/{realise.BRIDGE}.mgmt"
    return run(realise.ovs(chosen.plan, switch, "ovs-ofctl", "-O", "OpenFlow13", "dump-flows", target), what=f"flows of {switch}")


@app.command()
def fault(
    kind: Fault,
    name: Annotated[str, typer.Argument(help="edge1-core1, core1, agent1, controller...")] = "controller",
    mend: Annotated[bool, typer.Option("--up", help="Repair it instead.")] = False,
    silent: Annotated[bool, typer.Option("--silent", help="For links: drop all packets while the ports stay up.")] = False,
    which: LabOption = None,
) -> None:
    """Break a link, switch, agent or the controller, or repair it."""
    chosen = lab.find(which)
    if silent and kind is not Fault.LINK:
        raise LabError("--silent is for links")
    extra = {"silent": silent} if kind is Fault.LINK else {}
    faults.FAULTS[kind.value](chosen, name, up=mend, **extra)


@app.command()
def apply(paths: list[Path], which: LabOption = None) -> None:
    """Apply custom resources to a running lab, as kubectl apply would to a cluster."""
    chosen = lab.find(which)
    documents = chosen.declare(declare.merge(chosen.objects, declare.load(paths)))
    for warning in documents.warnings:
        say(f"warning: {warning}")
    lab.wait_ready(chosen, documents)


@app.command()
def delete(service: str, which: LabOption = None) -> None:
    """Delete a SosService (bulk or default/bulk) from a running lab."""
    chosen = lab.find(which)
    documents = chosen.declare(declare.without_service(chosen.objects, service))
    lab.wait_ready(chosen, documents)


@app.command()
def logs(part: Annotated[str, typer.Argument(help="controller, agent1, edge1-node, linkemu...")], which: LabOption = None) -> None:
    """Print a program's log."""
    folder = lab.find(which).root / "log"
    file = folder / f"{part}.log"
    if not file.is_file():
        raise LabError(f"no log {part!r}; there are {', '.join(sorted(log.stem for log in folder.glob('*.log')))}")
    sys.stdout.write(file.read_text(encoding="utf-8", errors="replace"))


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="Name of the lab, if several are up.")] = None,
    which: LabOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All labs of this machine, including interrupted labs.")] = False,
) -> None:
    """Take down a lab completely."""
    problems = []
    for each in lab.every() if everything else [lab.find(which or name)]:
        try:
            each.down()
        except LabError as error:
            problems.append(str(error))
    if problems:
        raise LabError("\n".join(problems))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.json and demo.png.")] = Path("out"),
    rate: Annotated[str, typer.Option(help="Rate of the links.")] = "500mbit",
) -> None:
    """Measure plain TCP and SOS on several paths and draw the result."""
    from sos_testbed.measurements import demo as show

    show.main(out, parse_rate(rate), say)


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="Folder for demo.json and demo.png.")] = Path("out/bench"),
    rate: Annotated[str, typer.Option(help="Rate of the links.")] = "1gbit",
) -> None:
    """Measure as the demo does, over more paths."""
    from sos_testbed.measurements import demo as show

    show.main(out, parse_rate(rate), say, show.BENCH_SCENARIOS)


@app.command(name="bench-balance", hidden=True)
def bench_balance(out: Annotated[Path, typer.Option(help="Folder for spread.json.")] = Path("out/bench")) -> None:
    """Measure how evenly downloads are spread over uplinks."""
    from sos_testbed.measurements import balance

    balance.main(out, say)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point: print errors in one line; clean up on Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        status = app(standalone_mode=False, prog_name="./lab")
        if isinstance(status, int) and status != 0:  # typer turns Ctrl-C inside a command into a status
            print("lab: interrupted" if status == INTERRUPTED else f"lab: status {status}", file=sys.stderr)
            sys.exit(status)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except Exception as error:
        if not hasattr(error, "show"):  # only click's usage errors can print themselves
            raise
        error.show()
        sys.exit(2)
