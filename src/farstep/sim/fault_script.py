"""Fault scripts in simulated time: what goes wrong, where in a fabric, and when.

The entries are those of `farstep.fabric.faults`, with two additions. `target` names parts of a fabric
(`farstep.fabric.topology.elements`): a NIC, one of its ports, a switch, a link, a transceiver, a plane or a site.
And times may be given in ms or us, for a simulation is rarely longer than a second.

`farstep.sim.faults` turns a script into what happens to links, and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from farstep.fabric.errors import ConfigError, describe_validation_error
from farstep.fabric.tables import Table
from farstep.fabric.topology import Topology
from farstep.fabric.topology.elements import ELEMENT_KINDS
from farstep.sim.tasks import TIME_NS_MAX

__all__ = ["SimFault", "parse_faults"]

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

DELAY_MS_MAX = 10_000.0

Time = Annotated[float, Field(ge=0.0)]
PositiveTime = Annotated[float, Field(gt=0.0)]

DOWN_KINDS = {
    "down": None,
    "link_down": ("link", "nic-port"),
    "port_down": ("nic-port",),
    "nic_down": ("nic",),
    "switch_down": ("switch",),
    "transceiver_down": ("transceiver",),
    "plane_down": ("plane",),
    "site_down": ("site",),
    "path_down": None,
    "partition": None,
}
"""Outages, and what their target must begin with."""

FaultKind = Literal[
    "down",
    "link_down",
    "port_down",
    "nic_down",
    "switch_down",
    "transceiver_down",
    "plane_down",
    "site_down",
    "path_down",
    "partition",
    "flap",
    "loss",
    "rate",
    "delay",
    "restore",
]


class SimFault(Table):
    """One entry of a fault script in simulated time."""

    kind: FaultKind
    name: str | None = None
    """Name by which `restore` ends it."""
    target: str | tuple[str, ...] | None = None
    """What it happens to, such as `switch:t1/p0/5`, or several of those."""
    path: str | None = None
    """Another way to name a target: all WAN links between two sites in a plane, as `a-b:PLANE` or `a-b`."""
    plane: int | None = Field(default=None, ge=0, le=255)
    site: str | None = None
    sites: tuple[str, str] | None = None
    choose: int | None = Field(default=None, ge=1)
    """So many cables of the target, drawn from the seed; left out: all."""
    choose_percent: float | None = Field(default=None, gt=0.0, le=100.0)
    """This share of the cables of the target, drawn from the seed."""
    at_s: Time | None = None
    """When it begins, in simulated time..."""
    at_ms: Time | None = None
    at_us: Time | None = None
    duration_s: PositiveTime | None = None
    """How long it lasts; left out: until a `restore`."""
    duration_ms: PositiveTime | None = None
    duration_us: PositiveTime | None = None
    silent: bool = True
    """For outages. True: a black hole nobody reports. False: both ends see that the link is down."""
    period_s: PositiveTime | None = None
    """For flap: from the beginning of an outage to that of the next."""
    period_ms: PositiveTime | None = None
    period_us: PositiveTime | None = None
    down_s: PositiveTime | None = None
    """For flap: length of an outage; left out: half the period."""
    down_ms: PositiveTime | None = None
    down_us: PositiveTime | None = None
    loss_percent: float | None = Field(default=None, ge=0.0, le=100.0)
    rate_percent: float | None = Field(default=None, gt=0.0, le=100.0)
    extra_delay_ms: float | None = Field(default=None, ge=0.0, le=DELAY_MS_MAX)
    extra_delay_us: float | None = Field(default=None, ge=0.0, le=DELAY_MS_MAX * 1000)
    fault: str | None = None
    """For restore: name of the fault to end."""

    @model_validator(mode="before")
    @classmethod
    def _is_of_simulated_time(cls, table: Any) -> Any:
        if isinstance(table, Mapping):
            for key in ("at_step", "duration_steps", "period_steps", "down_steps"):
                if key in table:
                    raise ValueError(
                        f"{key} counts steps of a training run; give {key.rpartition('_')[0]}_us here"
                    )
        return table

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for stem in ("at", "duration", "period", "down"):
            self.time_ns(stem)
        if self.at_ns is None:
            raise ValueError(f"{self.kind} needs at_s, at_ms or at_us")
        self._check_target()
        self._check_value()
        return self

    def _check_target(self) -> None:
        given = [
            key for key in ("target", "path", "plane", "site", "sites") if getattr(self, key) is not None
        ]
        if self.kind == "restore" and self.fault is not None:
            if given:
                raise ValueError("restore takes fault = NAME or a target, not both")
            return
        if self.fault is not None:
            raise ValueError(f"{self.kind} takes no fault; that is for restore")
        if not given:
            raise ValueError(f'{self.kind} needs a target, such as target = "switch:t1/p0/5"')
        if len(given) > 1 and ("target" in given or "path" in given):
            raise ValueError(f"give one target: {' or '.join(given)}")
        if "site" in given and "sites" in given:
            raise ValueError("give site or sites, not both")
        begins = DOWN_KINDS.get(self.kind)
        for text in self._texts():
            kind = text.partition(":")[0]
            if kind not in ELEMENT_KINDS:
                valid = ", ".join(f"{known}:..." for known in ELEMENT_KINDS)
                raise ValueError(f'target = "{text}": names nothing of a network; valid: {valid}')
            if begins is not None and kind not in begins:
                raise ValueError(f'{self.kind} takes a target that begins with {begins[0]}:, not "{text}"')
        if self.choose is not None and self.choose_percent is not None:
            raise ValueError("give choose or choose_percent, not both")

    def _texts(self) -> tuple[str, ...]:
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target

    def _check_value(self) -> None:
        values = {
            "loss": ("loss_percent",),
            "rate": ("rate_percent",),
            "delay": ("extra_delay_ms", "extra_delay_us"),
            "flap": ("period_s", "period_ms", "period_us"),
        }
        for kind, keys in values.items():
            given = [key for key in keys if getattr(self, key) is not None]
            if self.kind == kind and len(given) != 1:
                raise ValueError(f"{kind} needs {' or '.join(keys)}")
            if self.kind != kind and given:
                raise ValueError(f"{self.kind} takes no {given[0]}; that is for {kind}")
        period, down = self.time_ns("period"), self.time_ns("down")
        if down is not None and period is None:
            raise ValueError(f"{self.kind} takes no down time; that is for flap")
        if down is not None and period is not None and down >= period:
            raise ValueError(f"an outage of {down} ns must be shorter than the period of {period} ns")
        if self.kind == "restore" and self.time_ns("duration") is not None:
            raise ValueError("restore has no duration")

    def time_ns(self, stem: str) -> int | None:
        """The time given under `stem` (at, duration, period, down), in whichever unit."""
        found: int | None = None
        for unit, scale in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US)):
            value = getattr(self, f"{stem}_{unit}")
            if value is None:
                continue
            if found is not None:
                raise ValueError(f"give {stem}_s, {stem}_ms or {stem}_us, and only one of them")
            found = round(value * scale)
            if found > TIME_NS_MAX:
                raise ValueError(f"{stem}_{unit} = {value}: must be at most a year")
        return found

    @property
    def at_ns(self) -> int | None:
        """When it begins."""
        return self.time_ns("at")

    @property
    def text(self) -> str:
        """What messages and reports call it."""
        where = ", ".join(self._texts()) or self._plain_target()
        return self.name or f"{self.kind.replace('_', ' ')} {where}".strip()

    def _plain_target(self) -> str:
        parts = [
            f"{key} {value if not isinstance(value, tuple) else '-'.join(value)}"
            for key in ("path", "plane", "site", "sites")
            if (value := getattr(self, key)) is not None
        ]
        return " ".join(parts)

    def links(self, topology: Topology, random: np.random.Generator) -> NDArray[np.int32]:
        """Directed links it acts on, sorted.

        Raises:
            ConfigError: the target names nothing of this network.
        """
        if self.target is not None:
            found = np.unique(np.concatenate([topology.resolve(text) for text in self._texts()]))
        else:
            found = self._named_links(topology)
        if self.choose is None and self.choose_percent is None:
            return found.astype(np.int32)
        cables = np.unique(found >> 1)
        count = (
            self.choose if self.choose is not None else round(len(cables) * (self.choose_percent or 0) / 100)
        )
        if count > len(cables):
            raise ConfigError(f"choose = {count}: the target has {len(cables)} cables")
        chosen = random.permutation(cables)[:count]
        return found[np.isin(found >> 1, chosen)].astype(np.int32)

    def _named_links(self, topology: Topology) -> NDArray[np.int32]:
        ends = self.sites
        plane = self.plane
        if self.path is not None:
            names, _, number = self.path.partition(":")
            one, dash, other = names.partition("-")
            if not dash or (number and not number.isdigit()):
                raise ConfigError(f'path = "{self.path}": a fabric has paths SITE-SITE or SITE-SITE:PLANE')
            ends, plane = (one, other), int(number) if number else None
        kept = np.ones(topology.num_links, bool)
        if plane is not None:
            kept[:] = False
            kept[topology.resolve(f"plane:{plane}")] = True
        if self.site is not None:
            inside = np.zeros(topology.num_links, bool)
            inside[topology.resolve(f"site:{self.site}")] = True
            kept &= inside
        if ends is not None:
            known = topology.site_names
            for name in ends:
                if name not in known:
                    raise ConfigError(f'"{name}": no such site; known sites: {", ".join(known)}')
            numbers = {known.index(ends[0]), known.index(ends[1])}
            source = topology.node_site[topology.link_source]
            target = topology.node_site[topology.link_target]
            kept &= (source != target) & np.isin(source, list(numbers)) & np.isin(target, list(numbers))
        if not kept.any():
            raise ConfigError(f"{self._plain_target()}: no link matches all of this together")
        return np.flatnonzero(kept).astype(np.int32)


def parse_faults(
    tables: Iterable[Mapping[str, Any] | SimFault], *, source: str = "faults"
) -> tuple[SimFault, ...]:
    """Builds a fault script from tables as TOML gives them.

    Raises:
        ConfigError: with one line per mistake, each starting with `source`.
    """
    entries: list[SimFault] = []
    lines: list[str] = []
    for index, table in enumerate(tables):
        if isinstance(table, SimFault):
            entries.append(table)
            continue
        try:
            entries.append(SimFault.model_validate(table))
        except ValidationError as error:
            lines.append(describe_validation_error(error, source, prefix=("faults", index)))
    if lines:
        raise ConfigError("\n".join(lines))
    names = [entry.name for entry in entries if entry.name is not None and entry.kind != "restore"]
    for index, entry in enumerate(entries):
        if entry.name is not None and entry.kind != "restore" and names.count(entry.name) > 1:
            raise ConfigError(f'{source}: faults[{index}].name = "{entry.name}" is used twice')
        if entry.fault is not None and entry.fault not in names:
            listed = ", ".join(sorted(names)) or "none; give the fault a name"
            raise ConfigError(
                f'{source}: faults[{index}].fault = "{entry.fault}": no such fault; named: {listed}'
            )
    return tuple(entries)
