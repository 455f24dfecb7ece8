"""Text as bytes: where it comes from, what is held out, and how it is cut into windows.

The split depends on the text alone. Nothing here knows torch.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farstep.train.config import STDLIB_TEXT
from farstep.train.errors import ConfigError

__all__ = ["Corpus", "held_out_windows", "load_corpus", "training_windows"]

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


def training_windows(corpus: Corpus, context_bytes: int) -> NDArray[np.uint8]:
    """Returns all windows of the training text, each of which begins with the last byte of the one before.

    Returns:
        uint8 of shape (windows, context_bytes + 1), a view of the text: each byte but the first is predicted once.
    """
    windows: NDArray[np.uint8] = np.lib.stride_tricks.sliding_window_view(corpus.train, context_bytes + 1)
    return windows[::context_bytes]
