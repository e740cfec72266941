"""The two agents. Their configuration is compiled from custom resources, as in a cluster, for the default policy."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path, PurePosixPath

from sos_compile import Allocations
from sos_compile.world import Json
from sos_testbed import declare
from sos_testbed.lab import EXAMPLE
from sos_testbed.topology import PathOptions, figure8

HERE = Path(__file__).resolve().parents[1]
SERVICE_PORTS = (5000, 5999)
"""Of one-path.yaml and two-paths.yaml."""
PLAIN, ENCRYPTED, QUIC = "plain", "encrypted", "quic"
"""What streams can be; all but plain ones have a service and a folder with configurations of that name."""
STREAM_PORT = 10_000
METRICS_PORT = 9465


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent: near is beside the client, far beside the server."""

    part: str
    node: str
    interface: str
    address: str
    mac: str

    def argv(self, program: str, root: PurePosixPath, *, kind: str = PLAIN) -> tuple[str, ...]:
        """Its command line."""
        folder = root / (self.part if kind == PLAIN else f"{self.part}-{kind}")
        places = (
            "--config",
            f"{root if kind == PLAIN else root / kind}/agent-config",
            "--node",
            self.node,
            "--keys",
            f"{root}/keys/{self.node}",
            "--state",
            f"{folder}/state",
        )
        return (program, *places, "--attach", "none")


def documents(paths: int, more: tuple[Path, ...] = ()) -> declare.Documents:
    """What the operator would write for two sites with a service over one path or both, and for further custom resources."""
    service = HERE / ("one-path.yaml" if paths == 1 else "two-paths.yaml")
    # shapes do not matter here: names, sites and addresses are those of the figure of eight
    topology = figure8(PathOptions(), PathOptions())
    return declare.compile_lab(declare.load((EXAMPLE, service, *more)), topology, 1, Allocations())


def files_for(kind: str, scenario_paths: int, more: tuple[Path, ...], root: PurePosixPath) -> dict[str, str]:
    """Path -> text of configurations for streams of a kind, beside those that the agents have otherwise."""
    return declare.files(documents(scenario_paths, (*more, HERE / f"{kind}.yaml")), root / kind)


def agents(found: declare.Documents) -> tuple[Agent, Agent]:
    """The near and the far agent."""
    near, far = (_agent(part, found.agents[node]) for part, node in (("near", "edge1"), ("far", "edge2")))
    return near, far


def _agent(part: str, document: Json) -> Agent:
    interface = document["interface"]
    if document["streamPorts"]["first"] != STREAM_PORT:
        raise ValueError(f"stream ports begin with {document['streamPorts']['first']}, not {STREAM_PORT}")
    return Agent(
        part=part,
        node=document["node"],
        interface=interface["name"],
        address=str(IPv4Interface(interface["address"]).ip),
        mac=interface["mac"],
    )


def files(found: declare.Documents, root: PurePosixPath) -> dict[str, str]:
    """Path -> text of configurations and keys."""
    return {**declare.files(found, root), **declare.key_files(found, secrets.token_bytes(32), root)}
