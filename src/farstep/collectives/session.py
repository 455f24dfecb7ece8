"""What one rank keeps from one collective to the next: links, plans, the queue, and whether it has failed."""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farstep import _native
from farstep.collectives.errors import CommunicatorAborted, CommunicatorError
from farstep.collectives.link import CHECK_BITS
from farstep.collectives.loop_runner import LoopRun, compile_for_loop
from farstep.collectives.mesh import Mesh
from farstep.collectives.operations import Handle, OperationQueue
from farstep.collectives.plan import Placement, Plan, compile_plan
from farstep.collectives.reduction import ElementType, kernel_of
from farstep.collectives.runner import Run, Task
from farstep.collectives.schedule import Schedule
from farstep.collectives.selection import CommunicatorSettings, Selection
from farstep.collectives.vector import Space, Vector, allocate_pages
from farstep.engine import EngineError

PLANS_MAX = 256
"""Compiled plans kept. A training step uses a few dozen sizes; a plan of 1000 chunks takes half a megabyte."""
CLOSE_TIMEOUT_S = 5.0
"""How long closing waits for the worker and for acknowledgements; several round trips of any distance."""


@dataclass(slots=True)
class ReadyPlan:
    """A compiled plan with what else depends on the call alone.

    Attributes:
        plan: the plan.
        check: a few bits of what was called.
        compiled: the plan's form for a compiled event loop, made when it is first run in one.
    """

    plan: Plan
    check: int
    compiled: _native.CollectivePlan | None = None


class Session:
    """The part of a communicator that runs operations.

    Args:
        mesh: makes the links.
        selection: chooses schedules.
        settings: thresholds and sizes.

    Attributes:
        failure: why no more operations run; None while they do.
        on_abort: called with the reason when the session is aborted.
    """

    def __init__(self, mesh: Mesh, selection: Selection, settings: CommunicatorSettings) -> None:
        self.mesh = mesh
        self.rank = mesh.rank
        self.size = mesh.size
        self.name = mesh.name
        self.failure: str | None = None
        self.on_abort: Callable[[str], None] | None = None
        self._settings = settings
        self._selection = selection
        self._queue = OperationQueue(f"farstep-{mesh.name}-{mesh.rank}")
        self._plans: OrderedDict[tuple[object, ...], ReadyPlan] = OrderedDict()
        self._num_operations = 0
        self._temporary: Vector | None = None

    # -- issuing --------------------------------------------------------------------------------------

    def issue(
        self, name: str, action: Callable[[float], None], background: bool, timeout_s: float | None
    ) -> Handle:
        """Runs an action, given its deadline, after all earlier ones; an error ends the communicator."""
        wait_s = timeout_s if timeout_s is not None else self._settings.timeout_s

        def guarded() -> None:
            if self.failure is not None:
                raise CommunicatorAborted(f"{name} on {self.name!r}: {self.failure}")
            try:
                action(time.monotonic() + wait_s)
            except EngineError as error:
                failure = self._fail(name, error)
                if failure is error:  # raised from itself, it would be its own cause
                    raise
                raise failure from error
            except BaseException as error:
                # Ctrl-C among them. This rank's part is not done and cannot be made up for.
                self.abort(f"{name} was broken off on rank {self.rank} by {type(error).__name__}")
                raise

        return self._queue.issue(name, guarded, background=background)

    def _fail(self, name: str, error: EngineError) -> CommunicatorError:
        """Makes the communicator useless, tells the peers, and says what happened."""
        was_aborted = self.failure is not None
        cause = self.failure or str(error)
        if not was_aborted:
            self.abort(f"{name} failed on rank {self.rank}: {error}")
        if isinstance(error, CommunicatorError):
            return error
        return CommunicatorAborted(f"{name} on {self.name!r}, rank {self.rank} of {self.size}: {cause}")

    def abort(self, reason: str) -> None:
        """Fails everything outstanding at once, here and on the peers."""
        self.failure = self.failure or f"aborted: {reason}"
        self.mesh.abort(reason)
        if self.on_abort is not None:
            self.on_abort(reason)

    def close(self) -> None:
        """Ends after what is queued."""
        self._queue.close(CLOSE_TIMEOUT_S)
        self.failure = self.failure or "the communicator is closed"

    # -- plans ----------------------------------------------------------------------------------------

    def plan(self, key: tuple[object, ...], prepare: Callable[[], ReadyPlan]) -> ReadyPlan:
        """Returns the plan of a call, preparing it the first time."""
        plans = self._plans
        if key in plans:
            plans.move_to_end(key)
            return plans[key]
        plan = plans[key] = prepare()
        if len(plans) > PLANS_MAX:
            plans.popitem(last=False)
        return plan

    def compile(
        self,
        schedule: Schedule,
        total_bytes: int,
        block_bytes: int,
        vector: Vector,
        op: str,
        root: int = 0,
    ) -> ReadyPlan:
        """Compiles a schedule whose sizes all ranks know."""
        plan = compile_plan(
            schedule,
            self.rank,
            itemsize_bytes=vector.element_type.itemsize_bytes,
            chunk_bytes=self._selection.chunk_bytes(block_bytes),
            placement=self._selection.placement(schedule, total_bytes),
        )
        return ReadyPlan(plan, _check_word(schedule.name, total_bytes, vector.element_type.name, op, root))

    def compile_fixed(
        self,
        schedule: Schedule,
        element_type: ElementType,
        what: str,
        placement: Placement = Placement.DIRECT,
    ) -> ReadyPlan:
        """Compiles a schedule of which this rank knows only its own part."""
        plan = compile_plan(
            schedule,
            self.rank,
            itemsize_bytes=element_type.itemsize_bytes,
            chunk_bytes=self._settings.link.slot_bytes,
            placement=placement,
        )
        return ReadyPlan(plan, _check_word(what, element_type.name))

    # -- running --------------------------------------------------------------------------------------

    def temporary(self, length_bytes: int, element_type: ElementType) -> Vector:
        """Memory for partial results, reused from one operation to the next; only one runs at a time."""
        if self._temporary is None or self._temporary.length_bytes < length_bytes:
            self._temporary = Vector(allocate_pages(length_bytes), ElementType.UINT8)
        return Vector(self._temporary.raw[:length_bytes], element_type)

    def run(
        self,
        name: str,
        ready: ReadyPlan,
        element_type: ElementType,
        source: Space,
        work: Space,
        op: str,
        deadline_s: float,
        own_blocks: Sequence[tuple[Vector, Vector]] = (),
    ) -> None:
        """Runs a plan on memory; called from within an action."""
        operation = self._num_operations & 0xFF
        self._num_operations += 1
        task = Task(
            name=f"{name} on {self.name!r}, rank {self.rank} of {self.size}",
            operation=operation,
            check=ready.check,
            source=source,
            work=work,
            element_type=element_type,
            kernel=kernel_of(op),
            divisor=self.size if op == "mean" else 1,
            own_blocks=own_blocks,
            deadline_s=deadline_s,
        )
        links = self.mesh.links_to(ready.plan.links, deadline_s)
        spaces: list[Space] = []
        if not ready.plan.is_eager:
            spaces = [source] if work is source else [source, work]
        try:
            for space in spaces:
                space.register(self.mesh.endpoint)
            if self.mesh.is_compiled:
                if ready.compiled is None:
                    ready.compiled = compile_for_loop(ready.plan)
                LoopRun(ready.plan, ready.compiled, task, links, self.mesh.endpoint).run()
            else:
                Run(ready.plan, task, links).run()
        finally:
            for space in spaces:
                space.close()


def _check_word(*parts: object) -> int:
    """A few bits of what was called; a peer that calls something else will nearly always differ."""
    return zlib.crc32("/".join(map(str, parts)).encode()) & ((1 << CHECK_BITS) - 1)
