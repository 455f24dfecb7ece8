"""Gradients gathered into flat buckets while backward is still running.

Every parameter's `.grad` is a view into a bucket, so nothing is copied: the autograd engine adds
into memory that the network reads from. Buckets are filled from the last layer to the first, the
order in which backward reaches them, and are handed on strictly in that order, so that all ranks
reduce them in the same order whatever the timing was.
"""

import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Bucket", "GradientBuckets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One piece of the gradient, float32 of shape (elements,), page-aligned."""

    index: int
    flat: Tensor
    num_parameters: int


class GradientBuckets:
    """The gradient of a model as a few flat tensors.

    Args:
        parameters: float32 parameters in the order of the model; those without gradient are left out.
        bucket_bytes: a bucket is closed once it holds this much; a larger parameter has one alone.
        num_extra: floats reserved at the front of the first bucket, reduced along with it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, bucket_bytes: int, num_extra: int = 0) -> None:
        order = [parameter for parameter in parameters if parameter.requires_grad][::-1]
        groups: list[list[nn.Parameter]] = [[]]
        room = bucket_bytes - 4 * num_extra
        for parameter in order:
            size = parameter.numel() * parameter.element_size()
            if groups[-1] and size > room:
                groups.append([])
                room = bucket_bytes
            groups[-1].append(parameter)
            room -= size
        self.buckets = tuple(
            _make_bucket(index, group, num_extra if index == 0 else 0) for index, group in enumerate(groups)
        )
        self.extra = self.buckets[0].flat[:num_extra]
        """The reserved floats, a view."""
        self._num_extra = num_extra
        self._waiting = [0] * len(groups)
        self._next = 0
        self._on_full: Callable[[Bucket], None] = lambda bucket: None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
            for index, group in enumerate(groups)
            for parameter in group
        ]

    @property
    def length_bytes(self) -> int:
        """Bytes that every rank contributes to each step."""
        return sum(bucket.flat.numel() * bucket.flat.element_size() for bucket in self.buckets)

    def begin(self, on_full: Callable[[Bucket], None]) -> None:
        """Zeroes all gradients; `on_full` will be called once per bucket, in order, during backward."""
        for bucket in self.buckets:
            bucket.flat.zero_()
        self._waiting = [bucket.num_parameters for bucket in self.buckets]
        self._next = 0
        self._on_full = on_full

    def flush(self) -> None:
        """Hands on the buckets that backward did not fill, because some parameter took no part."""
        self._waiting = [0] * len(self.buckets)
        self._hand_on()

    def norm(self) -> float:
        """Returns the Euclidean norm of the gradient, without the reserved floats."""
        parts = [bucket.flat[self._num_extra if bucket.index == 0 else 0 :] for bucket in self.buckets]
        squares = [torch.linalg.vector_norm(part, dtype=torch.float64).item() ** 2 for part in parts]
        return float(sum(squares) ** 0.5)

    def scale(self, factor: float) -> None:
        """Multiplies the gradient by a number."""
        for bucket in self.buckets:
            bucket.flat.mul_(factor)

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            self._waiting[index] -= 1
            self._hand_on()

        return on_gradient

    def _hand_on(self) -> None:
        while self._next < len(self.buckets) and self._waiting[self._next] == 0:
            bucket = self.buckets[self._next]
            self._next += 1
            self._on_full(bucket)


def _make_bucket(index: int, parameters: list[nn.Parameter], num_extra: int) -> Bucket:
    flat = _page_aligned(num_extra + sum(parameter.numel() for parameter in parameters))
    start = num_extra
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return Bucket(index=index, flat=flat, num_parameters=len(parameters))


def _page_aligned(num_floats: int) -> Tensor:
    """Returns zeroed float32 at the start of a page: the kernel copies slowly to some other offsets."""
    memory = mmap.mmap(-1, max(4, 4 * num_floats))
    return torch.from_numpy(np.frombuffer(memory, dtype=np.float32, count=num_floats))
