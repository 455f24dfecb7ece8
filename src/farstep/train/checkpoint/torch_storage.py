"""`torch.distributed.checkpoint` on files that are hashed as they are written.

The files are those that torch itself writes, so that a checkpoint can be read without farstep.
Reading runs no code that a file could bring: tensors are loaded with `weights_only`, and the
metadata, a pickle by torch's design, by an unpickler that knows the classes of metadata alone.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from farstep.train.checkpoint.errors import CheckpointError
from farstep.train.checkpoint.files import Files
from farstep.train.checkpoint.manifest import FileEntry

__all__ = ["SafeReader", "TargetOf", "TensorWriter", "load_tensors", "save_tensors"]

METADATA_NAME = ".metadata"

TargetOf = Callable[[str, torch.Size], Tensor | None]

_METADATA_CLASSES = {
    ("builtins", "set"),
    ("builtins", "list"),
    ("builtins", "dict"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}
_DTYPES = frozenset(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))


class _HashedFiles(FileSystem):
    """Writes through `Files`, syncs every file and remembers its hash."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Opens a new file; it is safe on the disk when the block ends without an error."""
        assert mode == "wb"  # a writer reads nothing
        with self._files.create(Path(path)) as stream:
            yield stream
        self.entries[stream.path.name] = FileEntry(stream.length_bytes, stream.digest)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Renames a file together with what is remembered of it."""
        self._files.rename(Path(path), Path(new_path))
        self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Makes a folder."""
        self._files.make_folder(Path(path))


class TensorWriter(FileSystemWriter):
    """Writes tensors as torch does, and collects the hashes of the files of all ranks.

    Args:
        path: folder to write into; it holds no checkpoint.
        files: what changes the disk.
    """

    def __init__(self, path: Path, files: Files) -> None:
        super().__init__(path, sync_files=False)  # `_HashedFiles` syncs them
        self.hashed = _HashedFiles(files)
        self.fs = self.hashed
        self.entries: dict[str, FileEntry] = {}
        """Files of all ranks by name, on the rank that finishes the checkpoint."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's part; the hashes of its files travel with the results."""
        results = super().write_data(plan, planner).value()
        for result in results:
            entry = self.hashed.entries[result.storage_data.relative_path]
            result.storage_data.transform_descriptors = [str(entry.length_bytes), entry.xxh3_128]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the metadata, on one rank, once all have written."""
        for result in (result for of_rank in results for result in of_rank):
            length_bytes, digest = result.storage_data.transform_descriptors
            result.storage_data.transform_descriptors = None
            self.entries[result.storage_data.relative_path] = FileEntry(int(length_bytes), digest)
        super().finish(metadata, results)
        self.entries.update(self.hashed.entries)

    def storage_meta(self) -> StorageMeta | None:
        """Returns nothing that differs from one machine to the next."""
        return StorageMeta()


class SafeReader(FileSystemReader):
    """Reads what torch wrote, and runs nothing."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads the table of tensors.

        Raises:
            CheckpointError: it holds something that is no metadata.
        """
        path = Path(self.path) / METADATA_NAME
        try:
            with open(path, "rb") as file:
                metadata = _MetadataUnpickler(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is no metadata of a checkpoint: {error}") from error
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} holds a {type(metadata).__name__}, no metadata of a checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _METADATA_CLASSES or (module == "torch" and name in _DTYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def save_tensors(
    tensors: Mapping[str, Tensor], writer: TensorWriter, group: dist.ProcessGroup | None
) -> None:
    """Writes tensors; with a group all its ranks call, and each writes its own parts.

    Raises:
        Exception: what the disk or another rank raised.
    """
    if group is not None:
        save(dict(tensors), storage_writer=writer, process_group=group)
        return
    # The same steps without torch's warning that there is no process group, which we know.
    planner = DefaultSavePlanner()
    writer.set_up_storage_writer(True)
    planner.set_up_planner(dict(tensors), storage_meta=writer.storage_meta(), is_coordinator=True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    (plan,) = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).value()
    writer.finish(metadata, [results])


def load_tensors(
    path: Path, names: Sequence[str], target_of: TargetOf, group: dist.ProcessGroup | None
) -> dict[str, Tensor]:
    """Reads tensors into those given, and into new ones where none is given.

    Args:
        path: folder of the checkpoint.
        names: of the tensors wanted.
        target_of: returns where to read a tensor of this name and shape to, or None. Distributed
            ones receive the parts of this rank, however many ranks wrote the checkpoint.
        group: whose ranks all call; None for this process alone.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    reader = SafeReader(path)
    metadata = reader.read_metadata()
    targets: dict[str, Tensor] = {}
    for name in names:
        stored = metadata.state_dict_metadata.get(name)
        if not isinstance(stored, TensorStorageMetadata):
            raise CheckpointError(f"{path} has no tensor {name}")
        target = target_of(name, stored.size)
        if target is None:
            target = torch.empty(stored.size, dtype=stored.properties.dtype)
        if target.shape != stored.size:
            raise CheckpointError(
                f"{name} has shape {tuple(stored.size)} in the checkpoint and {tuple(target.shape)} in this run"
            )
        targets[name] = target
    if group is not None:
        load(targets, storage_reader=reader, process_group=group)
        return targets
    planner = DefaultLoadPlanner()
    planner.set_up_planner(targets, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plans = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    (plan,) = reader.prepare_global_plan(plans)
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return targets
