"""What a checkpoint on disk says about itself.

Invariant: a folder is a checkpoint if and only if it holds a manifest whose own hash is right, and
every file the manifest lists, with the length and hash that it gives. Everything else is broken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farstep.fabric.errors import quoted
from farstep.train.checkpoint.errors import CheckpointError
from farstep.train.checkpoint.files import hash_of_file

__all__ = ["MANIFEST_NAME", "STATE_NAME", "FileEntry", "Manifest", "problem_of", "read_manifest"]

MANIFEST_NAME = "manifest.json"
STATE_NAME = "state.json"
"""Everything of the state that is no tensor."""

FORMAT = "farstep checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    length_bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The table of contents of a checkpoint."""

    step: int
    """Steps committed when it was taken."""
    saved_at: str
    """When it was complete: ISO 8601, UTC, by the writer's clock."""
    files: Mapping[str, FileEntry]
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the saver added, such as run and generation."""

    @property
    def length_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.length_bytes for entry in self.files.values())

    def to_json(self) -> bytes:
        """Returns the manifest with its own hash."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "saved_at": self.saved_at,
            "info": dict(self.info),
            "files": {
                name: {"bytes": entry.length_bytes, "xxh3_128": entry.xxh3_128}
                for name, entry in sorted(self.files.items())
            },
        }
        return (json.dumps({**body, "sha256": _hash_of(body)}, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Reads a manifest.

        Raises:
            CheckpointError: it is cut off, changed, or of another format.
        """
        try:
            body = json.loads(text)
            stored = body.pop("sha256")
            if body["format"] != FORMAT or body["version"] != VERSION:
                raise CheckpointError(
                    f"has format {quoted(body['format'])} version {quoted(body['version'])}; "
                    f"this version reads {quoted(FORMAT)} version {VERSION}"
                )
            if stored != _hash_of(body):
                raise CheckpointError("does not match its own SHA-256")
            files = {
                str(name): FileEntry(int(entry["bytes"]), str(entry["xxh3_128"]))
                for name, entry in body["files"].items()
            }
            return cls(
                step=int(body["step"]), saved_at=str(body["saved_at"]), files=files, info=dict(body["info"])
            )
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"is no manifest: {quoted(error)}") from error


def _hash_of(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a checkpoint's folder.

    Raises:
        CheckpointError: there is none, or it is broken; the message names the file and what is wrong.
    """
    path = folder / MANIFEST_NAME
    try:
        return Manifest.from_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}") from error


def problem_of(folder: Path, manifest: Manifest, *, reads_all: bool = True) -> str | None:
    """Returns what is wrong with the files of a checkpoint, or None if nothing is.

    Args:
        folder: of the checkpoint.
        manifest: its manifest.
        reads_all: whether to hash every file, or to look at the lengths alone.
    """
    for name, entry in manifest.files.items():
        path = folder / name
        if path.parent != folder:
            return f"{quoted(name)} is not a file of the folder"
        try:
            length_bytes, digest = hash_of_file(path) if reads_all else (path.stat().st_size, entry.xxh3_128)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
        if length_bytes != entry.length_bytes:
            return f"{name} has {length_bytes} bytes, of {entry.length_bytes}"
        if digest != entry.xxh3_128:
            return f"{name} does not match its hash"
    return None
