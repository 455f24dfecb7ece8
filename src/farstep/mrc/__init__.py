"""Multipath Reliable Connection as users and simulators configure it.

Three things live here: profiles (what to spread traffic over, how to control congestion), addressing (what
an entropy value means to a network), and the packet codec in readable Python, the oracle of the compiled one.
Sockets are the business of `farstep.engine`.
"""

from farstep.mrc.errors import InvalidFieldError
from farstep.mrc.profiles import (
    CongestionProfile,
    DampingProfile,
    EvEntry,
    EvProfile,
    NsccScaling,
)

__all__ = [
    "CongestionProfile",
    "DampingProfile",
    "EvEntry",
    "EvProfile",
    "InvalidFieldError",
    "NsccScaling",
]
