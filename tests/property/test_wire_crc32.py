"""Properties of the CRC-32 behind the invariant CRC: every implementation of this machine equals zlib."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farstep import _native
from farstep.mrc import invariant_crc

wire = _native.wire
MASK = 0xFFFFFFFF
VARIANTS = wire.crc32_variants()


def zlib_register(register, data):
    """One zlib update on the raw register, which zlib keeps inverted."""
    return zlib.crc32(data, register ^ MASK) ^ MASK


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_length_up_to_300_at_random_alignment(variant):
    rng = random.Random(1)
    for length in range(301):
        offset = rng.randrange(64)
        data = rng.randbytes(offset + length)
        register = rng.getrandbits(32)
        expected = zlib_register(register, data[offset:])
        assert wire.crc32_update(register, data, offset, variant) == expected, (length, offset)
        assert wire.crc32_copy(register, data, offset, variant) == (expected, data[offset:]), (length, offset)


@given(st.binary(max_size=3000), st.integers(0, MASK), st.data())
def test_pieces_give_the_same_register_as_the_whole(data, register, draw):
    split = draw.draw(st.integers(0, len(data)))
    for variant in VARIANTS:
        half = wire.crc32_update(register, data[:split], 0, variant)
        assert wire.crc32_update(half, data[split:], 0, variant) == zlib_register(register, data)


def test_the_seed_is_the_register_after_eight_ones():
    assert wire.icrc_seed_plain() == invariant_crc.icrc_seed_plain() == invariant_crc.ICRC_SEED_ONES
    assert wire.crc32_update(MASK, b"\xff" * 8) == wire.ICRC_SEED_ONES


def test_an_unknown_variant_is_named_in_the_error():
    with pytest.raises(ValueError, match="fastest"):
        wire.crc32_update(0, b"", 0, "fastest")


@given(st.binary(min_size=48, max_size=48), st.binary(min_size=12, max_size=48), st.binary(max_size=100))
def test_both_invariant_crcs_agree(network_headers, header, payload):
    seed = invariant_crc.icrc_seed_ipv6(network_headers)
    assert wire.icrc_seed_ipv6(network_headers) == seed
    assert wire.icrc(seed, header, payload) == invariant_crc.icrc(header + payload, seed)
