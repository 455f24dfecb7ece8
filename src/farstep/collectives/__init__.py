"""Who sends what to whom: schedules as data, and the communicator that runs them over an endpoint.

Names load when they are first used, so that the schedules can be had without the transport.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.collectives.communicator import Communicator
    from farstep.collectives.errors import (
        CollectiveMismatch,
        CommunicatorAborted,
        CommunicatorError,
        CommunicatorTimeout,
    )
    from farstep.collectives.link import LinkSettings
    from farstep.collectives.operations import Handle
    from farstep.collectives.reduction import ElementType, ReduceOp, reduce_into
    from farstep.collectives.selection import CommunicatorSettings
    from farstep.collectives.transport import Store
    from farstep.collectives.vector import Vector

_MODULES = {
    "CollectiveMismatch": "errors",
    "Communicator": "communicator",
    "CommunicatorAborted": "errors",
    "CommunicatorError": "errors",
    "CommunicatorSettings": "selection",
    "CommunicatorTimeout": "errors",
    "ElementType": "reduction",
    "Handle": "operations",
    "LinkSettings": "link",
    "ReduceOp": "reduction",
    "Store": "transport",
    "Vector": "vector",
    "reduce_into": "reduction",
}

__all__ = [
    "CollectiveMismatch",
    "Communicator",
    "CommunicatorAborted",
    "CommunicatorError",
    "CommunicatorSettings",
    "CommunicatorTimeout",
    "ElementType",
    "Handle",
    "LinkSettings",
    "ReduceOp",
    "Store",
    "Vector",
    "reduce_into",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
