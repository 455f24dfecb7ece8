"""Torch's key-value store in the shape the communicator asks for."""

from __future__ import annotations

import time

from torch._C._distributed_c10d import Store

PAUSE_MIN_S, PAUSE_MAX_S = 0.0005, 0.05
"""Between two looks at the store: short at first, since peers mostly come together."""


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
        deadline_s = time.monotonic() + timeout_s
        pause_s = PAUSE_MIN_S
        # A wait of the store that ends without a value makes torch print warnings, which a check does not.
        while not self._store.check([key]):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no value for {key!r} within {timeout_s:.1f} s")
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return bytes(self._store.get(key))
