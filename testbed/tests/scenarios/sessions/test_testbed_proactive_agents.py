"""Proactive set-up with three agents at each site (docs/adr/0074): even load, no packet-in, and no connection broken by scaling.

client -- edge1 ==(40 ms)== core1 -- edge2 -- server
           |||  \\=(80 ms)== core2 --/  |||
         agents 1                    agents 2       one at each site, or three (examples/01-two-sites/more-agents)
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import RATE_BPS, RTT_US, SETTLE_S, accepted, eventually, outcome, peer, say, sessions
from crowds import running, whole
from flow_entries import entries, identities, to_controller
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import declare, faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import MORE_AGENTS, PROACTIVE, Lab, Options
from sos_testbed.measurements import measure

OPTIONS = Options(
    topology="pools",
    path1=PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US),
    path2=PathOptions(rate_bps=RATE_BPS, rtt_us=2 * RTT_US),
    examples=(PROACTIVE,),
)
COVERED = 5010
MANY, EVENNESS = 1_000, 0.15
BUSY, IDLE = 60, 140
WEST, EAST = ("agent1", "agent1b", "agent1c"), ("agent2", "agent2b", "agent2c")
SLOTS = 6
RING = 17  # kind in a controller's cookies (spec/node-config.md clause 8)
GAP_S = 0.1
NEW_S = 30.0  # time after which agents use a new agent of the other site (spec/node-config.md clause 11)
OUTAGE_S = 13.0  # exceeds all timers that expire without a controller (test_testbed_crowd.py)


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    built = labs.up(OPTIONS, say)
    try:
        with running(built, "server", "serve", COVERED):
            yield built
    finally:
        built.down()


@pytest.fixture(autouse=True)
def tiny(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "tiny", 20_000)


def scale(net: Lab, *, three: bool) -> None:
    """Declare three agents at each site, or one."""
    one = declare.load((PROACTIVE,))
    net.declare(declare.merge(one, declare.load((MORE_AGENTS,))) if three else one)
    labs.wait_ready(net, net.documents)
    if three:
        eventually("rings of three agents at both switches", lambda: all(len(members(net, edge)) == 3 for edge in ("edge1", "edge2")))
        eventually("all six agents are armed or known", lambda: all(takes(net, agent) for agent in WEST), within_s=SETTLE_S)


def takes(net: Lab, agent: str) -> bool:
    """True if an ingress agent accepts one of several new connections."""
    before = accepted(net, agent)
    with running(net, "client", "hold", measure.address(net, "server"), COVERED, 0, 6) as crowd:
        whole(crowd.ask("end"), 6)
    return accepted(net, agent) > before


def egresses(net: Lab, beside: int = 0) -> set[str]:
    """Return the egress agents of 30 new connections and of those that run `beside`."""
    with running(net, "client", "hold", measure.address(net, "server"), COVERED, 0, 30) as crowd:
        eventually("the sessions at the controller", lambda: sessions(net) >= beside + 30)
        found = used(net)
        whole(crowd.ask("end"), 30)
    eventually("the end of these sessions", lambda: sessions(net) < beside + 30)
    return found


def used(net: Lab) -> set[str]:
    """Return the egress agents of the sessions that run now."""
    return {session["egress"] for session in northbound.get(net.plan, "/v1/sessions")["sessions"]}


def members(net: Lab, switch: str) -> set[str]:
    """Actions of the entries that map client ports to agents, one for each agent (table 6, spec/node-config.md clause 6)."""
    own = [entry for entry in entries(net, switch) if entry.cookie >> 24 & 0xFF == RING and entry.table == SLOTS]
    return {entry.actions for entry in own if entry.match.startswith("tcp")}


def test_three_agents_share_a_thousand_flows_evenly_without_packet_in_or_entry(net: Lab) -> None:
    scale(net, three=True)
    eventually("egress agents that are no longer new", lambda: len(egresses(net)) == 3, within_s=NEW_S + SETTLE_S)
    eventually("no session", lambda: sessions(net) == 0)
    before, punted = identities(net), to_controller(net)
    taken = {agent: accepted(net, agent) for agent in WEST}
    program = peer(net, "client", "many", measure.address(net, "server"), "80", "/tiny", str(MANY), "20")
    eventually("all sessions at the controller", lambda: sessions(net) == MANY, within_s=60)
    during = identities(net)
    listed = northbound.get(net.plan, "/v1/sessions")["sessions"]
    east = Counter(session["egress"] for session in listed)
    done = outcome(program, 90)
    assert (done["right"], done["bytes"]) == (MANY, 20_000)
    shares = [accepted(net, agent) - taken[agent] for agent in WEST]
    say(f"{MANY} flows over three agents: {shares}, {sum(map(len, before.values()))} entries, 0 packet-ins")
    assert during == before
    assert (sum(shares), to_controller(net) - punted) == (MANY, 0)
    assert all(abs(share - MANY / 3) <= EVENNESS * MANY / 3 for share in shares), shares
    assert len(east) == 3
    assert all(abs(share - len(listed) / 3) <= EVENNESS * len(listed) / 3 for share in east.values()), east
    eventually("no session", lambda: sessions(net) == 0)


def test_scaling_agents_up_and_down_breaks_no_connection(net: Lab) -> None:
    scale(net, three=False)
    eventually("removed agents have exited", lambda: not net.leaving())
    address = measure.address(net, "server")
    with running(net, "client", "hold", address, COVERED, BUSY, IDLE) as held:
        whole(held.first, BUSY + IDLE)
        with running(net, "client", "knock", address, COVERED, GAP_S) as knocks:
            scale(net, three=True)
            up = whole(held.ask("check"), BUSY + IDLE)
            eventually("egress agents that are no longer new", lambda: len(egresses(net, BUSY + IDLE)) == 3, within_s=NEW_S + SETTLE_S)
            with running(net, "client", "hold", address, COVERED, 10, 20) as more:
                whole(more.first, 30)
                scale(net, three=False)
                assert set(net.leaving()) == {*WEST[1:], *EAST[1:]}
                down = whole(held.ask("check"), BUSY + IDLE)
                whole(more.ask("end"), 30)
            visits = knocks.ask("end")["visits"]
        eventually("removed agents have exited", lambda: not net.leaving())
        whole(held.ask("end"), BUSY + IDLE)
    broken = [visit for visit in visits if visit[2]]
    say(f"{BUSY + IDLE} connections, scaled 1 -> 3 -> 1: longest wait {up:.2f} s and {down:.2f} s")
    say(f"{len(visits)} new connections meanwhile, {len(broken)} broken")
    assert not broken
    assert len(visits) > 20


def test_all_agents_accept_connections_while_the_controller_is_away(net: Lab) -> None:
    scale(net, three=True)
    address = measure.address(net, "server")
    faults.controller(net, "controller", up=False)
    taken = {agent: accepted(net, agent) for agent in WEST}
    with running(net, "client", "knock", address, COVERED, GAP_S) as knocks:
        eventually("connections for longer than any lease", lambda: rest(net, taken) >= OUTAGE_S / GAP_S, within_s=OUTAGE_S * 4)
        visits = knocks.ask("end")["visits"]
    shares = [accepted(net, agent) - taken[agent] for agent in WEST]
    say(f"without a controller: {len(visits)} connections, accepted by three agents: {shares}")
    assert not [visit for visit in visits if visit[2]]
    assert sum(shares) == len(visits), "each connection is accelerated"
    assert min(shares) > 0
    faults.controller(net, "controller", up=True)
    labs.wait_ready(net, net.documents)


def rest(net: Lab, taken: dict[str, int]) -> int:
    return sum(accepted(net, agent) - before for agent, before in taken.items())
