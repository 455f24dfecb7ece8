"""The store that torchrun serves, or has rank 0 serve: through it the ranks find their supervisor."""

from datetime import timedelta

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from farstep.train.orders import TorchrunPlace

__all__ = ["open_torchrun_store"]

STORE_TIMEOUT = timedelta(seconds=180)
"""Longest wait for another rank's entry; covers the slowest start of a rank."""


def open_torchrun_store(place: TorchrunPlace) -> Store:
    """Opens the store, apart for each restart of the group."""
    store, _, _ = next(iter(rendezvous("env://", timeout=STORE_TIMEOUT)))
    return PrefixStore(f"farstep/{place.attempt}", store)
