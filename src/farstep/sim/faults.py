"""Faults as things that happen to links: a script over a topology, put in the order of time.

Of several faults on one link the most severe is in force; what ends restores what the others say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology import Topology
from farstep.sim.fault_script import NS_PER_MS, SimFault

__all__ = ["ActionKind", "LinkAction", "link_actions"]

ActionKind = Literal["down", "up", "rate", "loss", "delay"]

FLAPS_MAX = 100_000
"""Outages of one flap; more would be loss, and take longer to list than to simulate."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinkAction:
    """Something that happens to directed links at a time, and says what then holds for them.

    Attributes:
        time_ns: since the start of the simulation.
        links: directed links, int32, sorted.
        kind: `down`, `up`, `rate` (value: share of the nominal rate, 0..1), `loss` (value: share of packets lost,
            0..1) or `delay` (value: ns added one way). 1, 0 and 0 take rate, loss and delay back.
        value: see `kind`.
        is_signalled: whether the ends of a link that goes down are told.
        text: what the script calls it.
    """

    time_ns: int
    links: NDArray[np.int32]
    kind: ActionKind
    value: float = 0.0
    is_signalled: bool = True
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Interval:
    """A fault in force on links from `start_ns` to before `end_ns` (None: for ever)."""

    fault: SimFault
    links: NDArray[np.int32]
    attribute: str
    value: float
    start_ns: int
    end_ns: int | None


def link_actions(
    faults: Sequence[SimFault],
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
    intervals: list[_Interval] = []
    for index, fault in enumerate(faults):
        try:
            links = (
                np.zeros(0, np.int32)
                if fault.fault is not None
                else fault.links(topology, np.random.default_rng([seed, index]))
            )
            intervals += _intervals(fault, links, until_ns)
        except ConfigError as error:
            raise ConfigError(f"{source}: faults[{index}]: {error}") from error
    intervals = _restored(intervals, faults, topology, seed)
    return _swept(intervals, topology.num_links)


def _intervals(fault: SimFault, links: NDArray[np.int32], until_ns: int | None) -> list[_Interval]:
    if fault.kind == "restore":
        return []
    start = fault.at_ns or 0
    lasts = fault.time_ns("duration")
    end = None if lasts is None else start + lasts
    if fault.kind == "flap":
        return _flaps(fault, links, start, end, until_ns)
    if fault.loss_percent is not None:
        attribute, value = "loss", fault.loss_percent / 100.0
    elif fault.rate_percent is not None:
        attribute, value = "rate", fault.rate_percent / 100.0
    elif fault.kind == "delay":
        extra_ms = fault.extra_delay_ms if fault.extra_delay_us is None else fault.extra_delay_us / 1000.0
        attribute, value = "delay", (extra_ms or 0.0) * NS_PER_MS
    else:
        attribute, value = "outage", 1.0 if fault.silent else 2.0
    return [_Interval(fault, links, attribute, value, start, end)]


def _flaps(
    fault: SimFault, links: NDArray[np.int32], start: int, end: int | None, until_ns: int | None
) -> list[_Interval]:
    period = fault.time_ns("period") or 1
    down = fault.time_ns("down") or period // 2
    horizon = until_ns if end is None else end
    if horizon is None:
        raise ConfigError("a flap needs a duration, or the run an end (run.until_us)")
    count = -(-max(0, horizon - start) // period)
    if count > FLAPS_MAX:
        raise ConfigError(f"a flap of {count} outages is too long; at most {FLAPS_MAX}")
    value = 1.0 if fault.silent else 2.0
    return [
        _Interval(fault, links, "outage", value, begin, min(begin + max(down, 1), horizon))
        for begin in range(start, horizon, period)
    ]


def _restored(
    intervals: list[_Interval], faults: Sequence[SimFault], topology: Topology, seed: int
) -> list[_Interval]:
    """Cuts short what `restore` ends."""
    for index, fault in enumerate(faults):
        if fault.kind != "restore":
            continue
        at = fault.at_ns or 0
        is_named = fault.fault is not None
        links = np.zeros(0, np.int32)
        if not is_named:
            links = fault.links(topology, np.random.default_rng([seed, index]))
        kept: list[_Interval] = []
        for item in intervals:
            hit = (
                np.full(len(item.links), item.fault.name == fault.fault)
                if is_named
                else np.isin(item.links, links)
            )
            if not hit.any() or (item.end_ns is not None and item.end_ns <= at):
                kept.append(item)
                continue
            if item.start_ns >= at:
                if not is_named:  # of a target only what is active ends
                    kept.append(item)
                continue
            for part, end in ((item.links[hit], at), (item.links[~hit], item.end_ns)):
                if len(part):
                    kept.append(_Interval(item.fault, part, item.attribute, item.value, item.start_ns, end))
        intervals = kept
    return intervals


_NEUTRAL = {"outage": 0.0, "loss": 0.0, "rate": 1.0, "delay": 0.0}


def _swept(intervals: Sequence[_Interval], num_links: int) -> list[LinkAction]:
    """Goes through the times at which something begins or ends and tells what then holds, where it changes."""
    bounds: dict[tuple[int, str], list[_Interval]] = {}
    for item in intervals:
        for at in (item.start_ns, item.end_ns):
            if at is not None:
                bounds.setdefault((at, item.attribute), []).append(item)
    active: dict[str, list[_Interval]] = {attribute: [] for attribute in _NEUTRAL}
    held = {attribute: np.full(num_links, neutral) for attribute, neutral in _NEUTRAL.items()}
    actions: list[LinkAction] = []
    for (at, attribute), changing in sorted(bounds.items(), key=lambda entry: entry[0]):
        mine = active[attribute]
        mine[:] = [item for item in mine if item.end_ns != at]
        mine += [item for item in changing if item.start_ns == at and item.end_ns != at]
        touched = np.unique(np.concatenate([item.links for item in changing]))
        fresh = np.full(num_links, _NEUTRAL[attribute])
        worst = np.minimum if attribute == "rate" else np.maximum
        for item in mine:
            fresh[item.links] = worst(fresh[item.links], item.value)
        changed = touched[fresh[touched] != held[attribute][touched]]
        texts = list(dict.fromkeys(item.fault.text for item in changing))
        actions += _actions(at, attribute, changed, fresh, held[attribute], ", ".join(texts))
        held[attribute][changed] = fresh[changed]
    return actions


def _actions(
    at: int,
    attribute: str,
    changed: NDArray[np.int32],
    fresh: NDArray[np.float64],
    before: NDArray[np.float64],
    text: str,
) -> list[LinkAction]:
    actions = []
    for value in np.unique(fresh[changed]):
        links = changed[fresh[changed] == value].astype(np.int32)
        if attribute == "outage":
            if value == 0.0:
                actions.append(LinkAction(time_ns=at, links=links, kind="up", text=text))
                continue
            if value == 1.0:  # a link that was down and told of stays so
                links = links[before[links] == 0.0]
            if len(links):
                actions.append(
                    LinkAction(time_ns=at, links=links, kind="down", is_signalled=value == 2.0, text=text)
                )
            continue
        kind: ActionKind = "loss" if attribute == "loss" else "rate" if attribute == "rate" else "delay"
        actions.append(LinkAction(time_ns=at, links=links, kind=kind, value=float(value), text=text))
    return actions
