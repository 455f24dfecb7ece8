"""Data sets for the tests of the shard: in a module, so that worker processes can load them."""

import os
import random
import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Augmented(Numbers):
    """Sample i with random draws from every source that people use."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


class InBatches(Numbers):
    """Is asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index + 1000 for index in indices]


class Fragile(Numbers):
    """Sample 7 cannot be loaded."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ValueError("sample 7 is broken")
        return index


class Counted(Numbers):
    """Leaves one byte in a file per sample loaded."""

    def __init__(self, size: int, path: str) -> None:
        super().__init__(size)
        self.path = path

    def __getitem__(self, index: int) -> int:
        with open(self.path, "ab") as file:
            file.write(b".")
        return index


class WithPid(Numbers):
    """Sample i is the process that loaded it."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Slow(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def as_list(samples: list) -> list:
    return list(samples)
