"""Torch's key-value store in the shape the communicator asks for."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store


class TorchStore:
    """Wraps a torch store.

    Args:
        store: any torch store; every rank wraps one with the same content.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value."""
        self._store.set(key, value)  # type: ignore[arg-type]  # declared as str, takes bytes

    def get(self, key: str, timeout_s: float) -> bytes:
        """Blocks until a value is published.

        Raises:
            TimeoutError: none was published in time.
        """
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except dist.DistStoreError as error:
            raise TimeoutError(f"no value for {key!r} within {timeout_s:.1f} s") from error
        value: bytes = self._store.get(key)
        return value
