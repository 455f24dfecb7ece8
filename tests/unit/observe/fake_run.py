"""A made-up run that looks like the demo: four ranks, two sites, eight paths, one of them cut on the way."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from farstep.observe.events import (
    Eval,
    Event,
    FaultEvent,
    MembersChanged,
    PathSample,
    PathState,
    PathStateChange,
    RankLost,
    Record,
    RunEnd,
    RunStart,
    Step,
)

START_WALL = "2026-03-01T12:00:00.000000+00:00"
NUM_RANKS = 4
NUM_PATHS = 8
CUT_PATH = 3
STEP_NS = 210_000_000
SAMPLE_NS = 250_000_000


def fake_run(
    *, num_steps: int = 400, cut: tuple[int, int] = (150, 230), seed: int = 1, identical: bool = True
) -> Iterator[Record]:
    """Yields the records of a run in order of time; `cut` names the steps between which a path is dead."""
    rng = random.Random(seed)
    events: list[tuple[int, int | None, Event]] = [(0, None, run_start(num_steps))]
    now_ns = 1_200_000_000
    cut_ns = [0, 0]
    loss = 5.5
    for step in range(num_steps):
        step_ns = round(STEP_NS * rng.lognormvariate(0, 0.06)) + (900_000_000 if step == 0 else 0)
        if step in cut:
            at_ns = cut_ns[cut.index(step)] = now_ns + step_ns // 3
            step_ns += 60_000_000 if step == cut[0] else 8_000_000
            events += fault_records(at_ns, step, applied=step == cut[0])
        now_ns += step_ns
        for rank in range(NUM_RANKS):
            loss = 1.55 + 4.0 * math.exp(-step / 60) + 0.5 * math.exp(-step / 400) + rng.gauss(0, 0.03)
            late_ns = rng.randrange(1_500_000)
            events.append(
                (
                    now_ns + late_ns,
                    rank,
                    Step(
                        step=step,
                        loss=loss,
                        tokens=2048,
                        step_time_ns=step_ns + late_ns,
                        allreduce_ns=round(step_ns * rng.uniform(0.22, 0.3)),
                    ),
                )
            )
        if (step + 1) % 50 == 0:
            held_out = 1.62 + 4.0 * math.exp(-step / 60) + 0.5 * math.exp(-step / 400)
            events.append((now_ns + 4_000_000, None, Eval(step=step + 1, loss=held_out)))
    events += path_samples(now_ns, cut_ns[0], cut_ns[1], rng)
    hashes = {f"replica {rank}": "9f2c61d07be3a845" for rank in range(NUM_RANKS)}
    if not identical:
        hashes["replica 2"] = "0b77aa12cc90d3fe"
    events.append(
        (
            now_ns + 300_000_000,
            None,
            RunEnd(
                status="finished",
                steps=num_steps,
                final_loss=loss,
                held_out_loss=1.71,
                replica_hashes=hashes,
            ),
        )
    )
    events.sort(key=lambda entry: entry[0])
    for t_ns, rank, event in events:
        yield Record(t_ns, START_WALL, rank, event)


def run_start(num_steps: int) -> RunStart:
    """The first event."""
    return RunStart(
        name="two sites, one cut path",
        config={
            "model": {"layers": 4, "width": 128, "heads": 4, "context": 128},
            "training": {"steps": num_steps, "batch_tokens": 8192, "learning_rate": 3e-3, "seed": 7},
            "sites": {"a": [0, 1], "b": [2, 3]},
            "faults": [{"kind": "path_down", "path": CUT_PATH, "at_step": 150, "duration_steps": 80}],
        },
        versions={"farstep": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu", "numpy": "2.4.6"},
        ranks=NUM_RANKS,
        replicas=NUM_RANKS,
        sites={"a": [0, 1], "b": [2, 3]},
        steps_planned=num_steps,
        parameters=1_214_208,
        tokens_per_step=8192,
        text_name="Python standard library sources",
        text_bytes=4_718_592,
        text_sha256="5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
    )


def fault_records(at_ns: int, step: int, *, applied: bool) -> list[tuple[int, int | None, Event]]:
    """The cut or the repair, and what the ranks make of it a few milliseconds later."""
    path = f"path {CUT_PATH}"
    good, bad = PathState.GOOD, PathState.ASSUMED_BAD
    records: list[tuple[int, int | None, Event]] = [
        (
            at_ns,
            None,
            FaultEvent(
                action="applied" if applied else "reverted",
                fault_id=0,
                fault="path_down",
                target=path,
                step=step,
            ),
        )
    ]
    for rank in range(NUM_RANKS):
        change = PathStateChange(
            path=path,
            plane=CUT_PATH // 2,
            old=good if applied else bad,
            new=bad if applied else good,
            cause="timeout" if applied else "probe answered",
        )
        records.append((at_ns + (4 + rank) * 1_000_000, rank, change))
    return records


def path_samples(
    end_ns: int, cut_ns: int, restored_ns: int, rng: random.Random
) -> list[tuple[int, int | None, Event]]:
    """What every rank saw on every path, four times a second."""
    samples: list[tuple[int, int | None, Event]] = []
    for rank in range(NUM_RANKS):
        for t_ns in range(SAMPLE_NS, end_ns, SAMPLE_NS):
            is_cut = cut_ns < t_ns <= restored_ns
            is_first = is_cut and t_ns - cut_ns <= SAMPLE_NS
            for index in range(NUM_PATHS):
                is_dead = is_cut and index == CUT_PATH
                share = 0.0 if is_dead else (NUM_PATHS / (NUM_PATHS - 1) if is_cut else 1.0)
                rate = 1.1e6 * share * rng.uniform(0.85, 1.15)
                samples.append(
                    (
                        t_ns + rank * 3_000_000,
                        rank,
                        PathSample(
                            path=f"path {index}",
                            plane=index // 2,
                            state=PathState.ASSUMED_BAD if is_dead else PathState.GOOD,
                            tx_bytes_per_s=rate,
                            retransmitted=17 if is_first and is_dead else int(rng.random() < 0.02),
                            lost=17 if is_first and is_dead else 0,
                            rtt_ns=None if is_dead else 20_300_000 + index * 700_000,
                        ),
                    )
                )
    return samples


def with_loss(records: list[Record], *, at_step: int = 100) -> list[Record]:
    """The same run, in which rank 3 is killed at a step; a later end names three replicas."""
    steps = [record.t_ns for record in records if isinstance(record.event, Step)]
    lost_ns, back_ns = steps[at_step * NUM_RANKS], steps[(at_step + 1) * NUM_RANKS]
    groups = ["a-0", "a-1", "b-0"]
    told: list[Record] = [
        Record(lost_ns, START_WALL, 3, RankLost(group="b-1", cause="was killed by SIGKILL", step=at_step))
    ]
    for rank in range(3):
        event = MembersChanged(
            generation=2,
            step=at_step,
            groups=groups,
            is_urgent=True,
            reason="b-1 is gone",
            changes=["b-1 is gone"],
            stalled_ns=(200 + rank) * 1_000_000,
        )
        told.append(Record(back_ns + rank, START_WALL, rank, event))
    *kept, end = [record for record in records if record.rank != 3 or record.t_ns < lost_ns]
    assert isinstance(end.event, RunEnd)
    hashes = dict(list(end.event.replica_hashes.items())[:3])
    ended = Record(end.t_ns, START_WALL, None, end.event.model_copy(update={"replica_hashes": hashes}))
    return [*sorted([*kept, *told], key=lambda record: record.t_ns), ended]
