"""`farstep sweep`: one scenario with many values of its knobs and many seeds."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farstep.cli.errors import INTERRUPTED, REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    from farstep.sim.sweep import Sweep, SweepRow

__all__ = ["sweep"]

TABLE_ROWS_MAX = 60
"""Rows of the table printed at the end; the file has all of them."""

SHOWN = {"flow_time_p50_ns": "P50", "flow_time_p99_ns": "P99", "flow_time_p100_ns": "P100"}
"""Flow times shown in the table."""


def sweep(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO.TOML]", help="Fabric, jobs and faults; without it, a small one."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=V,V", help="Values of a key, such as transport.evs=16,64,256."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 1,2,3 or 0:20. Left out: run.seed.")] = None,
    processes: Annotated[int, typer.Option("-j", help="Simulations at once.")] = 1,
    level: Annotated[str | None, typer.Option(help="packet or flow, instead of run.level.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep; one that broke off goes on there.")] = Path(
        "sweep"
    ),
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help=".parquet, .csv or .json; left out: OUT/results.csv.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Simulate a scenario at every combination of values and seeds.

    Every finished point is a file under OUT/points, so that the same command goes on where it
    was. Results are one row per point, with the figures of farstep simulate.
    """
    from farstep.fabric.errors import ConfigError
    from farstep.sim.scenario import load_scenario
    from farstep.sim.sweep import Sweep, check_path, parse_seeds, parse_settings, write_rows

    overrides: dict[str, Any] = {} if level is None else {"run.level": level}
    path = to or out / "results.csv"
    try:
        check_path(path)  # before the work, not after
        planned = Sweep(
            load_scenario(scenario, overrides),
            parse_settings(set_ or []),
            parse_seeds(seeds) if seeds is not None else (),
        )
        rows = _run(planned, out, processes=processes, use_ray=ray, is_quiet=quiet)
        write_rows(rows, path)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    except KeyboardInterrupt as error:
        raise CommandError(
            "stopped", status=INTERRUPTED, hint="the same command goes on from here"
        ) from error
    _print(rows, list(planned.settings))
    print(f"results are in {path}", file=sys.stderr)
    failed = [row for row in rows if row["status"] != "done"]
    if failed:
        raise CommandError(f"{len(failed)} of {len(rows)} points failed: {failed[0]['error']}", status=REMOTE)


def _run(planned: "Sweep", out: Path, *, processes: int, use_ray: bool, is_quiet: bool) -> "list[SweepRow]":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from farstep.sim.sweep import run_sweep

    console = Console(stderr=True)
    columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Without a thread that redraws it: processes are started as copies of one that has no threads.
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=is_quiet or not console.is_terminal,
    ) as bar:
        task = bar.add_task("points", total=None)

        def show(done: int, total: int, _row: "SweepRow") -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        return run_sweep(planned, out, processes=processes, use_ray=use_ray, on_point=show)


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _print(rows: "list[SweepRow]", keys: list[str]) -> None:
    """Prints one line per combination of values: the median over its seeds, and the worst of the slowest flow."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from farstep.sim.summary import duration, rate
    from farstep.sim.sweep import grouped

    console = Console()
    if not console.is_terminal:  # a file has room for whole lines
        console = Console(width=160)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for key in keys:
        table.add_column(key.rpartition(".")[2], no_wrap=True)
    for name in ("seeds", *SHOWN.values(), "worst", "goodput", "dropped", "trimmed"):
        table.add_column(name, justify="right", no_wrap=True)
    groups = grouped(rows, keys)
    for group in groups[:TABLE_ROWS_MAX]:
        table.add_row(
            *map(str, group.values),
            str(group.seeds),
            *(duration(group.median(name)) for name in SHOWN),
            duration(group.highest("flow_time_p100_ns")),
            rate(group.median("goodput_gbps")),
            *(_count(group.median(name)) for name in ("dropped", "trims")),
        )
    console.print(table)
    if len(groups) > TABLE_ROWS_MAX:
        print(f"... and {len(groups) - TABLE_ROWS_MAX} more lines", file=sys.stderr)
