"""Tensors as vectors: in place where their memory allows it, staged through contiguous or pinned memory else."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from farstep.collectives.reduction import ElementType
from farstep.collectives.vector import Vector, view_memory

_ELEMENT_TYPES = {
    torch.float32: ElementType.FLOAT32,
    torch.float64: ElementType.FLOAT64,
    torch.float16: ElementType.FLOAT16,
    torch.bfloat16: ElementType.BFLOAT16,
    torch.int8: ElementType.INT8,
    torch.int16: ElementType.INT16,
    torch.int32: ElementType.INT32,
    torch.int64: ElementType.INT64,
    torch.uint8: ElementType.UINT8,
    torch.bool: ElementType.BOOL,
}


def tensor_vector(tensor: Tensor, *, any_type: bool = False) -> Vector:
    """Views a contiguous CPU tensor as a vector, without copying.

    Args:
        tensor: contiguous, on the CPU. Complex tensors are taken as pairs of real numbers.
        any_type: for collectives that only move elements; those of a dtype that cannot be reduced are taken
            as bytes. Others keep their type, so that ranks which disagree about it are told so.

    Raises:
        TypeError: tensors of this dtype cannot be reduced.
        ValueError: the tensor is not contiguous or not on the CPU.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"a contiguous CPU tensor is needed, not one on {tensor.device} with {tensor.stride()}"
        )
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    element_type = _ELEMENT_TYPES.get(tensor.dtype, ElementType.UINT8 if any_type else None)
    if element_type is None:
        valid = ", ".join(str(dtype).removeprefix("torch.") for dtype in _ELEMENT_TYPES)
        raise TypeError(f"tensors of {tensor.dtype} cannot be reduced; valid are {valid} and complex")
    length_bytes = tensor.numel() * tensor.element_size()
    return view_memory(tensor.data_ptr(), length_bytes, element_type, tensor)


class Staging:
    """The memory a collective works on in place of tensors it cannot work on directly.

    A tensor on a GPU is copied to pinned host memory on its current stream; the collective waits for that
    copy, not the caller. A CPU tensor that is not contiguous is copied at once.
    """

    def __init__(self) -> None:
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []

    def read(self, tensor: Tensor, *, any_type: bool = False) -> Vector:
        """Memory that holds the tensor's values when the collective begins."""
        return tensor_vector(self._host_copy(tensor, is_read=True), any_type=any_type)

    def write(self, tensor: Tensor, *, any_type: bool = False) -> Vector:
        """Memory whose values the tensor takes on when the collective has ended."""
        host = self._host_copy(tensor, is_read=False)
        self._copy_back(tensor, host)
        return tensor_vector(host, any_type=any_type)

    def update(self, tensor: Tensor, *, any_type: bool = False) -> Vector:
        """Memory for a tensor that is both read and written."""
        host = self._host_copy(tensor, is_read=True)
        self._copy_back(tensor, host)
        return tensor_vector(host, any_type=any_type)

    @property
    def before(self) -> Callable[[], None] | None:
        """What to do before the collective, or None."""
        return _all_of(self._before)

    @property
    def after(self) -> Callable[[], None] | None:
        """What to do after the collective, or None."""
        return _all_of(self._after)

    def _host_copy(self, tensor: Tensor, *, is_read: bool) -> Tensor:
        if tensor.is_sparse:
            raise TypeError("sparse tensors cannot be communicated; call to_dense() first")
        if tensor.device.type == "cpu":
            if tensor.is_contiguous():
                return tensor.detach()
            return tensor.detach().contiguous()
        if tensor.device.type != "cuda":
            raise TypeError(f"tensors on {tensor.device} cannot be communicated; valid are cpu and cuda")
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        if is_read:
            host.copy_(tensor.detach(), non_blocking=True)
        # Also for a tensor that is only written: earlier work on it must have ended before it is overwritten.
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(tensor.device))
        self._before.append(event.synchronize)
        return host

    def _copy_back(self, tensor: Tensor, host: Tensor) -> None:
        if tensor.device.type == "cuda":
            self._after.append(lambda: _copy_to_gpu(tensor, host))
        elif not tensor.is_contiguous():
            self._after.append(lambda: _copy_to_cpu(tensor, host))


def _all_of(actions: list[Callable[[], None]]) -> Callable[[], None] | None:
    if not actions:
        return None

    def run() -> None:
        for action in actions:
            action()

    return run


def _copy_to_cpu(tensor: Tensor, host: Tensor) -> None:
    tensor.detach().copy_(host)


def _copy_to_gpu(tensor: Tensor, host: Tensor) -> None:
    # A stream of its own, so that the copy does not queue behind unrelated kernels.
    stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        tensor.detach().copy_(host, non_blocking=True)
    stream.synchronize()
