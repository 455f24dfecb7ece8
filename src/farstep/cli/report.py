"""`farstep report`: rebuild the HTML report of a run, of its coordinator, or of simulations, from what they left."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.errors import LOCAL, USAGE, CommandError

__all__ = ["report", "write_report_of"]

RESULT = "meta.json"
"""What a folder of `farstep simulate --out` has."""


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run or of farstep coordinator --out, its events.jsonl, or results of "
            "farstep simulate --out.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to, instead of report.html beside it.")
    ] = None,
) -> None:
    """Rebuild the HTML report of a run from its event log, or of simulations from their results."""
    if folders := _simulations(run):
        _write_simulations(folders, out or run / "report.html")
    else:
        write_report_of(run, out)


def _simulations(run: Path) -> dict[str, Path]:
    """Results of simulations in a folder, or in the folders inside it, by the name of the folder."""
    if not run.is_dir():
        return {}
    if (run / RESULT).is_file():
        return {run.name: run}
    return {path.parent.name: path.parent for path in sorted(run.glob(f"*/{RESULT}"))}


def _write_simulations(folders: Mapping[str, Path], html: Path) -> None:
    from farstep.observe.sim_report import write_sim_report
    from farstep.sim.result import SimResult

    try:
        loaded = [SimResult.load(folder) for folder in folders.values()]
        names = [str(result.meta.get("transport")) for result in loaded]
        is_told_apart = len(set(names)) == len(names)
        write_sim_report(dict(zip(names if is_told_apart else folders, loaded, strict=True)), html)
    except ValueError as error:
        raise CommandError(str(error), status=USAGE) from error
    except OSError as error:
        raise CommandError(f"cannot write {html}: {error.strerror or error}", status=LOCAL) from error
    print(f"report: {html}", file=sys.stderr)


def write_report_of(run: Path, out: Path | None = None) -> None:
    """Writes the report of a run and prints where it is.

    Raises:
        CommandError: the event log cannot be read or the report cannot be written.
    """
    from farstep.observe.events import EventLogError
    from farstep.observe.recoveries import is_coordinator_log
    from farstep.observe.recovery_report import write_recovery_report
    from farstep.observe.report import write_report

    events = run / "events.jsonl" if run.is_dir() else run
    html = out or events.with_name("report.html")
    try:
        write = write_recovery_report if is_coordinator_log(events) else write_report
        write(events, html)
    except EventLogError as error:
        raise CommandError(
            str(error), status=USAGE, hint="farstep report takes the folder of a run"
        ) from error
    except OSError as error:
        raise CommandError(f"cannot write {html}: {error.strerror or error}", status=LOCAL) from error
    print(f"report: {html}", file=sys.stderr)
