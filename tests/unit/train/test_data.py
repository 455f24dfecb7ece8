"""The text: its split, and which window each rank reads when."""

import hashlib
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.train import ConfigError
from farstep.train.data import BLOCK_BYTES, Sampler, held_out_windows, load_corpus


def corpus(path, **changes):
    settings = {"held_out_fraction": 0.05, "context_bytes": 16, **changes}
    return load_corpus(str(path), **settings)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(
        np.random.default_rng(1).integers(0, 256, 50 * BLOCK_BYTES + 123, dtype=np.uint8).tobytes()
    )
    return path


def test_the_split_is_the_same_every_time_and_loses_nothing(text_file):
    first, second = corpus(text_file), corpus(text_file)
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.held_out, second.held_out)
    assert first.length_bytes == text_file.stat().st_size
    assert first.sha256 == hashlib.sha256(text_file.read_bytes()).hexdigest()
    everything = np.frombuffer(text_file.read_bytes(), np.uint8)
    assert np.array_equal(
        np.bincount(everything, minlength=256),
        np.bincount(first.train, minlength=256) + np.bincount(first.held_out, minlength=256),
    )


@pytest.mark.parametrize("fraction", [0.02, 0.05, 0.1, 0.25, 0.4])
def test_about_the_share_asked_for_is_held_out(tmp_path, fraction: float):
    path = tmp_path / "text"
    path.write_bytes(bytes(200 * BLOCK_BYTES))
    split = corpus(path, held_out_fraction=fraction)
    assert split.held_out.size / split.length_bytes == pytest.approx(fraction, rel=0.3)


def test_held_out_blocks_are_no_part_of_the_training_text(tmp_path):
    path = tmp_path / "text"
    blocks = [f"block {index:6d}:".encode() * (BLOCK_BYTES // 13 + 1) for index in range(60)]
    path.write_bytes(b"".join(block[:BLOCK_BYTES] for block in blocks))
    split = corpus(path)
    for index in range(60):
        marker = f"block {index:6d}:".encode()
        assert (marker in split.train.tobytes()) != (marker in split.held_out.tobytes())


def test_the_standard_library_is_text_enough():
    split = load_corpus("stdlib", held_out_fraction=0.05, context_bytes=96)
    assert split.length_bytes > 3_000_000
    assert b"def " in split.train.tobytes()
    assert b"def " in split.held_out.tobytes()


def test_a_text_that_is_too_short_or_missing_is_named(tmp_path):
    short = tmp_path / "short.txt"
    short.write_bytes(b"hello")
    with pytest.raises(
        ConfigError, match=r"short\.txt: data\.text holds 5 bytes: too short .* 81920 bytes are enough"
    ):
        corpus(short)
    with pytest.raises(
        ConfigError, match=r'none: data\.text cannot be read: No such file .*valid: a file, or "stdlib"'
    ):
        corpus(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"data\.text cannot be read: Is a directory"):
        corpus(tmp_path)


def test_a_pipe_is_refused_because_every_rank_reads_the_text(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/null"):
        with pytest.raises(ConfigError, match=f"^{name}: data.text is not a regular file"):
            load_corpus(name, held_out_fraction=0.05, context_bytes=96)


def test_as_much_text_as_the_message_asks_for_is_enough(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(81920))
    assert corpus(path).held_out.size == BLOCK_BYTES


@settings(max_examples=60)
@given(
    size=st.integers(50, 3000),
    context=st.integers(1, 16),
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 3),
)
def test_an_epoch_reads_every_window_once(size: int, context: int, seed: int, epoch: int):
    sampler = Sampler(np.zeros(size, np.uint8), seed=seed, context_bytes=context)
    windows = sampler.windows_per_epoch
    starts = sorted(sampler.start_of(epoch * windows + index) for index in range(windows))
    assert starts[0] >= 0
    assert starts[-1] + context + 1 <= size
    assert all(after - before == context for before, after in itertools.pairwise(starts))


@given(seed=st.integers(0, 1000), step=st.integers(0, 500), ranks=st.sampled_from([1, 2, 4]))
def test_the_ranks_of_a_step_share_out_the_same_windows_whatever_their_number(
    seed: int, step: int, ranks: int
):
    text = np.arange(5000, dtype=np.int64).astype(np.uint8)
    sampler = Sampler(text, seed=seed, context_bytes=7)
    together = sampler.batch(step * 8, 8)
    each = 8 // ranks
    apart = [sampler.batch(step * 8 + rank * each, each) for rank in range(ranks)]
    assert np.array_equal(together, np.concatenate(apart))
    assert together.shape == (8, 8)


def test_another_seed_or_epoch_is_another_order():
    text = np.zeros(4000, np.uint8)
    orders = {
        tuple(Sampler(text, seed=seed, context_bytes=8).start_of(epoch * 498 + index) for index in range(20))
        for seed in range(5)
        for epoch in range(2)
    }
    assert len(orders) == 10


def test_held_out_windows_do_not_overlap_and_are_at_most_as_many_as_there_are(text_file):
    split = corpus(text_file)
    windows = held_out_windows(split, 16, 10)
    assert windows.shape == (10, 17)
    assert windows.dtype == np.uint8
    everything = held_out_windows(split, 16, 10**6)
    assert len(everything) == split.held_out.size // 17
    assert np.array_equal(everything.reshape(-1), split.held_out[: everything.size])
