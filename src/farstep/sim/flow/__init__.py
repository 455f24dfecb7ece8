"""The flow level: rates instead of packets, for clusters and durations the packet engine is too slow for.

`FlowSimulator` runs a table of tasks over a topology; `settings_for` knows the transports. The model and its limits are
described in the concept page on the flow level.
"""

from farstep.sim.flow.faults import FlowFaultError, LinkAction
from farstep.sim.flow.settings import TRANSPORTS, FlowSettings, FlowSettingsError, settings_for
from farstep.sim.flow.simulator import FlowSimulator, FlowsStalled
from farstep.sim.flow.waterfill import LoadMatrix, max_min_rates

__all__ = [
    "TRANSPORTS",
    "FlowFaultError",
    "FlowSettings",
    "FlowSettingsError",
    "FlowSimulator",
    "FlowsStalled",
    "LinkAction",
    "LoadMatrix",
    "max_min_rates",
    "settings_for",
]
