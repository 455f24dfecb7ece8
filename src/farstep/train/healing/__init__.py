"""Healing: a member that lacks the state of the run gets it from those that have it, while they go on training."""

from farstep.train.healing.errors import HealingError, ImageRejected, SourcesDisagree, StateNotPortable
from farstep.train.healing.facade import Healing
from farstep.train.healing.image import ImageLimits, Manifest, StateImage
from farstep.train.healing.pull import PullReport
from farstep.train.healing.settings import HealingSettings
from farstep.train.healing.snapshot import StateAdapter
from farstep.train.healing.state_codec import state_digest, state_sha256

__all__ = [
    "Healing",
    "HealingError",
    "HealingSettings",
    "ImageLimits",
    "ImageRejected",
    "Manifest",
    "PullReport",
    "SourcesDisagree",
    "StateAdapter",
    "StateImage",
    "StateNotPortable",
    "state_digest",
    "state_sha256",
]
