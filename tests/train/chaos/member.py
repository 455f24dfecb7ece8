"""A member of a chaos run: a small model, which tells of every attempt at a step and of every commit.

Lines it writes, all with its name and the machine's monotonic time:

* `member`: its identity, also after it has come back as another.
* `try`: before an attempt: step, generation, seat, and the samples in hand.
* `commit`: what was committed here, whether computed, rolled forward or applied from what others reduced.
* `have`: a state was loaded that has so many committed steps.
* `end`: committed steps and digest of the whole state at the end.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import farstep
from farstep.lab.client import EmulatorClient
from farstep.train.healing import state_digest
from tests.train.chaos import clocks

__all__ = ["BATCH", "SAMPLES", "main", "solo"]

SAMPLES, BATCH = 960, 48
"""All batches of an epoch are whole, so that every seat has samples of its own in every step."""

TEMPERATURE = 2.5
"""Of the teacher, whose outputs have a deviation of 5: its classes stay uncertain. Otherwise a long run learns the
samples by heart, and what is left of its loss is the noise of single steps."""

DIGEST_EVERY = 5
"""Steps between digests of the whole state."""


def make_data() -> TensorDataset:
    """Inputs, probabilities of their classes by a fixed rule, and the number of each sample."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 24, generator=generator)
    teacher = torch.randn(24, 8, generator=generator)
    return TensorDataset(inputs, (inputs @ teacher / TEMPERATURE).softmax(dim=1), torch.arange(SAMPLES))


def make_model() -> nn.Module:
    """The same weights in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)
    )


class _Voice:
    def __init__(self, name: str) -> None:
        self._name = name

    def say(self, kind: str, **values: Any) -> None:
        line = {"name": self._name, "t": time.monotonic(), "kind": kind, **values}
        os.write(1, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _expose(run: farstep.Run, control: str, site: str, voice: _Voice) -> None:
    """Has members of other sites come through the emulated network."""
    with EmulatorClient(control, timeout_s=30.0) as emulator:
        for plane, (host, port) in enumerate(run.endpoint.ports):
            ways = emulator.expose(site, plane, (host, port))
            run.endpoint.set_public_addresses(plane, {a: way for a, way in ways.items() if a != site})
            voice.say("port", site=site, plane=plane, address=[host, port])


def _watch_state(trainer: farstep.Trainer, voice: _Voice) -> None:
    """Tells of every change of the replica's state, whoever makes it."""
    state: Any = trainer.state
    apply, restore = state.apply, state.restore

    def noted_apply(meta: Any) -> None:
        apply(meta)
        more = {"digest": state_digest(state.capture())} if state.committed % DIGEST_EVERY == 0 else {}
        voice.say("commit", **meta.to_json(), **more)

    def noted_restore(values: Any, **options: Any) -> None:
        restore(values, **options)
        voice.say("have", committed=state.committed)

    state.apply, state.restore = noted_apply, noted_restore


def main(order: dict[str, Any]) -> int:
    """Trains until the run is ended, or this member leaves it."""
    name, folder = order["name"], Path(order["folder"])
    voice = _Voice(name)
    clocks.install(order["seed"])
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
    logging.basicConfig(level="INFO", format=f"%(asctime)s {name} %(name)s %(message)s")
    torch.set_num_threads(1)
    run = farstep.join()
    _expose(run, order["emulator"], order["env"]["FARSTEP_SITE"], voice)
    model = make_model()
    trainer = farstep.Trainer(
        run,
        model,
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        policy=farstep.Synchronous(step_deadline_s=order["step_deadline_s"]),
        clip_norm=1.0,
        checkpoint=farstep.Checkpoint(folder / "checkpoints", every_steps=order["checkpoint_every"]),
    )
    _watch_state(trainer, voice)
    voice.say("member", member_id=run.member_id)
    known, form, stop = run.member_id, order["form"], folder / "stop"

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        nonlocal known
        place = trainer.place
        if run.member_id != known:
            known = run.member_id
            voice.say("member", member_id=known)
        if place is not None:
            samples = batch[2].tolist()
            voice.say("try", step=place.step, g=place.generation, seat=place.seat, samples=samples)
        time.sleep(order["compute_s"])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    for batch in run.shard(make_data(), batch_size=BATCH, epochs=1_000_000, seed=order["data_seed"]):
        if form == "batch":
            trainer.step(loss_of, batch)
        else:
            trainer.step(lambda batch=batch: loss_of(batch))
        if stop.exists():
            run.end()
    voice.say("end", committed=trainer.committed, digest=state_digest(trainer.state.capture()))
    run.close()
    return 0


def solo(order: dict[str, Any]) -> int:
    """Trains undisturbed, alone, for so many steps; only the random numbers that the model draws differ."""
    voice = _Voice(order["name"])
    torch.set_num_threads(1)
    run = farstep.join()
    model = make_model()
    trainer = farstep.Trainer(
        run, model, torch.optim.AdamW(model.parameters(), lr=2e-3), clip_norm=1.0, seed=order["seed"]
    )
    losses = []
    for inputs, targets, _ in run.shard(
        make_data(), batch_size=BATCH, steps=order["steps"], seed=order["data_seed"]
    ):
        losses.append(
            trainer.step(lambda x=inputs, y=targets: nn.functional.cross_entropy(model(x), y)).hex()
        )
    for start in range(0, len(losses), 100):
        voice.say("calm", losses=losses[start : start + 100])
    run.close()
    return 0
