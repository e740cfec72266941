"""`python -m sos_compile FILES... --node NAME=SITE`: compile custom resources without a cluster, and report their problems."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sos_compile.admission.load import LoadError, load
from sos_compile.admission.schema import NAME
from sos_compile.compiler import compile_world
from sos_compile.documents.parts import file_name
from sos_compile.model.addresses import is_ipv4
from sos_compile.model.world import Compiled, Json, Namespace, Node, Observed, Settings, World


def main(arguments: list[str]) -> int:
    """Run the command: 0 without problems, 1 if an object has a problem, 2 on bad usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        objects = tuple(load(options.files))
    except LoadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    endpoints = {name: tuple(ends.split(",")) for name, ends in options.endpoint}
    if wrong := _wrong_addresses(options.node, endpoints):
        sys.stderr.write(f"{wrong}\n")
        return 2
    world = World(
        objects=objects,
        nodes=tuple(options.node),
        namespaces=tuple(Namespace(name) for name in options.namespace),
        settings=Settings(generation=options.generation),
        observed=Observed(endpoints=endpoints),
    )
    compiled = compile_world(world)
    for problem in compiled.problems:
        sys.stderr.write(f"{'warning: ' if problem.warning else ''}{problem.line()}\n")
    if options.out is not None:
        _write(compiled, options.out)
    errors = sum(not problem.warning for problem in compiled.problems)
    sys.stdout.write(
        f"{len(objects)} objects, {errors} problems; {len(compiled.controllers)} controller-configs, {len(compiled.nodes)} node-configs, "
        f"{len(compiled.agents)} agent-configs, {len(compiled.manifests)} manifests\n"
    )
    return 1 if errors else 0


def _wrong_addresses(nodes: list[Node], endpoints: dict[str, tuple[str, ...]]) -> str:
    """Return a message about the first address on the command line that is not IPv4, "" if all addresses are."""
    for node in nodes:
        if node.address and not is_ipv4(node.address):
            return f"--node {node.name}: {node.address!r} is not an IPv4 address, which tunnels need"
    for name, ends in endpoints.items():
        for end in ends:
            protocol, _, rest = end.partition(":")
            address, _, port = rest.rpartition(":")
            if protocol != "tcp" or not is_ipv4(address) or not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535):
                return f"--endpoint {name}: {end!r} is not tcp:A.B.C.D:PORT; switches connect by IPv4"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sos_compile", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML files, or folders of them")
    parser.add_argument(
        "--node", action="append", default=[], type=_node, metavar="NAME=SITE[@ADDRESS]", help="a node labelled sos.network/site=SITE"
    )
    parser.add_argument(
        "--endpoint", action="append", default=[], type=_pair, metavar="CONTROLLER=tcp:A.B.C.D:PORT[,...]", help="OpenFlow endpoints"
    )
    parser.add_argument("--namespace", action="append", default=[], metavar="NAME", help="a namespace without labels")
    parser.add_argument("--generation", type=int, default=1, help="generation of the documents (default 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write controller/, node/, agent/<pool>/ and manifests.json there")
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or not NAME.match(name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _node(text: str) -> Node:
    name, rest = _pair(text)
    site, _, address = rest.partition("@")
    return Node(name, {"sos.network/site": site}, address)


def _write(compiled: Compiled, folder: Path) -> None:
    files: dict[str, Json] = {f"controller/{name}.json": doc for name, doc in compiled.controllers.items()}
    files |= {f"node/{name}.json": doc for name, doc in compiled.nodes.items()}
    files |= {f"agent/{pool}/{node}.json": doc for (pool, node), doc in compiled.agents.items()}
    for name, document in list(files.items()):
        folder_of = name.rpartition("/")[0]
        files |= {f"{folder_of}/{file_name(part)}": compiled.parts[part] for part in document.get("include", ())}
    files["manifests.json"] = {"apiVersion": "v1", "kind": "List", "items": list(compiled.manifests)}
    for name, document in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
