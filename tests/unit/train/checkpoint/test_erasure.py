import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.train.checkpoint.erasure import (
    STRIPE_BYTES,
    Bytes,
    Scheme,
    ShardTable,
    encode,
    rebuild,
    restore_shards,
    shard_hash,
)
from farstep.train.checkpoint.errors import CheckpointError, ShardsCorrupt, ShardsMissing
from farstep.train.errors import ConfigError

SCHEMES = ["3-of-5", "2-of-3", "4-of-6", "5-of-6", "copies:2", "copies:3", "7-of-20"]


def image_of(length: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def table_of(image: Bytes, scheme: str) -> tuple[ShardTable, dict[int, Bytes]]:
    parsed = Scheme.parse(scheme)
    shards = encode(image, parsed)
    hashes = tuple(shard_hash(shards[number]) for number in range(parsed.shards))
    table = ShardTable(
        scheme=parsed,
        owner="",
        step=4,
        length_bytes=image.nbytes,
        image_hash=shard_hash(image),
        shard_hashes=hashes,
        meta={"a": [1]},
    )
    return table, shards


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 3 * STRIPE_BYTES + 17])
def test_three_of_five_rebuilds_after_any_two_losses(length: int) -> None:
    image = image_of(length)
    table, shards = table_of(image, "3-of-5")
    for lost in itertools.combinations(range(5), 2):
        left = {number: shard for number, shard in shards.items() if number not in lost}
        assert np.array_equal(rebuild(table, left), image)
        made = restore_shards(table, left, lost)
        assert all(np.array_equal(made[number], shards[number]) for number in lost)


def test_three_of_five_takes_less_than_1_7_times_the_memory() -> None:
    for length in (10**3, 10**6, 10**7 + 1):
        _, shards = table_of(image_of(length), "3-of-5")
        assert sum(shard.nbytes for shard in shards.values()) <= 1.7 * length


@settings(max_examples=150, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    length=st.one_of(st.integers(0, 200), st.integers(STRIPE_BYTES * 2, STRIPE_BYTES * 2 + 9)),
    data=st.data(),
)
def test_any_that_are_enough_rebuild_bit_for_bit(scheme: str, length: int, data: st.DataObject) -> None:
    image = image_of(length, seed=length)
    table, shards = table_of(image, scheme)
    needed, total = table.scheme.needed, table.scheme.shards
    kept = data.draw(st.sets(st.integers(0, total - 1), min_size=needed))
    left = {number: shards[number] for number in kept}
    assert rebuild(table, left).tobytes() == image.tobytes()
    wanted = data.draw(st.sets(st.integers(0, total - 1)))
    made = restore_shards(table, left, wanted)
    assert set(made) == wanted
    assert all(made[number].tobytes() == shards[number].tobytes() for number in wanted)


@settings(max_examples=80, deadline=None)
@given(scheme=st.sampled_from(SCHEMES), data=st.data())
def test_damaged_shards_are_never_used(scheme: str, data: st.DataObject) -> None:
    image = image_of(500)
    table, shards = table_of(image, scheme)
    damaged = data.draw(st.sets(st.integers(0, table.scheme.shards - 1), min_size=1))
    for number in damaged:
        place = data.draw(st.integers(0, table.shard_bytes - 1))
        shards[number][place] ^= 1 << data.draw(st.integers(0, 7))
    if table.scheme.shards - len(damaged) >= table.scheme.needed:
        assert rebuild(table, shards).tobytes() == image.tobytes()
    else:
        for use in (rebuild, lambda *given: restore_shards(*given, [0])):
            with pytest.raises(ShardsCorrupt, match=rf"\[{', '.join(map(str, sorted(damaged)))}\] are not"):
                use(table, shards)


def test_too_few_shards_are_named() -> None:
    table, shards = table_of(image_of(100), "3-of-5")
    with pytest.raises(ShardsMissing, match=r"step 4 needs 3 of 5 shards; 2 are left: \[1, 4\]"):
        rebuild(table, {number: shards[number] for number in (1, 4)})
    with pytest.raises(ShardsMissing, match=r"0 are left"):
        restore_shards(table, {}, [1])


def test_a_shard_of_another_length_is_not_used() -> None:
    table, shards = table_of(image_of(100), "copies:2")
    assert rebuild(table, {0: shards[0][:-1], 1: shards[1]}).tobytes() == image_of(100).tobytes()


def test_an_image_that_is_not_what_was_stored_is_not_returned() -> None:
    """Shards and their hashes agree, but they are of another image than the table says."""
    table, shards = table_of(image_of(100), "3-of-5")
    other = replace(table, image_hash=shard_hash(image_of(100, seed=2)))
    with pytest.raises(ShardsCorrupt, match="does not match its hash after it was rebuilt"):
        rebuild(other, shards)
    other = replace(table, shard_hashes=(*table.shard_hashes[:4], shard_hash(shards[0])))
    with pytest.raises(ShardsCorrupt, match="shard 4"):
        restore_shards(other, {number: shards[number] for number in range(3)}, [4])


def test_only_what_is_wanted_is_encoded() -> None:
    image = image_of(1000)
    everything = encode(image, Scheme(3, 5))
    for wanted in ([], [0], [4], [2, 3]):
        some = encode(image, Scheme(3, 5), wanted)
        assert sorted(some) == wanted
        assert all(np.array_equal(some[number], everything[number]) for number in wanted)
    with pytest.raises(CheckpointError, match=r"shard 5 of 3-of-5; valid: 0\.\.4"):
        encode(image, Scheme(3, 5), [5])


def test_shards_are_copies() -> None:
    image = image_of(99)
    table, shards = table_of(image, "3-of-5")
    image[:] = 0
    assert table.fits(0, shards[0])


@pytest.mark.parametrize(
    ("text", "needed", "shards", "tolerated"),
    [("3-of-5", 3, 5, 2), ("copies:2", 1, 2, 1), ("1-of-4", 1, 4, 3), ("250-of-256", 250, 256, 6)],
)
def test_schemes_are_read_and_written(text: str, needed: int, shards: int, tolerated: int) -> None:
    scheme = Scheme.parse(text)
    assert (scheme.needed, scheme.shards, scheme.tolerated) == (needed, shards, tolerated)
    assert Scheme.parse(str(scheme)) == scheme
    assert scheme.memory_ratio == shards / needed


@pytest.mark.parametrize(
    "text", ["", "3of5", "5-of-3", "3-of-3", "0-of-2", "copies:1", "copies:0", "9-of-257", "-1-of-2"]
)
def test_schemes_out_of_range_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="valid"):
        Scheme.parse(text)


@pytest.mark.parametrize(
    ("members", "fitted"), [(9, "3-of-5"), (5, "3-of-5"), (4, "3-of-4"), (3, "2-of-3"), (2, "copies:2")]
)
def test_few_members_get_a_smaller_scheme(members: int, fitted: str) -> None:
    scheme = Scheme.parse("3-of-5").fit(members)
    assert str(scheme) == fitted
    assert scheme.tolerated >= 1
    with pytest.raises(CheckpointError, match="nothing would survive"):
        scheme.fit(1)


def test_tables_travel_as_json() -> None:
    table, _ = table_of(image_of(10), "3-of-5")
    again = ShardTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    assert again.digest == table.digest
    assert replace(table, step=5).digest != table.digest


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": "x"},
        {"shard_hashes": ["00"]},
        {"length_bytes": -1},
        {"step": None},
        {"meta": 3},
        {"scheme": 7},
    ],
)
def test_a_broken_table_is_named(change: dict) -> None:
    table, _ = table_of(image_of(10), "3-of-5")
    with pytest.raises(CheckpointError):
        ShardTable.from_json({**table.to_json(), **change})
    with pytest.raises(CheckpointError, match="cannot be read"):
        ShardTable.from_json({})
