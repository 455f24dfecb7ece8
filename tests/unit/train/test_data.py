"""The text: its split, and its windows."""

import hashlib
import os

import numpy as np
import pytest

from farstep.train import ConfigError
from farstep.train.data import BLOCK_BYTES, held_out_windows, load_corpus, training_windows


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


def test_the_windows_of_the_training_text_predict_every_byte_once(text_file):
    split = corpus(text_file)
    windows = training_windows(split, 16)
    assert windows.shape == ((split.train.size - 1) // 16, 17)
    assert np.shares_memory(windows, split.train)
    predicted = windows[:, 1:].reshape(-1)
    assert np.array_equal(predicted, split.train[1 : 1 + predicted.size])
    assert np.array_equal(windows[1:, 0], windows[:-1, -1])


def test_held_out_windows_do_not_overlap_and_are_at_most_as_many_as_there_are(text_file):
    split = corpus(text_file)
    windows = held_out_windows(split, 16, 10)
    assert windows.shape == (10, 17)
    assert windows.dtype == np.uint8
    everything = held_out_windows(split, 16, 10**6)
    assert len(everything) == split.held_out.size // 17
    assert np.array_equal(everything.reshape(-1), split.held_out[: everything.size])
