"""How saving and loading checkpoints can fail."""

from farstep.train.errors import TrainError

__all__ = ["CheckpointError", "ShardsCorrupt", "ShardsMissing"]


class CheckpointError(TrainError):
    """A checkpoint cannot be saved, found or loaded; the message names file or tensor and the cause."""


class ShardsMissing(CheckpointError):
    """Too few shards of a memory checkpoint are left to rebuild it."""


class ShardsCorrupt(CheckpointError):
    """Shards of a memory checkpoint are not what was stored, and too few good ones are left."""
