"""Faults at the flow level: what happens to links and when, and when senders notice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True, eq=False)
class _Notice:
    """Senders, or routers, come to know of a change of links."""

    links: NDArray[Any]
    is_down: bool


class NetworkState:
    """Links as they are and as senders take them to be, changed by a sorted list of moments.

    Args:
        topology: the network.
        settings: when senders notice.
        actions: what happens.
        lead_ns: float64 (links,), how long packets are under way when they come to a link; what happens to it is then
            counted in the time of their senders. None: in its own.
    """

    def __init__(
        self,
        topology: Topology,
        settings: FlowSettings,
        actions: Iterable[LinkAction],
        lead_ns: NDArray[np.float64] | None = None,
    ) -> None:
        self.topology = topology
        self.settings = settings
        count = topology.num_links
        self.is_alive = np.ones(count, np.bool_)
        self.is_used = np.ones(count, np.bool_)
        self.rate_factor = np.ones(count)
        self.loss = np.zeros(count)
        self.extra_ns = np.zeros(count)
        self._changed_ns = np.full(count, -np.inf)
        self._ends = (topology.link_source, topology.link_target)
        self._is_at_nic = (topology.link_source < topology.num_nics) | (
            topology.link_target < topology.num_nics
        )
        moments: list[tuple[float, int, LinkAction | _Notice]] = []
        for action in actions:
            _check(action, count)
            for time_ns, part in _in_senders_time(action, lead_ns):
                moments.append((time_ns, len(moments), part))
            if action.kind in ("down", "up", "loss"):
                for delay, links in self._delays(action):
                    if np.isfinite(delay):
                        notice = _Notice(links, action.kind == "down")
                        moments.append((float(action.time_ns) + delay, len(moments), notice))
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
            routed = settings.reconvergence_ns if told else np.inf
            if settings.rival is None:
                return [(routed, links)]
            # Of its own ports a NIC knows by itself, and its peers when its word has reached them.
            own = settings.remap_ns if action.is_signalled else np.inf
            sends, receives = (ends[links] < self.topology.num_nics for ends in self._ends)
            return [
                (routed, links[~(sends | receives)]),
                (own, links[sends]),
                (2.0 * own, links[receives]),
            ]
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
    def is_eventful(self) -> bool:
        """Whether anything happens to links at all."""
        return bool(self._moments)

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

    def _notice(self, notice: _Notice, at: float) -> bool:
        settings, links = self.settings, notice.links
        if settings.failover == "exclude":
            is_good = self.is_alive[links] & ((self.loss[links] < LOSS_RETIRED) | self._is_at_nic[links])
            down = links[~is_good]
            settled = self._changed_ns[links] <= at - settings.restore_ns
            up = links[is_good & settled]
        else:
            # Routers know of each change so much later, whatever has happened since.
            nothing = links[:0]
            down, up = (links, nothing) if notice.is_down else (nothing, links)
        changed = self.is_used[down].any() or (~self.is_used[up]).any()
        self.is_used[down] = False
        self.is_used[up] = True
        return bool(changed)

    def rates_gbps(self) -> NDArray[np.float64]:
        """Rate of each link now; a dead one keeps its rate, for what is sent into it is lost behind it."""
        return np.asarray(self.topology.link_rate_gbps * self.rate_factor, np.float64)


def _in_senders_time(
    action: LinkAction, lead_ns: NDArray[np.float64] | None
) -> list[tuple[float, LinkAction]]:
    """When the first packets leave that meet links as an action leaves them; its links in groups."""
    links = np.asarray(action.links, np.int64)
    if lead_ns is None or not links.size:
        return [(float(action.time_ns), action)]
    leads, group = np.unique(lead_ns[np.clip(links, 0, len(lead_ns) - 1)], return_inverse=True)
    return [
        (max(float(action.time_ns) - lead, 0.0), replace(action, links=action.links[group == number]))
        for number, lead in enumerate(leads.tolist())
    ]


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
