"""Bytes as shards of which some may be lost: copies, or a Reed-Solomon code.

Invariant: what is rebuilt is bit for bit what was encoded, or an error is raised; a shard that is not
what was stored is never used. Pure functions of their arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import xxhash
import zfec
from numpy.typing import NDArray

from farstep.fabric.errors import quoted
from farstep.fabric.expected import expect_count
from farstep.train.checkpoint.errors import CheckpointError, ShardsCorrupt, ShardsMissing
from farstep.train.errors import ConfigError

__all__ = ["Bytes", "Scheme", "ShardTable", "encode", "rebuild", "restore_shards", "shard_hash"]

Bytes = NDArray[np.uint8]

STRIPE_BYTES = 256 << 10
"""Coded at once: what is read and written stays in the cache of a core."""

SHARDS_MAX = 256
"""A code over bytes tells no more shards apart."""

_TEXT = re.compile(r"(?:(\d{1,9})-of-(\d{1,9})|copies:(\d{1,9}))")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Any `needed` of `shards` shards rebuild the whole."""

    needed: int
    shards: int

    def __post_init__(self) -> None:
        expect_count("needed", self.needed, least=1, most=SHARDS_MAX - 1)
        expect_count("shards", self.shards, least=2, most=SHARDS_MAX)
        if self.needed >= self.shards:
            raise ConfigError(
                f"needed is {self.needed} of {self.shards} shards; valid: fewer than there are shards"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``3-of-5`` or ``copies:2``.

        Raises:
            ConfigError: it is neither.
        """
        match = _TEXT.fullmatch(text)
        needed, shards = (int(match[1] or 1), int(match[2] or match[3])) if match else (0, 0)
        if not 1 <= needed < shards <= SHARDS_MAX:
            raise ConfigError(
                f'scheme is {quoted(text)}; valid: "K-of-N" such as "3-of-5", or "copies:N", with '
                f"1 <= K < N <= {SHARDS_MAX}"
            )
        return cls(needed, shards)

    def __str__(self) -> str:
        return f"copies:{self.shards}" if self.needed == 1 else f"{self.needed}-of-{self.shards}"

    @property
    def tolerated(self) -> int:
        """Shards that may be lost."""
        return self.shards - self.needed

    @property
    def memory_ratio(self) -> float:
        """Bytes of all shards per byte stored."""
        return self.shards / self.needed

    def fit(self, members: int) -> Scheme:
        """Returns the scheme to use with so few members that each would hold several shards.

        It has one shard per member and about the same memory, and survives the loss of at least one.

        Raises:
            CheckpointError: there is one member alone, whose loss nothing survives.
        """
        if members >= self.shards:
            return self
        if members < 2:
            raise CheckpointError(f"{self} among {members} member(s): nothing would survive its loss")
        needed = -(-self.needed * members // self.shards)
        return Scheme(min(needed, members - 1), members)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTable:
    """What is known of an image of bytes besides its shards: small, held by everybody who holds a shard."""

    scheme: Scheme
    owner: str
    """Whose bytes they are; empty if all members have the same."""
    step: int
    length_bytes: int
    image_hash: str
    """XXH3 of 128 bits of the whole, in hexadecimal."""
    shard_hashes: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the caller added: JSON."""

    @property
    def shard_bytes(self) -> int:
        """Bytes of each shard; the last one with data is filled up with zeros."""
        return -(-self.length_bytes // self.scheme.needed)

    def to_json(self) -> dict[str, Any]:
        """Returns the table as a JSON object."""
        return {
            "scheme": str(self.scheme),
            "owner": self.owner,
            "step": self.step,
            "length_bytes": self.length_bytes,
            "image_hash": self.image_hash,
            "shard_hashes": list(self.shard_hashes),
            "meta": dict(self.meta),
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Reads a table.

        Raises:
            CheckpointError: it cannot be read, or does not fit together.
        """
        try:
            scheme = Scheme.parse(table["scheme"])
            hashes = tuple(str(text) for text in table["shard_hashes"])
            step, length_bytes = int(table["step"]), int(table["length_bytes"])
            if len(hashes) != scheme.shards or length_bytes < 0:
                raise CheckpointError(
                    f"shard table of {scheme} has {len(hashes)} hashes and {length_bytes} bytes"
                )
            return cls(
                scheme=scheme,
                owner=str(table["owner"]),
                step=step,
                length_bytes=length_bytes,
                image_hash=str(table["image_hash"]),
                shard_hashes=hashes,
                meta=dict(table["meta"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"shard table cannot be read: {quoted(error)}") from error

    @property
    def digest(self) -> str:
        """Tells the table from others: XXH3 of 128 bits, in hexadecimal."""
        return xxhash.xxh3_128_hexdigest(json.dumps(self.to_json(), sort_keys=True).encode())

    def fits(self, index: int, shard: Bytes) -> bool:
        """Returns whether a shard is what was stored."""
        return shard.nbytes == self.shard_bytes and shard_hash(shard) == self.shard_hashes[index]


def shard_hash(shard: Bytes) -> str:
    """Returns XXH3 of 128 bits, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(shard.data)


def encode(image: Bytes, scheme: Scheme, wanted: Iterable[int] | None = None) -> dict[int, Bytes]:
    """Returns shards of an image, by number.

    The first `needed` are the image itself in parts; the others are coded from them.

    Args:
        image: uint8 of shape (bytes,).
        scheme: how many there are.
        wanted: which to return; all by default.
    """
    numbers = range(scheme.shards) if wanted is None else wanted
    shard_bytes = -(-image.nbytes // scheme.needed)
    shards: dict[int, Bytes] = {}
    for number in numbers:
        if not 0 <= number < scheme.shards:
            raise CheckpointError(f"shard {number} of {scheme}; valid: 0..{scheme.shards - 1}")
        start = (0 if scheme.needed == 1 else number) * shard_bytes
        if scheme.needed == 1 or number < scheme.needed:
            shards[number] = np.zeros(shard_bytes, dtype=np.uint8)
            part = image[start : start + shard_bytes]
            shards[number][: part.nbytes] = part
    coded = sorted(set(numbers) - shards.keys())
    if coded:
        parts = [_padded(image, number, shard_bytes) for number in range(scheme.needed)]
        shards.update(_coded(parts, list(range(scheme.needed)), coded, scheme))
    return shards


def _padded(image: Bytes, number: int, shard_bytes: int) -> Bytes:
    """Returns a part of the image; only one that the image does not fill is copied."""
    part = image[number * shard_bytes : (number + 1) * shard_bytes]
    if part.nbytes == shard_bytes:
        return part
    whole = np.zeros(shard_bytes, dtype=np.uint8)
    whole[: part.nbytes] = part
    return whole


def _coded(
    known: Sequence[Bytes], numbers: Sequence[int], wanted: Sequence[int], scheme: Scheme
) -> dict[int, Bytes]:
    """Returns shards from as many others as are needed, stripe by stripe."""
    shard_bytes = known[0].nbytes
    results = {number: np.empty(shard_bytes, dtype=np.uint8) for number in wanted}
    coded = [number for number in wanted if number >= scheme.needed]
    encoder = zfec.Encoder(scheme.needed, scheme.shards)
    decoder = zfec.Decoder(scheme.needed, scheme.shards)
    has_all_data = list(numbers) == list(range(scheme.needed))
    for start in range(0, shard_bytes, STRIPE_BYTES):
        stop = min(shard_bytes, start + STRIPE_BYTES)
        stripes: Sequence[Any] = [shard[start:stop] for shard in known]
        if not has_all_data:
            stripes = decoder.decode(*_in_place(stripes, numbers, scheme.needed))
        for number in wanted:
            if number < scheme.needed:
                results[number][start:stop] = np.frombuffer(stripes[number], dtype=np.uint8)
        if coded:
            for number, block in zip(coded, encoder.encode(stripes, coded), strict=True):
                results[number][start:stop] = np.frombuffer(block, dtype=np.uint8)
    return results


def _in_place(stripes: Sequence[Any], numbers: Sequence[int], needed: int) -> tuple[list[Any], list[int]]:
    """Puts data shards where the decoder expects them: at the place of their number."""
    places: list[Any] = [None] * needed
    order: list[int] = [-1] * needed
    for stripe, number in zip(stripes, numbers, strict=True):
        if number < needed:
            places[number], order[number] = stripe, number
    free = iter([place for place in range(needed) if order[place] < 0])
    for stripe, number in zip(stripes, numbers, strict=True):
        if number >= needed:
            place = next(free)
            places[place], order[place] = stripe, number
    return places, order


def rebuild(table: ShardTable, shards: Mapping[int, Bytes]) -> Bytes:
    """Returns the image.

    Args:
        table: of the image.
        shards: by number, at least as many good ones as are needed.

    Raises:
        ShardsMissing: there are too few.
        ShardsCorrupt: too few are what was stored; the message names those that are not.
    """
    good = _good(table, shards)
    needed, shard_bytes = table.scheme.needed, table.shard_bytes
    image = np.empty(needed * shard_bytes, dtype=np.uint8)
    if needed == 1:
        image[:] = next(iter(good.values()))
    else:
        chosen = sorted(good)[:needed]
        for number in chosen:
            if number < needed:
                image[number * shard_bytes : (number + 1) * shard_bytes] = good[number]
        missing = sorted(set(range(needed)) - set(chosen))
        if missing:
            parts = _coded([good[number] for number in chosen], chosen, missing, table.scheme)
            for number, part in parts.items():
                image[number * shard_bytes : (number + 1) * shard_bytes] = part
    image = image[: table.length_bytes]
    if shard_hash(image) != table.image_hash:
        raise ShardsCorrupt(f"{_name(table)} does not match its hash after it was rebuilt")
    return image


def restore_shards(table: ShardTable, shards: Mapping[int, Bytes], wanted: Iterable[int]) -> dict[int, Bytes]:
    """Returns shards that were lost, made from others.

    Raises:
        ShardsMissing: there are too few.
        ShardsCorrupt: too few are what was stored, or what was made is not.
    """
    good, lost = _good(table, shards), sorted(set(wanted))
    if table.scheme.needed == 1:
        source = next(iter(good.values()))
        made = {number: source.copy() for number in lost}
    else:
        chosen = sorted(good)[: table.scheme.needed]
        made = _coded([good[number] for number in chosen], chosen, lost, table.scheme)
    for number, shard in made.items():
        if not table.fits(number, shard):
            raise ShardsCorrupt(f"shard {number} of {_name(table)} does not match its hash after it was made")
    return made


def _good(table: ShardTable, shards: Mapping[int, Bytes]) -> dict[int, Bytes]:
    good = {number: shard for number, shard in shards.items() if table.fits(number, shard)}
    if len(good) < table.scheme.needed:
        bad = sorted(set(shards) - set(good))
        have = f"{_name(table)} needs {table.scheme.needed} of {table.scheme.shards} shards"
        if bad:
            raise ShardsCorrupt(f"{have}; {len(good)} are good, and {bad} are not what was stored")
        raise ShardsMissing(f"{have}; {len(good)} are left: {sorted(good)}")
    return good


def _name(table: ShardTable) -> str:
    of = f" of {table.owner}" if table.owner else ""
    return f"the memory checkpoint of step {table.step}{of}"
