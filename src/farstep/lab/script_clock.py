"""A fault script at work: the clock it runs by, what it does to channels, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from farstep.fabric import EmulatedNetwork, Fault, FaultAction, FaultTimeline
from farstep.lab.forwarder import Forwarder

NS_PER_S = 1_000_000_000


class ScriptClock:
    """Runs the timeline of a script against a forwarder.

    Args:
        network: network the script is about.
        forwarder: carries the actions out.
        publish: gets an event per action.
    """

    def __init__(
        self, network: EmulatedNetwork, forwarder: Forwarder, publish: Callable[[dict[str, Any]], None]
    ) -> None:
        self._network = network
        self._forwarder = forwarder
        self._publish = publish
        self._origin_ns = time.monotonic_ns()
        self._timeline = FaultTimeline((), network)

    @property
    def next_due_ns(self) -> int | None:
        """When `advance` has something to do."""
        next_ns = self._timeline.next_ns
        return None if next_ns is None else self._origin_ns + next_ns

    @property
    def active_faults(self) -> tuple[str, ...]:
        """Names of the faults now running."""
        return self._timeline.active_faults

    def load(self, faults: Iterable[Fault], source: str) -> None:
        """Replaces the script and starts its clock; what the former one did is taken back.

        Raises:
            ConfigError: the script does not fit the network; the former one then goes on.
        """
        timeline = FaultTimeline(tuple(faults), self._network, source=source)
        self._carry_out(self._timeline.end_all(self._elapsed_ns()))
        self._timeline = timeline
        self._origin_ns = time.monotonic_ns()
        self.advance()

    def inject(self, fault: Fault) -> int:
        """Adds a fault; returns the number of actions that followed at once.

        Raises:
            ConfigError: the fault does not fit the network.
        """
        return self._carry_out(self._timeline.inject(fault, self._elapsed_ns()))

    def reach_step(self, step: int) -> int:
        """Notes that a training step begins; returns the number of actions that followed."""
        return self._carry_out(self._timeline.reach_step(step, self._elapsed_ns()))

    def advance(self) -> None:
        """Carries out what is due."""
        self._carry_out(self._timeline.advance_to(self._elapsed_ns()))

    def _elapsed_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    def _carry_out(self, actions: list[FaultAction]) -> int:
        for action in actions:
            self._forwarder.carry_out(action)
            self._publish(self._event(action))
        return len(actions)

    def _event(self, action: FaultAction) -> dict[str, Any]:
        return {
            "kind": "fault",
            "monotonic_ns": time.monotonic_ns(),
            "action": "applied" if action.is_apply else "reverted",
            "fault_id": action.fault_id,
            "name": action.fault,
            "fault": action.kind,
            "target": action.target,
            "value": action.value,
            "step": action.step,
            "due_s": action.due_ns / NS_PER_S,
            "channels": [
                {
                    "path": channel.path,
                    "plane": channel.plane,
                    "from_site": channel.from_site,
                    "to_site": channel.to_site,
                    "is_down": state.is_down,
                    "is_detected": state.is_detected,
                }
                for channel, state in action.states
            ],
        }
