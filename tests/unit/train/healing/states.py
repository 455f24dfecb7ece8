"""Nested states as optimizers, schedulers and users keep them, drawn by hypothesis; and when two are the same."""

import math
import warnings
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from farstep.train.healing.state_codec import DTYPES, as_bytes

NUMPY_DTYPES = [name for name in DTYPES if hasattr(np, name)]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # half-precision complex numbers are experimental
        flat = (
            torch.tensor(list(raw), dtype=torch.uint8).view(dtype) if count else torch.empty(0, dtype=dtype)
        )
        tensor = flat.view(shape)
        kind = draw(st.sampled_from(["plain", "transposed", "strided", "grad"]))
        if kind == "transposed" and tensor.dim() >= 2:
            return tensor.transpose(0, -1)
        if kind == "strided" and tensor.dim() >= 1 and tensor.shape[0] > 1:
            return tensor[::2]
        if kind == "grad" and dtype == torch.float32:
            return torch.nn.Parameter(tensor)
        return tensor


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    count = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count))
    if dtype == np.bool_:
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype=dtype).reshape(shape)
    kind = draw(st.sampled_from(["plain", "reversed", "writable", "scalar"]))
    if kind == "reversed" and array.ndim:
        return array[::-1]
    if kind == "scalar" and array.size:
        return array.reshape(-1)[0]
    return array.copy() if kind == "writable" else array


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=0, max_value=2**128),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(max_size=8),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
keys = st.recursive(
    st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)
states = st.recursive(
    st.one_of(scalars, tensors(), arrays()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.integers(), st.integers(), max_size=3).map(Counter),
        st.lists(st.integers(0, 5), max_size=3).map(torch.Size),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Whether two states are alike to the bit, in their types and in the order of their keys."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bool(torch.equal(as_bytes(a.detach()), as_bytes(b)))
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k1, k2) and same(v1, v2) for (k1, v1), (k2, v2) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return bool(a == b)
