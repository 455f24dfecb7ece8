"""What a member tells the coordinator about its steps and its paths, for the dashboard and the metrics."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from farstep.engine import EngineError

__all__ = ["StepFigures"]

WINDOW_STEPS = 200
"""Steps that percentiles are taken over."""

SORT_INTERVAL_S = 0.25
PATHS_INTERVAL_S = 1.0
"""How often percentiles and paths are looked at; figures travel ten times a second at most."""

PLANES_MAX = 8


class StepFigures:
    """Collects figures; adding a step costs a few microseconds.

    Args:
        endpoint: whose traffic is counted; one without `stats` has none.
    """

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint if hasattr(endpoint, "stats") else None
        self._times_ns: deque[int] = deque(maxlen=WINDOW_STEPS)
        self._percentiles: dict[str, float] = {}
        self._paths: dict[str, float] = {}
        self._next_sort_s = 0.0
        self._next_paths_s = 0.0

    def step(self, step_time_ns: int, waited_ns: int, loss: float, samples: int) -> dict[str, float]:
        """Adds a step and returns all figures of now."""
        self._times_ns.append(step_time_ns)
        now_s = time.monotonic()
        if now_s >= self._next_sort_s:
            self._next_sort_s = now_s + SORT_INTERVAL_S
            self._percentiles = self._sorted()
        if self._endpoint is not None and now_s >= self._next_paths_s:
            self._next_paths_s = now_s + PATHS_INTERVAL_S
            try:
                self._paths = _paths(self._endpoint)
            except EngineError:  # closed meanwhile
                self._paths = {}
        return {
            "step_time_ns": float(step_time_ns),
            "wait_ns": float(waited_ns),
            "loss": loss,
            "samples": float(samples),
            **self._percentiles,
            **self._paths,
        }

    def _sorted(self) -> dict[str, float]:
        ordered = sorted(self._times_ns)
        last = len(ordered) - 1
        return {
            "step_p50_ns": float(ordered[last // 2]),
            "step_p99_ns": float(ordered[round(last * 0.99)]),
            "step_max_ns": float(ordered[last]),
        }


def _paths(endpoint: Any) -> dict[str, float]:
    totals = endpoint.stats()
    figures = {
        "tx_bytes": float(totals.tx_bytes),
        "rx_bytes": float(totals.rx_bytes),
        "retransmitted_packets": 0.0,
        "paths_good": 0.0,
        "paths_bad": 0.0,
    }
    for connection in endpoint.connections:
        try:
            stats = connection.stats()
        except EngineError:  # closed meanwhile
            continue
        figures["retransmitted_packets"] += stats.retransmitted_packets
        for plane in stats.planes:
            figures["paths_good"] += plane.good_evs
            figures["paths_bad"] += plane.bad_evs
            if plane.plane < PLANES_MAX:
                for name, value in (
                    ("tx_bytes", plane.tx_bytes),
                    ("good", plane.good_evs),
                    ("bad", plane.bad_evs),
                ):
                    key = f"plane.{plane.plane}.{name}"
                    figures[key] = figures.get(key, 0.0) + value
    return figures
