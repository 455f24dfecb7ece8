"""Whole runs to the end, as a user starts them."""

import sys
from pathlib import Path

from farstep.train.config_file import load_config

TWO_RANKS = '[[sites]]\nname = "east"\nreplica_groups = 1\n[[sites]]\nname = "west"\nreplica_groups = 1\n'
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def test_two_runs_of_one_seed_end_with_the_same_bits_even_at_the_same_time(start):
    runs = [start(TWO_RANKS, "--no-report"), start(TWO_RANKS, "--no-report", "--seed", "1")]
    hashes = []
    for run in runs:
        assert run.end() == 0, run.stderr
        assert run.end_event["status"] == "finished"
        hashes.append(run.end_event["replica_hashes"])
    assert set(hashes[0]) == {"east-0", "west-0"}
    assert len({value for both in hashes for value in both.values()}) == 1


def test_four_ranks_at_two_sites_ride_through_a_cut_and_end_bit_identical(start):
    cut = '[[faults]]\nkind = "path_down"\npath = "east-west:1"\nat_step = 10\nduration_steps = 10\n'
    run = start(cut, steps=40)
    assert run.end() == 0, run.stderr
    assert "All 4 replicas hold bit-identical parameters" in " ".join(run.stdout.split())
    assert len(set(run.end_event["replica_hashes"].values())) == 1
    steps = run.events("step")
    assert [event["step"] for event in steps] == list(range(40))
    assert all(event["tokens"] == 4 * 2 * 16 for event in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert [(event["action"], event["step"]) for event in run.events("fault")] == [
        ("applied", 10),
        ("reverted", 20),
    ]
    samples = run.events("path_sample")
    assert {event["path"] for event in samples} >= {f"east-west:{plane}" for plane in range(4)}
    assert sum(event["tx_bytes_per_s"] for event in samples) > 0
    (begin,) = run.events("run_start")
    assert begin["sites"] == {"east": [0, 1], "west": [2, 3]}
    assert len(begin["text_sha256"]) == 64
    assert load_config(run.folder / "config.toml").run.steps == 40
    assert "<html" in (run.folder / "report.html").read_text()


def test_it_runs_under_torchrun(start):
    run = start(TWO_RANKS, "--no-report", command=(TORCHRUN, "--nproc-per-node", "2", "-m", "farstep"))
    assert run.end() == 0, run.stderr
    assert run.stdout.count("bit-identical") == 1
    assert run.end_event["status"] == "finished"
    assert len(run.end_event["replica_hashes"]) == 2


def test_a_group_of_the_wrong_size_is_told_so_once_per_rank(start):
    run = start(TWO_RANKS, command=(TORCHRUN, "--nproc-per-node", "1", "-m", "farstep"))
    assert run.end() != 0
    assert "error: environment: WORLD_SIZE = 1: must be 2" in run.stderr
    assert "torchrun --nproc-per-node 2" in run.stderr
