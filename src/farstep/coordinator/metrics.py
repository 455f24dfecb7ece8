"""Figures for Prometheus: who is there, which generation, how fast, how often it failed.

Names follow Prometheus' rules (base units, `_total` for what only grows). Counters count since this coordinator
started; it holds no history, so look at their increase, as one does.
"""

from __future__ import annotations

import re

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from farstep.coordinator.body import Coordinator
from farstep.coordinator.status import Status
from farstep.membership.effects import Note

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_LATEST

REGROUP_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
"""Buckets of the time from a failure to the generation that answers it."""

_NANOSECONDS = {
    "step_time_ns": ("farstep_step_seconds", "Time of the last step."),
    "step_p50_ns": ("farstep_step_p50_seconds", "Median time of recent steps."),
    "step_p99_ns": ("farstep_step_p99_seconds", "99th percentile of the time of recent steps."),
    "step_max_ns": (
        "farstep_step_p100_seconds",
        "Longest of recent steps: what lockstep training waits for.",
    ),
    "wait_ns": ("farstep_network_wait_seconds", "Part of the last step spent waiting for the network."),
}
_PLAIN = {
    "loss": ("farstep_loss", "Training loss of the last step, mean over all samples."),
    "samples": ("farstep_step_samples", "Samples of the last step, all seats together."),
    "tx_bytes": ("farstep_sent_bytes", "Bytes the transport has sent since the member started."),
    "rx_bytes": ("farstep_received_bytes", "Bytes the transport has received since the member started."),
    "retransmitted_packets": (
        "farstep_retransmitted_packets",
        "Packets sent again since the member started.",
    ),
    "paths_good": ("farstep_paths_good", "Entropy values in use."),
    "paths_bad": ("farstep_paths_bad", "Entropy values that are avoided."),
}
_PLANES = {
    "tx_bytes": ("farstep_plane_sent_bytes", "Bytes sent on one plane since the member started."),
    "good": ("farstep_plane_paths_good", "Entropy values of one plane in use."),
    "bad": ("farstep_plane_paths_bad", "Entropy values of one plane that are avoided."),
}
_PLANE_KEY = re.compile(r"plane\.(\d{1,2})\.(\w+)")

KINDS_MAX = 256
"""Most kinds of events that are counted by name; members choose the names of theirs."""


class Metrics:
    """Collects what notes tell and renders it together with the status of the moment."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._events = Counter("farstep_events", "Events by kind.", ["kind"], registry=self.registry)
        self._generations = Counter(
            "farstep_generations", "Generations made, by urgency.", ["urgency"], registry=self.registry
        )
        self._regroup = Histogram(
            "farstep_regroup_seconds",
            "From a failure to the generation that answers it.",
            buckets=REGROUP_SECONDS,
            registry=self.registry,
        )
        self._generation = self._gauge("farstep_generation", "Number of the current generation.")
        self._step = self._gauge("farstep_step", "Steps committed.")
        self._waiting = self._gauge("farstep_waiting", "1 while the run waits for members or votes.")
        self._lines = self._gauge("farstep_connections", "Connections of members.")
        self._garbled = self._gauge("farstep_refused_messages", "Messages refused because they were none.")
        self._states = self._gauge("farstep_members", "Members by state.", "state")
        self._up = self._gauge(
            "farstep_member_up", "1 for every member that is connected.", "name", "site", "state"
        )
        self._member_step = self._gauge(
            "farstep_member_step", "Steps a member has committed.", "name", "site"
        )
        self._rtt = self._gauge(
            "farstep_member_rtt_seconds", "Round trip between a member and the coordinator.", "name", "site"
        )
        self._unwritten = self._gauge(
            "farstep_log_missing_lines", "Lines that the event log lacks because the disk did not take them."
        )
        self._kinds: set[str] = set()
        self._planes = {
            key: self._gauge(name, text, "name", "site", "plane") for key, (name, text) in _PLANES.items()
        }
        self._figures = {
            key: self._gauge(name, text, "name", "site")
            for key, (name, text) in (_NANOSECONDS | _PLAIN).items()
        }

    def note(self, note: Note) -> None:
        """Takes a note of the coordinator: its listener."""
        if len(self._kinds) < KINDS_MAX and note.kind.isascii():
            self._kinds.add(note.kind)
        self._events.labels(note.kind if note.kind in self._kinds else "other").inc()
        if note.kind == "generation":
            is_urgent = bool(note.fields.get("urgent"))
            self._generations.labels("urgent" if is_urgent else "planned").inc()
            if is_urgent:
                self._regroup.observe(float(note.fields.get("took_ms", 0.0)) / 1e3)

    def render(self, status: Status, coordinator: Coordinator, *, num_unwritten: int = 0) -> bytes:
        """Returns everything in Prometheus' text format."""
        self._unwritten.set(num_unwritten)
        self._generation.set(status.generation.number if status.generation else 0)
        self._step.set(status.step or 0)
        self._waiting.set(status.waiting is not None)
        self._lines.set(coordinator.num_lines)
        self._garbled.set(coordinator.num_garbled)
        by_member = (self._states, self._up, self._member_step, self._rtt)
        for gauge in (*by_member, *self._figures.values(), *self._planes.values()):
            gauge.clear()
        for member in status.members:
            self._states.labels(member.state).inc()
            labels = (member.name, member.site)
            if member.silent_s is not None:
                self._up.labels(*labels, member.state).set(1)
            if member.step is not None:
                self._member_step.labels(*labels).set(member.step)
            if member.rtt_ms is not None:
                self._rtt.labels(*labels).set(member.rtt_ms / 1e3)
            for key, value in member.figures.items():
                plane = _PLANE_KEY.fullmatch(key)
                if value is None:
                    continue
                if key in self._figures:
                    self._figures[key].labels(*labels).set(value / 1e9 if key in _NANOSECONDS else value)
                elif plane is not None and plane[2] in self._planes:
                    self._planes[plane[2]].labels(*labels, plane[1]).set(value)
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)
