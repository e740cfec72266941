"""Batches: entries of sessions in flight to datapaths, with one barrier after all entries for the same datapaths.

With one barrier per entry, barrier replies would be most of the cost of a burst of SYNs.
"""

from __future__ import annotations

from collections.abc import Callable

from sos_controller.core.commands import Barrier, Command
from sos_controller.core.types import DatapathId

Waiter = Callable[[bool], None]


class Batch:
    """Entries in flight to the same datapaths: datapaths whose barrier replies are missing, and waiters by token."""

    __slots__ = ("dpids", "missing", "token", "waiters")

    def __init__(self, token: int, dpids: tuple[DatapathId, ...]) -> None:
        self.token, self.dpids, self.missing = token, dpids, set(dpids)
        self.waiters: dict[int, Waiter] = {}


class Batches:
    """All entries of sessions that some datapath has not acknowledged. `len` counts unanswered barriers and their waiters."""

    def __init__(self, next_token: Callable[[], int]) -> None:
        self._next_token = next_token
        self._open: dict[tuple[DatapathId, ...], Batch] = {}
        self._by_barrier: dict[int, Batch] = {}
        self._by_entry: dict[int, Batch] = {}
        self._unanswered = 0

    def __len__(self) -> int:
        return self._unanswered

    def add(self, dpids: tuple[DatapathId, ...], waiter: Waiter) -> int:
        """Add an entry; return the token of its messages. `waiter` is called once: True when all datapaths have the entry, else False."""
        batch = self._open.get(dpids)
        if batch is None:
            batch = self._open[dpids] = Batch(self._next_token(), dpids)
            self._unanswered += len(batch.missing)
        token = self._next_token()
        batch.waiters[token] = waiter
        self._by_entry[token] = batch
        self._unanswered += 1
        return token

    def close(self, out: list[Command]) -> None:
        """Emit the barriers after the entries added since the last call."""
        if self._open:
            for batch in self._open.values():
                self._by_barrier[batch.token] = batch
                out.append(Barrier(batch.dpids, batch.token))
            self._open.clear()

    def acknowledge(self, dpid: DatapathId, token: int) -> bool:
        """Handle a barrier reply. Return False if the barrier belongs to no batch."""
        batch = self._by_barrier.get(token)
        if batch is None:
            return False
        if dpid in batch.missing:
            batch.missing.discard(dpid)
            self._unanswered -= 1
            if not batch.missing:
                self._end(batch, True)
        return True

    def reject(self, dpid: DatapathId, token: int) -> bool:
        """Handle a refused message: a refused entry fails alone, a refused barrier fails all entries before it. Return False for other
        messages."""
        batch = self._by_entry.get(token)
        if batch is not None:
            if dpid in batch.missing:
                self._told(batch, token, False)
            return True
        batch = self._by_barrier.get(token)
        if batch is not None and dpid in batch.missing:
            self._end(batch, False)
        return batch is not None

    def disconnect(self, dpid: DatapathId) -> None:
        """Fail all batches that a disconnected datapath has not answered."""
        for batch in [batch for batch in (*self._by_barrier.values(), *self._open.values()) if dpid in batch.missing]:
            self._end(batch, False)

    def _end(self, batch: Batch, done: bool) -> None:
        """Close a batch: its barriers are answered, or further replies no longer matter."""
        self._by_barrier.pop(batch.token, None)
        if self._open.get(batch.dpids) is batch:
            del self._open[batch.dpids]
        self._unanswered -= len(batch.missing)
        for token in list(batch.waiters):
            self._told(batch, token, done)

    def _told(self, batch: Batch, token: int, done: bool) -> None:
        del self._by_entry[token]
        self._unanswered -= 1
        batch.waiters.pop(token)(done)
