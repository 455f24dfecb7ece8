"""Random decisions that depend on a seed and a packet count alone.

Packet number i of a channel is lost, or not, whatever the timing was and whatever burst it came in. Uniform
numbers are made in blocks, so that the question "which of the next packets?" costs next to nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from random import Random

BLOCK = 4096
"""Uniform numbers made at once."""


class Uniforms:
    """A sequence of uniform numbers in [0, 1), readable at any index.

    Args:
        key: names the sequence; equal keys give equal numbers.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._block = -1
        self._values: list[float] = []

    def block(self, number: int) -> list[float]:
        """Returns numbers `number * BLOCK` to `(number + 1) * BLOCK - 1`."""
        if number != self._block:
            draw = Random(f"{self._key}:{number}").random
            self._values = [draw() for _ in range(BLOCK)]
            self._block = number
        return self._values

    def at(self, index: int) -> float:
        """Returns one number."""
        number, offset = divmod(index, BLOCK)
        return self.block(number)[offset]


class Bernoulli:
    """Says which packets something happens to, with one probability for each.

    Args:
        key: names the sequence.
        probability: in 0..1; may be changed at any time, with effect on packets not yet asked about.
    """

    def __init__(self, key: str, probability: float = 0.0) -> None:
        self._uniforms = Uniforms(key)
        self._hits: list[int] = []
        self._hits_block = -1
        self.probability = probability

    @property
    def probability(self) -> float:
        """Probability per packet."""
        return self._probability

    @probability.setter
    def probability(self, value: float) -> None:
        self._probability = value
        self._hits_block = -1

    def quiet_until(self, index: int) -> int:
        """Returns a packet number before which, from `index` on, nothing happens."""
        if self._probability <= 0.0:
            return QUIET_FOREVER
        number, offset = divmod(index, BLOCK)
        hits = self._block_hits(number)
        position = bisect_left(hits, offset)
        return number * BLOCK + (hits[position] if position < len(hits) else BLOCK)

    def hits(self, first: int, end: int) -> list[int]:
        """Returns the packet numbers in [first, end) it happens to."""
        found: list[int] = []
        index = first
        while self._probability > 0.0 and index < end:
            number, offset = divmod(index, BLOCK)
            base = number * BLOCK
            hits = self._block_hits(number)
            for hit in hits[bisect_left(hits, offset) :]:
                if base + hit >= end:
                    return found
                found.append(base + hit)
            index = base + BLOCK
        return found

    def _block_hits(self, number: int) -> list[int]:
        if number != self._hits_block:
            limit = self._probability
            values = self._uniforms.block(number)
            self._hits = [offset for offset, value in enumerate(values) if value < limit]
            self._hits_block = number
        return self._hits


class LossDraws:
    """Which packets are lost: independently, or in runs of geometric length.

    With runs of mean length b and a share f of packets lost, a run starts at a packet outside a run with
    probability 1 / (1 + b (1 - f) / f), so that runs and gaps (mean length b (1 - f) / f) alternate.

    Args:
        key: names the sequence.
    """

    def __init__(self, key: str) -> None:
        self._starts = Bernoulli(f"{key}:start")
        self._lengths = Uniforms(f"{key}:length")
        self._mean_burst = 1.0
        self._run_end = 0

    def set(self, loss: float, burst_packets: float) -> None:
        """Sets the share lost (0..1) and the mean run of lost packets (1: independent)."""
        self._mean_burst = burst_packets
        if burst_packets <= 1.0 or loss <= 0.0 or loss >= 1.0:
            self._mean_burst = 1.0
            self._starts.probability = loss
        else:
            self._starts.probability = 1.0 / (1.0 + burst_packets * (1.0 - loss) / loss)
        self._run_end = 0

    def quiet_until(self, index: int) -> int:
        """Returns a packet number before which, from `index` on, nothing is lost."""
        return index if index < self._run_end else self._starts.quiet_until(index)

    def hits(self, first: int, end: int) -> list[int]:
        """Returns the packets in [first, end) that are lost; to be asked in order."""
        if self._mean_burst <= 1.0:
            return self._starts.hits(first, end)
        lost = list(range(first, min(end, self._run_end)))
        for start in self._starts.hits(first, end):
            if start < self._run_end:
                continue
            self._run_end = start + self._length(start)
            lost += range(start, min(end, self._run_end))
        return lost

    def _length(self, index: int) -> int:
        share = 1.0 - 1.0 / self._mean_burst
        return 1 + int(math.log(1.0 - self._lengths.at(index)) / math.log(share))


QUIET_FOREVER = 2**63
"""More packets than any channel will ever carry."""
