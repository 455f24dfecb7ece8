"""Runs a plan inside the compiled event loop of an endpoint: no thread switch and no interpreter per chunk.

The compiled run follows the rules of :mod:`farstep.collectives.runner`, which serves every other transport and
is what the tests compare it with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from farstep import _native
from farstep.collectives.errors import CommunicatorTimeout
from farstep.collectives.link import Link
from farstep.collectives.plan import Access, Plan
from farstep.collectives.runner import Task, mismatch, timed_out
from farstep.collectives.schedule import Action
from farstep.collectives.transport import Endpoint as EndpointShape
from farstep.collectives.vector import Space
from farstep.engine import Endpoint, EndpointClosed, EngineError

SLICE_NS = 100_000_000
"""How long a run stays in compiled code before it looks for Ctrl-C."""
_ACTIONS = {Action.COPY: 0, Action.REDUCE_LEFT: 1, Action.REDUCE_RIGHT: 2}
_THROUGH, _CLOSED = 0, 3
_DONE, _LINK_FAILED, _MISMATCH, _BAD_PEER = 1, 2, 3, 4


def can_run_in_loop(endpoint: EndpointShape) -> bool:
    """Whether an endpoint has a compiled event loop."""
    return isinstance(endpoint, Endpoint)


def _row(access: Access) -> tuple[int, int, int, int, int, int, int, bool, bool, bool]:
    return (
        access.chunk,
        access.turn,
        access.offset_bytes,
        access.length_bytes,
        access.entry,
        access.entry_offset_bytes,
        _ACTIONS[access.action],
        access.is_fresh,
        access.is_placed,
        access.completes,
    )


def compile_for_loop(plan: Plan) -> _native.CollectivePlan:
    """Turns a plan into its compiled form; links are numbered in the order of the plan."""
    number = {peer: index for index, peer in enumerate(plan.links)}
    links = [
        (
            [_row(access) for access in part.sends],
            [_row(access) for access in part.receives],
            part.placed_offsets_bytes,
            part.num_placed_sends,
        )
        for part in plan.links.values()
    ]
    first, order = [0], []
    for accesses in plan.next_access:
        order += [number[access.peer] for access in accesses]
        first.append(len(order))
    return _native.CollectivePlan(plan.is_eager, links, first, order)


class LoopRun:
    """One run of one plan.

    Args:
        plan: what to do.
        compiled: its compiled form.
        task: what to do it on; direct plans need registered spaces.
        links: a link to every peer of the plan.
        endpoint: the endpoint the links belong to.
    """

    def __init__(
        self,
        plan: Plan,
        compiled: _native.CollectivePlan,
        task: Task,
        links: Mapping[int, Link],
        endpoint: Any,
    ) -> None:
        self._plan = plan
        self._task = task
        self._links = [links[peer] for peer in plan.links]
        self._endpoint = endpoint
        self._run = _native.CollectiveRun(
            endpoint._native.loop_address,
            compiled,
            [link.compiled for link in self._links if link.compiled is not None],
            task.operation,
            task.check,
            int(task.element_type),
            task.kernel,
            task.divisor,
            _parts(task.source),
            _parts(task.work),
            [(target.address, source.address, target.length_bytes) for target, source in task.own_blocks],
        )

    def run(self) -> None:
        """Runs the plan to its end; the result is then in place and all memory is the caller's again.

        Raises:
            CommunicatorTimeout: the deadline has passed.
            CollectiveMismatch: a peer runs something else.
            EngineError: a connection failed.
        """
        try:
            self._wait()
        finally:
            self._run.drop()

    def _wait(self) -> None:
        run, deadline_s = self._run, self._task.deadline_s
        while True:
            left_ns = int((deadline_s - time.monotonic()) * 1e9)
            result = run.run(max(0, min(left_ns, SLICE_NS)))
            if result == _THROUGH:
                if run.status != _DONE:
                    self._raise()
                return
            if result == _CLOSED:
                raise EndpointClosed("the endpoint is closed")
            if left_ns <= SLICE_NS and time.monotonic() >= deadline_s:
                raise self._timeout()

    def _raise(self) -> None:
        link = self._links[self._run.failed_link]
        if self._run.status == _MISMATCH:
            raise mismatch(self._task, link.peer, self._run.foreign_tag)
        if self._run.status == _LINK_FAILED:
            link.connection.poll_immediate()  # raises what ended the connection
        raise EngineError(f"rank {link.peer} has sent what no rank of this communicator sends")

    def _timeout(self) -> CommunicatorTimeout:
        waiting = []
        for index, (link, part) in enumerate(zip(self._links, self._plan.links.values(), strict=True)):
            sent, received, is_awaited = self._run.progress(index)
            if is_awaited:
                waiting.append((link.peer, received, len(part.receives), sent, len(part.sends)))
        return timed_out(self._task, waiting)


def _parts(space: Space) -> list[tuple[int, int, int]]:
    """Start, address and key of each vector of a space; the key is 0 where none is registered."""
    keys = space.keys
    return [
        (start, vector.address, keys[index] if keys else 0)
        for index, (start, vector) in enumerate(zip(space.starts, space.vectors, strict=True))
    ]
