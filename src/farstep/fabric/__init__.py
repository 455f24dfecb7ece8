"""Networks, sites and faults as data; stands on nothing else of farstep.

`EmulatedNetwork` describes sites and the paths between them, `FaultScript` what happens to them and when, and
`FaultTimeline` turns both into an ordered series of actions for whatever carries them out.
"""

from farstep.fabric.channels import HEADER_BYTES, Channel, ChannelState
from farstep.fabric.errors import ConfigError, describe_validation_error
from farstep.fabric.faults import FAULT_KINDS, Fault, FaultBase
from farstep.fabric.script import FaultScript, parse_fault
from farstep.fabric.sites import EmulatedNetwork, EmulatedPath, full_mesh
from farstep.fabric.targets import Target
from farstep.fabric.timeline import FaultAction, FaultTimeline, compose

__all__ = [
    "FAULT_KINDS",
    "HEADER_BYTES",
    "Channel",
    "ChannelState",
    "ConfigError",
    "EmulatedNetwork",
    "EmulatedPath",
    "Fault",
    "FaultAction",
    "FaultBase",
    "FaultScript",
    "FaultTimeline",
    "Target",
    "compose",
    "describe_validation_error",
    "full_mesh",
    "parse_fault",
]
