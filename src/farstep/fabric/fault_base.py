"""What every entry of a fault script has: when it happens, to what, for how long."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from farstep.fabric.channels import ChannelState
from farstep.fabric.sites import check_name
from farstep.fabric.tables import Table
from farstep.fabric.targets import ELEMENT_KEYS, TARGET_KEYS, Target

TIME_S_MAX = 31_536_000.0
"""A year: longer is a slip of the unit."""

STEP_MAX = 10**9
"""Training steps; the longest published runs have some 10^6."""

FLAP_PERIOD_S_MIN = 0.001
"""Where packets are real, faster flapping than this is loss, and would flood the event log."""

SIMULATED_FLAP_PERIOD_S_MIN = 1e-6
"""In simulated time a packet takes some 40 ns, and a microsecond is long."""

Seconds = Annotated[float, Field(ge=0.0, le=TIME_S_MAX)]
PositiveSeconds = Annotated[float, Field(gt=0.0, le=TIME_S_MAX)]
Step = Annotated[int, Field(ge=0, le=STEP_MAX)]
PositiveSteps = Annotated[int, Field(gt=0, le=STEP_MAX)]

Element = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(min_length=1, max_length=200),
]
"""Name of a part of a topology, or a pattern with `*` and `?`; a number may be written as one."""

Override = tuple[str, Any]
"""An attribute of a channel and the value a fault gives it; composed by `farstep.fabric.timeline.compose`."""


class ScriptEntry(Table):
    """What every entry of a script has: when it happens and to what."""

    required_targets: ClassVar[tuple[str, ...]] = ()
    """Target keys of which all must be given; empty: any target will do."""
    allowed_targets: ClassVar[tuple[str, ...]] = (*TARGET_KEYS, *ELEMENT_KEYS)

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
    link: Element | None = None
    """Cables of a topology, as `"t0/p0/3-t1/p0/7"`; `->` for one direction."""
    switch: Element | None = None
    """A switch, as `"t1/p0/5"`: all of its links."""
    nic: Element | None = None
    """A NIC by its number: all of its links."""
    port: Element | None = None
    """A port of a NIC, as `"12/3"`."""
    transceiver: Element | None = None
    """A transceiver, as `"t0/p0/3/1"`: the cables of that cage."""

    @property
    def target(self) -> Target:
        """What the entry acts on."""
        return Target(
            path=self.path,
            plane=self.plane,
            site=self.site,
            sites=self.sites,
            direction=self.direction,
            link=self.link,
            switch=self.switch,
            nic=self.nic,
            port=self.port,
            transceiver=self.transceiver,
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
            raise ValueError(f"{kind} needs a target: {', '.join(self.allowed_targets)}")
        self.target.check()


class FaultBase(ScriptEntry):
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
