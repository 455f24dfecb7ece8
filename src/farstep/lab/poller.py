"""Readable descriptors and what to do about them."""

from __future__ import annotations

import select
from collections.abc import Callable


class Poller:
    """Calls a function whenever its descriptor is readable."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None], *, only_news: bool = False) -> None:
        """Watches a descriptor; with `only_news` once for each time it becomes readable, read or not."""
        self._epoll.register(fd, select.EPOLLIN | (select.EPOLLET if only_news else 0))
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Stops watching a descriptor; to be called before it is closed."""
        self._callbacks.pop(fd, None)
        self._epoll.unregister(fd)

    def watch_writable(self, fd: int, wanted: bool) -> None:
        """Says whether the callback shall also run when the descriptor can be written."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def wait(self) -> None:
        """Sleeps until a descriptor is ready and runs the callbacks of all that are."""
        for fd, _ in self._epoll.poll():
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()

    def close(self) -> None:
        """Gives the kernel's part back."""
        self._epoll.close()
