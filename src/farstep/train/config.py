"""What a training run is made of: the sections of `run.toml` and their defaults.

Every model is frozen and strict: no unknown key, no silent conversion. Units are part of the
names; descriptions double as the comments of `farstep train --show-config`. Reading files and
wording errors is the business of `farstep.train.config_file`.
"""

from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect_count
from farstep.fabric.faults import FAULTS_MAX, Fault, PathDown
from farstep.fabric.sites import PATHS_MAX, EmulatedNetwork, EmulatedPath, full_mesh

__all__ = [
    "DataConfig",
    "ModelConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "RunConfig",
    "RunSection",
    "SiteConfig",
    "TransportConfig",
    "demo_config",
]

STEPS_MAX = 10_000_000
"""Longest run of the demo."""

STDLIB_TEXT = "stdlib"
"""Value of `data.text` that stands for the sources of the running Python's standard library."""


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain the character of number zero")
    return text


Name = Annotated[str, AfterValidator(_without_nul)]
"""A text that is given to the operating system as the name of a file or of a host."""


class Section(BaseModel):
    """Base of all sections: strict, closed and immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RunSection(Section):
    """`[run]`: how long, how often, where to."""

    seed: int = Field(
        default=1, ge=0, le=2**31 - 1, description="same seed and members: bit-identical result"
    )
    steps: int = Field(default=200, ge=1, le=STEPS_MAX, description="optimizer steps")
    out: Name = Field(default="runs", min_length=1, description="folder; each run gets a new folder inside")
    eval_every_steps: int = Field(default=28, ge=1, description="steps between held-out evaluations")
    eval_windows: int = Field(
        default=128, ge=1, le=100_000, description="held-out windows per evaluation, all ranks"
    )
    min_groups: int = Field(
        default=1, ge=1, le=65_536, description="replica groups without which the run does not go on"
    )
    silence_s: float = Field(
        default=10.0, ge=1, le=3600, description="silence after which a rank that has not died is given up, s"
    )
    checkpoint_every_steps: int = Field(
        default=0, ge=0, description="steps between checkpoints in the run's folder; 0: none"
    )
    threads_per_rank: int = Field(default=1, ge=1, le=1024, description="CPU threads each rank computes with")


class ModelConfig(Section):
    """`[model]`: a decoder-only transformer over bytes."""

    layers: int = Field(default=4, ge=1, le=256, description="transformer blocks")
    width: int = Field(default=160, ge=8, le=16_384, description="features per position; a multiple of heads")
    heads: int = Field(default=5, ge=1, le=256, description="attention heads")
    context_bytes: int = Field(default=96, ge=2, le=65_536, description="bytes the model looks back on")

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width", heads)
        if width % heads:
            raise ValueError(f"must divide model.width ({width})")
        return heads


class DataConfig(Section):
    """`[data]`: the text and how it is cut into batches."""

    text: Name = Field(
        default=STDLIB_TEXT,
        min_length=1,
        description='a file, or "stdlib": the sources of this Python\'s standard library',
    )
    batch_per_group: int = Field(default=8, ge=1, le=65_536, description="windows per step and replica group")
    held_out_fraction: float = Field(
        default=0.05, gt=0, lt=0.5, description="share of the text kept for evaluation"
    )


class OptimizerConfig(Section):
    """`[optimizer]`: AdamW with linear warm-up and cosine decay."""

    learning_rate: float = Field(default=3e-3, gt=0, le=10, description="peak learning rate")
    final_fraction: float = Field(
        default=0.1, ge=0, le=1, description="learning rate at the end, as a share of the peak"
    )
    warmup_steps: int = Field(default=20, ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(default=0.1, ge=0, le=10, description="decoupled, on matrices only")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="decay of the second moment")
    clip_norm: float = Field(default=1.0, gt=0, description="largest norm of the whole gradient")


class SiteConfig(Section):
    """One `[[sites]]` entry."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$", description="letters, digits, - and _")
    replica_groups: int = Field(default=2, ge=1, le=1024, description="copies of the model at this site")


class NetworkConfig(Section):
    """`[network]`: the planes between the sites.

    With `emulate` the datagrams between two sites pass through the path emulator; inside a site
    they go straight from socket to socket. Every two sites are joined by equal paths, unless
    `[[paths]]` lists paths of their own.
    """

    planes: int = Field(
        default=4, ge=1, le=16, description="independent networks; each rank has one UDP port in each"
    )
    paths_per_plane: int = Field(default=1, ge=1, le=64, description="paths between two sites in each plane")
    bind_host: Name = Field(
        default="127.0.0.1", min_length=1, description="address the ranks bind their ports to"
    )
    emulate: bool = Field(default=True, description="carry traffic between sites through the path emulator")
    rate_mbps: float = Field(
        default=500.0, gt=0, le=1_600_000, description="rate of each emulated path, Mbit/s"
    )
    delay_ms: float = Field(
        default=2.0, ge=0, le=10_000, description="one-way delay of each emulated path, ms"
    )
    jitter_ms: float = Field(
        default=0.0, ge=0, le=10_000, description="largest additional delay of a packet, ms"
    )
    loss_percent: float = Field(default=0.0, ge=0, le=100, description="packets lost at random, %")
    queue_limit_ms: float = Field(default=50.0, gt=0, le=10_000, description="longest queue, ms at the rate")
    ecn_threshold_ms: float = Field(
        default=5.0, gt=0, le=10_000, description="queue above which packets are marked, ms at the rate"
    )


class TransportConfig(Section):
    """`[transport]`: how the Multipath Reliable Connection cuts and sends gradients."""

    mtu_bytes: Literal[1024, 2048, 4096, 8192] = Field(default=4096, description="payload of one packet")
    burst_segments: int = Field(
        default=15, ge=1, le=64, description="packets handed to the kernel in one call, on one path"
    )
    share: Literal["equal", "capacity"] = Field(
        default="equal", description="bytes per plane: equal, or as much as each turns out to carry"
    )
    bucket_kib: int = Field(
        default=1024,
        ge=16,
        le=1_048_576,
        description="gradient sent in one piece while backward runs on, KiB",
    )
    timeout_s: float = Field(default=60.0, gt=0, le=86_400, description="longest wait for one collective, s")


class RunConfig(Section):
    """A whole run. `RunConfig()` trains two sites of two replica groups without any fault."""

    run: RunSection = RunSection()
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sites: Annotated[tuple[SiteConfig, ...], Field(strict=False, min_length=1, max_length=64)] = (
        SiteConfig(name="east"),
        SiteConfig(name="west"),
    )
    network: NetworkConfig = NetworkConfig()
    transport: TransportConfig = TransportConfig()
    paths: Annotated[tuple[EmulatedPath, ...], Field(strict=False, max_length=PATHS_MAX)] = ()
    """Emulated paths that differ from each other; they replace the equal ones of `[network]`."""
    faults: Annotated[tuple[Fault, ...], Field(strict=False, max_length=FAULTS_MAX)] = ()

    @field_validator("sites")
    @classmethod
    def _site_names_differ(cls, sites: tuple[SiteConfig, ...]) -> tuple[SiteConfig, ...]:
        names = [site.name for site in sites]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"every site needs a name of its own; {quoted(twice[0])} is used twice")
        return sites

    @property
    def num_ranks(self) -> int:
        """Number of rank processes: one per replica group."""
        return sum(site.replica_groups for site in self.sites)

    @property
    def site_of_rank(self) -> tuple[str, ...]:
        """Site name of each rank, in rank order; the ranks of a site are neighbours."""
        return tuple(site.name for site in self.sites for _ in range(site.replica_groups))

    @property
    def group_names(self) -> tuple[str, ...]:
        """Name of the replica group that each rank is, in rank order: its site, and a number there."""
        return tuple(f"{site.name}-{index}" for site in self.sites for index in range(site.replica_groups))

    @property
    def global_batch(self) -> int:
        """Windows of one step, also when it has fewer replica groups than at the start."""
        return self.num_ranks * self.data.batch_per_group

    @property
    def num_planes(self) -> int:
        """Planes in use, and so UDP ports of each rank."""
        if self.paths and self.network.emulate:
            return 1 + max(path.plane for path in self.paths)
        return self.network.planes

    def faults_too_late(self) -> tuple[str, ...]:
        """Returns a line for each fault that begins at a step which the run does not reach."""
        return tuple(
            f"faults[{index}] ({fault.kind}) will not happen: it begins at step {fault.at_step}, "
            f"and the last of {self.run.steps} steps is {self.run.steps - 1}"
            for index, fault in enumerate(self.faults)
            if fault.at_step is not None and fault.at_step >= self.run.steps
        )

    def emulated_network(self, source: str = "run") -> EmulatedNetwork | None:
        """Returns sites and paths as the path emulator carries them; None if no traffic passes through it.

        Args:
            source: name of the configuration in error messages.

        Raises:
            ConfigError: the paths do not fit the sites, or leave two sites unconnected in some plane.
        """
        if not self.network.emulate or len(self.sites) < 2:
            return None
        if self.paths:
            table = {
                "sites": [site.name for site in self.sites],
                "paths": [path.model_dump(exclude_unset=True) for path in self.paths],
                "seed": self.run.seed,
            }
            network = EmulatedNetwork.parse(table, source=source)
            _check_planes(network, self.num_planes, source)
            return network
        figures = self.network.model_dump(exclude={"planes", "paths_per_plane", "bind_host", "emulate"})
        return full_mesh(
            tuple(site.name for site in self.sites),
            planes=self.network.planes,
            paths_per_plane=self.network.paths_per_plane,
            seed=self.run.seed,
            **figures,
        )


def _check_planes(network: EmulatedNetwork, num_planes: int, source: str) -> None:
    """Checks that every two sites are joined in every plane: a rank sends over all of its ports."""
    joined = {(channel.plane, channel.from_site, channel.to_site) for channel in network.channels}
    for near, far in combinations(network.sites, 2):
        for plane in range(num_planes):
            if (plane, near, far) not in joined and (plane, far, near) not in joined:
                raise ConfigError(
                    f"{source}: paths: no path of plane {plane} joins {near} and {far}; "
                    f"planes 0 to {num_planes - 1} are in use, and every two sites need a path in each"
                )


def demo_config(steps: int | None = None) -> RunConfig:
    """Returns the built-in demo: two sites, and one of the paths between them cut and restored.

    Args:
        steps: length of the run; the cut starts after two fifths of it and lasts a quarter of it.

    Raises:
        ConfigError: there are no so many steps.
    """
    expect_count("steps", steps, least=1, most=STEPS_MAX, may_be_none=True)
    run = RunSection() if steps is None else RunSection(steps=steps)
    cut = PathDown(
        kind="path_down",
        path="east-west:1",
        at_step=max(1, run.steps * 2 // 5),
        duration_steps=max(1, run.steps // 4),
    )
    return RunConfig(run=run, faults=(cut,))
