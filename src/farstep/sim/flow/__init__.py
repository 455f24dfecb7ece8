"""The flow level: rates instead of packets, for clusters and durations the packet engine is too slow for.

`FlowSimulator` runs a table of tasks over a topology; `settings_for` knows the transports. The model and its limits are
described in the concept page on the flow level.
"""

from farstep.sim.flow.faults import FlowFaultError
from farstep.sim.flow.limits import limits_of
from farstep.sim.flow.settings import (
    TRANSPORTS,
    FlowSettings,
    FlowSettingsError,
    ignored_knobs,
    settings_for,
    settings_of,
)
from farstep.sim.flow.simulator import FlowSimulator, FlowsStalled
from farstep.sim.flow.waterfill import LoadMatrix, max_min_rates

__all__ = [
    "TRANSPORTS",
    "FlowFaultError",
    "FlowSettings",
    "FlowSettingsError",
    "FlowSimulator",
    "FlowsStalled",
    "LoadMatrix",
    "ignored_knobs",
    "limits_of",
    "max_min_rates",
    "settings_for",
    "settings_of",
]
