import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from farstep.train.errors import ConfigError
from farstep.train.place import Place
from farstep.train.shard import Shard
from tests.unit.train.shard.datasets import Augmented, Fragile, InBatches, Numbers, Stream, as_list


class Seat:
    """A place that a test may change."""

    def __init__(self, seat: int = 0, seats: int = 1, **inner: int) -> None:
        self.place: Place | None = Place(seat, seats, **inner)

    def __call__(self) -> Place | None:
        return self.place


def shard(source=None, seat=None, **settings) -> Shard:
    settings = {"collate_fn": as_list, **settings}
    if source is None or not isinstance(source, DataLoader):
        settings = {"batch_size": 8, **settings}
    return Shard(source or Numbers(30), place=seat or Seat(), **settings)


def joined(batches: list[list]) -> list:
    return list(itertools.chain.from_iterable(batches))


def run_through(a_shard: Shard) -> list[list[int]]:
    batches = []
    for batch in a_shard:
        batches.append(batch)
        a_shard.ledger.commit(a_shard.deal)
    return batches


def test_a_loop_is_an_epoch() -> None:
    one = shard()
    first, second = run_through(one), run_through(one)
    assert [len(batch) for batch in first] == [8, 8, 8, 6]
    assert sorted(joined(first)) == sorted(joined(second)) == list(range(30))
    assert first != second
    assert len(one) == 4


def test_a_resumed_loop_is_the_rest_of_the_epoch() -> None:
    whole, begun, resumed = shard(), shard(), shard()
    batches = run_through(whole)
    for _ in zip(range(2), begun, strict=False):
        begun.ledger.commit(begun.deal)
    resumed.load_state_dict(begun.state_dict())
    assert run_through(resumed) == batches[2:]


def test_epochs_and_steps_count_for_the_whole_run() -> None:
    assert len(run_through(shard(epochs=3))) == 12
    assert len(run_through(shard(steps=6, epochs=3))) == len(run_through(shard(steps=6))) == 6
    assert len(run_through(shard(steps=6, epochs=1))) == 4
    resumed = shard(epochs=2)
    begun = shard()
    run_through(begun)
    resumed.load_state_dict(begun.state_dict())
    assert len(run_through(resumed)) == 4
    assert run_through(resumed) == []
    assert run_through(shard(steps=0)) == []


def test_without_a_place_the_loop_ends() -> None:
    seat = Seat()
    one = shard(seat=seat)
    batches = []
    for batch in one:
        batches.append(batch)
        one.ledger.commit(one.deal)
        if len(batches) == 2:
            seat.place = None
    assert len(batches) == 2
    with pytest.raises(RuntimeError, match="the run is over"):
        one.redeal()


def test_a_failed_step_is_dealt_again_to_the_seats_of_then() -> None:
    seats = [Seat(seat, 3) for seat in range(3)]
    shards = [shard(seat=seat, batch_size=9) for seat in seats]
    loops = [iter(one) for one in shards]
    before = [next(loop) for loop in loops]
    for number, seat in enumerate(seats[:2]):  # seat 2 died, nothing was committed
        seat.place = Place(number, 2)
    after = [next(loop) for loop in loops[:2]]
    again = [one.redeal() for one in shards[:2]]
    assert joined(before) == joined(after) == joined(again)
    assert [len(part) for part in after] == [5, 4]
    assert shards[0].weight + shards[1].weight == 1
    assert [one.num_samples for one in shards[:2]] == [5, 4]
    assert not shards[0].deal.is_even
    assert shards[0].place == Place(0, 2)


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30),
    batch_size=st.integers(1, 12),
    num_inner=st.integers(1, 3),
    batch=st.sampled_from(["global", "per_group"]),
)
def test_seats_and_their_processes_share_every_sample_once(changes, batch_size, num_inner, batch) -> None:
    """Ranks of all seats, whose number changes while some steps fail: an epoch is used once."""
    seats = {(s, i): Seat() for s in range(5) for i in range(num_inner)}
    ranks = {
        key: shard(seat=seat, batch_size=batch_size, batch=batch, seed=3, collate_fn=as_list)
        for key, seat in seats.items()
    }
    used: Counter[int] = Counter()
    changes = [*changes, *[(2, True)] * 31]
    for num_seats, commits in changes:
        present = [key for key in ranks if key[0] < num_seats]
        for seat, inner in seats:
            seats[seat, inner].place = Place(seat, num_seats, inner, num_inner)
        if ranks[0, 0].ledger.epoch > 0:
            break
        taken: Counter[int] = Counter()
        for key in present:
            samples = ranks[key].redeal()
            assert len(samples) == max(1, ranks[key].num_samples)
            taken.update(samples[: ranks[key].num_samples])
        own_scale = [ranks[0, inner].inner_scale for inner in range(num_inner)]
        assert sum(own_scale) / num_inner == pytest.approx(1)
        assert taken.total() == ranks[0, 0].deal.total
        if commits:
            used += taken
            record = ranks[0, 0].ledger.commit(ranks[0, 0].deal)
            for key in ranks:  # those without a seat follow what was committed
                if key != (0, 0):
                    ranks[key].ledger.replay(record)
    assert ranks[0, 0].ledger.epoch == 1
    assert used == Counter(range(30))


def test_a_seat_without_samples_gets_a_stand_in() -> None:
    one = shard(seat=Seat(2, 3), batch_size=2)
    batch = one.redeal()
    assert len(batch) == 1
    assert one.num_samples == 0
    assert one.weight == 0
    assert batch[0] == one.ledger.indices(one.deal, 0)[0]


def test_processes_of_a_seat_may_all_get_the_whole_part() -> None:
    parts = [shard(seat=Seat(1, 2, inner_rank=i, num_inner=2), inner="same").redeal() for i in range(2)]
    assert parts[0] == parts[1]
    assert len(parts[0]) == 4


def test_random_draws_of_a_sample_do_not_depend_on_who_loads_it() -> None:
    alone = torch.cat([torch.stack(batch) for batch in run_through(shard(Augmented(30)))])
    pairs = [shard(Augmented(30), seat=Seat(seat, 2)) for seat in range(2)]
    both = torch.cat([torch.stack(batch) for one in pairs for batch in run_through(one)])
    assert torch.equal(alone[alone[:, 0].argsort()], both[both[:, 0].argsort()])
    assert len(alone[:, 1].unique()) == len(alone[:, 2].unique()) == len(alone[:, 3].unique()) == 30


def test_draws_of_an_epoch_are_new_and_those_of_the_training_untouched() -> None:
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    one = shard(Augmented(30))
    first, second = (torch.stack(joined(run_through(one))) for _ in range(2))
    assert torch.equal(torch.rand(3), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]
    assert not torch.equal(first[first[:, 0].argsort()], second[second[:, 0].argsort()])


def test_a_data_set_may_be_asked_for_whole_batches() -> None:
    assert sorted(joined(run_through(shard(InBatches(30))))) == list(range(1000, 1030))


def test_a_loader_brings_its_settings() -> None:
    loader = DataLoader(Numbers(30), batch_size=7, shuffle=False, drop_last=True, collate_fn=as_list)
    one = Shard(loader, place=Seat())
    assert run_through(one) == [list(range(start, start + 7)) for start in (0, 7, 14, 21)]
    assert len(one) == 4
    overridden = Shard(loader, place=Seat(), batch_size=10, drop_last=False, collate_fn=sum, shuffle=True)
    assert sum(run_through(overridden)) == sum(range(30))
    plain = Shard(DataLoader(TensorDataset(torch.arange(6)), batch_size=3), place=Seat())
    assert [batch[0].tolist() for batch in run_through(plain)] == [[0, 1, 2], [3, 4, 5]]


def test_the_sampler_of_a_loader_says_whether_to_shuffle() -> None:
    numbers = Numbers(30)
    assert Shard(DataLoader(numbers, batch_size=5, shuffle=True), place=Seat()).ledger.shuffle
    assert not Shard(DataLoader(numbers, batch_size=5), place=Seat()).ledger.shuffle
    for shuffle in (True, False):
        sampler = DistributedSampler(numbers, num_replicas=2, rank=1, shuffle=shuffle)
        assert (
            Shard(DataLoader(numbers, batch_size=5, sampler=sampler), place=Seat()).ledger.shuffle == shuffle
        )
    subset = Shard(DataLoader(Subset(numbers, [3, 5, 8]), batch_size=2, collate_fn=as_list), place=Seat())
    assert run_through(subset) == [[3, 5], [8]]


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (Stream(), {"batch_size": 2}, "Stream is an iterable data set.*valid: a data set with __len__"),
        (DataLoader(Stream(), batch_size=2), {}, "iterable data set"),
        (7, {"batch_size": 2}, "int, which has no __len__; valid"),
        (Numbers(0), {"batch_size": 2}, "0 samples"),
        (Numbers(5), {}, "batch_size is None; valid: a whole number"),
        (Numbers(5), {"batch_size": 0}, "batch_size is 0"),
        (Numbers(5), {"batch_size": True}, "batch_size is True"),
        (Numbers(5), {"batch_size": 2.5}, r"batch_size is 2\.5"),
        (Numbers(5), {"batch_size": 2, "inner": "both"}, 'valid: "split", "same"'),
        (Numbers(5), {"batch_size": 2, "epochs": -1}, "epochs is -1"),
        (DataLoader(Numbers(5), batch_size=None), {}, "batch_size=None"),
        (
            DataLoader(Numbers(5), sampler=WeightedRandomSampler([1.0] * 5, 5), batch_size=2),
            {},
            "sampler WeightedRandomSampler.*Subset",
        ),
        (
            DataLoader(Numbers(5), sampler=RandomSampler(Numbers(5), replacement=True), batch_size=2),
            {},
            "with replacement",
        ),
        (
            DataLoader(
                Numbers(5),
                batch_sampler=type("Mine", (BatchSampler,), {})(SequentialSampler(range(5)), 2, False),
            ),
            {},
            "batch sampler Mine",
        ),
    ],
)
def test_what_cannot_be_dealt_is_named(source, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Shard(source, place=Seat(), **settings)


def test_there_is_no_deal_before_the_first_batch() -> None:
    one = shard(batch="per_group")
    with pytest.raises(RuntimeError, match="iterate over the shard first"):
        _ = one.deal
    with pytest.raises(RuntimeError, match="iterate over the shard first"):
        _ = one.place
    assert one.num_samples == 0
    with pytest.raises(TypeError, match="depends on the members"):
        len(one)


def test_a_sample_that_cannot_be_loaded_ends_in_its_own_error() -> None:
    with pytest.raises(ValueError, match="sample 7 is broken"):
        run_through(shard(Fragile(30)))
