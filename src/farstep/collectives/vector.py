"""Memory a collective works on: contiguous elements of one type, in one piece or in several.

A :class:`Vector` is somebody's memory, never a copy. A :class:`Space` joins vectors into one range of
bytes, so that a list of tensors can be gathered into or scattered from without packing them first.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from farstep.collectives.reduction import ElementType, element_type_of
from farstep.collectives.transport import Endpoint

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Keeps untouched pages from counting as used memory; named in the mmap module from Python 3.13 on."""


class Vector:
    """Contiguous elements somewhere in memory.

    Attributes:
        raw: the bytes, a one-dimensional uint8 array that shares the owner's memory.
        element_type: type of the elements.
        address: where they begin.
        length_bytes: how many bytes they take.
        count: number of elements.
    """

    __slots__ = ("address", "count", "element_type", "length_bytes", "raw")

    def __init__(self, raw: np.ndarray[Any, Any], element_type: ElementType) -> None:
        self.raw = raw
        self.element_type = element_type
        self.address: int = raw.__array_interface__["data"][0]
        self.length_bytes: int = raw.nbytes
        self.count: int = raw.nbytes // element_type.itemsize_bytes

    def part(self, offset: int, count: int) -> Vector:
        """The elements from ``offset`` on, sharing memory."""
        itemsize = self.element_type.itemsize_bytes
        return Vector(self.raw[offset * itemsize : (offset + count) * itemsize], self.element_type)


def as_vector(data: Any, name: str = "buffer", *, writable: bool = True) -> Vector:
    """Views an array or buffer as a vector, without copying.

    Args:
        data: a Vector, a C-contiguous numpy array, or any object with the buffer protocol (taken as bytes).
        name: names the argument in errors.
        writable: whether the collective stores into it.

    Raises:
        TypeError: the object is no buffer, or its dtype cannot be communicated.
        ValueError: it is not contiguous, or read-only although it must be written.
    """
    if isinstance(data, Vector):
        return data
    if not isinstance(data, np.ndarray):
        try:
            data = np.frombuffer(data, dtype=np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError(
                f"{name} is a {type(data).__name__}; an array or buffer is needed ({error})"
            ) from error
    if not data.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous; pass numpy.ascontiguousarray({name})")
    if writable and not data.flags.writeable:
        raise ValueError(f"{name} is read-only; the result is stored in it")
    element_type = element_type_of(data.dtype)
    return Vector(data.reshape(-1).view(np.uint8), element_type)


class Space:
    """One range of bytes made of vectors laid end to end.

    Args:
        vectors: at least one; empty ones are allowed.
        origin_bytes: offset of the first byte, for a space that is part of a larger layout.

    Attributes:
        vectors: those that are not empty.
        starts: offset of the first byte of each.
        length_bytes: length of all together.
    """

    __slots__ = ("_regions", "_single", "length_bytes", "starts", "vectors")

    def __init__(self, vectors: Sequence[Vector], origin_bytes: int = 0) -> None:
        self.vectors = [vector for vector in vectors if vector.length_bytes] or list(vectors[:1])
        self.starts: list[int] = []
        offset = origin_bytes
        for vector in self.vectors:
            self.starts.append(offset)
            offset += vector.length_bytes
        self.length_bytes = offset - origin_bytes
        self._single = self.vectors[0].address - origin_bytes if len(self.vectors) == 1 else None
        self._regions: list[Any] | None = None

    def address(self, offset_bytes: int) -> int:
        """Where the byte at an offset is; the run asked for must not cross from one vector to the next."""
        if self._single is not None:
            return self._single + offset_bytes
        index = bisect_right(self.starts, offset_bytes) - 1
        return self.vectors[index].address + offset_bytes - self.starts[index]

    def register(self, endpoint: Endpoint) -> None:
        """Registers all vectors; :meth:`close` undoes it."""
        self._regions = [endpoint.register(vector.raw) for vector in self.vectors]

    @property
    def keys(self) -> list[int]:
        """Remote keys of the vectors; empty unless they are registered."""
        return [region.remote[0] for region in self._regions or ()]

    def locate(self, offset_bytes: int) -> tuple[Any, int]:
        """The region that holds a byte, and the byte's offset in it."""
        assert self._regions is not None, "a space must be registered before it is located"
        if self._single is not None:
            return self._regions[0], offset_bytes - self.starts[0]
        index = bisect_right(self.starts, offset_bytes) - 1
        return self._regions[index], offset_bytes - self.starts[index]

    def close(self) -> None:
        """Ends remote access to the vectors."""
        regions, self._regions = self._regions, None
        for region in regions or ():
            region.close()


def view_memory(address: int, length_bytes: int, element_type: ElementType, owner: object) -> Vector:
    """Views memory at an address as a vector that keeps its owner alive."""
    memory = (ctypes.c_uint8 * length_bytes).from_address(address)
    memory._owner = owner  # type: ignore[attr-defined]
    return Vector(np.frombuffer(memoryview(memory), dtype=np.uint8), element_type)


def allocate_pages(length_bytes: int) -> np.ndarray[Any, Any]:
    """Zeroed page-aligned bytes; pages cost memory only once they are touched.

    Receiving to unaligned memory costs several times the time on current kernels, hence the alignment.
    """
    pages = mmap.mmap(-1, max(length_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return np.frombuffer(pages, dtype=np.uint8)
