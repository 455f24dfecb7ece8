"""Workloads as tables of a scenario, and as arguments of the Python interface.

Each table says which ranks take part and what they do; `tasks` turns it into a `TaskTable` on given NICs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from farstep.fabric.errors import register_union_tags
from farstep.sim.refusals import PlainModel
from farstep.sim.tasks import TaskTable, WorkloadError
from farstep.sim.workloads import chakra, collectives, jobs, matrices, patterns, training
from farstep.sim.workloads.ranks import Nics

__all__ = [
    "JOBS",
    "WORKLOAD_KINDS",
    "AllToAll",
    "Chakra",
    "Collective",
    "Flows",
    "Incast",
    "Matrix",
    "Permutation",
    "SendRecv",
    "Training",
    "Workload",
]

Bytes = Annotated[int, Field(ge=1, le=2**50)]
Count = Annotated[int, Field(ge=1, le=10**7)]
Ranks = Annotated[int, Field(ge=1, le=2**20)]
Microseconds = Annotated[float, Field(ge=0.0, le=1e12)]
Nic = Annotated[int, Field(ge=0, lt=2**20)]

NS_PER_US = 1000


class _Job(PlainModel):
    """What every job has."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    ranks_min: ClassVar[int] = 2

    name: str | None = None
    """what tables and plots call the job; left out: its kind"""
    ranks: Ranks | None = None
    """number of ranks; left out: as many NICs as are free"""
    placement: Literal["packed", "spread", "random"] | tuple[Nic, ...] = "packed"
    """packed, spread over racks, random, or the NIC of each rank"""
    start_us: Microseconds = 0.0
    """when the job begins"""
    repeat: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """steps that do the same one after the other; left out: run.repeat"""
    barrier: bool = False
    """whether all NICs wait for each other between steps"""
    gap_us: Microseconds = 0.0
    """time between steps"""
    background: bool = False
    """whether the job only fills the network: its flows count in no flow or step time"""

    def num_ranks(self, free: int, folder: Path) -> int | None:
        """Ranks the job needs; None: as many as there are NICs free."""
        return self.ranks

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:
        """Tasks of one step.

        Raises:
            WorkloadError: the job cannot be done on these NICs.
        """
        raise NotImplementedError

    def tasks(self, nics: Nics, *, seed: int = 0, folder: Path = Path(), repeat: int = 1) -> TaskTable:
        """Tasks of the job.

        Args:
            nics: NIC of every rank.
            seed: draws what is left to chance.
            folder: where files named by the job are looked for.
            repeat: number of steps, unless the job says so itself.

        Raises:
            WorkloadError: the job cannot be done on these NICs.
        """
        table = self.once(nics, seed, folder)
        gap_ns = round(self.gap_us * NS_PER_US)
        table = jobs.repeat(table, self.repeat or repeat, barrier=self.barrier, gap_ns=gap_ns)
        if self.start_us:
            table = jobs.delayed(table, round(self.start_us * NS_PER_US))
        if self.background:
            table = jobs.in_background(table)
        return table.renamed(job_names=[self.name or str(getattr(self, "kind", "job"))])


class Permutation(_Job):
    """Every rank sends to one other and receives from one."""

    kind: Literal["permutation"] = "permutation"
    size_bytes: Bytes = 1_000_000
    """payload of each flow"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return patterns.permutation(nics, self.size_bytes, seed=seed)


class Incast(_Job):
    """Many ranks send to one at once, beside a victim."""

    kind: Literal["incast"] = "incast"
    size_bytes: Bytes = 1_000_000
    """payload of each sender"""
    senders: Count | tuple[Nic, ...] = 8
    """how many, drawn at random, or which ranks"""
    target: Nic = 0
    """rank that receives"""
    victim: bool | tuple[Nic, Nic] = True
    """source and target of the victim, true for idle ones, false for none"""
    victim_bytes: Bytes | None = None
    """payload of the victim; left out: that of a sender"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return patterns.incast(
            nics,
            self.size_bytes,
            senders=self.senders,
            target=self.target,
            victim=self.victim,
            victim_bytes=self.victim_bytes,
            seed=seed,
        )


class AllToAll(_Job):
    """Every rank sends to every other, a window of flows at a time."""

    kind: Literal["all-to-all"] = "all-to-all"
    size_bytes: Bytes = 100_000
    """payload from each rank to each other"""
    window: Count = 8
    """flows a rank has under way at once"""
    group_size: Ranks | None = None
    """exchanges stay within groups of so many ranks; left out: all ranks are one group"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return patterns.all_to_all(nics, self.size_bytes, window=self.window, group_size=self.group_size)


class SendRecv(_Job):
    """Ranks exchange messages in pairs."""

    kind: Literal["sendrecv"] = "sendrecv"
    size_bytes: Bytes = 1_000_000
    """payload of a message"""
    pairs: Literal["neighbours", "opposite"] | tuple[tuple[Nic, Nic], ...] = "neighbours"
    """neighbours (0-1, 2-3 ...), opposite (0-n/2 ...), or pairs of ranks"""
    messages: Count = 1
    """messages that follow each other in each direction"""
    both_ways: bool = True
    """whether the second of a pair sends too"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return patterns.sendrecv(
            nics, self.size_bytes, pairs=self.pairs, messages=self.messages, both_ways=self.both_ways
        )


class Flows(_Job):
    """Flows between ranks, one by one."""

    kind: Literal["flows"] = "flows"
    size_bytes: Bytes = 1_000_000
    """payload of each message"""
    pairs: tuple[tuple[Nic, Nic], ...] = Field(default=((0, 1),), min_length=1)
    """source and target of each flow"""
    messages: Count = 1
    """messages of each flow that follow each other"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        for pair in self.pairs:
            if max(pair) >= len(nics):
                raise WorkloadError(f"pairs names rank {max(pair)}; ranks are 0..{len(nics) - 1}")
        source, target = zip(*self.pairs, strict=True)
        return patterns.streams(
            nics[list(source)], nics[list(target)], self.size_bytes, messages=self.messages
        )


class Collective(_Job):
    """One collective over all ranks."""

    kind: Literal["collective"] = "collective"
    collective: Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"] = (
        "all_reduce"
    )
    """which one"""
    size_bytes: Bytes = 16_000_000
    """bytes of the vector; of an all-to-all what a rank sends in all"""
    algorithm: Literal["ring", "tree", "recursive_doubling", "hierarchical", "chain", "direct"] | None = None
    """how; left out: ring, chain or direct"""
    group_size: Ranks | None = None
    """ranks in a group of the hierarchical all-reduce"""
    channels: Annotated[int, Field(ge=1, le=64)] = 1
    """parts that go round a ring independently"""
    step_delay_us: Microseconds = 0.0
    """time between receiving and sending on"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return collectives.collective(
            self.collective,
            nics,
            self.size_bytes,
            algorithm=self.algorithm,
            group_size=self.group_size,
            channels=self.channels,
            step_delay_ns=round(self.step_delay_us * NS_PER_US),
        )


class Training(_Job):
    """Steps of training a model: computation and the traffic of its parallel dimensions."""

    kind: Literal["training"] = "training"
    tensor: Ranks = 1
    """size of the tensor-parallel dimension"""
    pipeline: Ranks = 1
    """size of the pipeline-parallel dimension"""
    data: Ranks | None = None
    """size of the data-parallel dimension; left out: what the ranks leave"""
    expert: Ranks = 1
    """data-parallel ranks that share the experts of a layer"""
    layers: Count = 1
    """layers of the whole model"""
    micro_batches: Count = 1
    """micro-batches of a step"""
    forward_us: Microseconds = 100.0
    """computation of one layer for one micro-batch, forward"""
    backward_factor: Annotated[float, Field(ge=0.0, le=100.0)] = 2.0
    """how much longer the backward pass computes"""
    optimizer_us: Microseconds = 0.0
    """computation at the end of a step"""
    jitter_percent: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """computation varies evenly by so much"""
    tensor_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """activations all-reduced in each layer and pass"""
    pipeline_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """activations sent from stage to stage for a micro-batch"""
    gradient_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """gradients of a rank, all-reduced once per step"""
    buckets: Count = 1
    """parts the gradients are all-reduced in"""
    expert_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """what a rank sends to each other of its expert group, twice in each layer and pass"""
    steps: Count = 1
    """number of steps"""
    checkpoint_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """what each rank of the first replica writes after a step, in the background"""
    checkpoint_every: Count = 1
    """steps from one checkpoint to the next"""
    storage: tuple[Nic, ...] = ()
    """NICs that take the checkpoints, in turn"""

    def num_ranks(self, free: int, folder: Path) -> int | None:  # noqa: D102
        if self.data is None:
            return self.ranks
        return self.ranks or self.tensor * self.pipeline * self.data

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        fixed = self.tensor * self.pipeline
        if self.data is None and len(nics) % fixed:
            raise WorkloadError(f"tensor x pipeline = {fixed} must divide the {len(nics)} ranks")
        values = self.model_dump(include=set(training.TrainingPlan.__slots__) & set(type(self).model_fields))
        plan = training.TrainingPlan(**{**values, "data": self.data or len(nics) // fixed, "seed": seed})
        return training.training_steps(nics, plan, storage=self.storage)


class Matrix(_Job):
    """A traffic matrix of htsim (`.cm` or `.cm.xz`)."""

    kind: Literal["matrix"] = "matrix"
    path: str
    """the file, from the scenario's folder"""

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return matrices.read_matrix(folder / self.path, nics)


class Chakra(_Job):
    """Chakra execution traces, one per rank."""

    kind: Literal["chakra"] = "chakra"
    path: str
    """folder of the traces NAME.RANK.et, or their path in front of .RANK.et"""
    groups: str | None = None
    """JSON file of the process groups"""
    compute_tflops: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    """speed for computations without a recorded duration"""

    def num_ranks(self, free: int, folder: Path) -> int | None:  # noqa: D102
        return self.ranks or len(chakra.trace_files(folder / self.path))

    def once(self, nics: Nics, seed: int, folder: Path) -> TaskTable:  # noqa: D102
        return chakra.read_chakra(
            folder / self.path,
            nics,
            groups=None if self.groups is None else folder / self.groups,
            compute_tflops=self.compute_tflops,
        )


Workload = Annotated[
    Permutation | Incast | AllToAll | SendRecv | Flows | Collective | Training | Matrix | Chakra,
    Field(discriminator="kind"),
]
"""One job of a scenario."""

JOBS: tuple[Any, ...] = (
    Permutation, Incast, AllToAll, SendRecv, Flows, Collective, Training, Matrix, Chakra,
)  # fmt: skip
"""Classes of jobs."""

WORKLOAD_KINDS: tuple[str, ...] = tuple(str(kind.model_fields["kind"].default) for kind in JOBS)
"""Values of `kind`."""

register_union_tags("workload", WORKLOAD_KINDS)
