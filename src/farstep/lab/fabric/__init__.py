"""A real fabric on one machine: hosts and switches as network namespaces, forwarded by the kernel's SRv6 micro-SIDs."""

from farstep.lab.fabric.errors import LabError
from farstep.lab.fabric.faults import FaultNotice, LabFaults, link_states
from farstep.lab.fabric.lab import FabricLab, find_lab, remove_unrecorded
from farstep.lab.fabric.options import LabOptions
from farstep.lab.fabric.places import lab_names

__all__ = [
    "FabricLab",
    "FaultNotice",
    "LabError",
    "LabFaults",
    "LabOptions",
    "find_lab",
    "lab_names",
    "link_states",
    "remove_unrecorded",
]
