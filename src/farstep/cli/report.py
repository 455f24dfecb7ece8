"""`farstep report`: rebuild the HTML report of a run from its event log."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.errors import LOCAL, USAGE, CommandError

__all__ = ["report", "write_report_of"]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its events.jsonl.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to, instead of report.html beside it.")
    ] = None,
) -> None:
    """Rebuild the HTML report of a run from its event log."""
    write_report_of(run, out)


def write_report_of(run: Path, out: Path | None = None) -> None:
    """Writes the report of a run and prints where it is.

    Raises:
        CommandError: the event log cannot be read or the report cannot be written.
    """
    from farstep.observe.events import EventLogError
    from farstep.observe.report import write_report

    events = run / "events.jsonl" if run.is_dir() else run
    html = out or events.with_name("report.html")
    try:
        write_report(events, html)
    except EventLogError as error:
        raise CommandError(
            str(error), status=USAGE, hint="farstep report takes the folder of a run"
        ) from error
    except OSError as error:
        raise CommandError(f"cannot write {html}: {error.strerror or error}", status=LOCAL) from error
    print(f"report: {html}", file=sys.stderr)
