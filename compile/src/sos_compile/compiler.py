"""World in, documents out."""

from __future__ import annotations

from sos_compile.world import Compiled, World


def compile_world(world: World) -> Compiled:
    """Compile everything. Never raises for what users wrote: a bad object becomes a Problem and the others' output is as if it did not exist."""
    raise NotImplementedError
