"""Collectives among a fixed group of ranks over a transport.

All ranks call the same collectives in the same order. Each reduction happens in an order fixed by the ranks
alone, so that every rank holds the same bits and a rerun gives them again, whatever the network did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from farstep.collectives.errors import CommunicatorAborted
from farstep.collectives.mesh import Mesh
from farstep.collectives.operations import Handle
from farstep.collectives.plan import Placement
from farstep.collectives.point_to_point import PointToPoint
from farstep.collectives.reduction import ElementType, ReduceOp, check_reduction
from farstep.collectives.schedule import (
    Range,
    consecutive,
    dissemination_barrier,
    gather,
    pairwise_all_to_all,
    ring_reduce_scatter,
    scatter,
)
from farstep.collectives.selection import CommunicatorSettings, Selection
from farstep.collectives.session import CLOSE_TIMEOUT_S, ReadyPlan, Session
from farstep.collectives.transport import Endpoint, Store
from farstep.collectives.vector import Space, Vector, allocate_pages, as_vector

Blocks = Any
"""One buffer, or a sequence with one buffer per rank."""


class Communicator:
    """The collectives of one rank.

    Every method takes numpy arrays, :class:`~farstep.collectives.vector.Vector` objects or buffers, and
    stores results in place. With ``background=True`` it returns at once; the handle then says when the
    buffers may be used again. Methods may be called from any thread; operations run in the order of the calls.

    Args:
        endpoint: a :class:`farstep.engine.Endpoint`; it may serve several communicators and outlives them.
        rank: number of this rank, 0..size-1.
        size: number of ranks.
        store: exchanges addresses; all ranks pass one with the same content.
        name: distinguishes communicators that share a store; the same on all ranks, never used twice.
        sites: site name of every rank, to keep bytes within sites; None if all are in one place.
        settings: thresholds and sizes, the same on all ranks.
        identities: name of every rank. Where the endpoint has an identity, a peer's certificate must be for its name.

    Raises:
        ValueError: rank, size, sites or identities do not fit together.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        rank: int,
        size: int,
        store: Store,
        name: str = "world",
        sites: Sequence[str] | None = None,
        settings: CommunicatorSettings | None = None,
        identities: Sequence[str] | None = None,
    ) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ValueError(f"rank is {rank} and size {size}; rank must lie in 0..size-1")
        self.rank = rank
        self.size = size
        self.name = name
        self.settings = settings if settings is not None else CommunicatorSettings()
        self._selection = Selection(rank, size, sites, self.settings)
        mesh = Mesh(
            endpoint,
            store,
            rank=rank,
            size=size,
            name=name,
            settings=self.settings.link,
            identities=identities,
        )
        self._session = Session(mesh, self._selection, self.settings)
        self._point_to_point = PointToPoint(mesh, self.abort)
        self._session.on_abort = self._point_to_point.abort

    # -- links ----------------------------------------------------------------------------------------

    def open_links(self, *, background: bool = False, timeout_s: float | None = None) -> Handle:
        """Makes the links to all other ranks now, rather than each when it is first needed.

        Every rank has to call it, or a collective that uses every link, for it to end on any.

        Args:
            background: return at once.
            timeout_s: replaces the timeout of the settings.
        """
        peers = [peer for peer in range(self.size) if peer != self.rank]

        def action(deadline_s: float) -> None:
            self._session.mesh.links_to(peers, deadline_s)

        return self._session.issue("open_links", action, background, timeout_s)

    # -- reductions -----------------------------------------------------------------------------------

    def all_reduce(
        self, buffer: Any, op: ReduceOp = "sum", *, background: bool = False, timeout_s: float | None = None
    ) -> Handle:
        """Replaces the buffer of every rank by the element-wise reduction over all ranks.

        Args:
            buffer: contiguous elements of a type in :class:`ElementType`; equal count and type on all ranks.
            op: ``sum``, ``mean``, ``min``, ``max``, ``product``, and for integers and bool ``and``, ``or``,
                ``xor``. Floating-point reductions round once per operation; a mean is divided once.
            background: return at once.
            timeout_s: replaces the timeout of the settings.

        Raises:
            CommunicatorError: the operation failed; the message names collective, peer and cause.
            ValueError: the buffer or op is unusable.
            TypeError: the op has no meaning for the element type.
        """
        vector = as_vector(buffer)
        check_reduction(op, vector.element_type)
        nbytes = vector.length_bytes

        def prepare() -> ReadyPlan:
            schedule = self._selection.all_reduce(vector.count, nbytes)
            block_bytes = nbytes // self.size if schedule.is_zero_copy else nbytes
            return self._session.compile(schedule, nbytes, block_bytes, vector, op)

        def action(deadline_s: float) -> None:
            if vector.count == 0:
                return
            space = Space([vector])
            plan = self._session.plan(("all_reduce", vector.count, vector.element_type, op), prepare)
            self._session.run("all_reduce", plan, vector.element_type, space, space, op, deadline_s)

        return self._session.issue("all_reduce", action, background, timeout_s)

    def reduce(
        self,
        buffer: Any,
        root: int,
        op: ReduceOp = "sum",
        *,
        background: bool = False,
        timeout_s: float | None = None,
    ) -> Handle:
        """Replaces the buffer of the root by the reduction over all ranks; other ranks keep theirs."""
        vector = as_vector(buffer, writable=self.rank == root)
        check_reduction(op, vector.element_type)
        self._check_rank(root, "root")
        nbytes = vector.length_bytes

        def prepare() -> ReadyPlan:
            block_bytes = nbytes if nbytes <= self.settings.tree_bytes_max else nbytes // self.size
            schedule = self._selection.reduce(vector.count, nbytes, root)
            return self._session.compile(schedule, nbytes, block_bytes, vector, op, root)

        def action(deadline_s: float) -> None:
            if vector.count == 0:
                return
            source = Space([vector])
            work = (
                source
                if self.rank == root
                else Space([self._session.temporary(vector.length_bytes, vector.element_type)])
            )
            plan = self._session.plan(("reduce", vector.count, vector.element_type, op, root), prepare)
            self._session.run("reduce", plan, vector.element_type, source, work, op, deadline_s)

        return self._session.issue("reduce", action, background, timeout_s)

    def reduce_scatter(
        self,
        output: Any,
        inputs: Blocks,
        op: ReduceOp = "sum",
        *,
        background: bool = False,
        timeout_s: float | None = None,
    ) -> Handle:
        """Reduces one block per rank over all ranks and stores this rank's block.

        Args:
            output: receives the reduction of block ``rank``.
            inputs: one buffer per rank, or one buffer of ``size`` equal blocks. Inputs are not changed.
            op: as for :meth:`all_reduce`.
            background: return at once.
            timeout_s: replaces the timeout of the settings.
        """
        out = as_vector(output, "output")
        check_reduction(op, out.element_type)
        blocks = self._blocks(inputs, "inputs", writable=False)
        if blocks[self.rank].count != out.count:
            raise ValueError(
                f"output has {out.count} elements; block {self.rank} has {blocks[self.rank].count}"
            )
        counts = tuple(block.count for block in blocks)
        ranges = consecutive(counts)
        total_bytes = sum(counts) * out.element_type.itemsize_bytes

        def prepare() -> ReadyPlan:
            schedule = ring_reduce_scatter(ranges, members=self._selection.ring, involving=self.rank)
            return self._session.compile(schedule, total_bytes, total_bytes // self.size, out, op)

        def action(deadline_s: float) -> None:
            before, after = ranges[self.rank].offset, sum(counts) - ranges[self.rank].stop
            temporary = self._session.temporary(total_bytes if self.size > 2 else 0, out.element_type)
            # Partial sums of other ranks' blocks lie in temporary memory around the output. With two ranks
            # there are none, so the places before and after are never touched.
            work = self._surround(temporary, out, before, after)
            plan = self._session.plan(("reduce_scatter", counts, out.element_type, op), prepare)
            own = [(out, blocks[self.rank])] if self.size == 1 else []
            self._session.run(
                "reduce_scatter", plan, out.element_type, Space(blocks), work, op, deadline_s, own
            )

        return self._session.issue("reduce_scatter", action, background, timeout_s)

    @staticmethod
    def _surround(temporary: Vector, out: Vector, before: int, after: int) -> Space:
        if temporary.count == 0:
            return Space([out], origin_bytes=before * out.element_type.itemsize_bytes)
        parts = [temporary.part(0, before), out, temporary.part(before, after)]
        return Space([part for part in parts if part.count] or [out])

    # -- moving ---------------------------------------------------------------------------------------

    def all_gather(
        self, outputs: Blocks, data: Any, *, background: bool = False, timeout_s: float | None = None
    ) -> Handle:
        """Stores the data of every rank in the outputs of every rank.

        Args:
            outputs: one buffer per rank, or one buffer of ``size`` equal blocks.
            data: this rank's block; it may be its own place in the outputs.
            background: return at once.
            timeout_s: replaces the timeout of the settings.
        """
        own = as_vector(data, "data", writable=False)
        blocks = self._blocks(outputs, "outputs", writable=True)
        if blocks[self.rank].count != own.count:
            raise ValueError(
                f"data has {own.count} elements; output {self.rank} has {blocks[self.rank].count}"
            )
        counts = tuple(block.count for block in blocks)
        ranges = consecutive(counts)
        itemsize = own.element_type.itemsize_bytes
        total_bytes = sum(counts) * itemsize

        def prepare() -> ReadyPlan:
            schedule = self._selection.all_gather(ranges, total_bytes)
            return self._session.compile(schedule, total_bytes, total_bytes // self.size, own, "sum")

        def action(deadline_s: float) -> None:
            source = Space([own], origin_bytes=ranges[self.rank].offset * itemsize)
            copies = [] if blocks[self.rank].address == own.address else [(blocks[self.rank], own)]
            plan = self._session.plan(("all_gather", counts, own.element_type), prepare)
            self._session.run(
                "all_gather", plan, own.element_type, source, Space(blocks), "sum", deadline_s, copies
            )

        return self._session.issue("all_gather", action, background, timeout_s)

    def broadcast(
        self, buffer: Any, root: int, *, background: bool = False, timeout_s: float | None = None
    ) -> Handle:
        """Replaces the buffer of every rank by that of the root."""
        vector = as_vector(buffer, writable=self.rank != root)
        self._check_rank(root, "root")
        nbytes = vector.length_bytes

        def prepare() -> ReadyPlan:
            schedule = self._selection.broadcast(vector.count, nbytes, root)
            return self._session.compile(schedule, nbytes, nbytes, vector, "sum", root)

        def action(deadline_s: float) -> None:
            if vector.count == 0:
                return
            space = Space([vector])
            plan = self._session.plan(("broadcast", vector.count, vector.element_type, root), prepare)
            self._session.run("broadcast", plan, vector.element_type, space, space, "sum", deadline_s)

        return self._session.issue("broadcast", action, background, timeout_s)

    def all_to_all(
        self, outputs: Blocks, inputs: Blocks, *, background: bool = False, timeout_s: float | None = None
    ) -> Handle:
        """Sends ``inputs[q]`` to every rank q, where it is stored in ``outputs[r]`` of this rank's number r.

        Args:
            outputs: one buffer per rank, or one buffer of ``size`` equal blocks. Lengths may differ.
            inputs: the same; ``inputs[q]`` is as long as the output rank q has for this rank.
            background: return at once.
            timeout_s: replaces the timeout of the settings.
        """
        sends = self._blocks(inputs, "inputs", writable=False)
        receives = self._blocks(outputs, "outputs", writable=True)
        if sends[self.rank].count != receives[self.rank].count:
            raise ValueError(
                f"inputs[{self.rank}] has {sends[self.rank].count} elements; "
                f"outputs[{self.rank}] has {receives[self.rank].count}"
            )
        send_counts = tuple(block.count for block in sends)
        receive_counts = tuple(block.count for block in receives)
        element_type = sends[0].element_type

        def prepare() -> ReadyPlan:
            # The placement and the chunks must not depend on sizes that only this rank knows.
            schedule = pairwise_all_to_all(send_counts, receive_counts, self.rank)
            return self._session.compile_fixed(schedule, element_type, "all_to_all")

        def action(deadline_s: float) -> None:
            plan = self._session.plan(("all_to_all", send_counts, receive_counts, element_type), prepare)
            own = [(receives[self.rank], sends[self.rank])]
            spaces = Space(sends), Space(receives)
            self._session.run("all_to_all", plan, element_type, *spaces, "sum", deadline_s, own)

        return self._session.issue("all_to_all", action, background, timeout_s)

    def gather(
        self,
        outputs: Blocks | None,
        data: Any,
        root: int,
        *,
        background: bool = False,
        timeout_s: float | None = None,
    ) -> Handle:
        """Stores the data of every rank in the outputs of the root; other ranks pass None as outputs."""
        own = as_vector(data, "data", writable=False)
        self._check_rank(root, "root")
        blocks = self._blocks(outputs, "outputs", writable=True) if self.rank == root else []
        if blocks and blocks[root].count != own.count:
            raise ValueError(f"data has {own.count} elements; output {root} has {blocks[root].count}")
        # Others know neither where their block goes nor how long the blocks of others are.
        ranges = consecutive(b.count for b in blocks) if blocks else [Range(0, own.count)] * self.size

        def prepare() -> ReadyPlan:
            schedule = gather(ranges, root, involving=self.rank)
            return self._session.compile_fixed(schedule, own.element_type, f"gather {root}")

        def action(deadline_s: float) -> None:
            key = ("gather", tuple(part.length for part in ranges), own.element_type, root)
            plan = self._session.plan(key, prepare)
            copies = [(blocks[root], own)] if blocks else []
            work = Space(blocks or [own])
            self._session.run("gather", plan, own.element_type, Space([own]), work, "sum", deadline_s, copies)

        return self._session.issue("gather", action, background, timeout_s)

    def scatter(
        self,
        output: Any,
        inputs: Blocks | None,
        root: int,
        *,
        background: bool = False,
        timeout_s: float | None = None,
    ) -> Handle:
        """Stores block r of the root's inputs in the output of rank r; other ranks pass None as inputs."""
        out = as_vector(output, "output")
        self._check_rank(root, "root")
        blocks = self._blocks(inputs, "inputs", writable=False) if self.rank == root else []
        if blocks and blocks[root].count != out.count:
            raise ValueError(f"output has {out.count} elements; input {root} has {blocks[root].count}")
        ranges = consecutive(b.count for b in blocks) if blocks else [Range(0, out.count)] * self.size

        def prepare() -> ReadyPlan:
            schedule = scatter(ranges, root, involving=self.rank)
            return self._session.compile_fixed(schedule, out.element_type, f"scatter {root}")

        def action(deadline_s: float) -> None:
            key = ("scatter", tuple(part.length for part in ranges), out.element_type, root)
            plan = self._session.plan(key, prepare)
            copies = [(out, blocks[root])] if blocks else []
            source = Space(blocks or [out])
            self._session.run(
                "scatter", plan, out.element_type, source, Space([out]), "sum", deadline_s, copies
            )

        return self._session.issue("scatter", action, background, timeout_s)

    def barrier(self, *, background: bool = False, timeout_s: float | None = None) -> Handle:
        """Returns once every rank has called it."""

        def prepare() -> ReadyPlan:
            schedule = dissemination_barrier(self.size, involving=self.rank)
            return self._session.compile_fixed(schedule, ElementType.UINT8, "barrier", Placement.EAGER)

        def action(deadline_s: float) -> None:
            space = Space([Vector(allocate_pages(1), ElementType.UINT8)])
            plan = self._session.plan(("barrier",), prepare)
            self._session.run("barrier", plan, ElementType.UINT8, space, space, "or", deadline_s)

        return self._session.issue("barrier", action, background, timeout_s)

    # -- between two ranks ------------------------------------------------------------------------------

    def send(
        self, data: Any, peer: int, tag: int = 0, *, background: bool = False, timeout_s: float | None = None
    ) -> Handle:
        """Sends elements to a peer that calls :meth:`receive` with the same tag and length.

        Sends and receives are not ordered with the collectives, nor among each other except those with one
        peer, direction and tag. A send ends when the peer holds the bytes.

        Args:
            data: contiguous elements.
            peer: rank to send to.
            tag: 0 or more; pairs sends with receives.
            background: return at once.
            timeout_s: replaces the timeout of the settings.
        """
        vector = as_vector(data, "data", writable=False)
        return self._between(vector, peer, tag, background, timeout_s, is_send=True)

    def receive(
        self,
        buffer: Any,
        peer: int,
        tag: int = 0,
        *,
        background: bool = False,
        timeout_s: float | None = None,
    ) -> Handle:
        """Receives elements a peer sends with the same tag and length."""
        return self._between(as_vector(buffer), peer, tag, background, timeout_s, is_send=False)

    def _between(
        self, vector: Vector, peer: int, tag: int, background: bool, timeout_s: float | None, *, is_send: bool
    ) -> Handle:
        self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"peer is {peer}, this rank itself; copy the data instead")
        if tag < 0:
            raise ValueError(f"tag is {tag}; it must be 0 or more")
        if self.failure is not None:
            raise CommunicatorAborted(f"{'send' if is_send else 'receive'}: {self.failure}")
        wait_s = timeout_s if timeout_s is not None else self.settings.timeout_s
        handle = self._point_to_point.issue(vector, peer, tag, is_send=is_send, timeout_s=wait_s)
        if not background:
            handle.wait()  # the channel ends it when time is up
        return handle

    # -- other work -----------------------------------------------------------------------------------

    def run_in_order(self, name: str, action: Callable[[], None], *, background: bool = False) -> Handle:
        """Runs an action of the caller's after all earlier operations and before all later ones.

        For staging memory: copying in before a collective and out after it. The action is skipped, and its
        handle fails, once an operation has failed. It must not call this communicator.
        """
        return self._session.issue(name, lambda deadline_s: action(), background, None)

    # -- ending ---------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why the communicator can no longer be used; None while it can."""
        return self._session.failure

    def abort(self, reason: str) -> None:
        """Fails everything outstanding at once, here and on the peers; the communicator is then useless."""
        self._session.abort(reason)

    def close(self) -> None:
        """Ends the communicator after what is queued; the endpoint stays open."""
        self._session.close()
        self._point_to_point.close()
        self._session.mesh.close(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.failure is None:
            self.abort(f"{kind.__name__ if kind else 'error'} in the caller")
        self.close()

    # -- inside ---------------------------------------------------------------------------------------

    def _check_rank(self, rank: int, name: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name} is {rank}; it must lie in 0..{self.size - 1}")

    def _blocks(self, data: Blocks, name: str, *, writable: bool) -> list[Vector]:
        """One vector per rank, from a sequence of buffers or from one buffer of equal blocks."""
        if isinstance(data, list | tuple):
            if len(data) != self.size:
                raise ValueError(f"{name} holds {len(data)} buffers; one per rank, {self.size}, is needed")
            blocks = [as_vector(item, f"{name}[{i}]", writable=writable) for i, item in enumerate(data)]
            if len({block.element_type for block in blocks}) > 1:
                raise TypeError(f"{name} mixes element types; all must be the same")
            return blocks
        if data is None:
            raise ValueError(f"{name} is None; the root needs one buffer per rank, {self.size}")
        whole = as_vector(data, name, writable=writable)
        if whole.count % self.size:
            raise ValueError(
                f"{name} has {whole.count} elements, which {self.size} ranks cannot share equally"
            )
        count = whole.count // self.size
        return [whole.part(rank * count, count) for rank in range(self.size)]
