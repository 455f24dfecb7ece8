"""The command line as a whole: its verbs, its version, and what an error looks like."""

import contextlib
import errno
import os
import sys
from typing import Annotated

import typer

from farstep import __version__
from farstep.cli import (
    certs,
    compare,
    coordinator,
    doctor,
    join,
    lab,
    local,
    members,
    perf,
    replay,
    report,
    reproduce,
    resume,
    simulate,
    sweep,
    train,
)
from farstep.cli.errors import LOCAL, CommandError, translated

__all__ = ["app", "main"]


def version() -> None:
    """Print the version."""
    print(f"farstep {__version__}")


app = typer.Typer(
    name="farstep",
    help="Train one model in lockstep across many sites, over a network that is allowed to fail.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("local")(local.local)
app.command("resume")(resume.resume)
app.command("replay")(replay.replay)
app.command("coordinator")(coordinator.coordinator)
app.command("certificates")(coordinator.certificates)
app.command("join")(join.join)
app.command("status")(members.status)
app.command("events")(members.events)
app.command("drain")(members.drain)
app.command("evict")(members.evict)
app.command("override")(members.override)
app.command("groups")(members.groups)
app.command("report")(report.report)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("doctor")(doctor.doctor)
app.command("version")(version)
app.add_typer(lab.app, name="lab")
app.add_typer(perf.app, name="perf")
app.add_typer(certs.app, name="certs")
app.add_typer(reproduce.app, name="reproduce")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    is_version_wanted: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Runs the command line of this process and exits."""
    try:
        with translated():
            status = app(standalone_mode=False)
            sys.stdout.flush()
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"\nhint: {error.hint}", file=sys.stderr)
        status = error.status
    except OSError as error:  # a redirected standard output, for all else is told where it happens
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: cannot write: {error.strerror}", file=sys.stderr)
        status = LOCAL
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except typer.Abort:
        status = 130
    except BrokenPipeError:  # the reader of our output has gone; leave nothing to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.exit(status if isinstance(status, int) else 0)
