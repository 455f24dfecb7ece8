"""Gradients of any model as a few flat tensors that the network reads from and writes to.

The gradient of an ordinary parameter is a view into a bucket, so nothing is copied: autograd adds into memory that
the network reads. Parameters that cannot be viewed that way (shards of FSDP2, tensors on an accelerator) are copied
in after backward and out after the reduction. Buckets are handed on strictly in one order, from the last layer to the
first, whatever the timing was, so that all members reduce the same bytes in the same order.

A parameter that took no part in a step on any replica group has no gradient at all, rather than one of zeros: an
optimizer leaves it alone. Which ones these are travels at the front of the last bucket, when all others are known.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from farstep.collectives.reduction import ElementType
from farstep.collectives.vector import Vector

__all__ = ["Bucket", "FlatGradients", "local_part"]

_ELEMENT_TYPES = {
    torch.float32: ElementType.FLOAT32,
    torch.float64: ElementType.FLOAT64,
    torch.float16: ElementType.FLOAT16,
    torch.bfloat16: ElementType.BFLOAT16,
}


def local_part(tensor: Tensor) -> Tensor:
    """Returns the shard that this process holds of a distributed tensor, and any other tensor itself."""
    if isinstance(tensor, DTensor):
        local: Tensor = tensor.to_local()
        return local
    return tensor


@dataclass(slots=True)
class _Slot:
    """Where the gradient of one parameter lies."""

    parameter: nn.Parameter
    view: Tensor
    is_viewed: bool
    """Whether `parameter.grad` is the view itself, rather than copied into it and out of it."""
    num_copies: int
    """Ranks of this replica group that hold the same part."""
    number: int
    """Position among all parameters."""
    has_gradient: bool = False
    """Whether backward has reached the parameter in this attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One piece of the gradient.

    Attributes:
        index: position in the order in which buckets are reduced.
        flat: shape (elements,), at the start of a page.
        vector: the same memory as the transport sees it.
        num_extra: reserved elements at the front.
    """

    index: int
    flat: Tensor
    vector: Vector
    num_extra: int


class FlatGradients:
    """The gradient of a model, with room for a few numbers that are reduced along with it.

    Args:
        parameters: those without gradient are left out; others must be floating point.
        bucket_bytes: a bucket is closed once it holds this much; a larger parameter has one alone.
        num_extra: float32 numbers reduced along with the gradient.

    Raises:
        ValueError: there is no parameter to train, or one of a type that cannot be reduced.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, bucket_bytes: int, num_extra: int) -> None:
        order = list(dict.fromkeys(p for p in parameters if p.requires_grad))[::-1]
        if not order:
            raise ValueError("model has no parameter with requires_grad=True; there is nothing to train")
        for parameter in order:
            if parameter.dtype not in _ELEMENT_TYPES:
                valid = ", ".join(str(dtype) for dtype in _ELEMENT_TYPES)
                raise ValueError(f"a parameter has the type {parameter.dtype}; valid are {valid}")
        groups = _group(order, bucket_bytes)
        if groups[0][0].dtype is not torch.float32:
            groups.insert(0, [])  # the reserved numbers need a bucket of their own
        self._slots: list[list[_Slot]] = []
        buckets = []
        count = 0
        for index, group in enumerate(groups):
            num_reserved = num_extra if index == 0 else 0
            num_reserved += len(order) if index == len(groups) - 1 else 0
            bucket, slots = _make_bucket(index, group, num_reserved, count)
            count += len(slots)
            buckets.append(bucket)
            self._slots.append(slots)
        self.buckets: tuple[Bucket, ...] = tuple(buckets)
        self.extra = self.buckets[0].flat[:num_extra]
        """The reserved numbers, a view, float32."""
        last = self.buckets[-1]
        self._shares = last.flat[last.num_extra - len(order) : last.num_extra]
        """By parameter: above 0 if it has a gradient; once reduced, on any replica group."""
        self._waiting = [0] * len(groups)
        self._next = len(groups)
        self._on_full: Callable[[Bucket], None] | None = None
        self._hooks = [
            slot.parameter.register_post_accumulate_grad_hook(self._hook(index, slot))  # type: ignore[no-untyped-call]
            for index, slots in enumerate(self._slots)
            for slot in slots
            if slot.is_viewed
        ]

    @property
    def flats(self) -> tuple[Tensor, ...]:
        """The flat tensors in order."""
        return tuple(bucket.flat for bucket in self.buckets)

    @property
    def length_bytes(self) -> int:
        """Bytes every member contributes to each step."""
        return sum(bucket.vector.length_bytes for bucket in self.buckets)

    def begin(self) -> None:
        """Zeroes everything and makes the gradients views again, if somebody has replaced them."""
        self._on_full = None
        for bucket in self.buckets:
            bucket.flat.zero_()
        for slots in self._slots:
            for slot in slots:
                slot.has_gradient = False
                if not slot.is_viewed:
                    slot.parameter.grad = None
                elif slot.parameter.grad is not slot.view:
                    slot.parameter.grad = slot.view

    def arm(self, on_full: Callable[[Bucket], None]) -> None:
        """From now on `on_full` is called once per bucket, in order, as backward completes them."""
        self._waiting = [len(slots) for slots in self._slots]
        self._next = 0
        self._on_full = on_full
        # Without an own gradient the first bucket would hold back all others; it goes when all is done.

    def flush(self) -> None:
        """Hands on what backward did not: parameters that took no part, and those that are copied."""
        for slots in self._slots[self._next :]:
            for slot in slots:
                grad = slot.parameter.grad
                if grad is not None and grad is not slot.view:
                    slot.view.copy_(local_part(grad).view_as(slot.view))
                    slot.has_gradient = True
                elif not slot.has_gradient:  # unless a closure has written to it by itself
                    slot.has_gradient = bool(slot.view.any())
        self._waiting = [0] * len(self._waiting)
        self._hand_on()

    def expose(self) -> None:
        """Makes what is in the buckets the gradients the optimizer sees; None for who took no part anywhere."""
        took_part = (self._shares > 0).tolist()
        for slots in self._slots:
            for slot in slots:
                parameter = slot.parameter
                if not took_part[slot.number]:
                    parameter.grad = None
                elif slot.is_viewed:
                    if parameter.grad is not slot.view:
                        parameter.grad = slot.view
                elif isinstance(parameter, DTensor):
                    parameter.grad = DTensor.from_local(
                        slot.view.to(local_part(parameter).device),
                        parameter.device_mesh,
                        parameter.placements,
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )
                else:
                    parameter.grad = slot.view.to(parameter.device)

    def load(self, flats: Sequence[Tensor]) -> None:
        """Copies a reduced gradient in.

        Raises:
            ValueError: the number, sizes or types of the buckets differ.
        """
        shapes = [(flat.shape, flat.dtype) for flat in flats]
        if shapes != [(bucket.flat.shape, bucket.flat.dtype) for bucket in self.buckets]:
            raise ValueError("a gradient of another model, or with other bucket sizes, cannot be applied")
        for bucket, flat in zip(self.buckets, flats, strict=True):
            bucket.flat.copy_(flat)

    def square_sum(self) -> float:
        """Returns this rank's share of the sum of the squares of the replica's gradient."""
        if all(slot.num_copies == 1 for slots in self._slots for slot in slots):
            return float(sum(_square_sum(bucket.flat[bucket.num_extra :]) for bucket in self.buckets))
        return float(
            sum(
                _square_sum(slot.view.reshape(-1)) / slot.num_copies
                for slots in self._slots
                for slot in slots
            )
        )

    def scale(self, factor: float) -> None:
        """Multiplies the gradient by a number."""
        for bucket in self.buckets:
            bucket.flat[bucket.num_extra :].mul_(factor)

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int, slot: _Slot) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            slot.has_gradient = True
            grad = parameter.grad
            if grad is not None and grad is not slot.view:  # somebody has taken the view away
                slot.view.copy_(grad)
            if self._on_full is not None:
                self._waiting[index] -= 1
                self._hand_on()

        return on_gradient

    def _hand_on(self) -> None:
        on_full = self._on_full
        assert on_full is not None, "buckets are handed on between arm and the next begin"
        while self._next < len(self.buckets) and self._waiting[self._next] == 0:
            bucket = self.buckets[self._next]
            self._next += 1
            if self._next == len(self.buckets):
                has = [float(slot.has_gradient) for slots in self._slots for slot in slots]
                self._shares.copy_(torch.tensor(has))
            on_full(bucket)


def _square_sum(part: Tensor) -> float:
    if part.numel() == 0:
        return 0.0
    if part.dtype in (torch.float32, torch.float64):
        # Through BLAS, several times faster than a reduction in double precision. An overflow of the sum in single
        # precision means a gradient beyond 1e19: diverged, and treated like any that is not finite.
        return float(torch.dot(part, part))
    return float(torch.linalg.vector_norm(part, dtype=torch.float32)) ** 2


def _group(order: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Splits parameters into runs of one type and about one size."""
    groups: list[list[nn.Parameter]] = [[]]
    held = 0
    for parameter in order:
        size = local_part(parameter).numel() * parameter.element_size()
        is_other_type = bool(groups[-1]) and groups[-1][0].dtype is not parameter.dtype
        if groups[-1] and (is_other_type or held + size > bucket_bytes):
            groups.append([])
            held = 0
        groups[-1].append(parameter)
        held += size
    return groups


def _make_bucket(
    index: int, parameters: list[nn.Parameter], num_extra: int, first: int
) -> tuple[Bucket, list[_Slot]]:
    dtype = parameters[0].dtype if parameters else torch.float32
    sizes = [local_part(parameter).numel() for parameter in parameters]
    flat, raw = _page_aligned(num_extra + sum(sizes), dtype)
    slots: list[_Slot] = []
    start = num_extra
    for parameter, size in zip(parameters, sizes, strict=True):
        local = local_part(parameter)
        view = flat[start : start + size].view(local.shape)
        is_viewed = local is parameter and local.device.type == "cpu" and local.layout is torch.strided
        slots.append(_Slot(parameter, view, is_viewed, _num_copies(parameter), first + len(slots)))
        start += size
    vector = Vector(raw, _ELEMENT_TYPES[dtype])
    return Bucket(index=index, flat=flat, vector=vector, num_extra=num_extra), slots


def _num_copies(parameter: Tensor) -> int:
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    copies = [
        mesh.size(dim) for dim, placement in enumerate(parameter.placements) if placement.is_replicate()
    ]
    return math.prod(copies)


def _page_aligned(count: int, dtype: torch.dtype) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """Returns zeroed memory at the start of a page: the kernel copies slowly to some other offsets."""
    length_bytes = count * dtype.itemsize
    raw = np.frombuffer(mmap.mmap(-1, max(length_bytes, 1)), dtype=np.uint8)[:length_bytes]
    return torch.from_numpy(raw).view(dtype), raw
