"""bench/harness and bench/wan: parsers, run log, figures and network, without measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_harness import agents, network, relays
from sos_harness.loop import Log
from sos_harness.relays import haproxy_config
from sos_harness.results import figures, parse, run_log
from sos_harness.results.figures import Outcome, Row
from sos_harness.results.parse import ParseError, Received
from sos_harness.scenario import Kind
from sos_harness.site import Site
from sos_harness.transfer import WAYS
from sos_testbed.core.steps import DeleteNamespace, Run, Spawn
from sos_wan import report
from sos_wan.cases import SCENARIOS, SCHEMES

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
SETTINGS = "0123456789ab, 20 s"
STEADY = Received(samples=tuple((second / 2, second * 50_000_000) for second in range(41)))
"""Samples of 20 s at 800 Mbit/s."""


class FakeSite(Site):
    """Site that records commands instead of running them."""

    def __init__(self, asked: list[tuple[str, ...]]) -> None:
        self.asked = asked

    def command(self, part: str, *argv: str, timeout_s: float = 0) -> str:
        self.asked.append((part, *argv))
        return ""


def unit(scheme: str, run: int = 1, scenario: str = "59ms") -> run_log.Unit:
    return next(each for each in run_log.units([BY_NAME[scenario]], [scheme], run) if each.run == run)


def row(scheme: str, mbps: float, run: int = 1, **more: float) -> Row:
    return replace(unit("plain").blank(scheme, SETTINGS), run=run, mbps_total=mbps, mbps_steady=mbps, **more)


@pytest.mark.parametrize(
    ("scenario", "mbps"),
    [("59ms", 941.5), ("164ms", 941.5), ("20ms-loss", 932.1), ("59ms-1mb", 941.5), ("200+200", 376.6), ("500+100", 564.9)],
)
def test_wire_limit_is_1448_of_1538_bytes_minus_loss(scenario: str, mbps: float) -> None:
    assert BY_NAME[scenario].wire_limit_mbps == pytest.approx(mbps, abs=0.05)


def test_queues_default_to_one_bandwidth_delay_product() -> None:
    assert BY_NAME["59ms"].paths[0].shape().queue_bytes == 59_000 * 1000 // 8
    assert BY_NAME["59ms-1mb"].paths[0].shape().queue_bytes == 1_000_000


def test_multipath_schemes_are_measured_on_several_paths_only() -> None:
    for scenario in SCENARIOS:
        names = {scheme.name for scheme in scenario.schemes}
        assert ("mptcp" in names) == (len(scenario.paths) > 1)
        assert ("iperf3-4" in names) == scenario.shared
        assert {"sos", "plain"} <= names
    assert set(WAYS) == set(Kind) - {Kind.SOCAT} == {scheme.kind for scheme in SCHEMES}


def test_both_tuned_hosts_use_bbr_and_buffers_of_64_mb() -> None:
    tuned = next(scheme for scheme in SCHEMES if scheme.name == "plain-bbr-64m")
    assert (tuned.congestion, tuned.both_hosts, tuned.large_buffers) == ("bbr", True, True)
    assert [limits.split()[-1] for limits in network.LARGE_BUFFERS] == [str(64 << 20)] * 2
    asked: list[tuple[str, ...]] = []
    with relays.plain(FakeSite(asked), tuned):
        assert asked == [("client", *["ip", "route", "change", "10.0.0.0/24", "dev", "eth0", "src", "10.0.0.11", "congctl", "bbr"])]
    assert asked[1][-1] == "cubic", "the client's congestion control is restored for the next scheme"


def test_the_readme_describes_every_scenario_and_scheme() -> None:
    readme = (Path(__file__).parents[3] / "bench" / "wan" / "README.md").read_text()
    labels = {label for scheme in SCHEMES for label in scheme.labels} | set(BY_NAME)
    assert [
        label
        for label in sorted(labels)
        if f"`{label}`" not in readme.replace("`iperf3-16`, `-32` (`-4`", "`iperf3-16` `iperf3-32` `iperf3-4`")
    ] == []


def test_bytes_are_interpolated_between_samples() -> None:
    samples = ((0.0, 0), (1.0, 100), (3.0, 500))
    assert [parse.bytes_at(samples, at) for at in (0, 0.5, 1, 2, 3, 9)] == [0, 50, 100, 300, 500, 500]


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 10**9)), min_size=1, max_size=30), st.floats(0, 200), st.floats(0, 200))
def test_interpolated_bytes_never_decrease(steps: list[tuple[float, int]], one: float, other: float) -> None:
    at, received, samples = 0.0, 0, [(0.0, 0)]
    for seconds, size in steps:
        at, received = at + seconds, received + size
        samples.append((at, received))
    early, late = sorted((one, other))
    assert 0 <= parse.bytes_at(samples, early) <= parse.bytes_at(samples, late) + 1e-6 * received <= received * 1.000002


def test_client_report_is_parsed_into_samples_and_error() -> None:
    text = json.dumps({"samples": [[0.0, 0], [0.5, 1000]], "error": "timed out"})
    assert parse.parse_fetch(text) == Received(samples=((0.0, 0), (0.5, 1000)), error="timed out", first_byte_s=0.5)
    with pytest.raises(ParseError, match="Traceback"):
        parse.parse_fetch("Traceback (most recent call last): ...")


def test_intervals_of_iperf3_are_summed() -> None:
    intervals = [{"sum": {"start": n / 2, "end": (n + 1) / 2, "bytes": 10 * (n + 1)}} for n in range(3)]
    assert parse.parse_iperf3(json.dumps({"intervals": intervals})).samples == ((0.0, 0), (0.5, 10), (1.0, 30), (1.5, 60))


def test_failed_iperf3_is_reported_with_its_error() -> None:
    refused = parse.parse_iperf3(json.dumps({"intervals": [], "error": "unable to connect to server"}))
    assert figures.failure(refused, 20) == "failed: unable to connect to server after 0.0 s"
    with pytest.raises(ParseError, match="iperf3 said"):
        parse.parse_iperf3("iperf3: parameter error")


GLOBUS = (
    "Source: ftp://10.0.0.139:2811/run/\nDest:   file:///dev/\n  nothing  ->  null\n\n"
    "    603717632 bytes       287.87 MB/sec avg       287.87 MB/sec inst\r"
    "   1182531584 bytes       281.93 MB/sec avg       275.99 MB/sec inst\r\nCancelling copy...\n"
)


def test_time_of_a_globus_report_follows_from_bytes_and_mean_rate() -> None:
    found = parse.parse_globus(GLOBUS)
    assert found.error == ""
    assert [received for _, received in found.samples] == [0, 603_717_632, 1_182_531_584]
    assert [at for at, _ in found.samples] == pytest.approx([0, 2, 4], abs=0.01)


def test_failed_globus_transfer_is_reported_with_its_error() -> None:
    assert parse.parse_globus("\nerror: globus_xio: Unable to connect\nglobus_xio: A system call failed\n").error.startswith(
        "error: globus_xio"
    )
    assert "nothing" in parse.parse_globus("nothing\n").error


def test_tcp_counters_and_cpu_time_are_parsed_from_proc() -> None:
    snmp = "Ip: Forwarding\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: 7 8 9\nUdp: InDatagrams\nUdp: 3\n"
    assert parse.counter(snmp, "Tcp", "RetransSegs") == 9
    stat = "42 (a (b) c) S 1 42 42 0 -1 0 0 0 0 0 120 34 0 0 20 0 3 0 99"
    assert parse.cpu_ticks(stat) == 154


def test_unintended_loss_of_the_emulator_is_counted_separately() -> None:
    dropped = {"queue": 100, "loss": 50, "down": 0, "memory": 1, "socket": 2, "unreadable": 0, "send": 4}
    way = {"rate_bps": 1, "stats": {"dropped": dropped}}
    assert parse.emulator_lost(json.dumps({"ok": True, "links": [{"name": "wan0", "a2b": way, "b2a": way}]})) == 14
    with pytest.raises(ParseError):
        parse.emulator_lost('{"ok":false}')


def test_row_appended_after_a_truncated_line_is_readable(tmp_path: Path) -> None:
    log = Log(tmp_path / "out" / "wan.jsonl", SETTINGS, fresh=False)
    assert log.rows() == []
    log.path.write_text(run_log.encode(row("plain", 1))[:-9])
    log.append(row("plain", 2))
    assert log.rows() == [row("plain", 2)]
    assert Log(log.path, SETTINGS, fresh=True).rows() == []


def test_metric_is_found_only_by_its_whole_name() -> None:
    page = "# TYPE x gauge\nsos_agent_reorder_bytes_total 7\nsos_agent_reorder_bytes 5\n"
    assert parse.metric(page, "sos_agent_reorder_bytes") == 5
    assert parse.metric(page, "sos_agent_reorder") is None
    assert parse.parse_peak('{"peak": 12.0}') == 12
    assert parse.parse_peak("") is None


def test_row_has_separate_rates_for_start_and_steady_state() -> None:
    slow, fast = [(float(n), n * 50_000_000) for n in range(9)], [(float(n), 400_000_000 + (n - 8) * 100_000_000) for n in range(9, 21)]
    outcome = Outcome(
        received=Received(samples=(*slow, *fast), first_byte_s=0.06),
        retransmitted=320,
        cpu_sender_s=0.4,
        cpu_receiver_s=0.8,
        reorder_peak_bytes=3e6,
        competitor=STEADY,
    )
    found = figures.row(unit("sos").blank("sos", SETTINGS), figures.found(outcome, 20))
    assert (found.status, found.mbps_total, found.mbps_first8, found.mbps_steady) == ("ok", 640, 400, 800)
    assert (found.cpu_sender_s_per_gb, found.cpu_receiver_s_per_gb, found.cpu_s_per_gb) == (0.25, 0.5, 0.75)
    assert (found.retransmits_per_gb, found.reorder_peak_mb, found.competitor_mbps_total, found.first_byte_s) == (200, 3, 800, 0.06)
    assert found.wire_limit_mbps == 941.5


def test_transfer_that_ends_early_is_a_failed_run() -> None:
    short = Received(samples=((0.0, 0), (11.0, 10**9)), error="connection reset")
    found = figures.row(unit("plain").blank("plain", SETTINGS), figures.found(Outcome(received=short), 20))
    assert found.status == "failed: connection reset after 11.0 s"
    assert found.mbps_total is None
    assert figures.failure(Received(samples=((0.0, 0), (20.0, 0))), 20) != ""


def test_summary_has_median_minimum_and_maximum() -> None:
    runs = [row("plain", value, run) for run, value in enumerate((300.0, 100.0, 200.0, 900.0, 250.0), 1)]
    found = figures.summaries([*runs, replace(runs[0], run=6, status="failed: x", mbps_total=None)])[0]
    assert found.figures["mbps_total"] == figures.Figure(median=250, least=100, most=900, values=(300, 100, 200, 900, 250))
    assert (found.runs, found.runs_failed, found.status) == (5, 1, "ok")
    assert found.encode()["mbps_total"] == {"median": 250, "least": 100, "most": 900}
    assert "cpu_s_per_gb" not in found.encode()


def test_failed_connections_and_failed_runs_are_counted_separately() -> None:
    run = replace(row("plain", 100, 1), connections=3, failed=2)
    found = figures.summaries([run, replace(run, run=2, status="failed: x", failed=None)])
    said = found[0].encode()
    assert (said["runs"], said["runs_failed"], said["failed"]) == (1, 1, {"median": 2, "least": 2, "most": 2})
    assert any("1 (+1 failed)" in line for line in report.table(found))


def test_a_missing_peer_is_reported_as_not_available() -> None:
    absent = replace(unit("haproxy").blank("haproxy", SETTINGS), status="not available: haproxy is not installed")
    found = figures.summaries([row("sos", 900), absent])
    assert (found[1].runs, found[1].runs_failed, found[1].figures) == (0, 0, {})
    lines = report.table(found)
    assert any("haproxy: not available: haproxy is not installed" in line for line in lines)
    assert any(line.strip() == "sos, with start-up: 95.6% of the wire" for line in lines)


def test_report_compares_sos_with_the_fastest_other_scheme() -> None:
    found = figures.summaries([row("sos first", 800), row("sos", 900), row("plain", 300), row("iperf3-16", 600)])
    assert any("sos, with start-up: 95.6% of the wire, 1.500 x iperf3-16" in line for line in report.table(found))


def test_only_failed_and_unavailable_measurements_are_repeated() -> None:
    wanted = run_log.units([BY_NAME["59ms"]], ["sos", "plain", "haproxy"], 2)
    assert [(each.run, each.scheme.name) for each in wanted] == [
        *((1, "sos"), (1, "plain"), (1, "haproxy")),
        *((2, "plain"), (2, "haproxy"), (2, "sos")),
    ]
    rows = [
        *(row(label, 900) for label in ("sos first", "sos", "plain")),
        replace(row("haproxy", 1), status="not available: x", mbps_total=None),
        replace(row("plain", 1, 2), status="failed: x"),
        row("sos first", 900, 2),
    ]
    assert [(each.run, each.scheme.name) for each in run_log.left(wanted, rows)] == [
        (1, "haproxy"),
        *((2, "plain"), (2, "haproxy"), (2, "sos")),
    ]
    assert run_log.left(wanted, []) == wanted


def test_rows_with_other_settings_and_truncated_lines_are_ignored() -> None:
    lines = [
        run_log.encode(row("plain", 1)),
        run_log.encode(replace(row("plain", 2, 2), settings="other")),
        run_log.encode(row("plain", 3, 3))[:-9],
    ]
    assert run_log.parse(lines, SETTINGS) == [row("plain", 1)]


def test_later_row_of_the_same_run_replaces_the_earlier_row() -> None:
    lines = [run_log.encode(replace(row("plain", 1), status="failed: x")), run_log.encode(row("plain", 2)), "[]", "7"]
    assert run_log.parse(lines, SETTINGS) == [row("plain", 2)]


def test_the_report_has_the_requested_rows_in_scheme_order() -> None:
    wanted = run_log.units([BY_NAME["59ms"]], ["sos", "plain"], 2)
    rows = [row("plain", 1, 2), row("haproxy", 5), row("sos", 3), row("plain", 2), row("sos first", 4)]
    assert [(each.scheme, each.run) for each in run_log.wanted_rows(wanted, rows)] == [
        ("sos first", 1),
        ("sos", 1),
        ("plain", 1),
        ("plain", 2),
    ]


def plan(paths: int) -> network.Plan:
    return network.Plan(prefix="wan1", root=PurePosixPath("/x"), linkemu="/emu", agents=agents.agents(agents.documents(paths)))


@pytest.mark.parametrize("scenario", ["59ms", "200+200"])
def test_all_commands_run_in_namespaces_that_are_deleted_at_the_end(scenario: str) -> None:
    steps = network.build(plan(len(BY_NAME[scenario].paths)), BY_NAME[scenario].paths)
    made = [step.do.argv[3] for step in steps if isinstance(step.do, Run) and step.do.argv[:3] == ("ip", "netns", "add")]
    assert made == [step.undo.name for step in steps if isinstance(step.undo, DeleteNamespace)]
    for step in steps:
        if isinstance(step.do, Run):
            assert any(name in step.do.argv for name in made), step.do.argv


@pytest.mark.parametrize("host", [host.name for host in network.HOSTS])
def test_hosts_reuse_ports_of_closed_connections(host: str) -> None:
    steps = network.build(plan(1), BY_NAME["59ms"].paths)
    assert any(step.title == host and isinstance(step.do, Run) and step.do.argv[-1] == "net.ipv4.tcp_tw_reuse=1" for step in steps)


def test_open_file_limit_is_raised_as_far_as_permitted() -> None:
    code = (
        "import resource as r; from sos_harness.loop import allow_files; r.setrlimit(r.RLIMIT_NOFILE, (200, 400));"
        "allow_files(600); print(*r.getrlimit(r.RLIMIT_NOFILE));"
        "allow_files(2**62); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], env=path, check=True, capture_output=True, text=True).stdout.split()
    allowed = "600" if may_raise_limits() else "400"
    assert said == [allowed] * 4


def may_raise_limits() -> bool:
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    cap_sys_resource = 24
    return bool(int(effective.split()[1], 16) >> cap_sys_resource & 1)


def test_second_path_has_an_emulated_link_and_routing_rules() -> None:
    two = BY_NAME["200+200"].paths
    steps = network.build(plan(2), two)
    spawn = next(step.do for step in steps if isinstance(step.do, Spawn))
    assert [word for word in spawn.argv if word.startswith("A=")] == [
        "A=w0a,B=w0b,name=wan0,rate=200000000bit,delay=27000000ns,loss=0.000000000,queue=1350000",
        "A=w1a,B=w1b,name=wan1,rate=200000000bit,delay=80000000ns,loss=0.000000000,queue=4000000",
    ]
    rules = [" ".join(step.do.argv[3:]) for step in steps if isinstance(step.do, Run) and "rule" in step.do.argv]
    assert "rule add priority 90 iif near ipproto tcp dport 10001 lookup 101" in rules
    assert "rule add priority 91 from 10.0.0.12 lookup 101" in rules
    assert len(rules) == 8
    assert sum("rule" in step.do.argv for step in network.build(plan(1), two[:1]) if isinstance(step.do, Run)) == 2


def test_agents_use_the_default_policy_over_all_paths() -> None:
    for paths in (1, 2):
        document = agents.documents(paths).agents["edge1"]
        assert [service["labels"] for service in document["services"]] == [paths]
        assert document["services"][0]["transport"] == {"streams": 0, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Auto"}
        ports = document["services"][0]["ports"]
        assert [(each["first"], each["last"]) for each in ports] == [agents.SERVICE_PORTS]


def test_haproxy_config_relays_to_the_next_haproxy() -> None:
    assert "server next 10.0.0.148:8300\n" in haproxy_config("10.0.0.148:8300")
