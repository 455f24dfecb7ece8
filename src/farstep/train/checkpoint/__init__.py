"""Checkpoints: on disk, whole or not there at all; and in the memory of the members."""

from farstep.train.checkpoint.disk import Checkpoint
from farstep.train.checkpoint.errors import CheckpointError, ShardsCorrupt, ShardsMissing
from farstep.train.checkpoint.folder import Broken, CheckpointFolder, CheckpointInfo, Retention
from farstep.train.checkpoint.saver import SaveHandle

__all__ = [
    "Broken",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFolder",
    "CheckpointInfo",
    "Retention",
    "SaveHandle",
    "ShardsCorrupt",
    "ShardsMissing",
]
