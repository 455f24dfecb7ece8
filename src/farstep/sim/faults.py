"""Fault scripts in simulated time: `farstep.fabric.faults` over a topology, as a list of what happens to links.

A scenario may say two things more than a fault script does, for convenience: times in `_ms` and `_us` instead of `_s`,
and `choose` or `choose_percent`, which draw some of the cables that a target means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect, expect_list
from farstep.fabric.faults import Fault, Flap, Restore
from farstep.fabric.script import FaultScript
from farstep.fabric.topology import LinkChange, LinkTimeline, Topology
from farstep.fabric.topology.link_faults import target_links
from farstep.sim.fault_tables import DRAWS, as_written, in_seconds
from farstep.sim.link_actions import LinkAction
from farstep.sim.tasks import TIME_NS_MAX

__all__ = ["LinkAction", "ScriptedFault", "link_actions", "parse_faults"]

_RATE_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """An entry of a fault script, and how many cables of its target are drawn.

    Attributes:
        fault: the entry.
        table: the keys it was written with.
        choose: number of cables; None: all.
        choose_percent: share of the cables; None: all.
    """

    fault: Fault
    table: Mapping[str, Any] = field(default_factory=dict)
    choose: int | None = None
    choose_percent: float | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether some cables of the target are drawn."""
        return self.choose is not None or self.choose_percent is not None


def parse_faults(
    tables: Iterable[Mapping[str, Any] | ScriptedFault], *, source: str = "faults"
) -> tuple[ScriptedFault, ...]:
    """Builds a fault script from tables as TOML gives them.

    Raises:
        ConfigError: with one line per mistake, each starting with `source`.
    """
    listed = expect_list(source, tables, 'tables, such as {"kind": "link_down", "link": ..., "at_us": 20}')
    for index, entry in enumerate(listed):
        expect(f"{source}[{index}]", entry, (ScriptedFault, Mapping), "a table of a fault script")
    written = [entry.table if isinstance(entry, ScriptedFault) else dict(entry) for entry in listed]
    draws = [{key: table[key] for key in DRAWS if key in table} for table in written]
    plain = [in_seconds(table, f"{source}: faults[{index}]") for index, table in enumerate(written)]
    try:
        script = FaultScript.parse({"faults": plain}, source=source)
    except ConfigError as error:
        raise ConfigError(as_written(str(error), written)) from error
    found = []
    for index, (fault, draw) in enumerate(zip(script.faults, draws, strict=True)):
        where = f"{source}: faults[{index}]"
        _check_rate(fault, where)
        _check_draw(draw, where)
        found.append(ScriptedFault(fault, written[index], **draw))
    return tuple(found)


def _check_rate(fault: Fault, where: str) -> None:
    """Links of a topology have their full rate at most."""
    percent = getattr(fault, "rate_percent", None)
    if percent is not None and percent > 100:
        raise ConfigError(f"{where}.rate_percent = {percent:g}: must be at most 100")


def _check_draw(draw: Mapping[str, Any], where: str) -> None:
    if len(draw) > 1:
        raise ConfigError(f"{where}: give choose or choose_percent, not both")
    choose, percent = draw.get("choose", 1), draw.get("choose_percent", 100)
    if isinstance(choose, bool) or not isinstance(choose, int) or choose < 1:
        raise ConfigError(f"{where}.choose = {quoted(choose)}: must be a whole number, at least 1")
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent <= 100:
        raise ConfigError(
            f"{where}.choose_percent = {quoted(percent)}: must be a number above 0 and at most 100"
        )


def link_actions(
    faults: Sequence[ScriptedFault],
    topology: Topology,
    *,
    seed: int = 0,
    until_ns: int | None = None,
    source: str = "faults",
) -> list[LinkAction]:
    """Turns a script into what happens to links, in the order of time.

    Args:
        faults: the script.
        topology: the network.
        seed: draws what `choose` leaves open.
        until_ns: end of the simulation, which also ends a flap without a duration.
        source: name of the script, for messages.

    Raises:
        ConfigError: a target names nothing of this network, or a flap would never end.
    """
    if not faults:
        return []
    for index, entry in enumerate(faults):
        is_endless = isinstance(entry.fault, Flap) and entry.fault.duration_s is None and until_ns is None
        if is_endless and not any(isinstance(other.fault, Restore) for other in faults):
            raise ConfigError(
                f"{source}: faults[{index}]: a flap needs duration_s, duration_ms or duration_us, or the run an end"
                " (run.until_us)"
            )
    timeline = LinkTimeline(_drawn(faults, topology, seed, source), topology, source=source)
    changes = list(timeline.until(TIME_NS_MAX if until_ns is None else until_ns))
    for change in changes:
        if change.kind == "rate" and change.value > 1.0 + _RATE_ROUNDING:
            raise ConfigError(
                f"{source}: {change.fault}: gives a link {100 * change.value:.4g} % of its rate; valid: up to 100 %"
            )
    return _actions(changes, topology.num_links)


def _actions(changes: Iterable[LinkChange], num_links: int) -> list[LinkAction]:
    """Says of a link only what is new.

    One that is down goes down no more, and its ends are told of its return only if they were told of its end.
    """
    is_down = np.zeros(num_links, bool)
    is_told = np.zeros(num_links, bool)
    actions: list[LinkAction] = []
    for change in changes:
        links = change.links
        parts = [(links, True)]
        if change.kind == "down":
            parts = [(links[~is_down[links]], change.is_signalled)]
            is_told[parts[0][0]] = change.is_signalled
            is_down[links] = True
        elif change.kind == "up":
            parts = [(links[is_told[links]], True), (links[~is_told[links]], False)]
            is_down[links] = False
        actions += [
            LinkAction(
                time_ns=change.time_ns,
                links=part,
                kind=change.kind,
                value=change.value,
                is_signalled=signalled,
                text=change.fault,
            )
            for part, signalled in parts
            if len(part)
        ]
    return actions


def _drawn(faults: Sequence[ScriptedFault], topology: Topology, seed: int, source: str) -> list[Fault]:
    """The script with an entry for every cable drawn."""
    entries: list[Fault] = []
    drawn_names: dict[str, list[str]] = {}
    for index, entry in enumerate(faults):
        fault = entry.fault
        if isinstance(fault, Restore) and fault.fault in drawn_names:
            entries += [fault.model_copy(update={"fault": name}) for name in drawn_names[fault.fault]]
        if not entry.is_drawn:
            if not (isinstance(fault, Restore) and fault.fault in drawn_names):
                entries.append(fault)
            continue
        try:
            cables = np.unique(target_links(topology, fault.target) >> 1)
        except ConfigError as error:
            raise ConfigError(f"{source}: faults[{index}].{error}") from error
        count = entry.choose or round(len(cables) * (entry.choose_percent or 0) / 100)
        if count > len(cables):
            raise ConfigError(
                f"{source}: faults[{index}].choose = {count}: the target has {len(cables)} cables"
            )
        chosen = np.sort(np.random.default_rng([seed, index]).permutation(cables)[:count])
        names = [None if fault.name is None else f"{fault.name}-{number}" for number in range(count)]
        if fault.name is not None:
            drawn_names[fault.name] = [f"{fault.name}-{number}" for number in range(count)]
        blank = dict.fromkeys(("plane", "site", "sites", "direction", "switch", "nic", "port", "transceiver"))
        for cable, name in zip(chosen, names, strict=True):
            entries.append(
                fault.model_copy(update={**blank, "link": _cable_name(topology, int(cable)), "name": name})
            )
    return entries


def _cable_name(topology: Topology, cable: int) -> str:
    """What a fault script calls one cable, both directions of it."""
    return topology.link_name(2 * cable).replace("->", "-", 1)
