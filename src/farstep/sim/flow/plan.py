"""A task table as the flow level sees it: connections, their ways, and bits on the wire."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.answers import answer_rows
from farstep.sim.flow.bundles import BundleTable
from farstep.sim.flow.hashing import PathHashes, first_appearance
from farstep.sim.flow.ragged import scramble
from farstep.sim.flow.rows import BITS_PER_BYTE, Rows, hashed_rows, sprayed_rows, usable_ports
from farstep.sim.flow.settings import FlowSettings
from farstep.sim.flow.walk import RoutingView
from farstep.sim.rivals import TcpKnobs
from farstep.sim.tasks import TaskTable

__all__ = ["FlowPlan"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan:
    """Flows of a table. Columns have one value per task; those of delays mean nothing.

    Attributes:
        settings: of the transport.
        connection: int64 (tasks,), number of the connection.
        parts: parts a flow is sent in, each with rates of its own: queue pairs with a hashed path each.
        first_row: int64 (tasks,), row of a flow's first part; those of the others follow.
        row_source: int64 (rows,), NIC.
        row_target: int64 (rows,), NIC.
        row_entropy: uint64 (rows,), hashed to choose paths.
        hashes: what ports and paths are made of as in the packet engine; None: they are hashed out of `row_entropy`.
        packets: int64 (tasks,).
        wire_bits: float64 (tasks,), of one part of the flow.
        tail_bytes: float64 (tasks,), what is stored and forwarded: a full packet, or a smaller one that is alone.
    """

    settings: FlowSettings
    connection: IntArray
    parts: int
    first_row: IntArray
    row_source: IntArray
    row_target: IntArray
    row_entropy: NDArray[np.uint64]
    hashes: PathHashes | None
    packets: IntArray
    wire_bits: FloatArray
    tail_bytes: FloatArray

    @classmethod
    def of(
        cls, tasks: TaskTable, settings: FlowSettings, seed: int, ports: IntArray | None = None
    ) -> FlowPlan:
        """Prepares a table.

        Args:
            tasks: what is to be done.
            settings: of the transport.
            seed: chooses hashed paths.
            ports: int64 (NICs,), number of ports of each; with it, hashed paths are those of the packet engine.
        """
        is_flow = tasks.is_flow
        key = np.where(tasks.connection_key < 0, -1 - tasks.job.astype(np.int64), tasks.connection_key)
        source, target = tasks.source.astype(np.int64), tasks.target.astype(np.int64)
        columns = np.stack((np.where(is_flow, source, -1), np.where(is_flow, target, -1), key * is_flow))
        distinct, connection = _distinct_columns(columns)
        ends, names = distinct[:2], distinct[2]
        parts = settings.paths if settings.spreading == "hash" and not settings.is_coupled else 1
        if settings.spreading == "spray":
            # Whoever goes between the same NICs goes the same ways.
            pairs, row_of = _distinct_columns(ends)
            row_ends, entropy, first_row = pairs, np.zeros(pairs.shape[1], np.uint64), row_of[connection]
            hashes = None
        elif ports is not None and not settings.is_coupled:
            flow = np.flatnonzero(is_flow)
            appeared = np.zeros(distinct.shape[1], np.int64)
            appeared[connection[flow]] = first_appearance(connection[flow])
            pairs_each = 0 if isinstance(settings.rival, TcpKnobs) else parts
            hashes = PathHashes.of(appeared, ports[np.maximum(ends[0], 0)], pairs_each, seed)
            row_ends, entropy = np.repeat(ends, parts, axis=1), hashes.word
            first_row = connection * parts
        else:
            hashes = None
            word = scramble(ends[0], seed) ^ scramble(ends[1], seed + 1) ^ scramble(names, seed + 2)
            row_ends = np.repeat(ends, parts, axis=1)
            with np.errstate(over="ignore"):
                entropy = np.repeat(word, parts) + np.tile(np.arange(parts, dtype=np.uint64), len(word))
            first_row = connection * parts
        size = tasks.size_bytes.astype(np.float64)
        packets = -(-tasks.size_bytes // settings.payload_bytes)
        bits = BITS_PER_BYTE * (size + packets * settings.overhead_bytes) / parts
        tail = np.minimum(size, settings.payload_bytes) + settings.overhead_bytes
        return cls(
            settings=settings,
            connection=connection,
            parts=parts,
            first_row=first_row,
            row_source=row_ends[0],
            row_target=row_ends[1],
            row_entropy=entropy,
            hashes=hashes,
            packets=packets,
            wire_bits=bits,
            tail_bytes=tail,
        )

    def names(self, tasks: TaskTable) -> NDArray[np.uint64]:
        """Names tasks by their ends, job and place on their connection, whatever their number in the table."""
        order = np.argsort(self.connection, kind="stable")
        first = np.r_[0, np.cumsum(np.bincount(self.connection))]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order)) - first[self.connection[order]]
        ends = scramble(tasks.source, 20) ^ scramble(tasks.target, 21) ^ scramble(tasks.job, 22)
        return np.asarray(ends ^ scramble(tasks.connection_key, 23) ^ scramble(place, 24), np.uint64)

    def rows(self, view: RoutingView, table: BundleTable) -> Rows:
        """Finds the ways of all rows in a view of the network."""
        is_real = self.row_source >= 0
        source = np.where(is_real, self.row_source, 0)
        target = np.where(is_real, self.row_target, 0)
        if self.settings.spreading == "spray":
            return sprayed_rows(view, table, source, target)
        paths = self.settings.paths if self.settings.is_coupled else 1
        chosen = None if self.hashes is None else self.hashes.choose(usable_ports(view, source, target))
        return hashed_rows(view, table, source, target, self.row_entropy, paths, chosen)

    def answers(self, view: RoutingView, table: BundleTable) -> Rows:
        """Finds the ways of acknowledgements of all rows, as the packet engine draws them."""
        assert self.hashes is not None
        source, target = np.maximum(self.row_source, 0), np.maximum(self.row_target, 0)
        port, _ = self.hashes.choose(usable_ports(view, source, target))
        return answer_rows(view, table, (source, target), port, self.hashes.answers)


def _distinct_columns(columns: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the distinct columns, and the number of each column among them."""
    code = np.zeros(columns.shape[1], np.int64)
    for row in columns:
        _, digits = np.unique(row, return_inverse=True)
        # Renumbered after each row, so that products stay small.
        _, code = np.unique(code * (int(digits.max(initial=0)) + 1) + digits, return_inverse=True)
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return columns[:, first], inverse
