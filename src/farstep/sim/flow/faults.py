"""Faults at the flow level: what happens to links and when, and when senders notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.flow.settings import FlowSettings

__all__ = ["FlowFaultError", "NetworkState"]


LOSS_RETIRED = 0.01
"""Loss of a link from which on senders leave it out: with a packet lost every hundred, probes do not pass for long."""


class FlowFaultError(ValueError):
    """A fault the flow level cannot carry out; the message says which and why."""


class NetworkState:
    """Links as they are and as senders take them to be, changed by a sorted list of moments.

    Args:
        topology: the network.
        settings: when senders notice.
        actions: what happens.
    """

    def __init__(self, topology: Topology, settings: FlowSettings, actions: Iterable[LinkAction]) -> None:
        self.topology = topology
        self.settings = settings
        count = topology.num_links
        self.is_alive = np.ones(count, np.bool_)
        self.is_used = np.ones(count, np.bool_)
        self.rate_factor = np.ones(count)
        self.loss = np.zeros(count)
        self.extra_ns = np.zeros(count)
        self._changed_ns = np.full(count, -np.inf)
        self._is_at_nic = (topology.link_source < topology.num_nics) | (
            topology.link_target < topology.num_nics
        )
        moments: list[tuple[float, int, LinkAction | NDArray[Any]]] = []
        for action in actions:
            _check(action, count)
            moments.append((float(action.time_ns), len(moments), action))
            if action.kind in ("down", "up", "loss"):
                for delay, links in self._delays(action):
                    if np.isfinite(delay):
                        moments.append((float(action.time_ns) + delay, len(moments), links))
        # Senders notice after the network has changed, also when both fall on the same time.
        self._moments = sorted(moments, key=lambda m: (m[0], not isinstance(m[2], LinkAction), m[1]))
        self._next = 0

    def _delays(self, action: LinkAction) -> list[tuple[float, NDArray[Any]]]:
        """How long senders take to notice, for the action's links in groups."""
        settings, links = self.settings, np.asarray(action.links, np.int64)
        if settings.failover == "none" or (settings.failover == "reconverge" and action.kind == "loss"):
            return []
        if settings.failover == "reconverge":
            # Routers turn away from what they are told is down; a silent black hole stays in their tables.
            told = action.is_signalled or action.kind == "up"
            return [(settings.reconvergence_ns if told else np.inf, links)]
        at_nic = self._is_at_nic[links]
        if action.kind == "loss":
            # All paths of a plane go over a NIC's link: there is nothing else to turn to.
            delay = settings.detection_ns if action.value >= LOSS_RETIRED else settings.restore_ns
            return [(delay, links[~at_nic])]
        if action.kind == "up":
            return [(settings.restore_ns, links)]
        slow = max(settings.detection_ns, settings.remap_ns) if action.is_signalled else settings.detection_ns
        return [(settings.detection_ns, links[~at_nic]), (slow, links[at_nic])]

    @property
    def next_ns(self) -> float:
        """Time of the next moment; infinity if there is none."""
        return self._moments[self._next][0] if self._next < len(self._moments) else np.inf

    def advance(self, time_ns: float) -> bool:
        """Carries out all moments up to a time; returns whether routes may have changed (and not rates alone)."""
        rerouted = False
        while self.next_ns <= time_ns:
            at, _, what = self._moments[self._next]
            self._next += 1
            if isinstance(what, LinkAction):
                rerouted |= self._carry_out(what, at)
            else:
                rerouted |= self._notice(what, at)
        return rerouted

    def _carry_out(self, action: LinkAction, at: float) -> bool:
        links = np.asarray(action.links, np.int64)
        if action.kind == "rate":
            self.rate_factor[links] = action.value
            return self.settings.balancing > 0
        if action.kind == "loss":
            self.loss[links] = action.value
            self._changed_ns[links] = at
            return True
        if action.kind == "delay":
            self.extra_ns[links] = action.value
            return True
        alive = action.kind == "up"
        turned = links[self.is_alive[links] != alive]
        self.is_alive[links] = alive
        self._changed_ns[turned] = at
        return bool(len(turned))

    def _notice(self, links: NDArray[Any], at: float) -> bool:
        settings = self.settings
        if settings.failover == "exclude":
            is_good = self.is_alive[links] & ((self.loss[links] < LOSS_RETIRED) | self._is_at_nic[links])
            down = links[~is_good]
            settled = self._changed_ns[links] <= at - settings.restore_ns
            up = links[is_good & settled]
        else:
            down, up = links[~self.is_alive[links]], links[self.is_alive[links]]
        changed = self.is_used[down].any() or (~self.is_used[up]).any()
        self.is_used[down] = False
        self.is_used[up] = True
        return bool(changed)

    def rates_gbps(self) -> NDArray[np.float64]:
        """Rate of each link now; a dead one keeps its rate, for what is sent into it is lost behind it."""
        return np.asarray(self.topology.link_rate_gbps * self.rate_factor, np.float64)


def _check(action: LinkAction, num_links: int) -> None:
    """Raises FlowFaultError unless an action can be carried out on a network of so many links."""
    links = np.asarray(action.links)
    what = f"{action.kind} at {action.time_ns} ns"
    if links.size and (links.min() < 0 or links.max() >= num_links):
        raise FlowFaultError(f"{what}: names link {links.max()}; the network has 0..{num_links - 1}")
    valid = {"rate": (0.0, np.inf), "loss": (0.0, 1.0), "delay": (0.0, np.inf)}
    low, high = valid.get(action.kind, (-np.inf, np.inf))
    if not low <= action.value <= high:
        raise FlowFaultError(f"{what}: value = {action.value}; valid: {low:g} to {high:g}")
