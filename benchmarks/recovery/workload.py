"""The model that every system trains in the recovery benchmarks. Needs torch alone: rivals' interpreters load it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

WIDTHS = {"small": 512, "big": 2944}
"""Width of two hidden layers: 0.56 and 18.2 million parameters with 256 inputs and 64 outputs."""
INPUTS, OUTPUTS, SAMPLES = 256, 64, 16384
TEMPERATURE = 8.0
"""Of the teacher, whose outputs have a deviation of 16: its classes stay uncertain, so that the loss has a floor,
as that of a language model does, however often the samples are seen."""


def make_model(size: str) -> nn.Sequential:
    """The same weights in every process."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    width = WIDTHS[size]
    return nn.Sequential(
        nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, OUTPUTS)
    )


def make_samples() -> tuple[Tensor, Tensor]:
    """Inputs of shape (samples, 256) and probabilities of shape (samples, 64), the same in every process."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    teacher = torch.randn(INPUTS, OUTPUTS, generator=generator)
    return inputs, (inputs @ teacher / TEMPERATURE).softmax(dim=1)


def loss_floor() -> float:
    """The loss of the teacher itself: the mean entropy of its classes, in nats."""
    _, targets = make_samples()
    return torch.special.entr(targets).sum(dim=1).mean().item()


class Record:
    """Writes what a worker does, line by line, so that nothing is lost when it is killed.

    Args:
        path: file of JSON lines.
    """

    def __init__(self, path: str) -> None:
        self._file: IO[str] = Path(path).open("a", buffering=1)  # noqa: SIM115 - open until the process is killed

    def write(self, kind: str, **fields: Any) -> None:
        """Adds a line with the time of the machine's monotonic clock, which all processes share."""
        self._file.write(
            json.dumps({"t_ns": time.monotonic_ns(), "kind": kind, "pid": os.getpid()} | fields) + "\n"
        )
