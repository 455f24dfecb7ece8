"""Saves checkpoints as fast as it can, until it is killed.

A server forks the writers, so that torch is imported once. It runs no thread of its own.
"""

import os
import sys
from pathlib import Path

from farstep.train.checkpoint import Checkpoint, CheckpointFolder
from tests.unit.train.checkpoint.states import state_of


def serve(folder: str) -> None:
    """Starts a writer for every line of the input; says when it has begun, what it saved and when it is gone."""
    for _ in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            write(Path(folder), writing)
        os.close(writing)
        print(child, flush=True)
        with open(reading) as said:
            for line in said:
                print(line, end="", flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


def write(folder: Path, to: int) -> None:
    """Never returns; whole lines alone are said, each in one write."""
    whole, _ = CheckpointFolder(folder).survey()
    step = whole[0].step if whole else 0
    with Checkpoint(folder, keep_last=2) as checkpoint:
        checkpoint.on_event = lambda kind, fields: (
            kind == "checkpoint_saved" and os.write(to, f"{fields['step']}\n".encode())
        )
        os.write(to, b"begun\n")
        while True:
            step += 1
            checkpoint.save(step, state_of(step, size=200_000)).wait()
