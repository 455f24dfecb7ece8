"""A disk that can lose its power: records what is done to it, and gives back what could be left.

What a kernel promises is little: a file's bytes are safe after the file was synced, an entry of a folder
after the folder was. Whatever was done since may have reached the disk or not, in any combination.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from farstep.train.checkpoint.files import Files, OutputFile

Operation = tuple


class RecordingFiles(Files):
    """The real disk, with a log of all that is done to it."""

    def __init__(self) -> None:
        self.log: list[Operation] = []

    def note(self, *operation: object) -> None:
        self.log.append(operation)

    def make_folder(self, path: Path) -> None:
        self.note("make_folder", path)
        super().make_folder(path)

    def create(self, path: Path) -> OutputFile:
        self.note("create", path)
        return RecordingFile(path, self)

    def rename(self, path: Path, new_path: Path) -> None:
        self.note("rename", path, new_path)
        super().rename(path, new_path)

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self.note("sync_folder", path)

    def remove_tree(self, path: Path) -> None:
        self.note("remove_tree", path)
        super().remove_tree(path)


class RecordingFile(OutputFile):
    def __init__(self, path: Path, files: RecordingFiles) -> None:
        self._files = files
        super().__init__(path)

    def _append(self, view: memoryview) -> None:
        self._files.note("write", self.path, bytes(view))
        super()._append(view)

    def sync(self) -> None:
        super().sync()
        self._files.note("sync", self.path)


@dataclass
class FileNode:
    written: bytes = b""
    safe: bytes = b""


@dataclass
class FolderNode:
    entries: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    safe: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    pending: list[Callable[[dict], None]] = field(default_factory=list)
    """Changes of entries since the folder was synced."""

    def change(self, apply: Callable[[dict], None]) -> None:
        apply(self.entries)
        self.pending.append(apply)


class Disk:
    """What the operations of a log have made of the disk, and how much of it is safe.

    Args:
        root: exists from the beginning and is safe.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = FolderNode()

    def node(self, path: Path) -> FileNode | FolderNode:
        node: FileNode | FolderNode = self.tree
        for name in path.relative_to(self.root).parts:
            node = node.entries[name]
        return node

    def apply(self, operation: Operation) -> None:
        kind, path, *rest = operation
        match kind:
            case "make_folder":
                for folder in reversed([path, *path.parents]):
                    if folder != self.root and folder.is_relative_to(self.root):
                        self._add(folder, FolderNode())
            case "create":
                self._add(path, FileNode())
            case "write":
                self.node(path).written += rest[0]
            case "sync":
                self.node(path).safe = self.node(path).written
            case "rename":
                assert path.parent == rest[0].parent
                self.node(path.parent).change(_renaming(path.name, rest[0].name))
            case "sync_folder":
                folder = self.node(path)
                folder.safe, folder.pending = dict(folder.entries), []
            case "remove_tree":
                self.node(path.parent).change(lambda entries: entries.pop(path.name, None))

    def _add(self, path: Path, node: FileNode | FolderNode) -> None:
        parent = self.node(path.parent)
        if path.name not in parent.entries:
            parent.change(lambda entries: entries.setdefault(path.name, node))

    def after_power_loss(self, target: Path, draw: Draw) -> None:
        """Writes to a folder what is left of the disk."""
        self._restore(self.tree, target, draw)

    def _restore(self, folder: FolderNode, target: Path, draw: Draw) -> None:
        entries = dict(folder.safe)
        for change in folder.pending:
            if draw.keeps_name():
                change(entries)
        target.mkdir(exist_ok=True)
        for name, node in entries.items():
            if isinstance(node, FolderNode):
                self._restore(node, target / name, draw)
            else:
                (target / name).write_bytes(node.safe + draw.left_of(node.written[len(node.safe) :]))


def _renaming(name: str, new_name: str) -> Callable[[dict], None]:
    def rename(entries: dict) -> None:
        if name in entries:  # else its creation was lost as well
            entries[new_name] = entries.pop(name)

    return rename


@dataclass
class Draw:
    """How the disk treats what nobody has synced."""

    names: Callable[[], bool]
    data: Callable[[bytes], bytes]

    def keeps_name(self) -> bool:
        return self.names()

    def left_of(self, unsafe: bytes) -> bytes:
        return self.data(unsafe)


def draws(seeds: int) -> dict[str, Draw]:
    """The regular ways to lose power, and random ones."""

    def at_random(seed: int) -> Draw:
        generator = random.Random(seed)

        def data(unsafe: bytes) -> bytes:
            kept = unsafe[: generator.randrange(len(unsafe) + 1)]
            return kept + bytes(generator.choice([0, len(unsafe) - len(kept)]))

        return Draw(lambda: generator.random() < 0.5, data)

    return {
        "nothing is left": Draw(lambda: False, lambda unsafe: b""),
        "all is left": Draw(lambda: True, lambda unsafe: unsafe),
        "names without data": Draw(lambda: True, lambda unsafe: b""),
        "zeros instead of data": Draw(lambda: True, lambda unsafe: bytes(len(unsafe))),
        **{f"random {seed}": at_random(seed) for seed in range(seeds)},
    }
