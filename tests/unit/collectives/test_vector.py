"""Vectors and spaces: whose memory, where, and what is refused."""

import numpy as np
import pytest

from farstep.collectives.reduction import ElementType
from farstep.collectives.vector import Space, allocate_pages, as_vector, view_memory


def test_a_vector_shares_the_memory_of_the_array():
    array = np.arange(10, dtype=np.float32).reshape(2, 5)
    vector = as_vector(array)
    vector.raw[:4] = np.array([7], np.float32).view(np.uint8)
    assert array[0, 0] == 7
    assert (vector.count, vector.length_bytes, vector.address) == (10, 40, array.ctypes.data)
    assert vector.part(2, 3).address == array.ctypes.data + 8


def test_buffers_are_taken_as_bytes():
    buffer = bytearray(5)
    assert as_vector(buffer).element_type is ElementType.UINT8
    assert as_vector(memoryview(buffer)).count == 5


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (np.zeros((3, 3)).T, ValueError, "out is not contiguous"),
        (np.zeros(3, np.complex128), TypeError, "complex128"),
        (3.5, TypeError, "out is a float"),
        (b"abc", ValueError, "out is read-only"),
    ],
)
def test_what_cannot_be_a_vector_is_named(data, error, words):
    with pytest.raises(error, match=words):
        as_vector(data, "out")


def test_a_space_finds_the_vector_of_an_offset():
    parts = [as_vector(np.zeros(n, np.uint8)) for n in (3, 0, 5, 1)]
    space = Space(parts, origin_bytes=100)
    assert space.length_bytes == 9
    assert space.address(100) == parts[0].address
    assert space.address(104) == parts[2].address + 1
    assert space.address(108) == parts[3].address
    assert Space([parts[2]], origin_bytes=8).address(10) == parts[2].address + 2


def test_viewed_memory_keeps_its_owner():
    class Owner(bytearray):
        pass

    owner = Owner(b"12345678")
    array = np.frombuffer(owner, np.uint8)
    vector = view_memory(array.__array_interface__["data"][0], 8, ElementType.INT64, owner)
    assert bytes(vector.raw) == b"12345678"
    assert vector.raw.base is not None


def test_pages_are_aligned_and_zero():
    pages = allocate_pages(10_000)
    assert pages.ctypes.data % 4096 == 0
    assert not pages.any()
    pages[:] = 1
