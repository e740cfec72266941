"""Compute the desired state from everything seen, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import sos_compile

from sos_operator.core.desired.departed_nodes import left_nodes
from sos_operator.core.desired.departure import Departing, departing_sites
from sos_operator.core.desired.generation import Issued, claims_of, documents_digest, generations, issued_before, next_issued
from sos_operator.core.desired.retained_children import with_files_of
from sos_operator.core.model.cluster_objects import ConfigMap
from sos_operator.core.model.custom_resources import SosSite
from sos_operator.core.model.objects import Object, Ref
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import Seen, build_world, with_departing
from sos_operator.core.plan import ref_of


@dataclass(frozen=True, slots=True)
class Output:
    """A compilation with the generation it was issued under."""

    compiled: sos_compile.Compiled
    departing: tuple[Departing, ...]
    issued: Issued
    left: tuple[Departing, ...] = ()
    """Departed nodes of sites that stay."""


@dataclass(frozen=True, slots=True)
class Memos:
    """Intermediate results that a compilation stores, so that the next compilation can reuse them."""

    present: sos_compile.Memo = field(default_factory=sos_compile.Memo)
    departing: sos_compile.Memo = field(default_factory=sos_compile.Memo)


def build_output(
    seen: Seen, settings: Settings, last: Issued, in_force: Mapping[str, tuple[int, str]], memos: Memos | None = None
) -> Output:
    """Compile, and raise the generation if any document differs from the last issue, or if a later generation is in use (`next_issued`).

    An unchanged document keeps its generation: a change of one service must not rewrite the files of every node.
    """
    memos = memos or Memos()
    world = build_world(seen, settings, last.generation or 1)
    draft = sos_compile.draft(world, memos.present)
    departing: tuple[Departing, ...] = ()
    if any(site.leaving for site in seen.of(SosSite)):
        departing = departing_sites(sos_compile.draft(with_departing(world, seen), memos.departing).issued({}), seen)
    # A node whose document cannot be compiled has not departed: it keeps its document (sos_compile.admission.fault_isolation).
    faulty = {fault.key.name for fault in draft.verdicts.faults if fault.key.kind == "Node"}
    left = left_nodes(draft.network.sites.keys(), {name[1] for name in draft.documents if name[0] == "node"} | faulty, seen)
    hashes = {"/".join(name): hash_ for name, hash_ in draft.hashes().items()}
    hashes |= {f"left/{gone.site}/{node}": doc["hash"] for gone in left for node, doc in gone.nodes.items()}
    hashes |= {f"departing/{gone.site}/{node}": doc["hash"] for gone in departing for node, doc in gone.nodes.items()}
    config_maps = [o for o in seen.children if isinstance(o, ConfigMap)]
    said = [*seen.claims, *((answer.generation, answer.hash) for answer in seen.answers.values())]
    issued = next_issued(last, documents_digest(hashes), [*in_force.values(), *said, *claims_of(config_maps)], hashes.values())
    before = issued_before(config_maps, issued.generation)
    compiled = draft.issued(generations(draft.hashes(), issued.generation, before, in_force))
    compiled = replace(compiled, manifests=with_files_of(compiled.manifests, faulty, seen)) if faulty else compiled
    departing, left = (tuple(gone.issued(issued.generation, before) for gone in some) for some in (departing, left))
    return Output(compiled, departing, issued, left)


def owners_of(manifests: Iterable[Object], failures: dict[Ref, str]) -> dict[tuple[str, str], str]:
    """Owner (kind, name) of each child that failed to apply -> name of the child and the API server's message."""
    found: dict[tuple[str, str], str] = {}
    for manifest in manifests:
        message = failures.get(ref_of(manifest))
        for owner in (manifest["metadata"].get("ownerReferences") or []) if message else []:
            found.setdefault((owner["kind"], owner["name"]), f"{ref_of(manifest)}: {message}")
    return found
