"""Which schedule serves which collective: by size, number of ranks and sites.

Every rank must choose alike, so that the choice depends only on what all ranks know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from farstep.collectives.link import PLACED_TRANSFERS_MAX, LinkSettings
from farstep.collectives.plan import Placement
from farstep.collectives.schedule import (
    Range,
    Schedule,
    chain_broadcast,
    direct_all_gather,
    hierarchical_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce,
    tree_broadcast,
    tree_reduce,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorSettings:
    """How a communicator works; all its ranks must use the same.

    Attributes:
        link: sizes of the links.
        tree_bytes_max: vectors up to this size take the schedules with the fewest steps. 256 KiB: with four
            ranks these take a third less time there and no longer less at 1 MiB.
        pair_bytes_max: the same for an all-reduce of two ranks, where an exchange moves no more bytes than a
            ring. 512 KiB: at 1 MiB the ring's smaller reductions and saved copies weigh more.
        eager_bytes_max: vectors up to this size are copied through slots, which saves the rendezvous, two
            registrations and the wait for the acknowledgement. 256 KiB: above, the copies cost more.
        chunk_bytes_min: shortest chunk worth its bookkeeping. 256 KiB: shorter ones add a tenth to the
            processor time of vectors around 1 MiB.
        chunks_per_block: number of chunks a block is cut into at least, if they stay long enough: while one
            is reduced the next travels.
        timeout_s: how long a collective may take.
    """

    link: LinkSettings = field(default_factory=LinkSettings)
    tree_bytes_max: int = 256 * 1024
    pair_bytes_max: int = 512 * 1024
    eager_bytes_max: int = 256 * 1024
    chunk_bytes_min: int = 256 * 1024
    chunks_per_block: int = 4
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")
        if self.chunk_bytes_min < 1 or self.chunks_per_block < 1:
            raise ValueError("chunk_bytes_min and chunks_per_block must be at least 1")


class Selection:
    """Chooses schedules for one rank.

    Args:
        rank: this rank.
        size: number of ranks.
        sites: site name of every rank, or None if all are in one place.
        settings: thresholds.
    """

    def __init__(
        self, rank: int, size: int, sites: Sequence[str] | None, settings: CommunicatorSettings
    ) -> None:
        if sites is not None and len(sites) != size:
            raise ValueError(f"sites names {len(sites)} sites; one per rank, {size}, is needed")
        self._rank = rank
        self._size = size
        self._settings = settings
        names = sites if sites is not None else [""] * size
        self.groups = [
            [other for other in range(size) if names[other] == name] for name in dict.fromkeys(names)
        ]
        # A ring through one site after the other crosses each border once.
        self.ring = [member for group in self.groups for member in group]

    def placement(self, schedule: Schedule, total_bytes: int) -> Placement:
        """How the bytes of a collective over ``total_bytes`` travel."""
        is_large = total_bytes > self._settings.eager_bytes_max and self._size <= PLACED_TRANSFERS_MAX
        return Placement.DIRECT if is_large and schedule.is_zero_copy else Placement.EAGER

    def chunk_bytes(self, block_bytes: int) -> int:
        """Length of a chunk for blocks of a given size: a power of two, or a whole slot."""
        settings = self._settings
        wanted = max(block_bytes // settings.chunks_per_block, settings.chunk_bytes_min)
        return min(1 << (wanted.bit_length() - 1), settings.link.slot_bytes)

    def all_reduce(self, count: int, total_bytes: int) -> Schedule:
        """Recursive doubling if small, hierarchical across sites, else a ring."""
        settings = self._settings
        if total_bytes <= (settings.pair_bytes_max if self._size == 2 else settings.tree_bytes_max):
            return recursive_doubling_all_reduce(self._size, count, involving=self._rank)
        if self._is_hierarchy():
            return hierarchical_all_reduce(self.groups, count, involving=self._rank)
        return ring_all_reduce(self._size, count, members=self.ring, involving=self._rank)

    def _is_hierarchy(self) -> bool:
        largest = max(len(group) for group in self.groups)
        pieces = sum(len(group) for group in self.groups)
        return len(self.groups) > 1 and largest > 1 and pieces * len(self.groups) <= PLACED_TRANSFERS_MAX

    def all_gather(self, blocks: Sequence[Range], total_bytes: int) -> Schedule:
        """Straight to everybody if small, else along the ring."""
        if total_bytes <= self._settings.tree_bytes_max:
            return direct_all_gather(blocks, involving=self._rank)
        return ring_all_gather(blocks, members=self.ring, involving=self._rank)

    def broadcast(self, count: int, total_bytes: int, root: int) -> Schedule:
        """Down a tree if small, else along a chain, where no rank sends more than one copy."""
        if total_bytes <= self._settings.tree_bytes_max:
            return tree_broadcast(self._size, count, root, involving=self._rank)
        return chain_broadcast(self._size, count, root, members=self.ring, involving=self._rank)

    def reduce(self, count: int, total_bytes: int, root: int) -> Schedule:
        """Up a tree if small, else along the ring."""
        if total_bytes <= self._settings.tree_bytes_max:
            return tree_reduce(self._size, count, root, involving=self._rank)
        return ring_reduce(self._size, count, root, members=self.ring, involving=self._rank)
