"""The store through which ranks exchange addresses: torch's own, served by rank 0 or by torchrun."""

from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from farstep.train.orders import Orders, TorchrunPlace

__all__ = ["open_store", "open_torchrun_store"]

STORE_TIMEOUT = timedelta(seconds=180)
"""Longest wait for another rank's entry; covers the slowest start of a rank."""


def open_store(orders: Orders) -> Store:
    """Opens the store of a run that the launcher started; rank 0 serves it on an inherited socket."""
    host, port = orders.store_address
    return TCPStore(
        host,
        port,
        orders.config.num_ranks,
        is_master=orders.store_fd is not None,
        timeout=STORE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=orders.store_fd,
    )


def open_torchrun_store(place: TorchrunPlace) -> Store:
    """Opens the store that torchrun serves or has rank 0 serve, apart for each restart of the group."""
    store, _, _ = next(iter(rendezvous("env://", timeout=STORE_TIMEOUT)))
    return PrefixStore(f"farstep/{place.attempt}", store)
