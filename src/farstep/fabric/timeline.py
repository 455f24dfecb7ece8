"""A fault script put in order: what to apply and take back, and when.

Rules.

1. Time comes in as integer nanoseconds since the start of the script, steps as the number of the step begun.
2. At one instant what ends comes before what starts; equal entries are ordered by their content. The order in
   which a script lists its entries therefore never matters.
3. Faults on one channel are composed per attribute: a fault replaces the fault-free value, and of several the
   most severe is in force. Taking one back restores what the others say, not the fault-free value.
4. Every channel a fault was applied to is taken back exactly once, whether by duration or by `restore`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from farstep.fabric.channels import Channel, ChannelState
from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect, expect_list
from farstep.fabric.fault_base import FLAP_PERIOD_S_MIN, FaultBase, Override
from farstep.fabric.faults import Fault, Flap, Restore
from farstep.fabric.script import FaultScript, check_script, faults_of
from farstep.fabric.sites import EmulatedNetwork
from farstep.fabric.targets import Target

NS_PER_S = 1_000_000_000

_ENDS, _STARTS = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAction:
    """One change: carry it out by giving each listed channel its new state."""

    is_apply: bool
    """True: a fault begins to act. False: it is taken back."""
    fault: str
    """Name of the fault."""
    kind: str
    """Kind of the fault."""
    fault_id: int
    """Index in the script as listed; faults injected later are numbered on."""
    target: str
    """What the script names as target, such as `path=north`."""
    value: float | None
    """Size of the fault in the unit of its kind, where it has one."""
    due_ns: int
    """When it was due, in ns since the start of the script."""
    step: int | None
    """Training step that caused it; None when time did."""
    states: tuple[tuple[Channel, ChannelState], ...]
    """Channels concerned, with the state now in force on each (all active faults composed)."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Channels concerned."""
        return tuple(channel for channel, _ in self.states)


class FaultTimeline:
    """Yields the actions of a fault script as time passes and steps begin.

    Args:
        script: the script, or its entries.
        network: the network, or the fault-free state of each of its channels.
        source: name of the script in error messages.
        resolve: turns a target into channels of a simulated network; None: those of the emulator, by their names.

    Raises:
        ConfigError: a target is unknown, a value has no meaning on its target, or the script is inconsistent.

    Example:
        >>> from farstep.fabric import full_mesh
        >>> timeline = FaultTimeline(
        ...     FaultScript.parse({"faults": [
        ...         {"kind": "path_down", "path": "a-b:0", "at_s": 1, "duration_s": 2, "name": "cut"}]}),
        ...     full_mesh(("a", "b"), planes=2),
        ... )
        >>> [(action.is_apply, action.fault) for action in timeline.advance_to(10_000_000_000)]
        [(True, 'cut'), (False, 'cut')]
    """

    def __init__(
        self,
        script: FaultScript | Iterable[Fault],
        network: EmulatedNetwork | Mapping[Channel, ChannelState],
        *,
        source: str = "fault script",
        resolve: Callable[[Target], tuple[Channel, ...]] | None = None,
    ) -> None:
        faults = faults_of(script)
        expect("network", network, (EmulatedNetwork, Mapping), "an EmulatedNetwork, or states by channel")
        self._base: dict[Channel, ChannelState] = dict(
            network.states if isinstance(network, EmulatedNetwork) else network
        )
        self._now_ns = 0
        self._step = 0
        self._sequence = count()
        self._by_time: list[_Entry] = []
        self._by_step: list[_Entry] = []
        self._active: dict[Channel, dict[int, Override]] = {channel: {} for channel in self._base}
        self._running: dict[int, _Occurrence] = {}
        self._known_names: dict[str, int] = {}
        self._pending_starts = 0
        self._next_fault_id = len(faults)
        try:
            check_script(faults)
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from error
        self._has_real_packets = resolve is None
        self._resolve = resolve if resolve is not None else lambda target: target.resolve(self._base)
        if resolve is None:
            FaultScript.model_construct(faults=faults).check_targets(self._base, source=source)
        for index, fault in sorted(enumerate(faults), key=lambda item: _content(item[1])):
            self._schedule(fault, index, source=f"{source}: faults[{index}]")

    @property
    def next_ns(self) -> int | None:
        """When the next action that depends on time is due; None if there is none."""
        return self._by_time[0].at if self._by_time else None

    @property
    def is_finished(self) -> bool:
        """True when no fault is active and none is still to come."""
        return not self._running and not self._pending_starts

    @property
    def active_faults(self) -> tuple[str, ...]:
        """Names of the faults now running, sorted; a flap counts in its up phases too."""
        return tuple(sorted(occurrence.name for occurrence in self._running.values()))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels, as the network lists them."""
        return tuple(self._base)

    def state(self, channel: Channel) -> ChannelState:
        """Returns what a channel does now.

        Raises:
            KeyError: the network has no such channel.
        """
        return compose(self._base[channel], self._active[channel].values())

    def advance_to(self, now_ns: int) -> list[FaultAction]:
        """Returns the actions due by now, in order.

        Args:
            now_ns: time since the start of the script; going back is ignored.
        """
        actions: list[FaultAction] = []
        while self._by_time and self._by_time[0].at <= now_ns:
            entry = heapq.heappop(self._by_time)
            self._now_ns = max(self._now_ns, entry.at)
            actions += entry.run(entry.at, None)
        self._now_ns = max(self._now_ns, now_ns)
        return actions

    def reach_step(self, step: int, now_ns: int) -> list[FaultAction]:
        """Returns the actions due because a training step begins, after those due by now.

        Args:
            step: number of the step; a number that was already reached changes nothing.
            now_ns: time since the start of the script.
        """
        actions = self.advance_to(now_ns)
        while self._by_step and self._by_step[0].at <= step:
            entry = heapq.heappop(self._by_step)
            self._step = max(self._step, entry.at)
            actions += entry.run(self._now_ns, entry.at)
        self._step = max(self._step, step)
        return actions

    def inject(self, fault: Fault, now_ns: int, *, source: str = "fault") -> list[FaultAction]:
        """Adds a fault while the script runs; without `at_s` and `at_step` it starts now.

        Returns:
            The actions due by now, among them those of the new fault if it starts now.

        Raises:
            ConfigError: as for a script.
        """
        actions = self.advance_to(now_ns)
        if isinstance(fault, Restore) and fault.fault is not None and fault.fault not in self._known_names:
            listed = ", ".join(sorted(self._known_names)) or "none"
            raise ConfigError(
                f"{source}: fault = {quoted(fault.fault)}: no such fault; known faults: {listed}"
            )
        if fault.name is not None and fault.name in self._known_names:
            raise ConfigError(
                f"{source}: name = {quoted(fault.name)} is used by an earlier fault; choose another"
            )
        if fault.target.keys:
            try:
                self._resolve(fault.target)
            except ConfigError as error:
                raise ConfigError(f"{source}: {error}") from error
        self._schedule(fault, self._next_fault_id, source=source)
        self._next_fault_id += 1
        actions += self.advance_to(now_ns)
        actions += self.reach_step(self._step, now_ns)
        return actions

    def end_all(self, now_ns: int) -> list[FaultAction]:
        """Takes back every running fault and forgets what was still to come.

        Returns:
            The actions due by now, then those that take back what is running.
        """
        actions = self.advance_to(now_ns)
        for occurrence in sorted(self._running.values(), key=lambda entry: (entry.content, entry.number)):
            actions += self._end(occurrence, tuple(occurrence.overrides), self._now_ns, None)
        self._by_time.clear()
        self._by_step.clear()
        self._pending_starts = 0
        return actions

    # -- scheduling ---------------------------------------------------------------------------------------

    def _check_flap(self, fault: Fault, source: str) -> None:
        period_s = fault.period_s if isinstance(fault, Flap) else None
        if self._has_real_packets and period_s is not None and period_s < FLAP_PERIOD_S_MIN:
            raise ConfigError(
                f"{source}.period_s = {period_s:g}: must be greater than or equal to {FLAP_PERIOD_S_MIN:g}"
            )

    def _schedule(self, fault: Fault, fault_id: int, *, source: str) -> None:
        self._check_flap(fault, source)
        content = _content(fault)
        channels = self._resolve(fault.target) if fault.target.keys else ()
        if isinstance(fault, Restore):
            restore = fault

            def run_restore(due_ns: int, step: int | None) -> list[FaultAction]:
                return self._restore(restore.fault, channels, due_ns, step)

            self._push(fault.at_s, fault.at_step, _ENDS, content, run_restore)
            return
        overrides = {}
        for channel in channels:
            try:
                overrides[channel] = fault.override(self._base[channel])
            except ValueError as error:
                raise ConfigError(f"{source}: {error} (path {channel.path})") from error
        number = next(self._sequence)
        occurrence = _Occurrence(self._name(fault), fault, fault_id, overrides, content, number)

        def run_start(due_ns: int, step: int | None) -> list[FaultAction]:
            return self._start(occurrence, due_ns, step)

        self._pending_starts += 1
        self._push(fault.at_s, fault.at_step, _STARTS, content, run_start)

    def _name(self, fault: FaultBase) -> str:
        """Names a fault; equal unnamed faults get numbers, and being equal it is all one which gets which."""
        wanted = fault.name if fault.name is not None else f"{fault.kind} {fault.target}"  # type: ignore[attr-defined]
        used = self._known_names.get(wanted, 0) + 1
        self._known_names[wanted] = used
        if used == 1:
            return wanted
        self._known_names[f"{wanted} #{used}"] = 1
        return f"{wanted} #{used}"

    def _push(
        self, at_s: float | None, at_step: int | None, phase: int, content: _Content, run: _Run
    ) -> None:
        if at_step is not None:
            self._push_step(at_step, phase, content, run)
        else:
            at_ns = self._now_ns if at_s is None else round(at_s * NS_PER_S)
            heapq.heappush(self._by_time, _Entry(at_ns, phase, content, next(self._sequence), run))

    def _push_step(self, step: int, phase: int, content: _Content, run: _Run) -> None:
        heapq.heappush(self._by_step, _Entry(step, phase, content, next(self._sequence), run))

    def _push_ns(self, at_ns: int, phase: int, content: _Content, run: _Run) -> None:
        heapq.heappush(self._by_time, _Entry(at_ns, phase, content, next(self._sequence), run))

    # -- what happens -------------------------------------------------------------------------------------

    def _start(self, occurrence: _Occurrence, due_ns: int, step: int | None) -> list[FaultAction]:
        self._pending_starts -= 1
        self._running[occurrence.number] = occurrence
        fault = occurrence.fault

        def run_end(end_ns: int, end_step: int | None) -> list[FaultAction]:
            return self._end(occurrence, tuple(occurrence.overrides), end_ns, end_step)

        if fault.duration_s is not None:
            self._push_ns(due_ns + round(fault.duration_s * NS_PER_S), _ENDS, occurrence.content, run_end)
        elif fault.duration_steps is not None:
            first = self._step if step is None else step
            self._push_step(first + fault.duration_steps, _ENDS, occurrence.content, run_end)
        if isinstance(fault, Flap):
            first = self._step if step is None else step
            return self._toggle(occurrence, fault, 0, due_ns, first, due_ns, step)
        return self._set_active(occurrence, tuple(occurrence.overrides), True, due_ns, step)

    def _toggle(
        self,
        occurrence: _Occurrence,
        flap: Flap,
        half: int,
        start_ns: int,
        start_step: int,
        due_ns: int,
        step: int | None,
    ) -> list[FaultAction]:
        """Begins a half period: even ones are outages. Instants are counted from the start, so none drift."""
        if occurrence.number not in self._running:
            return []
        following = half + 1
        cycles, is_up_next = divmod(following, 2)

        def run_next(next_ns: int, next_step: int | None) -> list[FaultAction]:
            return self._toggle(occurrence, flap, following, start_ns, start_step, next_ns, next_step)

        phase = _ENDS if is_up_next else _STARTS
        if flap.period_s is not None:
            down_s = flap.down_s if flap.down_s is not None else flap.period_s / 2
            offset_s = cycles * flap.period_s + (down_s if is_up_next else 0.0)
            self._push_ns(start_ns + round(offset_s * NS_PER_S), phase, occurrence.content, run_next)
        else:
            period = flap.period_steps or 2
            down = flap.down_steps if flap.down_steps is not None else period // 2
            next_step_number = start_step + cycles * period + (down if is_up_next else 0)
            self._push_step(next_step_number, phase, occurrence.content, run_next)
        return self._set_active(occurrence, tuple(occurrence.overrides), half % 2 == 0, due_ns, step)

    def _restore(
        self, name: str | None, channels: tuple[Channel, ...], due_ns: int, step: int | None
    ) -> list[FaultAction]:
        actions: list[FaultAction] = []
        running = sorted(
            self._running.values(), key=lambda occurrence: (occurrence.content, occurrence.number)
        )
        for occurrence in running:
            if name is None:
                meant = tuple(channel for channel in channels if channel in occurrence.overrides)
            else:
                meant = tuple(occurrence.overrides) if occurrence.name == name else ()
            if meant:
                actions += self._end(occurrence, meant, due_ns, step)
        return actions

    def _end(
        self, occurrence: _Occurrence, channels: tuple[Channel, ...], due_ns: int, step: int | None
    ) -> list[FaultAction]:
        if occurrence.number not in self._running:
            return []
        actions = self._set_active(occurrence, channels, False, due_ns, step)
        for channel in channels:
            occurrence.overrides.pop(channel, None)
        if not occurrence.overrides:
            del self._running[occurrence.number]
        return actions

    def _set_active(
        self,
        occurrence: _Occurrence,
        channels: tuple[Channel, ...],
        is_apply: bool,
        due_ns: int,
        step: int | None,
    ) -> list[FaultAction]:
        changed = []
        for channel in channels:
            active = self._active[channel]
            if is_apply and occurrence.number not in active:
                active[occurrence.number] = occurrence.overrides[channel]
                changed.append(channel)
            elif not is_apply and active.pop(occurrence.number, None) is not None:
                changed.append(channel)
        if not changed:
            return []
        states = tuple((channel, self.state(channel)) for channel in changed)
        return [
            FaultAction(
                is_apply=is_apply,
                fault=occurrence.name,
                kind=occurrence.content[0],
                fault_id=occurrence.fault_id,
                target=str(occurrence.fault.target),
                value=occurrence.fault.value,
                due_ns=due_ns,
                step=step,
                states=states,
            )
        ]


def compose(base: ChannelState, overrides: Iterable[Override]) -> ChannelState:
    """Returns the state of a channel under several faults: per attribute, the most severe value.

    The result does not depend on the order of `overrides`.

    Args:
        base: fault-free state.
        overrides: what `FaultBase.override` returned for each active fault.

    Example:
        >>> compose(ChannelState(rate_mbps=100.0), [("rate", 50.0), ("rate", 10.0)]).rate_mbps
        10.0
    """
    expect("base", base, ChannelState, "a ChannelState")
    worst: dict[str, Any] = {}
    for attribute, value in expect_list("overrides", overrides, "what FaultBase.override() returns"):
        severer = _SEVERER[attribute]
        worst[attribute] = severer(worst[attribute], value) if attribute in worst else value
    if not worst:
        return base
    changes: dict[str, Any] = {}
    for attribute, value in worst.items():
        if attribute == "outage":
            changes |= {"is_down": True, "is_detected": value}
        elif attribute == "loss":
            changes |= {"loss_percent": value[0], "loss_burst_packets": value[1]}
        elif attribute == "reorder":
            changes |= {"reorder_percent": value[0], "reorder_delay_ms": value[1]}
        else:
            changes[_FIELDS[attribute]] = value
    return replace(base, **changes)


_SEVERER: dict[str, Callable[[Any, Any], Any]] = {
    "outage": lambda one, other: one or other,
    "rate": min,
    "delay": max,
    "jitter": max,
    "loss": max,
    "reorder": max,
    "duplicate": max,
    "corrupt": max,
    "ecn": min,
    "queue": min,
}
"""Which of two values is in force. An outage that is signalled tells more than a silent one, so it wins."""

_FIELDS = {
    "rate": "rate_mbps",
    "delay": "delay_ms",
    "jitter": "jitter_ms",
    "duplicate": "duplicate_percent",
    "corrupt": "corrupt_percent",
    "ecn": "ecn_threshold_bytes",
    "queue": "queue_limit_bytes",
}

_Content = tuple[str, str]
_Run = Callable[[int, int | None], list[FaultAction]]


class _Entry(NamedTuple):
    """Something due: heap order is instant, phase, content, then arrival among equals."""

    at: int
    phase: int
    content: _Content
    sequence: int
    run: _Run


@dataclass(slots=True)
class _Occurrence:
    """One fault of the script, from its start to its end."""

    name: str
    fault: FaultBase
    fault_id: int
    overrides: dict[Channel, Override] = field(repr=False)
    """What it sets on each channel it has not been restored from."""
    content: _Content
    number: int


def _content(fault: Fault) -> _Content:
    """Orders faults by what they say instead of by their place in the list."""
    return fault.kind, fault.model_dump_json(exclude={"kind"})
