"""Batches that worker processes load ahead of time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from farstep.train.place import Place
from farstep.train.shard import Shard
from tests.unit.train.shard.datasets import Augmented, Counted, Fragile, Numbers, WithPid, as_list
from tests.unit.train.shard.test_shard import Seat, run_through

WORKERS = {"num_workers": 2, "collate_fn": as_list, "batch_size": 8, "shuffle": True}


@pytest.fixture
def shards():
    made: list[Shard] = []

    def make(dataset, seat=None, loader=None, **settings) -> Shard:
        one = Shard(DataLoader(dataset, **{**WORKERS, **(loader or {})}), place=seat or Seat(), **settings)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.mark.slow
def test_workers_load_the_same_batches_over_epochs(shards) -> None:
    here = Shard(Augmented(30), place=Seat(), batch_size=8, collate_fn=as_list, epochs=3)
    expected = [torch.stack(batch) for batch in run_through(here)]
    loaded = [torch.stack(batch) for batch in run_through(shards(Augmented(30), epochs=3))]
    assert len(loaded) == 12
    assert all(torch.equal(one, other) for one, other in zip(loaded, expected, strict=True))


def test_it_is_the_workers_that_load(shards) -> None:
    one = shards(WithPid(40))
    processes = {pid for batch in run_through(one) for pid in batch}
    assert os.getpid() not in processes
    assert len(processes) == 2
    one.close()
    deadline = time.monotonic() + 10
    while any(_exists(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_exists(pid) for pid in processes)
    assert len(run_through(one)) == 5  # starts new ones


def test_batches_are_loaded_once_while_nothing_changes(shards, tmp_path: Path) -> None:
    one = shards(Counted(48, str(tmp_path / "count")), steps=12)
    run_through(one)
    one.close()
    ahead = 4 * 8  # two batches for each of two workers are under way at the end
    assert 12 * 8 <= (tmp_path / "count").stat().st_size <= 12 * 8 + ahead


@pytest.mark.parametrize("init", [None, as_list])
def test_wrong_guesses_are_dropped_when_seats_change(shards, init) -> None:
    """Steps fail, seats change, a state is loaded: what is handed out is always what the ledger says."""
    seat = Seat(0, 1)
    loader = {"worker_init_fn": lambda worker: None} if init else {}
    one = shards(Numbers(200), seat=seat, loader=loader)
    kept = one.state_dict()
    for number, (place, commits) in enumerate(
        [
            (Place(0, 1), True),
            (Place(0, 2), False),
            (Place(0, 2), False),
            (Place(1, 2), True),
            (Place(1, 3), True),
            (Place(1, 3), False),
            (Place(0, 1), True),
            *[(Place(0, 1), True)] * 8,
        ]
    ):
        seat.place = place
        if number == 6:
            one.load_state_dict(kept)
        batch = one.redeal()
        assert batch == one.ledger.indices(one.deal, place.seat).tolist()
        if commits:
            one.ledger.commit(one.deal)


def test_the_batch_of_a_retry_is_loaded_afresh(shards) -> None:
    """The failed step may have changed the tensors of its batch in place."""
    one = shards(Augmented(40))
    first = one.redeal()
    before = torch.stack(first).clone()
    for sample in first:
        sample.zero_()
    assert torch.equal(torch.stack(one.redeal()), before)


def test_a_sample_that_cannot_be_loaded_ends_in_its_own_error(shards) -> None:
    with pytest.raises(ValueError, match="sample 7 is broken"):
        run_through(shards(Fragile(30)))


def test_a_broken_sample_of_a_wrong_guess_disturbs_nobody(shards) -> None:
    seat = Seat(0, 1)
    one = shards(Fragile(40), seat=seat, loader={"shuffle": False, "batch_size": 4})
    assert one.redeal() == [0, 1, 2, 3]
    one.ledger.commit(one.deal)
    seat.place = Place(0, 2)  # from here on sample 7 is somebody else's
    assert one.redeal() == [4, 5]
    one.ledger.commit(one.deal)
    assert run_through(one)[0] == [8, 9]


def test_the_generator_of_the_training_is_left_alone(shards) -> None:
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    one = shards(Numbers(16))
    run_through(one)
    assert torch.equal(torch.rand(2), expected)


PROGRAM = """
import os, sys, time
from torch.utils.data import DataLoader
from farstep.train.place import Place
from farstep.train.shard import Shard
from tests.unit.train.shard.datasets import WithPid, as_list

loader = DataLoader(WithPid(100), batch_size=2, num_workers=2, collate_fn=as_list)
shard = Shard(loader, place=lambda: Place(0, 1))
workers = set()
for batch in shard:
    workers.update(batch)
    shard.ledger.commit(shard.deal)
    if len(workers) == 2:
        break
print(*workers, flush=True)
time.sleep(60)
"""


def test_workers_die_with_a_killed_trainer() -> None:
    """They hold copies of its sockets: while they live, nobody hears that it is gone."""
    trainer = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 2
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.communicate()
    deadline = time.monotonic() + 3  # their own check of the parent comes every 5 s
    while any(_exists(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_exists(pid) for pid in workers)


def _exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
