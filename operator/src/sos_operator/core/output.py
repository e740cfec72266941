"""One call from everything seen to everything wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sos_compile
from sos_compile import compile_world

from sos_operator.core.desired import Departing, departing_sites
from sos_operator.core.generation import Issued, documents_digest, next_issued
from sos_operator.core.kinds import SITE
from sos_operator.core.options import Settings
from sos_operator.core.plan import Ref, ref_of
from sos_operator.core.world import Object, Seen, build_world, document_hashes, leaving, with_departing


@dataclass(frozen=True, slots=True)
class Output:
    """A compilation with the generation it was issued under."""

    compiled: sos_compile.Compiled
    departing: tuple[Departing, ...]
    issued: Issued


def build_output(seen: Seen, settings: Settings, last: Issued, in_force: Iterable[tuple[int, str]]) -> Output:
    """Compile, and raise the generation if any document differs from what was issued last (or a controller is ahead of us)."""
    first = _compile(seen, settings, last.generation or 1)
    compiled, departing = first
    hashes = document_hashes(compiled) | {f"departing/{d.site}/{n}": doc["hash"] for d in departing for n, doc in d.nodes.items()}
    ours = [doc["hash"] for doc in compiled.controllers.values()]
    issued = next_issued(last, documents_digest(hashes), in_force, ours)
    if issued.generation != (last.generation or 1):
        compiled, departing = _compile(seen, settings, issued.generation)
    return Output(compiled, departing, issued)


def _compile(seen: Seen, settings: Settings, generation: int) -> tuple[sos_compile.Compiled, tuple[Departing, ...]]:
    world = build_world(seen, settings, generation)
    compiled = compile_world(world)
    if not any(leaving(site) for site in seen.of(SITE.kind)):
        return compiled, ()
    return compiled, departing_sites(compile_world(with_departing(world, seen)), seen)


def owners_of(manifests: Iterable[Object], failures: dict[Ref, str]) -> dict[tuple[str, str], str]:
    """(kind, name) of the owner of each child that could not be applied -> what the API server said, with the child's name."""
    found: dict[tuple[str, str], str] = {}
    for manifest in manifests:
        message = failures.get(ref_of(manifest))
        for owner in (manifest["metadata"].get("ownerReferences") or []) if message else []:
            found.setdefault((owner["kind"], owner["name"]), f"{ref_of(manifest)}: {message}")
    return found
