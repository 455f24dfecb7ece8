"""The fault script: at a time or a training step, do something to a path, a plane, a site or a part of a topology.

One format for the path emulator, the namespace lab and the simulator. A script names things of the network
description; units are in the names of the keys. `farstep.fabric.script` reads whole scripts,
`farstep.fabric.timeline` turns them into actions.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from farstep.fabric.channels import ChannelState, bytes_in_ms
from farstep.fabric.errors import register_union_tags
from farstep.fabric.fault_base import (
    SIMULATED_FLAP_PERIOD_S_MIN,
    STEP_MAX,
    TIME_S_MAX,
    FaultBase,
    Outage,
    Override,
    PositiveSeconds,
    PositiveSteps,
    ScriptEntry,
)
from farstep.fabric.sites import DelayMs, KiloBytes, Percent, RateMbps

FAULTS_MAX = 10_000
"""Faults of one script; a month of flaps at one an hour is 720."""


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


class LinkDown(Outage):
    """Cables of a topology carry nothing."""

    kind: Literal["link_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("link",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("link", "plane")


class SwitchDown(Outage):
    """A switch of a topology forwards nothing; with a duration, it reboots."""

    kind: Literal["switch_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("switch",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("switch", "plane")


class NicDown(Outage):
    """A NIC of a topology sends and receives nothing."""

    kind: Literal["nic_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("nic",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("nic", "plane")


class PortDown(Outage):
    """A port of a NIC carries nothing."""

    kind: Literal["port_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("port",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("port", "plane")


class TransceiverDown(Outage):
    """A transceiver carries nothing: every cable of its cage is dead."""

    kind: Literal["transceiver_down"]
    required_targets: ClassVar[tuple[str, ...]] = ("transceiver",)
    allowed_targets: ClassVar[tuple[str, ...]] = ("transceiver", "plane")


class Flap(Outage):
    """An outage that comes and goes: each period begins with the outage."""

    kind: Literal["flap"]
    value_keys: ClassVar[tuple[str, ...]] = ("period_s", "period_steps")
    period_s: float | None = Field(default=None, ge=SIMULATED_FLAP_PERIOD_S_MIN, le=TIME_S_MAX)
    """Length of one period in seconds, a millisecond or more outside of simulations..."""
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


class Restore(ScriptEntry):
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
    | LinkDown
    | SwitchDown
    | NicDown
    | PortDown
    | TransceiverDown
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
    "link_down",
    "switch_down",
    "nic_down",
    "port_down",
    "transceiver_down",
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

register_union_tags("faults", FAULT_KINDS)
