"""Element types and reductions, and the compiled kernels behind them.

Invariant: each kernel rounds once per operation and gives the same bits on every CPU, so that ranks on
different machines agree as long as they combine in the same order.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import numpy as np

from farstep import _native

ReduceOp = Literal["sum", "mean", "min", "max", "product", "and", "or", "xor"]
REDUCE_OPS: tuple[ReduceOp, ...] = ("sum", "mean", "min", "max", "product", "and", "or", "xor")


class ElementType(enum.IntEnum):
    """Types a vector can have; numbered as in ``native/include/farstep/reduce.hpp``."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT8 = 8
    BOOL = 9

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE_BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether elements have fractions."""
        return self <= ElementType.BFLOAT16


_ITEMSIZE_BYTES = {
    ElementType.FLOAT32: 4,
    ElementType.FLOAT64: 8,
    ElementType.FLOAT16: 2,
    ElementType.BFLOAT16: 2,
    ElementType.INT8: 1,
    ElementType.INT16: 2,
    ElementType.INT32: 4,
    ElementType.INT64: 8,
    ElementType.UINT8: 1,
    ElementType.BOOL: 1,
}
_KERNELS: dict[str, int] = {
    "sum": 0,
    "mean": 0,
    "product": 1,
    "min": 2,
    "max": 3,
    "and": 4,
    "or": 5,
    "xor": 6,
}
_BY_NAME = {element.name.lower(): element for element in ElementType}


def element_type_of(dtype: np.dtype[Any]) -> ElementType:
    """Maps a numpy dtype (also ``bfloat16`` of the ml_dtypes package) to an element type.

    Raises:
        TypeError: there is no such element type, or the byte order is not the machine's.
    """
    element = _BY_NAME.get(dtype.name)
    if element is None or not dtype.isnative:
        valid = ", ".join(_BY_NAME)
        raise TypeError(
            f"dtype {dtype} cannot be communicated; valid are {valid} in the machine's byte order"
        )
    return element


def check_reduction(op: str, element_type: ElementType) -> None:
    """Raises ValueError or TypeError unless the reduction is known and has a meaning for the type."""
    if op not in _KERNELS:
        raise ValueError(f"op is {op!r}; valid are {', '.join(REDUCE_OPS)}")
    if op == "mean" and not element_type.is_floating:
        raise TypeError(f"op 'mean' needs a floating-point type, not {element_type.name.lower()}; use 'sum'")
    if op in ("and", "or", "xor") and element_type.is_floating:
        raise TypeError(f"op {op!r} needs an integer or bool type, not {element_type.name.lower()}")


def kernel_of(op: str) -> int:
    """Number of the compiled kernel of a reduction; a mean is a sum divided at a fixed place."""
    return _KERNELS[op]


def reduce_into(
    out: np.ndarray[Any, Any], left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], op: ReduceOp = "sum"
) -> None:
    """Stores ``left (op) right`` into ``out``, which may be one of them. A mean is not divided here.

    Args:
        out: contiguous array; all three have one dtype and size.
        left: left operand.
        right: right operand.
        op: the reduction.

    Raises:
        ValueError: sizes or dtypes differ, an array is not contiguous, or the op is unknown.
        TypeError: the op has no meaning for the dtype.
    """
    element = element_type_of(out.dtype)
    check_reduction(op, element)
    for name, array in (("left", left), ("right", right)):
        if array.dtype != out.dtype or array.size != out.size:
            raise ValueError(
                f"{name} has {array.size} elements of {array.dtype}; out has {out.size} of {out.dtype}"
            )
    if not all(array.flags.c_contiguous for array in (out, left, right)):
        raise ValueError("out, left and right must be contiguous")
    _native.reduce_into(
        out.ctypes.data, left.ctypes.data, right.ctypes.data, out.size, int(element), _KERNELS[op]
    )
