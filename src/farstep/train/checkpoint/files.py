"""The few operations on files that a checkpoint is made of.

Invariant: whatever changes the disk goes through `Files`, so that a test can record the operations in
their order and work out what a loss of power at any instant leaves behind. Two rules of the kernel
count: bytes of a file are safe once the file is synced, and a name is safe once its folder is.
"""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import xxhash
from typing_extensions import Buffer

__all__ = ["BUFFER_BYTES", "Files", "OutputFile", "hash_of_file"]

BUFFER_BYTES = 1 << 20
"""Small writes are gathered up to this size; a tensor of many is written with few calls."""


class Files:
    """Changes the file system; the disk itself, unless a test replaces it."""

    def make_folder(self, path: Path) -> None:
        """Creates a folder and those above it, if they are not there."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> OutputFile:
        """Creates a file to be written once, from beginning to end.

        Raises:
            FileExistsError: the name is taken.
        """
        return OutputFile(path)

    def rename(self, path: Path, new_path: Path) -> None:
        """Gives a file or folder another name at once: every observer sees the old or the new."""
        os.rename(path, new_path)

    def sync_folder(self, path: Path) -> None:
        """Waits until the names in a folder are safe."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_tree(self, path: Path) -> None:
        """Removes a folder and all that is in it; does nothing if it is gone."""
        shutil.rmtree(path, ignore_errors=True)


class OutputFile(io.RawIOBase):
    """A new file that is hashed while it is written: what the disk makes of the bytes has no part in it.

    Args:
        path: does not exist yet.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.length_bytes = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._hash = xxhash.xxh3_128()
        self._gathered = bytearray()

    @property
    def digest(self) -> str:
        """XXH3 of 128 bits of all that was written, in hexadecimal."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the number of bytes written so far."""
        return self.length_bytes

    def write(self, data: Buffer, /) -> int:
        """Appends bytes; returns how many."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.length_bytes += len(view)
        if len(self._gathered) + len(view) < BUFFER_BYTES:
            self._gathered += view
        else:
            self.flush()
            self._append(view)
        return len(view)

    def flush(self) -> None:
        """Hands what was gathered to the kernel."""
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._append(memoryview(gathered))

    def _append(self, view: memoryview) -> None:
        while len(view):
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        """Waits until all bytes are safe."""
        self.flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Waits until all bytes are safe, and closes the file. Calling it again does nothing."""
        if self._descriptor < 0:
            return
        try:
            self.sync()
        finally:  # whatever happened: the number of the descriptor may soon be another file's
            descriptor, self._descriptor = self._descriptor, -1
            self._gathered = bytearray()
            os.close(descriptor)
            super().close()


def hash_of_file(path: Path) -> tuple[int, str]:
    """Returns length in bytes and XXH3 of 128 bits, in hexadecimal, of a file's content."""
    digest, length_bytes = xxhash.xxh3_128(), 0
    piece = bytearray(4 << 20)
    view = memoryview(piece)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(view[:count])
            length_bytes += count
    return length_bytes, digest.hexdigest()
