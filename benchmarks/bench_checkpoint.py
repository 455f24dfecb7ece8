"""Checkpoints: what a step waits for, what the background costs, and how fast state is written, read and coded."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from farstep.train.checkpoint import Checkpoint
from farstep.train.checkpoint.erasure import Scheme, ShardTable, encode, rebuild, shard_hash
from farstep.train.healing.state_codec import split
from harness.measure import Report, arguments, interleave, median, parse, ratios

LAYERS = 24
WIDTH = 512


def training_state(megabytes: int) -> dict[str, object]:
    """Parameters and the two moments of Adam, in many tensors of different sizes."""
    width = int((megabytes * 1e6 / 4 / 3 / LAYERS / 12) ** 0.5)
    generator = torch.Generator().manual_seed(1)
    parameters = {}
    for layer in range(LAYERS):
        for name, shape in (
            ("attention", (4, width, width)),
            ("mlp", (8, width, width)),
            ("norm", (2, width)),
        ):
            parameters[f"{layer}.{name}"] = torch.randn(shape, generator=generator)
    moments = {i: {"exp_avg": p.clone(), "exp_avg_sq": p.clone()} for i, p in enumerate(parameters.values())}
    return {"model": parameters, "optimizer": {"state": moments}, "ledger": {"step": 1}}


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    begin_s = time.perf_counter()
    action()
    return time.perf_counter() - begin_s


def measure_stall(report: Report, folder: Path, state: dict[str, object], rounds: int) -> None:
    """A save against the copy that it cannot do without, in turns."""
    _, tensors = split(state)
    length = sum(tensor.nbytes for tensor in tensors)
    targets = [torch.empty_like(tensor) for tensor in tensors]
    steps, write_s = itertools.count(1), []
    with Checkpoint(folder, keep_last=1) as checkpoint:
        first = checkpoint.save(next(steps), state)  # makes the memory that later ones find
        first.wait()

        def bare_copy() -> float:
            return timed(
                lambda: [target.copy_(tensor) for target, tensor in zip(targets, tensors, strict=True)]
            )

        def save() -> float:
            stall_s = timed(lambda: handles.append(checkpoint.save(next(steps), state)))
            write_s.append(timed(lambda: handles[-1].wait()))
            assert handles[-1].error is None
            return stall_s

        handles: list = []
        figures = interleave(rounds, {"copy alone": bare_copy, "save": save})
        report.add("first save: the step waits", [first.stall_s * 1e3], "ms")
        for name, figure in figures.items():
            report.add(f"{name}: the step waits", [1e3 * one for one in figure], "ms")
        extra = [
            1e3 * (one - other) for one, other in zip(figures["save"], figures["copy alone"], strict=True)
        ]
        report.add("save beyond the copy", extra, "ms", tensors=len(tensors))
        found = report.add("save / copy alone", ratios(figures, "save", "copy alone"), "x")
        report.check("a step waits for little more than the copy", found, 1.5, at_least=False, unit="x")
        report.add("written and synced in the background", [length / one / 1e6 for one in write_s], "MB/s")
        info = checkpoint.newest()
        assert info is not None
        report.add("verified", [length / timed(checkpoint.newest) / 1e6 for _ in range(rounds)], "MB/s")
        report.add(
            "loaded",
            [length / timed(lambda: checkpoint.load(info, state)) / 1e6 for _ in range(rounds)],
            "MB/s",
        )


def one_step(weights: list[Tensor], batch: Tensor) -> None:
    """Something that computes as a step does: products of matrices, one after another."""
    for weight in weights:
        batch = torch.tanh(batch @ weight)


def measure_background(report: Report, folder: Path, state: dict[str, object], rounds: int) -> None:
    """Steps beside a save that is being written, against steps alone."""
    weights = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(8)]
    batch = torch.randn(512, WIDTH)
    slowdown, worst = [], []
    with Checkpoint(folder, keep_last=1) as checkpoint:
        checkpoint.save(1, state).wait()
        for number in range(rounds):
            alone = [timed(lambda: one_step(weights, batch)) for _ in range(40)]
            handle = checkpoint.save(number + 2, state)
            beside = []
            while not handle.done():
                beside.append(timed(lambda: one_step(weights, batch)))
            slowdown.append(median(beside) / median(alone))
            worst.append(1e3 * (max(beside) - median(alone)))
    report.add("a step beside the writing / alone (medians)", slowdown, "x")
    report.add("slowest step beside the writing, beyond the median", worst, "ms")


def measure_codes(report: Report, megabytes: int, rounds: int) -> None:
    """Shards of an image: each member's own, all of them, and the whole from what is left."""
    image = np.random.default_rng(1).integers(0, 256, megabytes * 1_000_000, dtype=np.uint8)
    scheme = Scheme.parse("3-of-5")
    shards = encode(image, scheme)
    table = ShardTable(
        scheme=scheme,
        owner="",
        step=1,
        length_bytes=image.nbytes,
        image_hash=shard_hash(image),
        shard_hashes=tuple(shard_hash(shards[number]) for number in range(scheme.shards)),
    )
    stored = sum(shard.nbytes for shard in shards.values()) / image.nbytes
    report.check("3-of-5: bytes stored per byte of state", stored, 1.7, at_least=False, unit="x")
    left = {number: shards[number] for number in (2, 3, 4)}
    assert np.array_equal(rebuild(table, left), image)
    actions: dict[str, Callable[[], object]] = {
        "a member's shard of data": lambda: encode(image, scheme, [1]),
        "a member's shard of code": lambda: encode(image, scheme, [4]),
        "all five shards": lambda: encode(image, scheme),
        "rebuilt after the loss of two of data": lambda: rebuild(table, left),
        "hashed (XXH3)": lambda: shard_hash(image),
    }
    figures = interleave(
        rounds,
        {name: lambda action=action: image.nbytes / timed(action) / 1e6 for name, action in actions.items()},
    )
    for name, figure in figures.items():
        report.add(f"3-of-5: {name}", figure, "MB/s")


def main() -> int:
    parser = arguments(__doc__ or "", rounds=9)
    parser.add_argument("--megabytes", type=int, default=200, help="of state (%(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one by default")
    options = parse(parser)
    torch.set_num_threads(1)
    report = Report(
        f"checkpoints of {options.megabytes} MB of state",
        f"one thread; save and bare copy in turns, median of {options.rounds}; MB/s of state",
        is_silent=options.json,
    )
    report.begin()
    folder = Path(tempfile.mkdtemp(prefix="farstep-checkpoints-", dir=options.folder))
    try:
        state = training_state(options.megabytes)
        measure_stall(report, folder / "stall", state, options.rounds)
        measure_background(report, folder / "background", state, min(options.rounds, 3))
        measure_codes(report, min(options.megabytes, 100), min(options.rounds, 5))
    finally:
        shutil.rmtree(folder)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
