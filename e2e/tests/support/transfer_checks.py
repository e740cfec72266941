"""Acceptance criteria of a transfer between pods, independent of the pods' places and of the network between sites."""

import json
from collections.abc import Callable, Mapping
from statistics import mean

from conftest import Lab, upgrade
from sos_e2e.environment.cluster import pid
from sos_e2e.observation import workload
from sos_e2e.run import run, say, wait_for

LINK_MBIT = 200
WIRE_LIMIT = LINK_MBIT * 1448 / 1538 * (1 - 0.0001)
AT_LEAST = 5.0
"""Required multiple of plain TCP in the same run, on a path of 160 ms that loses one packet in ten thousand."""
PLAIN_S = 60
"""Time limit of the plain download of the same file. Plain TCP starts at wire rate and needs ten seconds after its first losses to
drop to the rate that such a path sustains; users wait for the whole file."""
SHORT_S, SHORT_AT_LEAST = 30, 3.0
"""Time limit and required multiple in the short suite: the shorter the download, the smaller the lead over plain TCP."""
ROUNDS = 2
"""Maximum number of rounds. The time of the first losses is random: if the first round misses the ratio, the mean of two rounds counts."""
SHARE = 0.1  # minimum share of the file on every path of a service with several paths; the faster path carries more


def fast_and_plain(
    lab: Lab,
    client: workload.Host,
    server: workload.Host,
    what: str,
    fetch: Callable[[int, float], workload.Transfer] | None = None,
    *,
    port: int = 80,
    at_least: float = AT_LEAST,
) -> dict[str, float]:
    """Download over a covered and a plain port; assert right bytes, the client's own address and the required ratio. Print the rates.

    `fetch` downloads the long file over the given port for at most the given seconds, for clients that are not pods.
    """
    get = fetch or (lambda port, seconds: workload.download(lab.kube, port, seconds=seconds, ends=(client, server), file=workload.LONG))
    seconds, at_least = (SHORT_S, min(at_least, SHORT_AT_LEAST)) if lab.settings.small else (PLAIN_S, at_least)
    plain, fast, ratio = list[float](), list[float](), 0.0
    while ratio < at_least and len(plain) < ROUNDS:
        plain.append(get(8080, seconds).mbps)
        got = get(port, 120)
        right(lab, got, client, server, workload.LONG)
        fast.append(got.mbps)
        ratio = mean(fast) / mean(plain)
        say(f"{what}: plain {plain[-1]:.1f} Mbit/s, with the service {fast[-1]:.1f} Mbit/s, ratio {ratio:.1f}")
    said = {"plain_mbps": mean(plain), "sos_mbps": mean(fast), "ratio": ratio}
    with (lab.settings.out / "transfers.jsonl").open("a") as log:
        log.write(json.dumps({"what": what, "rounds": len(plain), **said}) + "\n")
    assert said["plain_mbps"] < 0.6 * WIRE_LIMIT, "plain TCP is too fast on this path: the comparison proves nothing"
    assert ratio >= at_least, said
    return said


def right(lab: Lab, got: workload.Transfer, client: workload.Host, server: workload.Host, file: str = workload.FILE) -> None:
    """Assert that every byte arrived unchanged, and that client and server each saw the other's own address."""
    assert (got.exit_code, got.sha256) == (0, workload.digest(lab.kube, server.name, file)), got
    assert got.remote.rpartition(":")[0] == server.address
    assert got.local.startswith(f"{client.address}:")
    line = f"{got.local} {got.remote} "
    assert any(seen.startswith(line) for seen in workload.seen_by_server(lab.kube, server.name)), "the server saw another client"


def received(lab: Lab, place: str) -> dict[str, int]:
    """Received bytes of each interface of a node, from the node's kernel."""
    links = json.loads(run("nsenter", "-t", str(pid(lab.nodes[place])), "-n", "ip", "-j", "-s", "link"))
    return {link["ifname"]: int(link["stats64"]["rx"]["bytes"]) for link in links}


def both_carried(before: Mapping[str, int], after: Mapping[str, int], *interfaces: str) -> None:
    """Assert that at least two of the interfaces, which belong to all possible paths, each received a share of one file."""
    grown = {name: after[name] - before[name] for name in interfaces}
    say("bytes by interface: " + ", ".join(f"{name} {count / 1e6:.1f} MB" for name, count in grown.items()))
    assert sorted(grown.values())[-2] > SHARE * workload.FILE_MB * 2**20, grown
    assert sum(grown.values()) > workload.FILE_MB * 2**20, "the rest used other interfaces"


def trace(lab: Lab, client: str, server: str, port: int = 80, *options: str) -> str:
    """Return the predicted outcome of a connection, from `kubectl sos trace`."""
    said = json.loads(lab.kube.plugin("trace", client, server, str(port), *options, "-o", "json", check=False))
    return str(said["outcome"])


def ready_again(lab: Lab) -> None:
    """Wait until controller, sites and service are Ready again."""
    lab.kube.wait_condition("soscontroller/default", "Ready", timeout=120)
    for site in ("west", "east", "core1", "core2"):
        lab.kube.wait_condition(f"sossite/{site}", "Ready", timeout=120)
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)


def agents(lab: Lab) -> int:
    """Number of agents: one on each node of the two sites."""
    return sum(place.startswith(("west", "east")) for place in lab.nodes)


def attach(lab: Lab, way: str, *sites: str) -> None:
    """Attach agents in pod networks of their own (Multus) or in the node's network (Host), and wait until all agents are ready."""
    upgrade(lab, f"defaults.agent.spec.attach={way}")
    wait_for(f"agents with attach: {way}", lambda: _attached(lab, way), 240)
    for obj in ("sosagent/default", *(f"sossite/{site}" for site in sites)):
        lab.kube.wait_condition(obj, "Ready", timeout=180)


def _attached(lab: Lab, way: str) -> bool:
    """True if all agents run with this attachment, and no agent with the other attachment is left."""
    pods = lab.kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=agent")
    own_network = [not pod["spec"].get("hostNetwork", False) for pod in pods]
    return own_network == [way == "Multus"] * agents(lab)
