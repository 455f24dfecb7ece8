"""A whole state as one run of bytes with a manifest: what is hashed, striped over sources and put in place.

Layout: tensors one after the other in the order of the skeleton, each at a multiple of 64 bytes, gaps zeroed. Equal
states give equal bytes and equal manifests, so that a receiver can take each chunk from whoever has it.
"""

import contextlib
import ctypes
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from farstep.fabric.errors import quoted
from farstep.fabric.expected import expect_count
from farstep.train.healing.errors import ImageRejected
from farstep.train.healing.state_codec import DTYPES, as_bytes, join, local_tensor, split

__all__ = [
    "CHUNK_BYTES",
    "ImageLimits",
    "ImagePlan",
    "Manifest",
    "StateImage",
    "TensorPlace",
    "allocate",
    "populate",
]

ALIGN_BYTES = 64
"""Of every tensor: a cache line, and more than any element type needs."""
CHUNK_BYTES = 1 << 20
"""Hashed and sent in one piece: long enough that bookkeeping costs nothing, short enough to lose with a source."""
FORMAT = 1
_HUGE_PAGE_BYTES = 2 << 20
_POPULATE_BYTES = 16 << 20
_MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later; not named in the mmap module."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What is accepted from a peer before anything is allocated for it.

    Attributes:
        manifest_bytes_max: length of a manifest.
        state_bytes_max: length of an image; by default the memory of this machine.
        tensors_max: tensors of one image.
        dimensions_max: of one tensor; what torch allows.
    """

    manifest_bytes_max: int = 64 << 20
    state_bytes_max: int = field(
        default_factory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    tensors_max: int = 1_000_000
    dimensions_max: int = 64

    def __post_init__(self) -> None:
        for name in ("manifest_bytes_max", "state_bytes_max", "tensors_max", "dimensions_max"):
            expect_count(name, getattr(self, name), least=1)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies in an image."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def length_bytes(self) -> int:
        """Bytes of its elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count * DTYPES[self.dtype].itemsize

    @property
    def stop_bytes(self) -> int:
        """First byte after it."""
        return self.offset_bytes + self.length_bytes


@dataclass(frozen=True)
class Manifest:
    """What an image holds, and the hashes by which its bytes are known.

    Attributes:
        step: number of steps the state has seen.
        skeleton: see :mod:`farstep.train.healing.state_codec`.
        places: of the tensors.
        length_bytes: of the image.
        chunk_bytes: of every chunk but the last.
        chunk_hashes: XXH3-128 of each chunk, 16 bytes each.
        total_hash: XXH3-128 of all bytes.
    """

    step: int
    skeleton: Any
    places: tuple[TensorPlace, ...]
    length_bytes: int
    chunk_bytes: int
    chunk_hashes: tuple[bytes, ...]
    total_hash: bytes

    @cached_property
    def encoded(self) -> bytes:
        """JSON in ASCII; equal for equal manifests."""
        content = {
            "format": FORMAT,
            "step": self.step,
            "length_bytes": self.length_bytes,
            "chunk_bytes": self.chunk_bytes,
            "total_hash": self.total_hash.hex(),
            "chunk_hashes": [chunk_hash.hex() for chunk_hash in self.chunk_hashes],
            "tensors": [[place.dtype, list(place.shape), place.offset_bytes] for place in self.places],
            "skeleton": self.skeleton,
        }
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()

    def to_json(self) -> bytes:
        """The manifest as JSON text."""
        return self.encoded

    @cached_property
    def digest(self) -> bytes:
        """XXH3-128 of the manifest, and by way of its hashes of the whole state."""
        return xxhash.xxh3_128_digest(self.encoded)

    @property
    def num_chunks(self) -> int:
        """How many chunks the image has."""
        return len(self.chunk_hashes)

    def chunk(self, index: int) -> tuple[int, int]:
        """First byte of a chunk, and the first after it."""
        start = index * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.length_bytes)

    @classmethod
    def parse(cls, text: bytes, limits: ImageLimits | None = None) -> "Manifest":
        """Reads what a peer sent, trusting nothing.

        Raises:
            ImageRejected: it is too long, malformed, or describes an impossible or too large image.
        """
        limits = limits or ImageLimits()
        if len(text) > limits.manifest_bytes_max:
            raise ImageRejected(
                f"the manifest has {len(text)} bytes; at most {limits.manifest_bytes_max} are accepted"
            )
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ImageRejected(f"the manifest is no JSON: {error}") from None
        return _checked(content, limits)


class StateImage:
    """Bytes and manifest of one state.

    Attributes:
        buffer: all bytes, page-aligned uint8.
        manifest: describes them.
    """

    def __init__(self, buffer: np.ndarray[Any, Any], manifest: Manifest) -> None:
        self.buffer = buffer
        self.manifest = manifest

    @classmethod
    def of(cls, state: Any, step: int = 0, *, chunk_bytes: int = CHUNK_BYTES) -> "StateImage":
        """Copies and hashes a state.

        Raises:
            StateNotPortable: it holds what cannot travel.
        """
        plan = ImagePlan(state, step, chunk_bytes=chunk_bytes)
        buffer = allocate(plan.length_bytes)
        plan.copy_into(buffer)
        return plan.seal(buffer)

    @classmethod
    def allocate(cls, manifest: Manifest) -> "StateImage":
        """Makes room for the bytes a manifest describes; they are all zero until they have been received."""
        return cls(allocate(manifest.length_bytes), manifest)

    def has_chunk(self, index: int) -> bool:
        """Whether the bytes of a chunk are those its hash says."""
        start, stop = self.manifest.chunk(index)
        return bool(xxhash.xxh3_128_digest(self.buffer[start:stop].data) == self.manifest.chunk_hashes[index])

    def verify(self) -> None:
        """Checks the bytes as a whole.

        Raises:
            ImageRejected: they are not those of the manifest.
        """
        found = xxhash.xxh3_128_digest(self.buffer.data)
        if found != self.manifest.total_hash:
            raise ImageRejected(
                f"the state of step {self.manifest.step} hashes to {found.hex()}; "
                f"its manifest says {self.manifest.total_hash.hex()}"
            )

    def tensors(self) -> list[Tensor]:
        """The tensors, as views of the buffer."""
        whole = torch.from_numpy(self.buffer)
        try:
            return [_view(whole, place) for place in self.manifest.places]
        except RuntimeError as error:  # dimensions beside a zero may be absurd
            raise ImageRejected(f"the manifest describes an impossible tensor: {error}") from None

    def state(self) -> Any:
        """The nested state; its tensors are views of the buffer.

        Raises:
            ImageRejected: the skeleton is malformed.
        """
        return join(self.manifest.skeleton, self.tensors())


class ImagePlan:
    """The layout of a state that is still live: first planned, then copied, then hashed, each at its own time.

    Args:
        state: the nested state; its tensors must not change until :meth:`copy_into` has returned.
        step: number of steps it has seen.
        chunk_bytes: length of a chunk.

    Raises:
        StateNotPortable: it holds what cannot travel.
    """

    def __init__(self, state: Any, step: int = 0, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.step = step
        self.chunk_bytes = chunk_bytes
        self.skeleton, tensors = split(state)
        self._tensors = [local_tensor(tensor) for tensor in tensors]
        self.places: tuple[TensorPlace, ...] = tuple(_places(self._tensors))
        self.length_bytes = self.places[-1].stop_bytes if self.places else 0

    def copy_into(self, buffer: np.ndarray[Any, Any]) -> None:
        """Copies all tensors into a buffer of ``length_bytes``; afterwards the state may change."""
        whole = torch.from_numpy(buffer)
        stop_bytes = 0
        for place, tensor in zip(self.places, self._tensors, strict=True):
            buffer[stop_bytes : place.offset_bytes] = 0
            stop_bytes = place.stop_bytes
            if tensor.is_contiguous() and tensor.device.type == "cpu":
                whole[place.offset_bytes : stop_bytes].copy_(as_bytes(tensor))
            else:
                _view(whole, place).copy_(tensor)
        self._tensors = []

    def seal(self, buffer: np.ndarray[Any, Any]) -> StateImage:
        """Hashes the bytes and makes the manifest."""
        total = xxhash.xxh3_128()
        hashes = []
        for start in range(0, self.length_bytes, self.chunk_bytes):
            chunk = buffer[start : start + self.chunk_bytes].data
            hashes.append(xxhash.xxh3_128_digest(chunk))
            total.update(chunk)
        manifest = Manifest(
            step=self.step,
            skeleton=self.skeleton,
            places=self.places,
            length_bytes=self.length_bytes,
            chunk_bytes=self.chunk_bytes,
            chunk_hashes=tuple(hashes),
            total_hash=total.digest(),
        )
        return StateImage(buffer, manifest)


def allocate(length_bytes: int) -> np.ndarray[Any, Any]:
    """Page-aligned bytes, in huge pages where the system has them: first use then costs far fewer faults."""
    pages = mmap.mmap(-1, max(length_bytes, 1))
    if length_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8, count=length_bytes)


def populate(buffer: np.ndarray[Any, Any]) -> None:
    """Has the system back a buffer with memory, so that its first use costs no page faults; changes none of its bytes.

    Does nothing where the system cannot do that. May run while others use the buffer.
    """
    address = buffer.__array_interface__["data"][0]
    for start in range(0, buffer.nbytes, _POPULATE_BYTES):
        length = min(_POPULATE_BYTES, buffer.nbytes - start)
        if _libc.madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
            return


def _places(tensors: Sequence[Tensor]) -> Iterator[TensorPlace]:
    offset = 0
    for tensor in tensors:
        offset = -(-offset // ALIGN_BYTES) * ALIGN_BYTES
        place = TensorPlace(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset)
        offset = place.stop_bytes
        yield place


def _view(whole: Tensor, place: TensorPlace) -> Tensor:
    return whole[place.offset_bytes : place.stop_bytes].view(DTYPES[place.dtype]).view(place.shape)


# -- what comes from a peer -----------------------------------------------------------------------------------------


def _checked(content: Any, limits: ImageLimits) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ImageRejected(f"the manifest is not of format {FORMAT}")
    step = _natural(content, "step", (1 << 63) - 1)
    length = _natural(content, "length_bytes", limits.state_bytes_max)
    chunk_bytes = _natural(content, "chunk_bytes", 1 << 30)
    if chunk_bytes < 1024:
        raise ImageRejected(f"chunk_bytes of the manifest is {chunk_bytes}; 1024 or more is accepted")
    hashes = content.get("chunk_hashes")
    num_chunks = -(-length // chunk_bytes)
    if not isinstance(hashes, list) or len(hashes) != num_chunks:
        raise ImageRejected(f"the manifest must list {num_chunks} chunk hashes for {length} bytes")
    return Manifest(
        step=step,
        skeleton=content.get("skeleton"),
        places=_checked_places(content.get("tensors"), length, limits),
        length_bytes=length,
        chunk_bytes=chunk_bytes,
        chunk_hashes=tuple(_hash(text, "a chunk hash") for text in hashes),
        total_hash=_hash(content.get("total_hash"), "total_hash"),
    )


def _checked_places(tensors: Any, length: int, limits: ImageLimits) -> tuple[TensorPlace, ...]:
    if not isinstance(tensors, list) or len(tensors) > limits.tensors_max:
        raise ImageRejected(f"the manifest must list its tensors, at most {limits.tensors_max}")
    places = []
    stop_bytes = 0
    for item in tensors:
        place = _checked_place(item, length, limits)
        if place.offset_bytes < stop_bytes or place.offset_bytes % ALIGN_BYTES:
            raise ImageRejected(
                f"a tensor of the manifest lies at byte {place.offset_bytes}, not after the one before"
            )
        stop_bytes = place.stop_bytes
        places.append(place)
    if stop_bytes != length:
        raise ImageRejected(f"the tensors of the manifest end at byte {stop_bytes} of {length}")
    return tuple(places)


def _checked_place(item: Any, length: int, limits: ImageLimits) -> TensorPlace:
    if not isinstance(item, list) or len(item) != 3:
        raise ImageRejected("a tensor of the manifest is not [type, shape, offset]")
    dtype, shape, offset = item
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ImageRejected(
            f"a tensor of the manifest is of type {quoted(dtype)}; valid are {', '.join(DTYPES)}"
        )
    if not isinstance(shape, list) or len(shape) > limits.dimensions_max:
        raise ImageRejected(
            f"a tensor of the manifest has no list of at most {limits.dimensions_max} dimensions"
        )
    count = 1
    for size in [*shape, offset]:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 62:
            raise ImageRejected(f"a tensor of the manifest has the dimension or offset {quoted(size)}")
    for size in shape:
        count *= size
        if count > max(length, 1) and 0 not in shape:
            raise ImageRejected(f"a tensor of the manifest of shape {shape} is larger than the image")
    place = TensorPlace(dtype, tuple(shape), offset)
    if place.stop_bytes > length:
        raise ImageRejected(f"a tensor of the manifest ends at byte {place.stop_bytes} of {length}")
    return place


def _natural(content: dict[str, Any], name: str, most: int) -> int:
    value = content.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ImageRejected(
            f"{name} of the manifest is {quoted(value)}; a number from 0 to {most} is accepted"
        )
    return value


def _hash(text: Any, what: str) -> bytes:
    if not isinstance(text, str) or len(text) != 32:
        raise ImageRejected(f"{what} of the manifest is not 32 hexadecimal digits")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ImageRejected(f"{what} of the manifest is not 32 hexadecimal digits") from None
