"""Steps of training a model: computation and the traffic of tensor, pipeline, data and expert parallelism.

Ranks are numbered with the tensor dimension fastest, then data, then pipeline, as Megatron-LM does. A pipeline
stage works in the order of 1F1B: first as many forward passes as there are stages behind it, then one forward and
one backward in turn. Gradients are all-reduced in buckets as the last backward pass fills them, while it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.workloads.phases import add_all_to_all, add_collective
from farstep.sim.workloads.ranks import positive, to_nics

__all__ = ["TrainingPlan", "one_f_one_b", "training_steps"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What one training step is made of; traffic of 0 bytes is none, such as that which stays in a node.

    Attributes:
        tensor, pipeline, data: sizes of the three parallel dimensions; their product is the number of ranks.
        expert: ranks that share the experts of a layer, a part of the data dimension; 1: no experts.
        layers: layers of the whole model, divided evenly over the stages.
        micro_batches: micro-batches of a step.
        forward_us: computation of one layer for one micro-batch, forward; backward takes `backward_factor` times.
        backward_factor: usually 2, or 3 with recomputation.
        optimizer_us: computation at the end of a step.
        jitter_percent: every computation is drawn evenly from its time less and more this share.
        tensor_bytes: activations all-reduced in each layer and pass.
        pipeline_bytes: activations sent from stage to stage for a micro-batch, and back as gradients.
        gradient_bytes: gradients of a rank, all-reduced over the data dimension once per step.
        buckets: parts the gradients are all-reduced in, each when its layers are done.
        expert_bytes: what a rank sends to each other of its expert group, in each layer and pass, twice (to the
            experts and back).
        steps: number of steps.
        checkpoint_bytes: what each rank of the first data replica writes after a step, in the background.
        checkpoint_every: steps from one checkpoint to the next.
        seed: draws the jitter.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    layers: int = 1
    micro_batches: int = 1
    forward_us: float = 100.0
    backward_factor: float = 2.0
    optimizer_us: float = 0.0
    jitter_percent: float = 0.0
    tensor_bytes: int = 0
    pipeline_bytes: int = 0
    gradient_bytes: int = 0
    buckets: int = 1
    expert_bytes: int = 0
    steps: int = 1
    checkpoint_bytes: int = 0
    checkpoint_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "expert", "layers", "micro_batches", "buckets", "steps"):
            positive(name, getattr(self, name))
        positive("checkpoint_every", self.checkpoint_every)
        if self.layers % self.pipeline:
            raise WorkloadError(f"layers is {self.layers}; pipeline = {self.pipeline} must divide it")
        if self.data % self.expert:
            raise WorkloadError(f"expert is {self.expert}; it must divide data = {self.data}")
        if self.buckets > self.layers // self.pipeline:
            raise WorkloadError(
                f"buckets is {self.buckets}; a stage has {self.layers // self.pipeline} layers to cut into them"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks the plan needs."""
        return self.tensor * self.data * self.pipeline


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Order in which a stage works: ("F" or "B", micro-batch)."""
    ahead = min(stages - stage - 1, micro_batches)
    order = [("F", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append(("F", ahead + number))
        order.append(("B", number))
    return order


def training_steps(ranks: int | ArrayLike, plan: TrainingPlan, *, storage: Sequence[int] = ()) -> TaskTable:
    """Training steps, each tagged with its number.

    Args:
        ranks: number of ranks, or the NIC of each.
        plan: what a step is made of.
        storage: NICs that take the checkpoints, in turn.

    Raises:
        WorkloadError: the plan needs another number of ranks, or checkpoints have nowhere to go.
    """
    nics = to_nics(ranks, at_least=1)
    if len(nics) != plan.num_ranks:
        dims = f"tensor {plan.tensor} x data {plan.data} x pipeline {plan.pipeline}"
        raise WorkloadError(f"{len(nics)} ranks are given; {dims} needs {plan.num_ranks}")
    if plan.checkpoint_bytes and not storage:
        raise WorkloadError("checkpoint_bytes is given; storage must name the NICs that take checkpoints")
    step = _Step(plan, nics.reshape(plan.pipeline, plan.data, plan.tensor))
    for number in range(plan.steps):
        step.add(number)
        if plan.checkpoint_bytes and (number + 1) % plan.checkpoint_every == 0:
            step.checkpoint(np.asarray(storage, np.int64))
    return step.build.table()


class _Step:
    """Adds steps to a builder; arrays over the ranks of a stage have the shape (data, tensor)."""

    def __init__(self, plan: TrainingPlan, nics: IntArray) -> None:
        self._plan = plan
        self._nics = nics
        self._random = np.random.default_rng([plan.seed, plan.num_ranks])
        self._ready = np.full(nics.shape, -1, np.int64)
        self._layers = plan.layers // plan.pipeline
        self.build = TaskBuilder(job_names=["training"])

    def add(self, number: int) -> None:
        """Adds a step after the ones there are."""
        self.build.tag = number
        plan = self._plan
        orders = [one_f_one_b(stage, plan.pipeline, plan.micro_batches) for stage in range(plan.pipeline)]
        done = [0] * plan.pipeline
        self._reduced: list[list[IntArray]] = [[] for _ in range(plan.pipeline)]
        arrived: dict[tuple[str, int, int], IntArray] = {}
        # A pass is added when what it needs from its neighbour stage is known, so that tasks come in order.
        while any(done[stage] < len(orders[stage]) for stage in range(plan.pipeline)):
            for stage in range(plan.pipeline):
                while done[stage] < len(orders[stage]):
                    direction, batch = orders[stage][done[stage]]
                    before = stage - 1 if direction == "F" else stage + 1
                    key = (direction, before, batch)
                    if 0 <= before < plan.pipeline and key not in arrived:
                        break
                    is_last = done[stage] + 1 == len(orders[stage])
                    self._pass(stage, direction, batch, arrived.pop(key, None), arrived, is_last=is_last)
                    done[stage] += 1
        for stage in range(plan.pipeline):
            self._finish(stage)

    def _pass(
        self,
        stage: int,
        direction: str,
        batch: int,
        received: IntArray | None,
        arrived: dict[tuple[str, int, int], IntArray],
        *,
        is_last: bool,
    ) -> None:
        """Adds the work of a stage on a micro-batch, forward or backward."""
        plan = self._plan
        for count, fills_bucket in self._layer_runs(reduces=is_last and plan.gradient_bytes > 0):
            self._compute(stage, direction, count, received)
            received = None
            if plan.tensor_bytes and plan.tensor > 1:
                self._collective(stage, "tensor", plan.tensor_bytes)
            if plan.expert_bytes and plan.expert > 1:
                self._exchange_experts(stage)
            if fills_bucket is not None and plan.data > 1:
                self._reduced[stage].append(self._all_reduce(stage, fills_bucket))
        after = stage + 1 if direction == "F" else stage - 1
        if 0 <= after < plan.pipeline:
            arrived[direction, stage, batch] = self._send(stage, after)

    def _layer_runs(self, *, reduces: bool) -> list[tuple[int, int | None]]:
        """Layers that can be computed at one go, and the bucket that is full then."""
        plan = self._plan
        is_layered = (plan.tensor_bytes and plan.tensor > 1) or (plan.expert_bytes and plan.expert > 1)
        runs: list[tuple[int, int | None]] = []
        borders = [round(self._layers * (number + 1) / plan.buckets) for number in range(plan.buckets)]
        since = 0
        for layer in range(1, self._layers + 1):
            bucket = borders.index(layer) if reduces and layer in borders else None
            if is_layered or bucket is not None or layer == self._layers:
                runs.append((layer - since, bucket))
                since = layer
        return runs

    def _compute(self, stage: int, direction: str, layers: int, received: IntArray | None) -> None:
        plan = self._plan
        time_us = layers * plan.forward_us * (plan.backward_factor if direction == "B" else 1.0)
        ids = self._delay(stage, time_us, "forward" if direction == "F" else "backward")
        if received is not None:
            self.build.after(ids, received)
        self._ready[stage] = ids

    def _delay(self, stage: int, time_us: float, phase: str) -> IntArray:
        """Computation of every rank of a stage, after what it did before."""
        nics = self._nics[stage]
        jitter = self._plan.jitter_percent / 100.0
        drawn = time_us * 1000.0 * self._random.uniform(1.0 - jitter, 1.0 + jitter, nics.shape)
        ids = self.build.delays(nics, np.rint(drawn).astype(np.int64), phase=phase).reshape(nics.shape)
        self.build.after(ids, self._ready[stage])
        return ids

    def _collective(self, stage: int, phase: str, size_bytes: int) -> None:
        nics = self._nics[stage]
        done = add_collective(
            self.build, "all_reduce", nics, size_bytes, after=self._ready[stage], phase=f"{phase} all-reduce"
        )
        self._ready[stage] = done.reshape(nics.shape)

    def _exchange_experts(self, stage: int) -> None:
        """All-to-all to the experts and back, within groups of consecutive data ranks."""
        plan = self._plan
        shape = (plan.data // plan.expert, plan.expert, plan.tensor)
        for _ in range(2):
            groups = self._nics[stage].reshape(shape).swapaxes(1, 2)
            ready = self._ready[stage].reshape(shape).swapaxes(1, 2)
            done = add_all_to_all(
                self.build,
                groups.reshape(-1, plan.expert),
                plan.expert_bytes,
                after=ready.reshape(-1, plan.expert),
                phase="expert all-to-all",
            )
            self._ready[stage] = done.reshape(groups.shape).swapaxes(1, 2).reshape(self._ready[stage].shape)

    def _all_reduce(self, stage: int, bucket: int) -> IntArray:
        """All-reduces a bucket of gradients over the data dimension, while the ranks go on."""
        plan = self._plan
        base, longer = divmod(plan.gradient_bytes, plan.buckets)
        done = add_collective(
            self.build,
            "all_reduce",
            self._nics[stage].T,
            max(1, base + (bucket < longer)),
            after=self._ready[stage].T,
            phase="gradient all-reduce",
        )
        return np.swapaxes(done, 0, 1)

    def _send(self, stage: int, target: int) -> IntArray:
        source, sink = self._nics[stage], self._nics[target]
        if not self._plan.pipeline_bytes:
            ready: IntArray = self._ready[stage]
            return ready.copy()
        ids = self.build.flows(source, sink, self._plan.pipeline_bytes, phase="pipeline").reshape(
            source.shape
        )
        self.build.after(ids, self._ready[stage])
        return ids

    def _finish(self, stage: int) -> None:
        """The optimizer, after the gradients are reduced."""
        ids = self._delay(stage, self._plan.optimizer_us, "optimizer")
        for reduced in self._reduced[stage]:
            self.build.after(ids, reduced)
        self._ready[stage] = ids

    def checkpoint(self, storage: IntArray) -> None:
        """Writes the state of the first data replica in the background, from where the step has come."""
        writers = self._nics[:, 0, :].ravel()
        tag, self.build.tag = self.build.tag, -1
        targets = storage[np.arange(len(writers)) % len(storage)]
        ids = self.build.flows(writers, targets, self._plan.checkpoint_bytes, phase="checkpoint")
        self.build.after(ids, self._ready[:, 0, :].ravel())
        self.build.tag = tag
