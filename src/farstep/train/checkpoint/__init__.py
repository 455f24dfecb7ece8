"""Checkpoints: on disk, whole or not there at all; and in the memory of the members.

Nothing here loads torch until it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.train.checkpoint.disk import Checkpoint
    from farstep.train.checkpoint.errors import CheckpointError, ShardsCorrupt, ShardsMissing
    from farstep.train.checkpoint.folder import Broken, CheckpointFolder, CheckpointInfo, Retention
    from farstep.train.checkpoint.memory import PeerMemory, Restored
    from farstep.train.checkpoint.placement import Domain, Tolerance
    from farstep.train.checkpoint.saver import SaveHandle

_MODULES = {
    "Broken": "folder",
    "Checkpoint": "disk",
    "CheckpointError": "errors",
    "CheckpointFolder": "folder",
    "CheckpointInfo": "folder",
    "Domain": "placement",
    "PeerMemory": "memory",
    "Restored": "memory",
    "Retention": "folder",
    "SaveHandle": "saver",
    "ShardsCorrupt": "errors",
    "ShardsMissing": "errors",
    "Tolerance": "placement",
}

__all__ = [
    "Broken",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFolder",
    "CheckpointInfo",
    "Domain",
    "PeerMemory",
    "Restored",
    "Retention",
    "SaveHandle",
    "ShardsCorrupt",
    "ShardsMissing",
    "Tolerance",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
