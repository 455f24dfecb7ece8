"""Where the memory of a buffer is."""

import numpy as np
import pytest

from farstep.engine import RegionError
from farstep.engine.region import locate


def test_an_array_is_used_in_place():
    array = np.arange(10, dtype=np.int32)
    keeper, address, length, is_writable = locate(array)
    assert keeper is array
    assert (address, length, is_writable) == (array.ctypes.data, 40, True)


def test_a_slice_begins_where_it_begins():
    array = np.zeros(100, np.uint8)
    assert locate(array[10:30])[1:] == (array.ctypes.data + 10, 20, True)


def test_read_only_memory_is_known_as_such():
    assert not locate(b"abc")[3]
    assert locate(bytearray(b"abc"))[3]
    array = np.zeros(4)
    array.flags.writeable = False
    assert not locate(array)[3]
    assert not locate(memoryview(bytearray(4)).toreadonly())[3]


def test_a_buffer_is_held_fast():
    memory = bytearray(10)
    keeper = locate(memory)[0]
    with pytest.raises(BufferError):
        memory.extend(b"grow")
    del keeper
    memory.extend(b"grow")


@pytest.mark.parametrize("buffer", [b"", bytearray(), np.zeros(0), np.zeros((3, 0))])
def test_nothing_is_a_region_of_no_bytes(buffer):
    assert locate(buffer)[2] == 0


def test_a_zero_dimensional_array_is_one_element():
    assert locate(np.array(5.0))[2] == 8


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (np.zeros((4, 4), order="F"), "C-contiguous"),
        (np.zeros(4, dtype=[("a", "i4"), ("b", "O")]), "references"),
        (memoryview(bytes(9))[::3], "cannot be registered"),
        (object(), "object cannot be registered"),
    ],
)
def test_other_memory_is_refused(buffer, said):
    with pytest.raises(RegionError, match=said):
        locate(buffer)
