"""Text as bytes: where it comes from, what is held out, and which window each rank reads when.

Invariant: the split depends on the text alone, and the window behind a global sample index on
the seed and the index alone, so no sample is skipped or read twice within an epoch, whatever
the number of replica groups. Nothing here knows torch.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farstep.train.config import STDLIB_TEXT
from farstep.train.errors import ConfigError
from farstep.train.permutation import mix, permute

__all__ = ["Corpus", "Sampler", "held_out_windows", "load_corpus"]

BLOCK_BYTES = 4096
"""The text is held out in whole blocks: large enough to keep the language, small enough to spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A text split into a training part and a held-out part, both uint8 arrays of shape (bytes,)."""

    name: str
    sha256: str
    """Of the whole text before the split, as 64 hexadecimal digits."""
    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]

    @property
    def length_bytes(self) -> int:
        """Length of the whole text."""
        return self.train.size + self.held_out.size


def load_corpus(text: str, *, held_out_fraction: float, context_bytes: int) -> Corpus:
    """Reads the text and splits it.

    Args:
        text: path of a file, or "stdlib" for the top-level modules of the standard library in
            the order of their names.
        held_out_fraction: share of the blocks kept for evaluation.
        context_bytes: each part must hold at least one window of this many bytes and one more.

    Raises:
        ConfigError: the file cannot be read or is too short.
    """
    raw = _stdlib_text() if text == STDLIB_TEXT else _file_text(text)
    everything = np.frombuffer(raw, dtype=np.uint8)
    num_blocks = -(-everything.size // BLOCK_BYTES)
    stride = max(2, round(1 / held_out_fraction))
    is_held_out = np.arange(num_blocks) % stride == stride // 2
    per_byte = np.repeat(is_held_out, BLOCK_BYTES)[: everything.size]
    train, held_out = everything[~per_byte], everything[per_byte]
    if min(train.size, held_out.size) <= context_bytes:
        needed = stride * max(BLOCK_BYTES, context_bytes + 1)
        raise ConfigError(
            f"{text}: data.text holds {everything.size} bytes: too short to train on and hold out "
            f"windows of {context_bytes} bytes; {needed} bytes are enough"
        )
    return Corpus(name=text, sha256=hashlib.sha256(raw).hexdigest(), train=train, held_out=held_out)


def _stdlib_text() -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def _file_text(text: str) -> bytes:
    path = Path(text)
    try:
        if (
            path.exists() and not path.is_file() and not path.is_dir()
        ):  # a pipe, and every rank reads the text
            raise ConfigError(f'{text}: data.text is not a regular file; valid: a file, or "stdlib"')
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f'{text}: data.text cannot be read: {error.strerror or error}; valid: a file, or "stdlib"'
        ) from error


def held_out_windows(corpus: Corpus, context_bytes: int, num_windows: int) -> NDArray[np.uint8]:
    """Returns evenly spread held-out windows, the same for every seed.

    Returns:
        uint8 of shape (windows, context_bytes + 1); at most `num_windows` and never overlapping.
    """
    length = context_bytes + 1
    available = corpus.held_out.size // length
    starts = np.linspace(0, available - 1, min(num_windows, available)).astype(np.int64) * length
    windows: NDArray[np.uint8] = corpus.held_out[starts[:, None] + np.arange(length)]
    return windows


class Sampler:
    """Maps a global sample index to a window of the training text.

    Each epoch cuts the text into windows at a fresh offset and visits them in a fresh order.
    The order is a keyed permutation evaluated point by point, so any index can be read without
    drawing the ones before it.
    """

    def __init__(self, text: NDArray[np.uint8], *, seed: int, context_bytes: int) -> None:
        self._text = text
        self._seed = seed
        self._context = context_bytes
        # One window less than would fit, so that every offset of an epoch leaves the same number.
        self.windows_per_epoch = max(1, (text.size - 1) // context_bytes - 1)

    def batch(self, first_index: int, num_samples: int) -> NDArray[np.uint8]:
        """Returns the windows of consecutive sample indices, uint8 (samples, context_bytes + 1)."""
        starts = np.array([self.start_of(first_index + i) for i in range(num_samples)])
        return self._text[starts[:, None] + np.arange(self._context + 1)]

    def start_of(self, sample_index: int) -> int:
        """Returns the offset in bytes at which the window of a sample begins."""
        epoch, position = divmod(sample_index, self.windows_per_epoch)
        room = self._text.size - self.windows_per_epoch * self._context
        offset = mix(self._seed, epoch, 0) % max(1, min(self._context, room))
        return int(offset + self._context * permute(position, self.windows_per_epoch, self._seed, epoch))
