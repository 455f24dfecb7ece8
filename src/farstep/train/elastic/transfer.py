"""The whole state from one member to others over the lane, while all wait: the plain way, when no other is at hand."""

from __future__ import annotations

import numpy as np

from farstep.train.elastic.lane import Lane
from farstep.train.elastic.state import ReplicaState
from farstep.train.healing.image import Manifest, StateImage
from farstep.train.healing.state_codec import state_digest

__all__ = ["broadcast_state", "state_word"]


def state_word(state: ReplicaState) -> int:
    """63 bits of a hash over everything training goes on from; the same on all replicas at the same step."""
    return int(state_digest(state.capture())[:16], 16) >> 1


def broadcast_state(lane: Lane, state: ReplicaState, root: int, receivers: list[int]) -> int:
    """Sends the state of one seat to all; the receivers load it, others drop it.

    Returns:
        Bytes of the state.

    Raises:
        EngineError: somebody is gone.
    """
    if lane.seat == root:
        image = StateImage.of(state.capture())
        header = np.frombuffer(image.manifest.to_json(), dtype=np.uint8)
    lengths = np.array([len(header) if lane.seat == root else 0], dtype=np.int64)
    lane.broadcast(lengths, root)
    if lane.seat != root:
        header = np.zeros(int(lengths[0]), dtype=np.uint8)
    else:
        header = header.copy()
    lane.broadcast(header, root)
    if lane.seat != root:
        image = StateImage.allocate(Manifest.parse(header.tobytes()))
    lane.broadcast(image.buffer, root)
    if lane.seat in receivers:
        image.verify()
        state.restore(image.state())
    return int(image.buffer.nbytes)
