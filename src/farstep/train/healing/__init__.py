"""Healing: a member that lacks the state of the run gets it from those that have it, while they go on training."""

from farstep.train.healing.errors import HealingError, ImageRejected, SourcesDisagree, StateNotPortable
from farstep.train.healing.image import ImageLimits, Manifest, StateImage
from farstep.train.healing.state_codec import state_digest

__all__ = [
    "HealingError",
    "ImageLimits",
    "ImageRejected",
    "Manifest",
    "SourcesDisagree",
    "StateImage",
    "StateNotPortable",
    "state_digest",
]
