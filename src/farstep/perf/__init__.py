"""Measurements of the transport between two processes, as `farstep perf` makes them."""

from farstep.perf.client import PerfClient
from farstep.perf.errors import PerfError
from farstep.perf.figures import ConnectionFigures, Interval, LatencyFigures, PerfResult
from farstep.perf.plan import PerfPlan
from farstep.perf.server import PerfServer
from farstep.perf.session import EndSetup

__all__ = [
    "ConnectionFigures",
    "EndSetup",
    "Interval",
    "LatencyFigures",
    "PerfClient",
    "PerfError",
    "PerfPlan",
    "PerfResult",
    "PerfServer",
]
