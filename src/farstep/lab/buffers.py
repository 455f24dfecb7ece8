"""Memory for datagrams on their way: page-aligned chunks, filled front to back and used again.

Page alignment matters: copying a 61 KB message out of the kernel into a buffer that malloc places takes
several times as long on some processors.
"""

from __future__ import annotations

import mmap

DATAGRAM_BYTES_MAX = 65_536
"""A coalesced burst is at most one maximum UDP payload."""

CHUNK_BYTES = 16 * DATAGRAM_BYTES_MAX
"""1 MiB: large enough that changing chunks is rare, small enough that one straggler pins little."""

BUFFER_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of packets on their way at once: 50 ms at 80 Gbit/s, far beyond what one process forwards."""

_PAGE = mmap.PAGESIZE


class Chunk:
    """One piece of memory; free again when no packet in it is on its way."""

    __slots__ = ("filled_bytes", "num_live", "view")

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, CHUNK_BYTES))
        self.filled_bytes = 0
        self.num_live = 0


class BufferPool:
    """Hands out space for the next datagram.

    Args:
        bytes_max: most memory to take.
    """

    def __init__(self, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._chunks_max = max(2, bytes_max // CHUNK_BYTES)
        self._num_chunks = 1
        self._free: list[Chunk] = []
        self.current = Chunk()

    def space(self) -> memoryview | None:
        """Returns room for one datagram of any size; None if the limit is reached.

        The room stays the caller's until `take` or the next call.
        """
        chunk = self.current
        if chunk.filled_bytes + DATAGRAM_BYTES_MAX > CHUNK_BYTES:
            if chunk.num_live == 0:
                chunk.filled_bytes = 0
            elif self._free:
                self.current = chunk = self._free.pop()
            elif self._num_chunks < self._chunks_max:
                self._num_chunks += 1
                self.current = chunk = Chunk()
            else:
                return None
        start = chunk.filled_bytes
        return chunk.view[start : start + DATAGRAM_BYTES_MAX]

    def take(self, num_bytes: int) -> Chunk:
        """Keeps the first bytes of the room last handed out; returns the chunk, held once for the caller."""
        chunk = self.current
        chunk.filled_bytes += -(-num_bytes // _PAGE) * _PAGE
        chunk.num_live += 1
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Gives up one hold on a chunk."""
        chunk.num_live -= 1
        if chunk.num_live == 0 and chunk is not self.current:
            chunk.filled_bytes = 0
            self._free.append(chunk)
