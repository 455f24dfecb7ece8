"""The compiled reductions against numpy, and the rules for types and ops."""

import numpy as np
import pytest

from farstep.collectives import ElementType, reduce_into
from farstep.collectives.reduction import check_reduction, element_type_of

FUNCTIONS = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8)


def operands(dtype, count):
    generator = np.random.default_rng(count)
    if np.issubdtype(dtype, np.floating):
        return [generator.standard_normal(count).astype(dtype) for _ in range(2)]
    limits = np.iinfo(dtype)
    return [generator.integers(limits.min, limits.max, count, dtype, endpoint=True) for _ in range(2)]


@pytest.mark.parametrize("count", [0, 1, 31, 1000, 70_001])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in ("sum", "product", "min", "max") for dtype in (*FLOATS, *INTEGERS)]
    + [(op, dtype) for op in ("and", "or", "xor") for dtype in INTEGERS],
)
def test_kernels_give_numpys_bits(op, dtype, count):
    left, right = operands(dtype, count)
    out = np.empty(count, dtype)
    reduce_into(out, left, right, op)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[op](left, right)
    np.testing.assert_array_equal(out, expected)
    in_place = left.copy()
    reduce_into(in_place, in_place, right, op)
    assert in_place.tobytes() == out.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_is_kept_from_either_side(dtype, op):
    left = np.array([np.nan, 1, np.nan, 2], dtype)
    right = np.array([1, np.nan, np.nan, 3], dtype)
    out = np.empty(4, dtype)
    reduce_into(out, left, right, op)
    assert list(np.isnan(out)) == [True, True, True, False]


def test_half_precision_covers_every_bit_pattern():
    left = np.arange(65536, dtype=np.uint16).view(np.float16)
    out = np.empty_like(left)
    for other in (0.0, 1.0, -3.5e-5, 65504.0, 6e-8):
        right = np.full(65536, other, np.float16)
        reduce_into(out, left, right, "sum")
        with np.errstate(all="ignore"):
            expected = (left.astype(np.float32) + right.astype(np.float32)).astype(np.float16)
        np.testing.assert_array_equal(out, expected)


def test_booleans_stay_booleans():
    left, right = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    out = np.empty(4, bool)
    for op, expected in {
        "sum": left | right,
        "product": left & right,
        "min": left & right,
        "max": left | right,
        "and": left & right,
        "or": left | right,
        "xor": left ^ right,
    }.items():
        reduce_into(out, left, right, op)
        np.testing.assert_array_equal(out, expected)
        assert set(out.view(np.uint8)) <= {0, 1}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: element_type_of(np.dtype(">f4")), TypeError, "byte order"),
        (lambda: element_type_of(np.dtype(object)), TypeError, "valid are float32"),
        (lambda: check_reduction("mean", ElementType.BOOL), TypeError, "floating-point"),
        (lambda: check_reduction("xor", ElementType.FLOAT64), TypeError, "integer or bool"),
        (lambda: check_reduction("", ElementType.INT8), ValueError, "valid are sum"),
        (
            lambda: reduce_into(np.zeros(3), np.zeros(3), np.zeros(4)),
            ValueError,
            "right has 4 elements of float64; out has 3",
        ),
        (lambda: reduce_into(np.zeros(3), np.zeros(6)[::2], np.zeros(3)), ValueError, "contiguous"),
    ],
)
def test_misuse_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
