"""What a step costs with farstep.Trainer against plain DDP over Gloo, without failures.

Two replica groups of one process each, under a real coordinator. In every process the same model exists twice; one
step of each library in turn, on the same batch, so that load from elsewhere hits both alike. A multilayer perceptron of
564 thousand parameters, with a batch that makes a step take about 20 ms on one thread.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.measure import Report, arguments, parse

STEPS_PER_ROUND = 40
WARM_UP_STEPS = 10
TARGET_STEP_S = 0.018
"""Forward and backward of one replica; the rest of 20 ms is exchange and optimizer."""


def main() -> int:
    parser = arguments(__doc__ or "", rounds=7)
    parser.add_argument("--groups", type=int, default=2)
    options = parse(parser)
    from farstep.train.elastic.launch import LocalJob

    report = Report(
        f"a step of {options.groups} replica groups without failures",
        f"{STEPS_PER_ROUND} pairs of steps a round, medians; median of {options.rounds} rounds",
        is_silent=options.json,
    )
    report.begin()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    job = LocalJob(command, groups=options.groups, config={"min_groups": options.groups})
    rounds = str(options.rounds)
    try:
        job.start_coordinator()
        for rank, name in enumerate(job.names):
            place = {"BENCH_RANK": str(rank), "BENCH_WORLD": str(options.groups), "BENCH_PORT": str(port)}
            job.start_member(name, env={**place, "BENCH_ROUNDS": rounds})
        job.wait(60.0 + options.rounds * 20.0)
        lines = [line for line in job.log(job.names[0]).splitlines() if line.startswith("{")]
        if not lines:
            report.say(job.log(job.names[0]))
            return 1
        figures: dict[str, list[float]] = json.loads(lines[-1])
    finally:
        job.close()
    for name in ("ddp", "farstep"):
        report.add(f"{name}, median step", figures[name], "ms")
    report.add("part of the farstep step spent waiting", figures["waited"], "ms")
    ratio = report.add("farstep / ddp, pair by pair", figures["ratio"], "")
    report.check("overhead of a step", ratio, 1.05 if options.groups == 2 else 1.2, at_least=False)
    return report.end()


def work() -> None:
    """One replica group."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import farstep

    rank, world = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_WORLD"])
    torch.set_num_threads(1)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", int(os.environ["BENCH_PORT"]), world, rank == 0, timedelta(seconds=120)
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    run = farstep.join()

    def make() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(256, 512),
            nn.GELU(),
            nn.Linear(512, 512),
            nn.GELU(),
            nn.Linear(512, 320),
            nn.Linear(320, 10),
        )
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    plain, plain_optimizer = make()
    ours, our_optimizer = make()
    batch = torch.tensor([_calibrated(plain)])
    dist.broadcast(batch, 0)
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(int(batch[0]), 256, generator=generator)
    targets = torch.randint(0, 10, (int(batch[0]),), generator=generator)
    wrapped = nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
    trainer = farstep.Trainer(run, ours, our_optimizer)

    def ddp_step() -> float:
        begin_s = time.perf_counter()
        plain_optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(wrapped(inputs), targets).backward()
        plain_optimizer.step()
        return (time.perf_counter() - begin_s) * 1e3

    def our_step() -> float:
        begin_s = time.perf_counter()
        trainer.step(lambda: nn.functional.cross_entropy(ours(inputs), targets))
        return (time.perf_counter() - begin_s) * 1e3

    for _ in range(WARM_UP_STEPS):
        ddp_step()
        our_step()
    _let_carriers_preempt()
    figures: dict[str, list[float]] = {"ddp": [], "farstep": [], "ratio": [], "waited": []}
    for _ in range(int(os.environ["BENCH_ROUNDS"])):
        theirs, own, waited = [], [], []
        for _ in range(STEPS_PER_ROUND):
            theirs.append(ddp_step())
            own.append(our_step())
            assert trainer.report is not None
            waited.append(trainer.report.waited_ns / 1e6)
        figures["ddp"].append(statistics.median(theirs))
        figures["farstep"].append(statistics.median(own))
        figures["ratio"].append(statistics.median(b / a for a, b in zip(theirs, own, strict=True)))
        figures["waited"].append(statistics.median(waited))
    print(json.dumps(figures), flush=True)
    run.close()
    dist.destroy_process_group()


def _let_carriers_preempt() -> None:
    """Under real-time scheduling nothing preempts the thread that computes, as a waking thread otherwise would.

    Threads that carry gradients, those of either library, therefore get the next higher priority.
    """
    if os.sched_getscheduler(0) != os.SCHED_FIFO:
        return
    higher = os.sched_param(os.sched_getparam(0).sched_priority + 1)
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, higher)


def _calibrated(model: Any) -> int:
    """A batch size with which forward and backward take the time wanted."""
    import torch

    size = 256
    inputs = torch.randn(size, 256)
    times = []
    for _ in range(8):
        begin_s = time.perf_counter()
        model(inputs).square().mean().backward()
        times.append(time.perf_counter() - begin_s)
    model.zero_grad(set_to_none=True)
    return max(32, int(size * TARGET_STEP_S / statistics.median(times)))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work()
        sys.exit(0)
    sys.exit(main())
