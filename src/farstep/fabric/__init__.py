"""Networks, sites and faults as data; stands on nothing else of farstep.

`EmulatedNetwork` describes sites and the paths between them, `Topology` a cluster's network of NICs, switches and
links, `FaultScript` what happens to them and when; `FaultTimeline` and `LinkTimeline` turn a script into an ordered
series of actions for whatever carries them out.
"""

from typing import TYPE_CHECKING, Any

from farstep.fabric.channels import HEADER_BYTES, Channel, ChannelState
from farstep.fabric.errors import ConfigError, describe_validation_error
from farstep.fabric.fault_base import FaultBase
from farstep.fabric.faults import FAULT_KINDS, Fault
from farstep.fabric.script import FaultScript, parse_fault
from farstep.fabric.sites import EmulatedNetwork, EmulatedPath, full_mesh
from farstep.fabric.targets import Target
from farstep.fabric.timeline import FaultAction, FaultTimeline, compose

if TYPE_CHECKING:
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
    "LinkChange",
    "LinkTimeline",
    "NodeKind",
    "OcsConnection",
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
    """Loads topologies, and numpy with them, when they are first asked for: a path emulator needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from farstep.fabric import topology

    return getattr(topology, name)


def __dir__() -> list[str]:
    """Lists what is loaded late too."""
    return sorted({*globals(), *__all__})
