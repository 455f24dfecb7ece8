"""The fault script: at a time or a training step, do something to a path, a plane or a site.

One format for the path emulator, the namespace lab and the simulator. A script names things of the network
description; units are in the names of the keys. `farstep.fabric.script` reads whole scripts,
`farstep.fabric.timeline` turns them into actions.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from farstep.fabric.channels import ChannelState, bytes_in_ms
from farstep.fabric.errors import register_union_tags
from farstep.fabric.sites import DelayMs, KiloBytes, Percent, RateMbps, check_name
from farstep.fabric.tables import Table
from farstep.fabric.targets import TARGET_KEYS, Target

FAULTS_MAX = 10_000
"""Faults of one script; a month of flaps at one an hour is 720."""

TIME_S_MAX = 31_536_000.0
"""A year: longer is a slip of the unit."""

STEP_MAX = 10**9
"""Training steps; the longest published runs have some 10^6."""

FLAP_PERIOD_S_MIN = 0.001
"""Faster flapping than this is loss, and would flood the event log."""

Seconds = Annotated[float, Field(ge=0.0, le=TIME_S_MAX)]
PositiveSeconds = Annotated[float, Field(gt=0.0, le=TIME_S_MAX)]
Step = Annotated[int, Field(ge=0, le=STEP_MAX)]
PositiveSteps = Annotated[int, Field(gt=0, le=STEP_MAX)]

Override = tuple[str, Any]
"""An attribute of a channel and the value a fault gives it; composed by `farstep.fabric.timeline.compose`."""


class _ScriptEntry(Table):
    """What every entry of a script has: when it happens and to what."""

    required_targets: ClassVar[tuple[str, ...]] = ()
    """Target keys of which all must be given; empty: any target will do."""
    allowed_targets: ClassVar[tuple[str, ...]] = TARGET_KEYS

    name: str | None = None
    """Name by which events mention the fault and `restore` ends it; left out: made from kind and target."""
    at_s: Seconds | None = None
    """Starts this many seconds after the script was started."""
    at_step: Step | None = None
    """Starts when this training step begins."""
    path: str | None = None
    """Name of a path, or a pattern with `*` and `?`."""
    plane: int | None = Field(default=None, ge=0, le=255)
    """Number of a plane."""
    site: str | None = None
    """A site: everything in and out of it."""
    sites: tuple[str, str] | None = None
    """Two sites: everything between them."""
    direction: str | None = None
    """`"a->b"` restricts the fault to packets from site a to site b; `*` stands for any site."""

    @property
    def target(self) -> Target:
        """What the entry acts on."""
        return Target(
            path=self.path, plane=self.plane, site=self.site, sites=self.sites, direction=self.direction
        )

    @model_validator(mode="after")
    def _entry_is_consistent(self) -> Self:
        if self.name is not None:
            check_name(self.name)
        if self.at_s is not None and self.at_step is not None:
            raise ValueError("give at_s or at_step, not both")
        self._check_target()
        return self

    def _check_target(self) -> None:
        given = self.target.keys
        kind = getattr(self, "kind", "?")
        for key in given:
            if key not in self.allowed_targets:
                raise ValueError(f"{kind} takes no {key}; its target: {' and '.join(self.required_targets)}")
        missing = [key for key in self.required_targets if key not in given]
        if missing:
            raise ValueError(f"{kind} needs {' and '.join(missing)}")
        if not given:
            raise ValueError(f"{kind} needs a target: {', '.join(TARGET_KEYS)}")
        self.target.check()


class FaultBase(_ScriptEntry):
    """A fault: it starts, lasts, and is taken back."""

    duration_s: PositiveSeconds | None = None
    """Ends this many seconds after its start."""
    duration_steps: PositiveSteps | None = None
    """Ends this many training steps after its start. Without a duration the fault lasts until a `restore`."""

    value_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that hold the size of the fault, of which one is given."""

    @property
    def value(self) -> float | None:
        """Size of the fault in the unit of its key; None for an outage."""
        for key in self.value_keys:
            value: float | None = getattr(self, key)
            if value is not None:
                return value
        return None

    @model_validator(mode="after")
    def _lasts_one_way(self) -> Self:
        if self.duration_s is not None and self.duration_steps is not None:
            raise ValueError("give duration_s or duration_steps, not both")
        return self

    def override(self, base: ChannelState) -> Override:
        """Returns which attribute of a channel the fault sets, and to what.

        Args:
            base: fault-free state of the channel, for values relative to it.

        Raises:
            ValueError: the value has no meaning on this channel.
        """
        raise NotImplementedError


class Outage(FaultBase):
    """A fault that lets nothing pass."""

    silent: bool = True
    """True: a black hole nobody reports. False: link-down is signalled, so that routers of the same plane
    turn to their other paths and endpoints may be told."""

    def override(self, base: ChannelState) -> Override:
        """Takes the channel down."""
        return "outage", not self.silent


class PathDown(Outage):
    """A path carries nothing."""

    kind: Literal["path_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("path",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("path",)


class PlaneDown(Outage):
    """All paths of a plane carry nothing; with `site` or `sites`, only those touching them."""

    kind: Literal["plane_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("plane",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("plane", "site", "sites")


class SiteDown(Outage):
    """A site is cut off from all others."""

    kind: Literal["site_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("site",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("site",)


class Partition(Outage):
    """Two sites cannot reach each other, though each reaches the rest."""

    kind: Literal["partition"]
    required_targets: ClassVar[tuple[str, ...]] = ("sites",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("sites",)


class Flap(Outage):
    """An outage that comes and goes: each period begins with the outage."""

    kind: Literal["flap"]
    value_keys: ClassVar[tuple[str, ...]] = ("period_s", "period_steps")
    period_s: float | None = Field(default=None, ge=FLAP_PERIOD_S_MIN, le=TIME_S_MAX)
    """Length of one period in seconds..."""
    down_s: PositiveSeconds | None = None
    """...of which this much is outage; left out: half."""
    period_steps: int | None = Field(default=None, ge=2, le=STEP_MAX)
    """Length of one period in training steps..."""
    down_steps: PositiveSteps | None = None
    """...of which this many are outage; left out: half."""

    @model_validator(mode="after")
    def _period_is_given_once(self) -> Self:
        if (self.period_s is None) == (self.period_steps is None):
            raise ValueError("flap needs period_s or period_steps, and not both")
        if self.period_s is None and self.down_s is not None:
            raise ValueError("down_s goes with period_s")
        if self.period_steps is None and self.down_steps is not None:
            raise ValueError("down_steps goes with period_steps")
        for unit, period, down in (
            ("s", self.period_s, self.down_s),
            ("steps", self.period_steps, self.down_steps),
        ):
            if period is not None and down is not None and down >= period:
                raise ValueError(f"down_{unit} = {down} must be less than period_{unit} = {period}")
        return self


class Loss(FaultBase):
    """Packets are lost independently of each other."""

    kind: Literal["loss"]
    value_keys: ClassVar[tuple[str, ...]] = ("loss_percent",)
    loss_percent: Percent

    def override(self, base: ChannelState) -> Override:
        """Sets the share of lost packets."""
        return "loss", (self.loss_percent, 1.0)


class BurstLoss(FaultBase):
    """Packets are lost in runs, as by a transceiver that loses lock."""

    kind: Literal["burst_loss"]
    value_keys: ClassVar[tuple[str, ...]] = ("loss_percent",)
    loss_percent: Percent
    burst_packets: float = Field(ge=1.0, le=1e6)
    """Mean number of consecutive packets lost."""

    def override(self, base: ChannelState) -> Override:
        """Sets the share of lost packets and the mean run."""
        return "loss", (self.loss_percent, self.burst_packets)


class Rate(FaultBase):
    """The rate changes."""

    kind: Literal["rate"]
    value_keys: ClassVar[tuple[str, ...]] = ("rate_mbps", "rate_percent")
    rate_mbps: RateMbps | None = None
    """New rate in 10^6 bit/s, headers counted."""
    rate_percent: float | None = Field(default=None, gt=0.0, le=1000.0)
    """New rate as share of the fault-free one."""

    @model_validator(mode="after")
    def _value_is_given_once(self) -> Self:
        if (self.rate_mbps is None) == (self.rate_percent is None):
            raise ValueError("rate needs rate_mbps or rate_percent, and not both")
        return self

    def override(self, base: ChannelState) -> Override:
        """Sets the rate."""
        if self.rate_mbps is not None:
            return "rate", self.rate_mbps
        if base.rate_mbps is None or self.rate_percent is None:
            raise ValueError("rate_percent needs a path with rate_mbps; give rate_mbps instead")
        return "rate", base.rate_mbps * self.rate_percent / 100.0


class Delay(FaultBase):
    """The propagation delay changes, as by a detour."""

    kind: Literal["delay"]
    value_keys: ClassVar[tuple[str, ...]] = ("delay_ms", "extra_delay_ms")
    delay_ms: DelayMs | None = None
    """New one-way delay."""
    extra_delay_ms: DelayMs | None = None
    """Added to the fault-free one-way delay."""

    @model_validator(mode="after")
    def _value_is_given_once(self) -> Self:
        if (self.delay_ms is None) == (self.extra_delay_ms is None):
            raise ValueError("delay needs delay_ms or extra_delay_ms, and not both")
        return self

    def override(self, base: ChannelState) -> Override:
        """Sets the delay."""
        if self.delay_ms is not None:
            return "delay", self.delay_ms
        return "delay", base.delay_ms + (self.extra_delay_ms or 0.0)


class Jitter(FaultBase):
    """Packets take a varying time; order is kept."""

    kind: Literal["jitter"]
    value_keys: ClassVar[tuple[str, ...]] = ("jitter_ms",)
    jitter_ms: DelayMs

    def override(self, base: ChannelState) -> Override:
        """Sets the jitter."""
        return "jitter", self.jitter_ms


class Reorder(FaultBase):
    """Some packets are held back so that later ones overtake them."""

    kind: Literal["reorder"]
    value_keys: ClassVar[tuple[str, ...]] = ("reorder_percent",)
    reorder_percent: Percent
    reorder_delay_ms: DelayMs = 1.0

    def override(self, base: ChannelState) -> Override:
        """Sets the share of reordered packets and how long they are held."""
        return "reorder", (self.reorder_percent, self.reorder_delay_ms)


class Duplicate(FaultBase):
    """Some packets arrive twice."""

    kind: Literal["duplicate"]
    value_keys: ClassVar[tuple[str, ...]] = ("duplicate_percent",)
    duplicate_percent: Percent

    def override(self, base: ChannelState) -> Override:
        """Sets the share of duplicated packets."""
        return "duplicate", self.duplicate_percent


class Corrupt(FaultBase):
    """Some packets arrive with one flipped bit that no UDP checksum shows."""

    kind: Literal["corrupt"]
    value_keys: ClassVar[tuple[str, ...]] = ("corrupt_percent",)
    corrupt_percent: Percent

    def override(self, base: ChannelState) -> Override:
        """Sets the share of corrupted packets."""
        return "corrupt", self.corrupt_percent


class _QueueFault(FaultBase):
    """A fault whose value is an amount of queue, in kB or in time at the fault-free rate."""

    stem: ClassVar[str]

    @model_validator(mode="after")
    def _value_is_given_once(self) -> Self:
        in_kb, in_ms = getattr(self, f"{self.stem}_kb"), getattr(self, f"{self.stem}_ms")
        if (in_kb is None) == (in_ms is None):
            raise ValueError(f"give {self.stem}_kb or {self.stem}_ms, and not both")
        return self

    def _bytes(self, base: ChannelState) -> int:
        in_kb: float | None
        in_ms: float
        in_kb, in_ms = getattr(self, f"{self.stem}_kb"), getattr(self, f"{self.stem}_ms")
        if in_kb is not None:
            return round(in_kb * 1000)
        if base.rate_mbps is None:
            raise ValueError(f"{self.stem}_ms needs a path with rate_mbps; give {self.stem}_kb instead")
        return bytes_in_ms(base.rate_mbps, in_ms)


class EcnThreshold(_QueueFault):
    """ECN marking starts at another queue length."""

    kind: Literal["ecn"]
    value_keys: ClassVar[tuple[str, ...]] = ("ecn_threshold_kb", "ecn_threshold_ms")
    ecn_threshold_kb: KiloBytes | None = None
    ecn_threshold_ms: DelayMs | None = None
    stem: ClassVar[str] = "ecn_threshold"

    def override(self, base: ChannelState) -> Override:
        """Sets the marking threshold."""
        return "ecn", self._bytes(base)


class QueueLimit(_QueueFault):
    """The queue holds another amount before it drops."""

    kind: Literal["queue"]
    value_keys: ClassVar[tuple[str, ...]] = ("queue_limit_kb", "queue_limit_ms")
    queue_limit_kb: KiloBytes | None = None
    queue_limit_ms: DelayMs | None = None
    stem: ClassVar[str] = "queue_limit"

    def override(self, base: ChannelState) -> Override:
        """Sets the queue limit."""
        return "queue", self._bytes(base)


class Restore(_ScriptEntry):
    """Ends a fault by its name, or every fault on a target."""

    kind: Literal["restore"]
    fault: str | None = None
    """Name of the fault to end. Without it: whatever is active on the target."""

    def _check_target(self) -> None:
        if self.fault is None:
            super()._check_target()
        elif self.target.keys or self.direction is not None:
            raise ValueError("restore takes fault = NAME or a target, not both")


Fault = Annotated[
    PathDown
    | PlaneDown
    | SiteDown
    | Partition
    | Flap
    | Loss
    | BurstLoss
    | Rate
    | Delay
    | Jitter
    | Reorder
    | Duplicate
    | Corrupt
    | EcnThreshold
    | QueueLimit
    | Restore,
    Field(discriminator="kind"),
]
"""One entry of a fault script; usable as a field type of other pydantic models."""

FAULT_KINDS = (
    "path_down",
    "plane_down",
    "site_down",
    "partition",
    "flap",
    "loss",
    "burst_loss",
    "rate",
    "delay",
    "jitter",
    "reorder",
    "duplicate",
    "corrupt",
    "ecn",
    "queue",
    "restore",
)
"""Values of `kind`."""

register_union_tags(FAULT_KINDS)
