"""All-reduce bandwidth and latency of the communicator against torch's Gloo, in one run.

Both libraries run in the same processes on the same tensors, one operation of each in turn, so that load from
elsewhere hits both alike. Figures are medians over the repetitions of the slowest rank's time; the ratio is the
median of the ratios of neighbouring pairs. Bandwidth is algorithm bandwidth: bytes of the vector over time.

    python benchmarks/bench_allreduce.py                 # 2 and 4 ranks, 1 KiB to 256 MiB
    python benchmarks/bench_allreduce.py --ranks 2 --sizes 1KiB 16MiB --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

SIZES = ("1KiB", "64KiB", "256KiB", "1MiB", "16MiB", "64MiB", "256MiB")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
WARM_UP = 3
"""Operations before the measured ones: connections, plans and the first touch of buffers."""
TIME_PER_SIZE_S = 3.0
"""Repetitions are added up to this time, so that small sizes get many and large ones at least the minimum."""


def parse_size(text: str) -> int:
    """Bytes of a size such as 64KiB."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


def cpu_time_s() -> float:
    """Processor time of this process so far, user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_pair(
    rank: int, groups: dict[str, Any], num_bytes: int, repetitions: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Times both libraries in turn.

    Returns:
        The slowest rank's times and this rank's mean processor time, in seconds, by library.
    """
    import torch
    import torch.distributed as dist

    tensor = torch.ones(num_bytes // 4, dtype=torch.float32)
    times = torch.zeros(len(groups), repetitions, dtype=torch.float64)
    cpu_s = dict.fromkeys(groups, 0.0)
    for repetition in range(-WARM_UP, repetitions):
        for index, (name, group) in enumerate(groups.items()):
            tensor.fill_(1.0)
            dist.barrier()
            start_cpu_s, start_s = cpu_time_s(), time.perf_counter()
            dist.all_reduce(tensor, group=group)
            elapsed_s = time.perf_counter() - start_s
            spent_s = cpu_time_s() - start_cpu_s
            if tensor[0] != dist.get_world_size() or tensor[-1] != dist.get_world_size():
                raise SystemExit(f"rank {rank}: wrong sum")
            if repetition >= 0:
                times[index, repetition] = elapsed_s
                cpu_s[name] += spent_s / repetitions
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return {name: times[index].tolist() for index, name in enumerate(groups)}, cpu_s


def run_rank(rank: int, size: int, store_path: str, sizes: list[str], repetitions: int) -> None:
    """One rank of a benchmark process group."""
    import torch
    import torch.distributed as dist

    import farstep.collectives.torch_backend  # noqa: F401  (registers the backend)

    torch.set_num_threads(1)
    store = dist.FileStore(store_path, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    groups = {"gloo": dist.group.WORLD, "mrc": dist.new_group(backend="mrc")}
    for text in sizes:
        num_bytes = parse_size(text)
        trial, _ = measure_pair(rank, groups, num_bytes, 1)
        count = max(repetitions, min(200, int(TIME_PER_SIZE_S / 2 / max(trial["gloo"][0], 1e-5))))
        times, cpu_s = measure_pair(rank, groups, num_bytes, count)
        if rank == 0:
            ratios = [a / b for a, b in zip(times["gloo"], times["mrc"], strict=True)]
            row: dict[str, Any] = {"ranks": size, "size": text, "bytes": num_bytes, "repetitions": count}
            for name in groups:
                median_s = statistics.median(times[name])
                row |= {f"{name}_s": median_s, f"{name}_mb_per_s": num_bytes / median_s / 1e6}
                row[f"{name}_cpu_s"] = cpu_s[name]
            row["ratio"] = statistics.median(ratios)
            row["ratio_quartiles"] = statistics.quantiles(ratios, n=4)[::2]
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_group(size: int, sizes: list[str], repetitions: int) -> list[dict[str, Any]]:
    """Starts one process per rank and collects what rank 0 prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--store", str(Path(folder) / "store"), "--ranks", str(size)]
        command += ["--repetitions", str(repetitions), "--sizes", *sizes]
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank)], stdout=subprocess.PIPE, env=environment, text=True
            )
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"a rank of the group of {size} failed; see its message above")
    return [json.loads(line) for line in outputs[0].splitlines()]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints one line per size."""
    heads = [f"{name:>8} MB/s {'ms':>8} {'CPU ms':>8}" for name in ("Gloo", "mrc")]
    print(f"{'ranks':>5} {'size':>7} {'reps':>4} {heads[0]} {heads[1]} {'ratio':>6}  quartiles")
    for row in rows:
        low, high = row["ratio_quartiles"]
        cells = [
            f"{row[f'{name}_mb_per_s']:13.0f} {row[f'{name}_s'] * 1e3:8.2f} {row[f'{name}_cpu_s'] * 1e3:8.2f}"
            for name in ("gloo", "mrc")
        ]
        print(
            f"{row['ranks']:>5} {row['size']:>7} {row['repetitions']:>4} {cells[0]} {cells[1]} "
            f"{row['ratio']:6.2f}  {low:.2f}-{high:.2f}"
        )


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--repetitions", type=int, default=7, help="least number of repetitions per size")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.rank, arguments.ranks[0], arguments.store, arguments.sizes, arguments.repetitions)
        return
    rows = [
        row for size in arguments.ranks for row in run_group(size, arguments.sizes, arguments.repetitions)
    ]
    if arguments.json:
        import torch

        environment = {
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "kernel": platform.release(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        print(json.dumps({"method": __doc__.split("\n\n")[1], "environment": environment, "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
