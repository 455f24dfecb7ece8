"""A member that keeps shards for others: run as a program, once per member.

Arguments: folder, own number, members. It protects an image, says so, waits to be told who is left, repairs, and
writes what it restores.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from farstep.collectives import Communicator
from farstep.engine import Endpoint
from farstep.train.checkpoint.memory import PeerMemory
from farstep.train.checkpoint.placement import Domain

LENGTH_BYTES = 5_000_003


class FolderStore:
    """Exchanges values through files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, key: str, value: bytes) -> None:
        path = self.folder / key.replace("/", "_")
        partial = path.with_name(f".{path.name}.{time.monotonic_ns()}")
        partial.write_bytes(value)
        partial.rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        path, deadline_s = self.folder / key.replace("/", "_"), time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if path.exists():
                return path.read_bytes()
            time.sleep(0.01)
        raise TimeoutError(key)


def domains_of(numbers: list[int]) -> list[Domain]:
    return [Domain(f"m{number}", "abc"[number % 3], f"host{number}") for number in numbers]


def main() -> None:
    folder, own, members = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store, everybody = FolderStore(folder), list(range(members))
    memory = PeerMemory("3-of-5")
    image = np.random.default_rng(1).integers(0, 256, LENGTH_BYTES, dtype=np.uint8)
    with Endpoint(name=f"m{own}") as endpoint:
        with Communicator(endpoint, rank=own, size=members, store=store, name="g1") as communicator:
            memory.protect(communicator, domains_of(everybody), 9, image, {"note": "n"})
            communicator.barrier()
            del image
            (folder / f"held-{own}").write_text(str(memory.length_bytes))
            left = json.loads(store.get("left", 60))
            communicator.abort("the membership has changed")
        with Communicator(
            endpoint, rank=left.index(own), size=len(left), store=store, name="g2"
        ) as communicator:
            survived = memory.repair(communicator, domains_of(left))
            restored = memory.restore(communicator)
            communicator.barrier()
    assert restored is not None
    assert restored.meta == {"note": "n"}
    (folder / f"restored-{own}").write_bytes(restored.image.tobytes())
    print(restored.step, survived[9].members)


if __name__ == "__main__":
    main()
