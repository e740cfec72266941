"""First step of a compilation: admit and parse every object of the world once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from sos_compile.admission.fault_isolation import NODE, fault_of, in_order, problem_of
from sos_compile.admission.load import crds
from sos_compile.admission.schema import admit
from sos_compile.admission.typed_objects import parse
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.memo import Admission, Memo, identity
from sos_compile.model.problem import Problem, Reason
from sos_compile.model.resources import Controller, Link, Parsed, Peer, Pool, Service, Site, SitePair
from sos_compile.model.world import Json, Loaded, Namespace, ObjectKey, World


@dataclass(frozen=True)
class Objects:
    """Parsed objects, oldest first, and the keys of all objects, valid or invalid, because other objects may refer to them."""

    sites: tuple[Site, ...]
    pools: tuple[Pool, ...]
    services: tuple[Service, ...]
    controllers: tuple[Controller, ...]
    links: tuple[Link, ...]
    pairs: tuple[SitePair, ...]
    peers: tuple[Peer, ...]
    namespaces: tuple[Namespace, ...]
    keys: frozenset[ObjectKey]


def collect(world: World, verdicts: Verdicts, memo: Memo) -> Objects:
    """Admit and parse every object. Of several objects with the same key, the oldest counts. Namespace objects are added to the world's
    namespaces."""
    parsed: dict[ObjectKey, Parsed] = {}
    keys: set[ObjectKey] = set()
    given = sorted(_given(world), key=lambda item: (_created(item.obj), item.file, item.index))
    for item in given:
        if _is_namespace(item.obj):
            continue
        judged = _judged(item, memo)
        key = judged.key
        if key in keys and key.name:
            verdicts.admission(key, [_duplicate(key, item.file or None)])
            continue
        keys.add(key)
        fault = judged.fault or verdicts.left_out.get(key)
        problems = judged.problems or ((problem_of(fault, item.file or None),) if fault else ())
        verdicts.admission(key, list(problems))
        if fault is not None:
            verdicts.faults.append(fault)
        elif judged.parsed is not None:
            parsed[key] = judged.parsed
    ordered = sorted(parsed.values(), key=lambda each: each.origin.age)
    namespaces = {namespace.name: namespace for namespace in (*_namespaces(given), *world.namespaces)}
    return Objects(
        sites=tuple(each for each in ordered if isinstance(each, Site)),
        pools=tuple(each for each in ordered if isinstance(each, Pool)),
        services=tuple(each for each in ordered if isinstance(each, Service)),
        controllers=tuple(each for each in ordered if isinstance(each, Controller)),
        links=tuple(each for each in ordered if isinstance(each, Link)),
        pairs=tuple(each for each in ordered if isinstance(each, SitePair)),
        peers=tuple(each for each in ordered if isinstance(each, Peer)),
        namespaces=tuple(namespaces[name] for name in sorted(namespaces)),
        keys=frozenset(keys),
    )


def named(obj: Json) -> ObjectKey:
    """Return the key that an object has after its admission."""
    key, crd = _key(obj), crds().get(str(obj.get("kind")))
    return replace(key, namespace="default") if crd and crd["spec"]["scope"] == "Namespaced" and not key.namespace else key


def candidates(world: World) -> dict[ObjectKey, Hashable]:
    """Return the objects and nodes that a compilation can leave out, in the order of fault_isolation.in_order, each with the identity of
    its content."""
    objects = {named(item.obj): item.obj for item in _given(world) if not _is_namespace(item.obj)}
    nodes = {ObjectKey(NODE, "", node.name): (tuple(sorted(node.labels.items())), node.address) for node in world.nodes}
    order = in_order([*((key, _created(obj)) for key, obj in objects.items()), *((key, "") for key in nodes)])
    return {key: nodes[key] if key in nodes else identity(objects[key]) for key in order}


def _judged(item: Loaded, memo: Memo) -> Admission:
    known = identity(item.obj)
    return _judge(item) if known is None else memo.judged.get((item.file, known), lambda: _judge(item))


def _judge(item: Loaded) -> Admission:
    full = item.obj
    try:
        full, problems = admit(item.obj, item.file or None)
        return Admission(_key(full), None if problems else parse(full, item.file or None), tuple(problems))
    except Exception as error:  # an exception in schema, rules or parser is this object's fault
        key = named(full)
        return Admission(key, None, (), fault_of(key, error))


def _given(world: World) -> Iterator[Loaded]:
    for obj in world.objects:
        yield obj if isinstance(obj, Loaded) else Loaded("", 0, obj)


def _meta(obj: Json) -> Json:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _created(obj: Json) -> str:
    return str(_meta(obj).get("creationTimestamp") or "")


def _key(obj: Json) -> ObjectKey:
    return ObjectKey(str(obj.get("kind") or ""), str(_meta(obj).get("namespace") or ""), str(_meta(obj).get("name") or ""))


def _is_namespace(obj: Json) -> bool:
    return obj.get("apiVersion") == "v1" and obj.get("kind") == "Namespace"


def _namespaces(given: list[Loaded]) -> Iterator[Namespace]:
    for item in given:
        if _is_namespace(item.obj) and isinstance(_meta(item.obj).get("name"), str):
            labels = _meta(item.obj).get("labels")
            yield Namespace(_meta(item.obj)["name"], labels if isinstance(labels, dict) else {})


def _duplicate(key: ObjectKey, file: str | None) -> Problem:
    message = "another object has the same kind and name"
    return Problem(key.kind, key.namespace, key.name, "metadata.name", Reason.DUPLICATE, message, "rename or remove one", file)
