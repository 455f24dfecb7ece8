"""A torch process group on a communicator.

Collectives that only move data take tensors as bytes, so that any dtype works. Each call is issued to the
communicator in the order torch makes it; ``async_op=False`` runs it in the calling thread when it can.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import GroupName

from farstep.collectives.communicator import Communicator
from farstep.collectives.operations import Handle
from farstep.collectives.reduction import ReduceOp
from farstep.collectives.torch_backend.process_endpoint import MrcOptions, acquire_endpoint, release_endpoint
from farstep.collectives.torch_backend.registration import BACKEND_NAME
from farstep.collectives.torch_backend.store import TorchStore
from farstep.collectives.torch_backend.tensors import Staging
from farstep.collectives.torch_backend.work import MrcWork
from farstep.collectives.vector import Vector
from farstep.engine import EngineError

_REDUCE_OPS: tuple[tuple[Any, ReduceOp], ...] = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "mean"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.BAND, "and"),
    (dist.ReduceOp.BOR, "or"),
    (dist.ReduceOp.BXOR, "xor"),
)


def create_process_group(backend_options: Any, options: Any) -> MrcProcessGroup:
    """Makes the process group torch asks for.

    Args:
        backend_options: what torch says of the group.
        options: the caller's ``pg_options``.

    Raises:
        TypeError: the options are not :class:`MrcOptions`.
    """
    if options is not None and not isinstance(options, MrcOptions):
        raise TypeError(f"pg_options is a {type(options).__name__}; the backend mrc takes MrcOptions")
    return MrcProcessGroup(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        name=backend_options.group_id,
        timeout=backend_options.timeout,
        options=options,
    )


class MrcProcessGroup(dist.ProcessGroup):
    """The collectives of one group of ranks; made by torch, not by hand.

    Args:
        store: exchanges addresses among the ranks of the group.
        rank: rank within the group.
        size: number of ranks in the group.
        name: name of the group.
        timeout: how long a collective may take.
        options: see :class:`MrcOptions`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        name: str,
        timeout: timedelta,
        options: MrcOptions | None = None,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the only form that can be subclassed
        self._name = name
        self._store = store
        self._options = options or MrcOptions()
        self._timeout_s = timeout.total_seconds()
        endpoint = acquire_endpoint(self._options, rank)
        self._has_endpoint = True
        shared = TorchStore(store)
        site = self._options.site if self._options.site is not None else endpoint.site
        self._communicator = Communicator(
            endpoint,
            rank=rank,
            size=size,
            store=shared,
            name=name,
            sites=_exchange_sites(shared, site, rank, size, self._timeout_s),
            settings=self._options.settings,
        )

    @property
    def communicator(self) -> Communicator:
        """The communicator below, for what torch has no call for."""
        return self._communicator

    def getBackendName(self) -> str:
        """Name of the backend."""
        return BACKEND_NAME

    @property
    def group_name(self) -> GroupName:
        """Name of the group, unique in the process."""
        return GroupName(self._name)

    def getGroupName(self) -> str:
        """Name of the group, for torch's compiled side."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Does nothing: the name is known from the start, and the store's keys depend on it."""

    def get_group_store(self) -> Store:
        """The store of the group."""
        return self._store

    # -- reductions -----------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> MrcWork:
        """All-reduces each tensor of a list."""
        op = _reduce_op(opts)

        def issue(tensor: Tensor, staging: Staging) -> Callable[..., Handle]:
            vector = staging.update(tensor)
            return lambda **keywords: self._communicator.all_reduce(vector, op, **keywords)

        items = _as_list(tensors)
        return self._issue_each(items, issue, opts, timeout, items)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> MrcWork:
        """All-reduces each tensor of a list; the work ends with the last."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any) -> MrcWork:  # type: ignore[override]
        """Reduces a tensor to one rank."""
        items = _as_list(tensors)
        op, root = _reduce_op(opts), opts.rootRank

        def issue(tensor: Tensor, staging: Staging) -> Callable[..., Handle]:
            vector = staging.update(tensor) if self.rank() == root else staging.read(tensor)
            return lambda **keywords: self._communicator.reduce(vector, root, op, **keywords)

        return self._issue_each(items, issue, opts, None, items)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> MrcWork:  # type: ignore[override]
        """Reduces a list with one tensor per rank, of which this rank keeps its own."""
        op = _reduce_op(opts)
        pairs = list(zip(_as_list(outputs), inputs, strict=True))

        def issue(pair: tuple[Tensor, Sequence[Tensor]], staging: Staging) -> Callable[..., Handle]:
            out, blocks = staging.write(pair[0]), [staging.read(block) for block in pair[1]]
            return lambda **keywords: self._communicator.reduce_scatter(out, blocks, op, **keywords)

        return self._issue_each(pairs, issue, opts, None, _as_list(outputs))

    def reduce_scatter_single(self, output: Tensor, data: Tensor, opts: Any = None) -> MrcWork:
        """Reduces one tensor made of equal blocks, of which this rank keeps its own."""
        return self.reduce_scatter_single_coalesced([output], [data], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> MrcWork:
        """The same for several tensors; the work ends with the last."""
        op = _reduce_op(opts)

        def issue(pair: tuple[Tensor, Tensor], staging: Staging) -> Callable[..., Handle]:
            out, data = staging.write(pair[0]), staging.read(pair[1])
            return lambda **keywords: self._communicator.reduce_scatter(out, data, op, **keywords)

        return self._issue_each(list(zip(outputs, inputs, strict=True)), issue, opts, None, outputs)

    # -- moving ---------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any) -> MrcWork:  # type: ignore[override]
        """Copies a tensor of one rank to all."""
        items = _as_list(tensors)

        def issue(tensor: Tensor, staging: Staging) -> Callable[..., Handle]:
            is_root = self.rank() == opts.rootRank
            vector = (staging.read if is_root else staging.write)(tensor, any_type=True)
            return lambda **keywords: self._communicator.broadcast(vector, opts.rootRank, **keywords)

        return self._issue_each(items, issue, opts, None, items)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> MrcWork:
        """Gathers the tensors of all ranks into a list on every rank."""
        pairs = list(zip(outputs, _as_list(inputs), strict=True))

        def issue(pair: tuple[Sequence[Tensor], Tensor], staging: Staging) -> Callable[..., Handle]:
            blocks = [staging.write(block, any_type=True) for block in pair[0]]
            data = staging.read(pair[1], any_type=True)
            return lambda **keywords: self._communicator.all_gather(blocks, data, **keywords)

        flat = [tensor for blocks in outputs for tensor in blocks]
        return self._issue_each(pairs, issue, opts, None, flat)

    def allgather_coalesced(self, output_lists: Any, inputs: Sequence[Tensor], opts: Any = None) -> MrcWork:
        """Gathers several tensors of all ranks; the work ends with the last."""
        per_input = [[blocks[index] for blocks in output_lists] for index in range(len(inputs))]
        return self.allgather(per_input, inputs, opts)

    def all_gather_single(self, output: Tensor, data: Tensor, opts: Any = None) -> MrcWork:
        """Gathers the tensors of all ranks into one tensor on every rank."""
        return self.all_gather_single_coalesced([output], [data], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> MrcWork:
        """The same for several tensors; the work ends with the last."""

        def issue(pair: tuple[Tensor, Tensor], staging: Staging) -> Callable[..., Handle]:
            out, data = staging.write(pair[0], any_type=True), staging.read(pair[1], any_type=True)
            return lambda **keywords: self._communicator.all_gather(out, data, **keywords)

        return self._issue_each(list(zip(outputs, inputs, strict=True)), issue, opts, None, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> MrcWork:  # type: ignore[override]
        """Gathers the tensors of all ranks into a list on one rank."""
        root = opts.rootRank

        def issue(tensor: Tensor, staging: Staging) -> Callable[..., Handle]:
            blocks = None
            if self.rank() == root:
                blocks = [staging.write(block, any_type=True) for block in outputs[0]]
            data = staging.read(tensor, any_type=True)
            return lambda **keywords: self._communicator.gather(blocks, data, root, **keywords)

        flat = list(outputs[0]) if self.rank() == root else []
        return self._issue_each(_as_list(inputs), issue, opts, None, flat)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> MrcWork:  # type: ignore[override]
        """Sends one tensor of a list on one rank to each rank."""
        root, items = opts.rootRank, _as_list(outputs)

        def issue(tensor: Tensor, staging: Staging) -> Callable[..., Handle]:
            blocks = None
            if self.rank() == root:
                blocks = [staging.read(block, any_type=True) for block in inputs[0]]
            out = staging.write(tensor, any_type=True)
            return lambda **keywords: self._communicator.scatter(out, blocks, root, **keywords)

        return self._issue_each(items, issue, opts, None, items)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> MrcWork:
        """Sends one tensor of a list to each rank; lengths may differ."""

        def issue(_: None, staging: Staging) -> Callable[..., Handle]:
            sends = [staging.read(tensor, any_type=True) for tensor in inputs]
            receives = [staging.write(tensor, any_type=True) for tensor in outputs]
            return lambda **keywords: self._communicator.all_to_all(receives, sends, **keywords)

        return self._issue_each([None], issue, opts, None, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        data: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> MrcWork:
        """Sends a slice of a tensor to each rank; splits count rows, none mean equal slices."""

        def issue(_: None, staging: Staging) -> Callable[..., Handle]:
            sends = _split(staging.read(data, any_type=True), data, input_splits, self.size())
            receives = _split(staging.write(output, any_type=True), output, output_splits, self.size())
            return lambda **keywords: self._communicator.all_to_all(receives, sends, **keywords)

        return self._issue_each([None], issue, opts, None, [output])

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> MrcWork:  # type: ignore[override]
        """Ends once every rank has called it."""

        def issue(_: None, staging: Staging) -> Callable[..., Handle]:
            return self._communicator.barrier

        return self._issue_each([None], issue, opts, timeout, [])

    # -- between two ranks ------------------------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> MrcWork:
        """Sends a tensor; the work ends when the peer holds it."""
        return self._between(tensors, peer, tag, is_send=True)

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int = 0) -> MrcWork:
        """Receives a tensor."""
        return self._between(tensors, peer, tag, is_send=False)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> MrcWork:
        """Not possible: a receive tells its sender where the bytes belong, so that it must know the sender.

        Raises:
            ValueError: always.
        """
        raise ValueError("the backend mrc cannot receive from any source; name the source rank")

    def _between(self, tensors: Sequence[Tensor], peer: int, tag: int, *, is_send: bool) -> MrcWork:
        (tensor,) = tensors
        staging = Staging()
        vector = (staging.read if is_send else staging.write)(tensor, any_type=True)
        # Sends and receives are not queued, so that staging happens here and now.
        if staging.before is not None:
            staging.before()
        call = self._communicator.send if is_send else self._communicator.receive
        handle = call(vector, peer, tag, background=True, timeout_s=self._timeout_s)
        if staging.after is not None:
            handle = _then(handle, staging.after)
        return MrcWork([handle], [tensor])

    # -- ending ---------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Fails everything outstanding at once, here and on the peers."""
        self._communicator.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Ends the group after what is queued; the last group of a process closes its endpoint."""
        self._communicator.close()
        if self._has_endpoint:
            self._has_endpoint = False
            release_endpoint()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long later collectives may take."""
        self._timeout_s = timeout.total_seconds()

    # -- inside ---------------------------------------------------------------------------------------

    def _issue_each(
        self,
        items: Sequence[Any],
        issue: Callable[[Any, Staging], Callable[..., Handle]],
        opts: Any,
        timeout: timedelta | None,
        outputs: Sequence[Tensor],
    ) -> MrcWork:
        """Stages and issues one operation per item."""
        background = bool(getattr(opts, "asyncOp", True))
        timeout_s = self._timeout_of(opts, timeout)
        handles = []
        for item in items:
            staging = Staging()
            call = issue(item, staging)
            if staging.before is not None:
                self._communicator.run_in_order("staging in", staging.before, background=background)
            handle = call(background=background, timeout_s=timeout_s)
            if staging.after is not None:
                handle = self._communicator.run_in_order("staging out", staging.after, background=background)
            handles.append(handle)
        return MrcWork(handles, outputs)

    def _timeout_of(self, opts: Any, timeout: timedelta | None) -> float:
        for candidate in (timeout, getattr(opts, "timeout", None)):
            # Torch marks an unset timeout by a negative one.
            if isinstance(candidate, timedelta) and candidate.total_seconds() > 0:
                return candidate.total_seconds()
        return self._timeout_s


def _exchange_sites(store: TorchStore, site: str, rank: int, size: int, timeout_s: float) -> list[str]:
    """Every rank's site; the ranks meet here once, so that a missing one is noticed when a group is made."""
    store.set(f"site/{rank}", site.encode() or b"-")
    names = []
    for other in range(size):
        try:
            names.append(store.get(f"site/{other}", timeout_s).decode())
        except TimeoutError as error:
            raise EngineError(
                f"rank {other} has not joined the process group within {timeout_s} s"
            ) from error
    return names


def _reduce_op(opts: Any) -> ReduceOp:
    wanted = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    for op, name in _REDUCE_OPS:
        if wanted == op:
            return name
    valid = ", ".join(str(op) for op, _ in _REDUCE_OPS)
    raise ValueError(f"reduce op {wanted} is not supported by the backend mrc; valid are {valid}")


def _as_list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _split(vector: Vector, tensor: Tensor, splits: Sequence[int], size: int) -> list[Vector]:
    """Cuts the elements of a tensor by rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"the tensor has {rows} rows, which {size} ranks cannot share equally")
        splits = [rows // size] * size
    if sum(splits) != rows or len(splits) != size:
        raise ValueError(f"splits {list(splits)} must hold {size} numbers that add up to the {rows} rows")
    row_count = vector.count // rows if rows else 0
    parts, offset = [], 0
    for count in splits:
        parts.append(vector.part(offset, count * row_count))
        offset += count * row_count
    return parts


def _then(handle: Handle, after: Callable[[], None]) -> Handle:
    """A handle that ends once something has been done after another one."""
    chained = Handle(handle.name)

    def finish(ended: Handle) -> None:
        error = ended.exception()
        if error is None:
            with contextlib.suppress(Exception):
                after()
        chained.finish(error)

    handle.add_done_callback(finish)
    return chained
