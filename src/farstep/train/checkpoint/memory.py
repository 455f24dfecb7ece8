"""Checkpoints in the memory of the members: as shards, some of which may be lost with their holders.

Invariant: bytes leave here only if they are what was stored; a shard is compared with its hash before
it is offered, after it was received, and when it was made from others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farstep.collectives import Communicator
from farstep.fabric.expected import expect, expect_count
from farstep.train.checkpoint.erasure import (
    Bytes,
    Scheme,
    ShardTable,
    encode,
    rebuild,
    restore_shards,
    shard_hash,
)
from farstep.train.checkpoint.errors import CheckpointError, ShardsCorrupt, ShardsMissing
from farstep.train.checkpoint.placement import Domain, Tolerance, place, replace_lost, tolerance

__all__ = ["Held", "PeerMemory", "Restored"]

_log = logging.getLogger("farstep.train.checkpoint")

Key = tuple[str, int, str]
"""Names an image: owner, step, digest of its table."""


@dataclass(slots=True)
class Held:
    """What this member holds of an image."""

    table: ShardTable
    shards: dict[int, Bytes]

    @property
    def key(self) -> Key:
        """Names the image."""
        return self.table.owner, self.table.step, self.table.digest


@dataclass(frozen=True, slots=True)
class Restored:
    """An image taken back from the members' memory."""

    step: int
    image: Bytes
    meta: Mapping[str, Any]


@dataclass(slots=True)
class _Offer:
    """Who among the members holds what of an image."""

    table: ShardTable
    holders: dict[int, list[int]]
    """Members by shard."""


class PeerMemory:
    """Keeps images of state in the memory of several members.

    All methods that take a communicator are collective: every rank calls them in the same order. They
    may run beside the training on a communicator of their own. When a member is lost in the middle of
    one, it raises `CommunicatorError`, and what was held before is still held: build a communicator of
    those that are left, and call `repair`.

    Args:
        scheme: ``3-of-5`` (Reed-Solomon: 5 shards, any 3 rebuild) or ``copies:2``. With fewer members
            than shards a smaller scheme of about the same memory is used.
        keep: newest images of an owner that are kept; at least 2, so that one is whole while the
            next is being stored.
        every_steps: a trainer stores the state when the number of committed steps is a multiple.

    Raises:
        ConfigError: scheme, keep or every_steps do not fit.
    """

    def __init__(self, scheme: str | Scheme = "3-of-5", *, keep: int = 2, every_steps: int = 100) -> None:
        expect("scheme", scheme, (str, Scheme), 'a scheme such as "3-of-5" or "copies:2"')
        self.scheme = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
        expect_count("keep", keep, least=2)
        expect_count("every_steps", every_steps, least=1)
        self.every_steps = every_steps
        self._keep = keep
        self._held: dict[Key, Held] = {}

    @property
    def held(self) -> tuple[Held, ...]:
        """What this member holds, oldest step first."""
        return tuple(sorted(self._held.values(), key=lambda held: (held.table.step, held.table.owner)))

    @property
    def newest_step(self) -> int:
        """Step of the newest image of which this member holds a shard; -1 if it holds none."""
        return max((step for _, step, _ in list(self._held)), default=-1)

    @property
    def length_bytes(self) -> int:
        """Bytes of all shards held here."""
        return sum(shard.nbytes for held in self._held.values() for shard in held.shards.values())

    # -- storing --------------------------------------------------------------------------------

    def protect(
        self,
        communicator: Communicator,
        domains: Sequence[Domain],
        step: int,
        image: Bytes | None,
        meta: Mapping[str, Any] | None = None,
    ) -> Tolerance:
        """Stores bytes that several members have, as replicas do: each keeps its own shards, and only hashes are sent.

        Members that do not have them hold shards all the same; those are made and sent by the others in turn.

        Args:
            communicator: of the members.
            domains: theirs, by rank.
            step: committed steps.
            image: uint8 of shape (bytes,), the same on all members that have it; copied. None on others.
            meta: small JSON to come back with it, the same on all members that have the image.

        Returns:
            What the placement survives.

        Raises:
            CheckpointError: the members do not have the same bytes, or none has them; nothing is stored.
            ShardsCorrupt: a shard arrived changed; nothing is stored.
            CommunicatorError: a member was lost.
        """
        having, length_bytes, image_hash = _agree(communicator, domains, step, image)
        scheme = self.scheme.fit(communicator.size)
        holders = place(domains, scheme.shards)
        makers = [
            member if member in having else having[number % len(having)]
            for number, member in enumerate(holders)
        ]
        mine = [number for number, member in enumerate(makers) if member == communicator.rank]
        shards = encode(image, scheme, mine) if image is not None else {}
        notes = {
            "hashes": {number: shard_hash(shard) for number, shard in shards.items()},
            "meta": dict(meta or {}) if communicator.rank == having[0] else None,
        }
        heard = gather_json(communicator, notes)
        hashes = {int(number): text for one in heard for number, text in one["hashes"].items()}
        table = ShardTable(
            scheme=scheme,
            owner="",
            step=step,
            length_bytes=length_bytes,
            image_hash=image_hash,
            shard_hashes=tuple(hashes[number] for number in range(scheme.shards)),
            meta=heard[having[0]]["meta"],
        )
        moves = [
            (makers[number], member, number)
            for number, member in enumerate(holders)
            if makers[number] != member
        ]
        kept = {number: shard for number, shard in shards.items() if holders[number] == communicator.rank}
        self._take_moved(communicator, table, moves, shards, kept)
        self._hold(Held(table, kept))
        return tolerance(holders, domains, scheme)

    def protect_from(
        self,
        communicator: Communicator,
        domains: Sequence[Domain],
        owner: int,
        step: int,
        image: Bytes | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Tolerance:
        """Stores bytes that one member alone has: it encodes them and sends each holder its shards.

        Args:
            communicator: of the members.
            domains: theirs, by rank.
            owner: rank of the member whose bytes they are.
            step: committed steps.
            image: uint8 of shape (bytes,), on the owner; copied.
            meta: small JSON to come back with it, on the owner.

        Returns:
            What the placement survives.

        Raises:
            CheckpointError: the owner gave no image, or a shard arrived changed.
            CommunicatorError: a member was lost.
        """
        scheme = self.scheme.fit(communicator.size)
        holders = place(domains, scheme.shards, avoid=owner)
        shards: dict[int, Bytes] = {}
        said: dict[str, Any] = {}
        if communicator.rank == owner:
            if image is None:
                raise CheckpointError("the owner has to give the image")
            shards = encode(image, scheme)
            table = ShardTable(
                scheme=scheme,
                owner=domains[owner].name,
                step=step,
                length_bytes=image.nbytes,
                image_hash=shard_hash(image),
                shard_hashes=tuple(shard_hash(shards[number]) for number in range(scheme.shards)),
                meta=dict(meta or {}),
            )
            said = table.to_json()
        table = ShardTable.from_json(gather_json(communicator, said)[owner])
        moves = [(owner, member, number) for number, member in enumerate(holders) if member != owner]
        kept = {
            number: shards[number]
            for number, member in enumerate(holders)
            if member == owner == communicator.rank
        }
        self._take_moved(communicator, table, moves, shards, kept)
        self._hold(Held(table, kept))
        return tolerance(holders, domains, scheme)

    def _take_moved(
        self,
        communicator: Communicator,
        table: ShardTable,
        moves: Sequence[tuple[int, int, int]],
        shards: Mapping[int, Bytes],
        kept: dict[int, Bytes],
    ) -> None:
        """Sends shards to their holders and adds those received to what is kept."""
        if not moves:
            return
        kept.update(_move(communicator, table, moves, shards))
        bad = [number for number, shard in kept.items() if not table.fits(number, shard)]
        changed = [number for one in gather_json(communicator, bad) for number in one]
        if changed:
            of = table.owner or f"step {table.step}"
            raise ShardsCorrupt(f"shards {changed} of {of} arrived changed; nothing is stored")

    def _hold(self, held: Held) -> None:
        self._held[held.key] = held
        steps = sorted({step for owner, step, _ in self._held if owner == held.table.owner})
        for key in list(self._held):
            if key[0] == held.table.owner and key[1] in steps[: -self._keep]:
                del self._held[key]

    # -- taking back ----------------------------------------------------------------------------

    def newest_whole(self, communicator: Communicator, *, owner: str = "") -> int | None:
        """Returns the step of the newest image of an owner that can be rebuilt; None if there is none.

        Raises:
            CommunicatorError: a member was lost; call again among those that are left.
        """
        offers = self._offers(communicator)
        return max(
            (key[1] for key, offer in offers.items() if key[0] == owner and _is_enough(offer)), default=None
        )

    def restore(
        self,
        communicator: Communicator,
        *,
        owner: str = "",
        step: int | None = None,
        is_wanted: bool = True,
    ) -> Restored | None:
        """Rebuilds the newest image of an owner of which enough shards are left among the members.

        Args:
            communicator: of the members; some may be new and hold nothing.
            owner: whose; empty for bytes that all members had.
            step: this one alone; the newest by default. The same on all members, as is `owner`.
            is_wanted: whether this member needs it; others only give what they hold.

        Returns:
            The image, or None on members that do not want it.

        Raises:
            ShardsMissing: nothing is left that can be rebuilt.
            ShardsCorrupt: what is left was damaged.
            CommunicatorError: a member was lost; call again among those that are left.
        """
        offers = self._offers(communicator)
        wants = gather_json(communicator, is_wanted)
        steps = [
            key
            for key, offer in offers.items()
            if key[0] == owner and (step is None or key[1] == step) and _is_enough(offer)
        ]
        if not steps:
            left = {key[1]: sorted(offer.holders) for key, offer in offers.items() if key[0] == owner}
            of = f"step {step}" if step is not None else "any step"
            raise ShardsMissing(
                f"no memory checkpoint of {of}{f' of {owner}' if owner else ''} can be rebuilt; "
                f"shards left by step: {left}"
            )
        offer = offers[max(steps, key=lambda key: (key[1], key[2]))]
        shards = self._collect(communicator, offer, wants)
        if not is_wanted:
            return None
        return Restored(offer.table.step, rebuild(offer.table, shards), offer.table.meta)

    def repair(self, communicator: Communicator, domains: Sequence[Domain]) -> dict[int, Tolerance]:
        """Makes the shards of lost members again and gives them to those that are left.

        Args:
            communicator: of the members of now.
            domains: theirs, by rank.

        Returns:
            What each image survives now, by step; images of which too little is left are dropped.

        Raises:
            CommunicatorError: a member was lost; call again among those that are left.
        """
        survived: dict[int, Tolerance] = {}
        offers = self._offers(communicator)
        for key, offer in sorted(offers.items()):
            if not _is_enough(offer):
                self._held.pop(key, None)
                _log.warning(
                    "memory checkpoint of step %d dropped: shards %s are left", key[1], sorted(offer.holders)
                )
                continue
            table = offer.table
            shards = table.scheme.shards
            held = {number: members[0] for number, members in offer.holders.items()}
            lost = [number for number in range(shards) if number not in held]
            holders = replace_lost(held, domains, lost, shards=shards)
            own = [number for number in lost if holders[number] == communicator.rank]
            wants = [any(holders[number] == rank for number in lost) for rank in range(communicator.size)]
            collected = self._collect(communicator, offer, wants) if lost else {}
            kept = self._held.get(key, Held(table, {}))
            if own:
                kept.shards.update(restore_shards(table, collected, own))
            for number in list(kept.shards):
                if holders[number] != communicator.rank:  # somebody else holds it too
                    del kept.shards[number]
            self._held[key] = kept
            survived[table.step] = tolerance(holders, domains, table.scheme)
        return survived

    # -- moving shards --------------------------------------------------------------------------

    def _offers(self, communicator: Communicator) -> dict[Key, _Offer]:
        """Returns who holds which good shards of which image: the same on every member."""
        said = []
        for held in self.held:
            bad = [number for number, shard in held.shards.items() if not held.table.fits(number, shard)]
            for number in bad:
                _log.warning(
                    "shard %d of the memory checkpoint of step %d is damaged", number, held.table.step
                )
                del held.shards[number]
            said.append({"table": held.table.to_json(), "shards": sorted(held.shards)})
        offers: dict[Key, _Offer] = {}
        for rank, one in enumerate(gather_json(communicator, said)):
            for entry in one:
                table = ShardTable.from_json(entry["table"])
                key = table.owner, table.step, table.digest
                offer = offers.setdefault(key, _Offer(table, {}))
                for number in entry["shards"]:
                    offer.holders.setdefault(int(number), []).append(rank)
        return offers

    def _collect(self, communicator: Communicator, offer: _Offer, wants: Sequence[bool]) -> dict[int, Bytes]:
        """Brings enough good shards of an image to every member that wants it.

        Shards that arrive changed are fetched elsewhere, as long as there are others.
        """
        table, rank = offer.table, communicator.rank
        own = self._held.get((table.owner, table.step, table.digest))
        have = dict(own.shards) if own is not None else {}
        refused: set[tuple[int, int]] = set()
        for _ in range(table.scheme.shards):
            moves = _moves(offer, wants, refused)
            have.update(_move(communicator, table, moves, have))
            bad = [
                (source, number)
                for source, target, number in moves
                if target == rank and not table.fits(number, have[number])
            ]
            for _, number in bad:
                del have[number]
            heard = gather_json(communicator, bad)
            refused |= {(source, number) for one in heard for source, number in one}
            if not any(heard):
                return have
        return have  # too few are good: whoever uses them says so


def _agree(
    communicator: Communicator, domains: Sequence[Domain], step: int, image: Bytes | None
) -> tuple[list[int], int, str]:
    """Returns the members that have an image, its length and its hash, if it is the same everywhere."""
    said = gather_json(communicator, None if image is None else [image.nbytes, shard_hash(image)])
    having = [rank for rank, one in enumerate(said) if one is not None]
    if not having:
        raise CheckpointError(f"no member has the image of step {step}")
    others = [rank for rank in having if said[rank] != said[having[0]]]
    if others:
        raise CheckpointError(
            f"members {[domains[rank].name for rank in others]} hold other bytes than "
            f"{domains[having[0]].name} at step {step}"
        )
    return having, int(said[having[0]][0]), str(said[having[0]][1])


def _is_enough(offer: _Offer) -> bool:
    return len(offer.holders) >= offer.table.scheme.needed


def _moves(
    offer: _Offer, wants: Sequence[bool], refused: Iterable[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Returns source, target and number of every shard to be sent: the same on every member.

    A member uses what it holds; what it lacks comes from those that send least, data before code.
    """
    bad, needed = set(refused), offer.table.scheme.needed
    load = [0] * len(wants)
    moves = []
    for target, is_wanted in enumerate(wants):
        if not is_wanted:
            continue
        own = [number for number, members in offer.holders.items() if target in members]
        sources = {
            number: [member for member in members if (member, number) not in bad]
            for number, members in offer.holders.items()
            if number not in own
        }
        usable = sorted(number for number, members in sources.items() if members)
        for number in usable[: max(0, needed - len(own))]:
            source = min(sources[number], key=lambda member: (load[member], member))
            load[source] += 1
            moves.append((source, target, number))
    return moves


def _move(
    communicator: Communicator,
    table: ShardTable,
    moves: Iterable[tuple[int, int, int]],
    shards: Mapping[int, Bytes],
) -> dict[int, Bytes]:
    """Sends and receives shards, all at once; returns those received."""
    received: dict[int, Bytes] = {}
    handles = []
    for source, target, number in moves:
        if table.shard_bytes == 0:
            if target == communicator.rank:
                received[number] = np.empty(0, dtype=np.uint8)
        elif source == communicator.rank:
            handles.append(communicator.send(shards[number], target, number, background=True))
        elif target == communicator.rank:
            received[number] = np.empty(table.shard_bytes, dtype=np.uint8)
            handles.append(communicator.receive(received[number], source, number, background=True))
    for handle in handles:
        handle.wait()
    return received


def gather_json(communicator: Communicator, value: Any) -> list[Any]:
    """Returns what every rank gave, in the order of the ranks."""
    if communicator.size == 1:
        return [json.loads(json.dumps(value))]
    text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    lengths = np.empty(communicator.size, dtype=np.int64)
    communicator.all_gather(lengths, np.array([text.nbytes], dtype=np.int64))
    texts = [np.empty(int(length), dtype=np.uint8) for length in lengths]
    communicator.all_gather(texts, text)
    return [json.loads(text.tobytes()) for text in texts]
