"""What torch gets back from a collective: a Work whose wait raises the communicator's own errors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from farstep.collectives.operations import Handle


class MrcWork(Work):
    """One or several operations that torch sees as one.

    Args:
        handles: the operations, in the order they were issued.
        outputs: tensors that hold the result, the value of the future.
    """

    def __init__(self, handles: Sequence[Handle], outputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._handles = list(handles)
        self._outputs = list(outputs)
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until all operations have ended.

        Args:
            timeout: how long to wait; 0 waits as long as the operations may take.

        Raises:
            CommunicatorError: an operation failed, or has not ended within the timeout.
        """
        seconds = timeout.total_seconds()
        for handle in self._handles:
            handle.wait(seconds if seconds > 0 else None)
        return True

    def is_completed(self) -> bool:
        """Whether all operations have ended."""
        return all(handle.done() for handle in self._handles)

    def is_success(self) -> bool:
        """Whether all operations have ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The first error of an operation that has ended."""
        return next((error for handle in self._handles if (error := handle.exception())), None)

    def result(self) -> list[Tensor]:
        """The tensors that hold the result."""
        return self._outputs

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that ends with the operations; its value are the result tensors."""
        with self._lock:
            if self._future is None:
                ended: torch.futures.Future[None] = torch.futures.Future()
                # Only a future made by then() fails in a way that torch's compiled callers see.
                self._future = ended.then(self._outcome)
                # Operations end in order, so that the last one speaks for all.
                self._handles[-1].add_done_callback(lambda _: ended.set_result(None))
            return self._future

    def _outcome(self, _: torch.futures.Future[None]) -> list[Tensor]:
        error = self.exception()
        if error is not None:
            raise error
        return self._outputs
