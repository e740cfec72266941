"""bench/harness, bench/relay, bench/short, bench/sessions: relays, load and figures, without measurements."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_harness import agents, load_client, load_run, network, relays
from sos_harness.relays import NotAvailableError
from sos_harness.results import figures, parse, run_log, tables
from sos_harness.results.figures import Found
from sos_harness.results.parse import LoadReport, ParseError
from sos_harness.scenario import Kind, Scheme
from sos_relays import bench as relay
from sos_sessions import bench as sessions
from sos_short import bench as short
from sos_testbed.core.steps import Spawn

SETTINGS = "0123456789ab, 10 s"
BENCHES = (relay.BENCH, short.BENCH, sessions.BENCH)
LOAD = LoadReport(seconds=2.0, failed=1, errors=("timed out",), first_ms=(1.0, 2.0, 3.0), last_ms=(4.0, 5.0, 60.0))


def rows(bench: relay.Bench, scenario: str, values: dict[str, dict[str, float]]) -> list[figures.Summary]:
    """Summaries of one row per scheme with these figures."""
    found = next(each for each in bench.scenarios if each.name == scenario)
    units = run_log.units([found], list(values), 1)
    return figures.summaries(figures.row(unit.blank(unit.scheme.name, SETTINGS), Found(values=values[unit.scheme.name])) for unit in units)


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_every_scheme_has_a_relay_function_and_the_first_is_sos(bench: relay.Bench) -> None:
    for scenario in bench.scenarios:
        assert scenario.schemes[0].name == "sos"
        assert {scheme.kind for scheme in scenario.schemes} <= set(relays.WAYS)
    figures_there = set(figures.FIGURES)
    assert set(bench.said) <= figures_there


def test_every_column_shows_an_existing_figure() -> None:
    for column in (*relay.COLUMNS, *short.COLUMNS, *sessions.COLUMNS):
        assert column.figure in figures.FIGURES


def test_every_scenario_has_its_load_parameters() -> None:
    assert set(relay.OFFERED_BPS) <= {scenario.name for scenario in relay.SCENARIOS}
    assert {*short.BYTES, *short.LOSSY_BYTES, short.CONNECTIONS} == {scenario.name for scenario in short.SCENARIOS}
    assert set(sessions.ACTS) == {scenario.name for scenario in sessions.SCENARIOS}


@pytest.mark.parametrize(
    ("policy", "field", "value"),
    [("encrypted", "encryption", "TLS"), ("compressed", "compression", "Adaptive"), ("quic", "protocol", "QUIC")],
)
def test_agents_with_another_policy_have_separate_documents(policy: str, field: str, value: str) -> None:
    root = PurePosixPath("/x")
    near, _ = agents.agents(agents.documents(1))
    plain, other = (near.argv("agent", root, name) for name in ("", policy))
    config, state = (other[other.index(name) + 1] for name in ("--config", "--state"))
    document = json.loads(agents.policy_files(policy, 1, (), root)[f"{config}/edge1.json"])
    assert [each["transport"][field] for each in document["services"]] == [value]
    # an agent refuses a second document with the same generation
    assert not {config, state} & {*plain}


def test_without_the_emulator_sites_are_joined_by_plain_veth_pairs() -> None:
    flat = relay.SCENARIOS[1]
    plan = network.Plan(prefix="wan1", root=PurePosixPath("/x"), linkemu="/emu", agents=agents.agents(agents.documents(1)))
    steps = network.build(plan, flat.paths, emulated=flat.emulated)
    assert not [step for step in steps if isinstance(step.do, Spawn)]
    words = [" ".join(getattr(step.do, "argv", ())) for step in steps]
    assert "ip link add name wan0 netns wan1-west type veth peer name wan0 netns wan1-east" in words
    assert flat.wire_limit_mbps == 0


def test_limits_of_the_idle_scenario_allow_ten_thousand_sessions() -> None:
    idle = next(scenario for scenario in sessions.SCENARIOS if scenario.name == "idle")
    for document in agents.documents(1, idle.resources).agents.values():
        assert document["limits"]["sessions"] >= sessions.MANY
        assert document["limits"]["memoryMiB"] >= sessions.MANY
    assert agents.documents(1).agents["edge1"]["limits"]["sessions"] == 4096


def test_haproxy_config_has_splice_auto_or_unconditional_splice() -> None:
    assert "option splice-auto" in relays.haproxy_config("10.0.0.1:1")
    always = relays.haproxy_config("10.0.0.1:1", 700, splice=True)
    assert "  option splice-request\n  option splice-response\n" in always
    assert "splice-auto" not in always
    assert always.count("maxconn 700") == 2


def test_relay_with_a_low_open_file_limit_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.resource, "getrlimit", lambda _: (1024, 20_000))
    sessions.refuse_few_files(Kind.SOS, 10_000)
    with pytest.raises(NotAvailableError, match="20500 open files"):
        sessions.refuse_few_files(Kind.HAPROXY, 10_000)
    monkeypatch.setattr(sessions.resource, "getrlimit", lambda _: (1024, sessions.resource.RLIM_INFINITY))
    sessions.refuse_few_files(Kind.HAPROXY, 10_000)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0.01, 1))
def test_percentile_has_its_share_of_values_at_or_below(values: list[float], share: float) -> None:
    found = figures.percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_percentiles_cover_times_to_the_first_and_to_the_last_byte() -> None:
    values = load_run.found(LOAD, connections_per_s=1.5).values
    assert (values["p50_ms"], values["p99_ms"], values["first_byte_p50_ms"], values["first_byte_p99_ms"]) == (5, 60, 2, 3)
    assert (values["connections"], values["failed"], values["connections_per_s"]) == (3, 1, 1.5)


def test_no_figures_if_all_connections_failed() -> None:
    none = load_run.found(replace(LOAD, failed=7, first_ms=(), last_ms=()))
    assert none == Found(status="failed: none of 7 came through: timed out")


def test_connections_per_cpu_second_use_the_busier_relay() -> None:
    assert load_run.rates(LOAD, (0.25, 0.5)) == {"connections_per_s": 1.5, "connections_per_cpu_s": 6}
    assert load_run.rates(LOAD, ())["connections_per_cpu_s"] is None


def test_client_reports_are_parsed_or_quoted_in_the_error() -> None:
    text = json.dumps({"seconds": 2, "failed": 1, "errors": ["timed out"], "first_ms": [1, 2, 3], "last_ms": [4, 5, 60]})
    assert parse.parse_load(text) == LOAD
    assert parse.parse_readers('{"seconds": 4, "received": [1000000, 500000], "slow": 3}') == (2, 1)
    for parser in (parse.parse_load, parse.parse_readers):
        with pytest.raises(ParseError, match="Connection refused"):
            parser("Connection refused")


def test_cpu_time_includes_ended_children() -> None:
    assert parse.cpu_ticks("42 (a (b) c) S 1 42 42 0 -1 0 0 0 0 0 120 34 7 5 20 0 3 0 99") == 166
    assert parse.resident_kb("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t    1234 kB\n") == 1234


def test_a_table_has_existing_figures_and_ratios_to_each_peer() -> None:
    found = rows(
        relay.BENCH, "flat", {"sos": {"mbps_total": 900, "cpu_s_per_gb": 0.5}, "haproxy": {"mbps_total": 600, "cpu_s_per_gb": 0.2}}
    )
    lines = relay.BENCH.table(found)
    assert lines[1] == "flat out, no delay"
    assert lines[2].split() == ["runs", "Mbit/s", "CPU", "s/GB"]
    assert [line.split() for line in lines[3:5]] == [["sos", "1", "900", "0.500"], ["haproxy", "1", "600", "0.200"]]
    assert lines[5:] == ["  Mbit/s: sos is 1.50 x haproxy", "  CPU s/GB: sos is 2.50 x haproxy"]


def test_table_lists_a_missing_peer_with_the_reason() -> None:
    found = rows(relay.BENCH, "flat", {"sos": {"mbps_total": 900}})
    socat = next(scheme for scheme in relay.SCHEMES if scheme.name == "socat")
    blank = run_log.Unit(scenario=relay.SCENARIOS[1], scheme=socat, run=1).blank("socat", SETTINGS)
    absent = figures.summaries([replace(blank, status="not available: socat: not installed")])
    lines = relay.BENCH.table([*found, *absent])
    assert "    socat: not available: socat: not installed" in lines
    assert tables.peers(found, relay.COLUMNS[0]) == []


def test_a_request_encodes_its_size_and_the_last_flag() -> None:
    asked = load_client.request(1_000_000, last=True)
    assert len(asked) == load_client.REQUEST_BYTES
    assert load_client.HEAD.unpack_from(asked) == (1_000_000, 1)


@pytest.mark.parametrize("pieces", [1, 7, load_client.REQUEST_BYTES])
def test_server_answers_a_request_that_arrives_in_pieces(pieces: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        client, asked = load_client.ServedConnection(theirs), load_client.request(3, last=True)
        block = memoryview(bytes(load_client.BLOCK_BYTES))
        size = -(-len(asked) // pieces)
        for start in range(0, len(asked), size):
            ours.sendall(asked[start : start + size])
            going_on = load_client.advance(client, block)
        assert not going_on, "the request has the last flag"
        assert len(ours.recv(10)) == 3


@pytest.fixture(scope="module")
def port() -> int:
    """Port of a running load_client.py server."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        free = int(found.getsockname()[1])
    threading.Thread(target=load_client.answer, args=(free,), daemon=True).start()
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", free)) == 0:
                return free
        threading.Event().wait(0.02)
    raise AssertionError("the server does not listen")


@pytest.mark.parametrize("size", [1, 1_000, 1_000_000])
def test_short_connections_receive_complete_answers(port: int, size: int) -> None:
    asking = load_client.LoadClient("127.0.0.1", port, size, stay=False)
    asking.run(4, lambda begun: begun < 20)
    assert [trip.error for trip in asking.ended] == [""] * 20
    assert all(trip.received == size and trip.first_s is not None and trip.first_s <= (trip.last_s or 0) for trip in asking.ended)


def test_staying_connections_are_open_after_the_run(port: int) -> None:
    staying = load_client.LoadClient("127.0.0.1", port, 1, stay=True)
    staying.run(30, lambda begun: begun < 30)
    said = staying.report(1.0)
    assert (said["failed"], len(staying.ended)) == (0, 30)
    for trip in staying.ended:
        assert trip.connection.getpeername() == ("127.0.0.1", port)
        trip.connection.close()


def test_refused_connection_is_reported_as_failed_with_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = int(taken.getsockname()[1])
    asking = load_client.LoadClient("127.0.0.1", free, 1, stay=False)
    asking.run(2, lambda begun: begun < 3)
    said = asking.report(1.0)
    assert (said["failed"], said["first_ms"]) == (3, [])
    assert "refused" in str(said["errors"])


def test_talking_client_sends_requests_repeatedly(port: int) -> None:
    times = load_client.talk("127.0.0.1", port, 0.5)["last_ms"]
    assert isinstance(times, list)
    assert len(times) >= 2


def test_rates_of_fast_readers_exclude_the_slow_reader(port: int) -> None:
    said = load_client.read("127.0.0.1", port, 3, 0.3, slow=10_000)
    received = said["received"]
    assert isinstance(received, list)
    assert len(received) == 2
    assert min(received) > 10_000
    assert len(parse.parse_readers(json.dumps(load_client.read("127.0.0.1", port, 3, 0.1, slow=0)))) == 3


def test_scheme_defaults_to_one_row_with_its_name() -> None:
    assert Scheme(name="socat", kind=Kind.SOCAT).labels == ("socat",)
