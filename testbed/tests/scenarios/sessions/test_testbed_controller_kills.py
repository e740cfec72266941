"""Kill the controller at random times while a hundred new connections are opened each second: none breaks, and no entry stays wrong.

client -- edge1 ==(40 ms)== core1 -- edge2 -- server
           |    \\=(80 ms)== core2 --/  |
         agent1                      agent2

SOS_KILLS_SEED=<seed> repeats the times of a run, whose seed is its first line; SOS_KILLS is the number of kills.
"""

import os
import random
import secrets
import statistics
import time
from collections.abc import Iterator

import pytest
from conftest import RATE_BPS, RTT_US, accepted, armed, eventually, say, sessions
from crowds import running, whole
from flow_entries import identities
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import faults
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import BOTH_PATHS, EXAMPLE, Lab, Options
from sos_testbed.measurements import measure

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("SOS_KILLS", "50"))
SEED = int(os.environ.get("SOS_KILLS_SEED", "0")) or secrets.randbits(32)
COVERED = 5010
BUSY, IDLE = 10, 20
GAP_S = 0.01  # between two new connections
WORKS_S = (0.0, 4.0)  # time from the first set-up of a controller to its end; sessions that it has found are not all judged by then
EPOCH = 0xFF << 16  # byte of a controller's start in its cookies (spec/node-config.md clause 8)
OPTIONS = Options(
    path1=PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US),
    path2=PathOptions(rate_bps=RATE_BPS, rtt_us=2 * RTT_US),
    examples=(EXAMPLE, BOTH_PATHS),
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    built = labs.up(OPTIONS, say)
    try:
        with running(built, "server", "serve", COVERED):
            eventually("an armed agent", lambda: armed(built))
            yield built
    finally:
        built.down()


def standing(net: Lab) -> dict[str, list[tuple]]:
    """Entries of each switch, without counters and without the byte that tells a controller's starts apart."""
    found = identities(net)
    return {switch: sorted((*entry[:-1], entry[-1] & ~EPOCH) for entry in entries) for switch, entries in found.items()}


def set_up_again(net: Lab) -> float:
    """Kill the controller and start it; return the seconds from the kill until a client that arrived later is accepted."""
    began = time.monotonic()
    faults.controller(net, "controller", up=False)
    faults.controller(net, "controller", up=True)
    before = accepted(net)
    eventually("new connections are accelerated", lambda: accepted(net) > before)
    return time.monotonic() - began


def test_random_kills_of_the_controller_break_no_connection_and_leave_no_entry(net: Lab) -> None:
    say(f"SOS_KILLS_SEED={SEED}")
    times, address, again = random.Random(SEED), measure.address(net, "server"), []
    eventually("no session", lambda: sessions(net) == 0)
    before = standing(net)
    with running(net, "client", "hold", address, COVERED, BUSY, IDLE) as held:
        whole(held.first, BUSY + IDLE)
        with running(net, "client", "knock", address, COVERED, GAP_S) as knocks:
            for _ in range(KILLS):
                time.sleep(times.uniform(*WORKS_S))
                again.append(set_up_again(net))
            visits = knocks.ask("end")["visits"]
        silence = whole(held.ask("check"), BUSY + IDLE)
        whole(held.ask("end"), BUSY + IDLE)
    broken = [visit for visit in visits if visit[2]]
    say(f"{KILLS} kills: set-up after {statistics.median(again):.2f} s, at most {max(again):.2f} s; longest silence {silence:.2f} s")
    say(f"{len(visits)} new connections, {len(broken)} broken, slowest {max(took for _, took, _ in visits):.2f} s")
    assert not broken
    assert len(visits) > KILLS
    labs.wait_ready(net, net.documents)
    eventually("the entries of the start, and no other", lambda: sessions(net) == 0 and standing(net) == before)
