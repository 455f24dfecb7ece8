"""The fault script carried out on a topology: what changes on which links, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from farstep.fabric.channels import Channel, ChannelState
from farstep.fabric.errors import VALUE_CHARACTERS_MAX, ConfigError, names, quoted
from farstep.fabric.expected import expect
from farstep.fabric.faults import Fault
from farstep.fabric.script import FaultScript, faults_of
from farstep.fabric.targets import ANY_SITE, ELEMENT_KEYS, Target
from farstep.fabric.timeline import FaultAction, FaultTimeline
from farstep.fabric.topology.elements import resolve_links
from farstep.fabric.topology.model import BoolArray, Int32Array, Topology, expect_topology

LinkChangeKind = Literal["down", "up", "rate", "loss", "delay"]

SIMULATED_KINDS = (
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
    "rate",
    "delay",
    "restore",
)
"""Kinds of faults a simulated network carries out; the others are made for single paths of an emulated one."""

CHANGES_MAX = 1_000_000
"""Changes of one listing: a link that flaps for a day every 0.2 s."""

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinkChange:
    """One thing that happens to links; what else is the matter with them stays as it was."""

    time_ns: int
    """When, in ns since the start of the script."""
    links: Int32Array
    """Directed links, sorted."""
    kind: LinkChangeKind
    value: float = 0.0
    """`rate`: part of the fault-free rate, above 0; `loss`: share of packets lost, 0 to 1; `delay`: ns added to the
    fault-free latency, which may be negative; `down` and `up`: 0."""
    is_signalled: bool = False
    """`down`: the ends are told of it."""
    fault: str = ""
    """Name of the fault that begins or ends."""
    step: int | None = None
    """Training step that caused it; None when time did."""


class LinkTimeline:
    """Yields what a fault script does to the links of a topology as time passes and steps begin.

    Faults on one link are composed as in every fault script: of several, the most severe is in force.

    Args:
        script: the script, or its entries.
        topology: the network.
        source: name of the script in error messages.

    Raises:
        ConfigError: with one line per target that names nothing of the topology, or kind that no simulation has.

    Example:
        >>> from farstep.fabric.topology import fat_tree
        >>> script = FaultScript.parse({"faults": [
        ...     {"kind": "switch_down", "switch": "t1/p0/0", "at_s": 0.001, "duration_s": 0.002}]})
        >>> [(change.time_ns, change.kind, len(change.links))
        ...  for change in LinkTimeline(script, fat_tree(128)).until(10_000_000)]
        [(1000000, 'down', 16), (3000000, 'up', 16)]
    """

    def __init__(
        self, script: FaultScript | Iterable[Fault], topology: Topology, *, source: str = "fault script"
    ) -> None:
        expect_topology("topology", topology)
        faults = faults_of(script)
        targets = _resolved(faults, topology, source)
        self._links, members = _classes(topology, list(targets.values()))
        base = {
            Channel(str(number), 0, "", ""): ChannelState(
                rate_mbps=float(topology.link_rate_gbps[links[0]]) * 1000.0,
                delay_ms=float(topology.link_latency_ns[links[0]]) / NS_PER_MS,
            )
            for number, links in enumerate(self._links)
        }
        channels = tuple(base)
        of_target = {
            target: tuple(channels[number] for number in numbers)
            for target, numbers in zip(targets, members, strict=True)
        }
        self._base = base
        self._state = dict(base)
        self._timeline = FaultTimeline(faults, base, source=source, resolve=lambda target: of_target[target])

    @property
    def next_ns(self) -> int | None:
        """When the next change that depends on time is due; None if there is none."""
        return self._timeline.next_ns

    @property
    def is_finished(self) -> bool:
        """True when no fault is active and none is still to come."""
        return self._timeline.is_finished

    def advance_to(self, now_ns: int) -> list[LinkChange]:
        """Returns the changes due by now, in order."""
        return self._changes(self._timeline.advance_to(now_ns))

    def reach_step(self, step: int, now_ns: int) -> list[LinkChange]:
        """Returns the changes due because a step begins, after those due by now."""
        return self._changes(self._timeline.reach_step(step, now_ns))

    def until(self, end_ns: int) -> list[LinkChange]:
        """Returns all changes that time brings, up to an end.

        Raises:
            ConfigError: there are more than `CHANGES_MAX`.
        """
        changes: list[LinkChange] = []
        while (due_ns := self.next_ns) is not None and due_ns <= end_ns:
            changes += self.advance_to(due_ns)
            if len(changes) > CHANGES_MAX:
                raise ConfigError(
                    f"the faults make more than {CHANGES_MAX} changes; valid: fewer, or an earlier end"
                )
        return changes

    def _changes(self, actions: Iterable[FaultAction]) -> list[LinkChange]:
        changes = []
        for action in actions:
            grouped: dict[tuple[LinkChangeKind, float, bool], list[Int32Array]] = {}
            for channel, state in action.states:
                before, self._state[channel] = self._state[channel], state
                for change in _differences(self._base[channel], before, state):
                    grouped.setdefault(change, []).append(self._links[int(channel.path)])
            changes += [
                LinkChange(
                    time_ns=action.due_ns,
                    links=np.sort(np.concatenate(links)),
                    kind=kind,
                    value=value,
                    is_signalled=is_signalled,
                    fault=action.fault,
                    step=action.step,
                )
                for (kind, value, is_signalled), links in grouped.items()
            ]
        return changes


def target_links(topology: Topology, target: Target) -> Int32Array:
    """Returns the directed links of a topology that the target of a fault means, sorted.

    Raises:
        ConfigError: it names nothing of the topology.
    """
    expect_topology("topology", topology)
    expect("target", target, Target, "a Target")
    if target.path is not None:
        raise ConfigError(
            f"path = {quoted(target.path)}: a topology has no named paths; valid here: plane, site, sites,"
            f" {names(ELEMENT_KEYS)}"
        )
    chosen = np.ones(topology.num_links, np.bool_)
    if target.element is not None:
        key, value = target.element
        kind = "nic-port" if key == "port" else key
        chosen &= _as_mask(topology, f"{kind}:{value}", key, value)
    if target.plane is not None:
        chosen &= _as_mask(topology, f"plane:{target.plane}", "plane", str(target.plane))
    if target.site is not None:
        site = _site(topology, "site", target.site)
        chosen &= topology.node_site[topology.link_source] != topology.node_site[topology.link_target]
        chosen &= _touches(topology, site)
    if target.sites is not None:
        one, other = (_site(topology, "sites", site) for site in target.sites)
        chosen &= _touches(topology, one) & _touches(topology, other)
    if target.direction is not None:
        ends = [end.strip() for end in target.direction.split("->")]
        for column, end in zip((topology.link_source, topology.link_target), ends, strict=True):
            if end != ANY_SITE:
                chosen &= topology.node_site[column] == _site(topology, "direction", end)
    links = np.flatnonzero(chosen).astype(np.int32)
    if not len(links):
        raise ConfigError(f"{target}: no link matches all of this together")
    return links


def _as_mask(topology: Topology, name: str, key: str, value: str) -> BoolArray:
    chosen = np.zeros(topology.num_links, np.bool_)
    try:
        chosen[resolve_links(topology, name)] = True
    except ConfigError as error:
        reason = str(error).removeprefix(f"target = {quoted(name)}: ")
        shown = value if value.isdecimal() and len(value) < VALUE_CHARACTERS_MAX else quoted(value)
        raise ConfigError(f"{key} = {shown}: {reason}") from None
    return chosen


def _site(topology: Topology, key: str, name: str) -> int:
    if name not in topology.site_names:
        raise ConfigError(f"{key} = {quoted(name)}: no such site; known sites: {names(topology.site_names)}")
    return topology.site_names.index(name)


def _touches(topology: Topology, site: int) -> BoolArray:
    ends = topology.node_site[topology.link_source], topology.node_site[topology.link_target]
    return np.asarray((ends[0] == site) | (ends[1] == site))


def _resolved(faults: tuple[Fault, ...], topology: Topology, source: str) -> dict[Target, Int32Array]:
    """Resolves the targets of a script.

    Raises:
        ConfigError: with one line per entry that cannot be carried out.
    """
    targets: dict[Target, Int32Array] = {}
    wrong = []
    for index, fault in enumerate(faults):
        where = f"{source}: faults[{index}]"
        if fault.kind not in SIMULATED_KINDS:
            wrong.append(
                f"{where}.kind = {quoted(fault.kind)}: not simulated; valid in a simulation: {names(SIMULATED_KINDS)}"
            )
            continue
        if not fault.target.keys or fault.target in targets:
            continue
        try:
            targets[fault.target] = target_links(topology, fault.target)
        except ConfigError as error:
            wrong.append(f"{where}.{error}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return targets


def _classes(
    topology: Topology, targets: list[Int32Array]
) -> tuple[list[Int32Array], list[npt.NDArray[np.int64]]]:
    """Groups links that all faults treat alike, so that a plane of a large network is one thing and not a million.

    Returns:
        Links of each class, and the classes of each target.
    """
    if not targets:
        return [], []
    concerned = np.unique(np.concatenate(targets))
    number = np.zeros(len(concerned), np.int64)
    for column in (topology.link_rate_gbps[concerned], topology.link_latency_ns[concerned]):
        number = _refined(number, np.unique(column, return_inverse=True)[1])
    for links in targets:
        number = _refined(number, np.isin(concerned, links, assume_unique=True))
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(number.max() + 1))
    classes = np.split(concerned[order], starts[1:])
    members = [np.unique(number[np.isin(concerned, links, assume_unique=True)]) for links in targets]
    return classes, members


def _refined(number: npt.NDArray[np.int64], by: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    values = by.astype(np.int64)
    _, refined = np.unique(number * (int(values.max()) + 1) + values, return_inverse=True)
    return np.asarray(refined, np.int64)


def _differences(
    base: ChannelState, before: ChannelState, after: ChannelState
) -> Iterator[tuple[LinkChangeKind, float, bool]]:
    if (before.is_down, before.is_detected) != (after.is_down, after.is_detected):
        yield ("down" if after.is_down else "up"), 0.0, after.is_down and after.is_detected
    if before.rate_mbps != after.rate_mbps:
        yield "rate", (after.rate_mbps or 0.0) / (base.rate_mbps or 1.0), False
    if before.loss_percent != after.loss_percent:
        yield "loss", after.loss_percent / 100.0, False
    if before.delay_ms != after.delay_ms:
        yield "delay", round((after.delay_ms - base.delay_ms) * NS_PER_MS, 3), False
