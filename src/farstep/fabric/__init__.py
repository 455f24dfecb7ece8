"""Networks, sites and faults as data; stands on nothing else of farstep.

`EmulatedNetwork` describes sites and the paths between them, `Topology` a cluster's network of NICs, switches and
links, `FaultScript` what happens to them and when; `FaultTimeline` and `LinkTimeline` turn a script into an ordered
series of actions for whatever carries them out.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.fabric.addresses import AddressPlan, PathRow
    from farstep.fabric.channels import HEADER_BYTES, Channel, ChannelState
    from farstep.fabric.errors import ConfigError, describe_validation_error
    from farstep.fabric.fault_base import FaultBase
    from farstep.fabric.faults import FAULT_KINDS, Fault
    from farstep.fabric.script import FaultScript, parse_fault
    from farstep.fabric.sites import EmulatedNetwork, EmulatedPath, full_mesh
    from farstep.fabric.targets import Target
    from farstep.fabric.timeline import FaultAction, FaultTimeline, compose
    from farstep.fabric.topology import (
        LinkChange,
        LinkTimeline,
        NodeKind,
        OcsConnection,
        RouteTable,
        Topology,
        TopologySummary,
        WanLink,
        build_topology,
        clos,
        cube_torus,
        dragonfly,
        dual_tor,
        fat_tree,
        from_networkx,
        leaf_spine,
        load_topology,
        multi_site,
        preset,
        rail_optimised,
        torus,
        torus_connections,
    )

_PLACES = {
    "AddressPlan": "addresses",
    "Channel": "channels",
    "ChannelState": "channels",
    "ConfigError": "errors",
    "EmulatedNetwork": "sites",
    "EmulatedPath": "sites",
    "FAULT_KINDS": "faults",
    "Fault": "faults",
    "FaultAction": "timeline",
    "FaultBase": "fault_base",
    "FaultScript": "script",
    "FaultTimeline": "timeline",
    "HEADER_BYTES": "channels",
    "PathRow": "addresses",
    "Target": "targets",
    "compose": "timeline",
    "describe_validation_error": "errors",
    "full_mesh": "sites",
    "parse_fault": "script",
}
"""Module of everything here that is not a matter of topologies."""

__all__ = [
    "FAULT_KINDS",
    "HEADER_BYTES",
    "AddressPlan",
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
    "LinkChange",
    "LinkTimeline",
    "NodeKind",
    "OcsConnection",
    "PathRow",
    "RouteTable",
    "Target",
    "Topology",
    "TopologySummary",
    "WanLink",
    "build_topology",
    "clos",
    "compose",
    "cube_torus",
    "describe_validation_error",
    "dragonfly",
    "dual_tor",
    "fat_tree",
    "from_networkx",
    "full_mesh",
    "leaf_spine",
    "load_topology",
    "multi_site",
    "parse_fault",
    "preset",
    "rail_optimised",
    "torus",
    "torus_connections",
]


def __getattr__(name: str) -> Any:
    """Loads what is first asked for: a path emulator needs no topologies and no numpy, a simulator no fault scripts."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'topology')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists what is loaded late too."""
    return sorted({*globals(), *__all__})
