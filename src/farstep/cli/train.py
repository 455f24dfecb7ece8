"""`farstep train`: run a configuration, or the built-in demo."""

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farstep.cli.errors import INTERRUPTED, LOCAL, REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    from farstep.observe.live import LiveDisplay
    from farstep.observe.timeline import Timeline
    from farstep.train.config import RunConfig
    from farstep.train.orders import TorchrunPlace
    from farstep.train.result import RunResult

__all__ = ["run_to_end", "train"]

PLAIN_LINES = 40
"""Lines of progress of a whole run where no live display is shown."""


def train(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.TOML]", help="Configuration; without it, the built-in demo."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of run.steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of run.seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run's folder, instead of run.out.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text file to train on, instead of data.text.")] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the configuration and exit.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
) -> None:
    """Train a model over several sites, through whatever the network does.

    Without RUN.TOML this machine plays two sites of two replica groups each, joined by four
    emulated paths, one of which is cut on the way and later restored. Under torchrun the
    process is one rank of the run.
    """
    from farstep.train import ConfigError, RunFailed, dump_toml, load_config
    from farstep.train.orders import TorchrunPlace

    overrides: dict[str, Any] = {"run.steps": steps, "run.seed": seed, "run.out": out, "data.text": text}
    given = {key: str(value) if isinstance(value, Path) else value for key, value in overrides.items()}
    try:
        config = load_config(run, {key: value for key, value in given.items() if value is not None})
        if show_config:
            print(dump_toml(config), end="")
            return
        if find_spec("torch") is None:
            raise CommandError("torch is not installed", status=LOCAL, hint='pip install "farstep[train]"')
        place = TorchrunPlace.from_environment(os.environ)
        run_to_end(config, place, plain=plain, with_report=not no_report)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    except RunFailed as error:
        raise CommandError(str(error), status=REMOTE) from error


def run_to_end(
    config: "RunConfig",
    place: "TorchrunPlace | None",
    *,
    plain: bool,
    with_report: bool,
    resume: Path | None = None,
) -> None:
    """Runs a configuration, shows it, and ends the command as the run ended.

    Args:
        config: the run.
        place: this process's place under torchrun, if it was started by it.
        plain: lines instead of a live display.
        with_report: whether to write the HTML report.
        resume: folder of an earlier run to go on from.
    """
    from farstep.train.launcher import launch, launch_under_torchrun

    if place is not None and place.rank != 0:  # the first rank tells the user
        _, has_finished = launch_under_torchrun(config, place, resume=resume)
        raise typer.Exit(0 if has_finished else REMOTE)
    for note in config.faults_too_late():
        print(f"note: {note}", file=sys.stderr)
    every_steps = max(1, config.run.steps // PLAIN_LINES)
    display = _display(plain=plain or place is not None, every_steps=every_steps)

    def announce(folder: Path) -> None:
        if display.is_plain:
            print(f"{config.num_ranks} ranks start; records go to {folder}", file=sys.stderr)

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        if display.is_plain:  # on a screen it would be in the way; what counts is told again at the end
            print(f"warning: {message}", file=sys.stderr)

    result: RunResult | None
    with display, warnings.catch_warnings():
        warnings.showwarning = warn
        if place is not None:
            result, _ = launch_under_torchrun(
                config, place, listeners=[display.on_record], on_folder=announce, resume=resume
            )
        else:
            result = launch(config, listeners=[display.on_record], on_folder=announce, resume=resume)
    assert result is not None
    _conclude(result, display.timeline, with_report=with_report)


def _display(*, plain: bool, every_steps: int) -> "LiveDisplay":
    from rich.console import Console

    from farstep.observe.live import LiveDisplay

    return LiveDisplay(Console(stderr=True), plain=True if plain else None, plain_every_steps=every_steps)


def _conclude(result: "RunResult", timeline: "Timeline", *, with_report: bool) -> None:
    """Prints the summary, writes the report, and turns the end of the run into an exit status."""
    from rich.console import Console

    from farstep.observe.summary import summary

    Console().print(summary(timeline))  # of what was heard, which a full disk takes nothing from
    problem = _report_problem(result) if with_report or result.log_failure else None
    if problem is not None and result.status == "failed":  # why it failed comes last and decides
        print(f"error: {problem}", file=sys.stderr)
    for loss in timeline.losses if result.status != "failed" else ():
        answer = timeline.answer_to(loss)
        then = "" if answer is None else f"; training went on with {answer.size_text}"
        print(f"note: at step {loss.step} {loss.sentence}{then}", file=sys.stderr)
    if result.status == "failed":
        logs = result.folder / "logs"
        where = (
            f"what each rank said is in {logs}" if logs.is_dir() else f"the event log is {result.events_path}"
        )
        raise CommandError(result.reason or "the run failed", status=REMOTE, hint=where)
    if result.status == "interrupted":
        print(f"stopped after {result.steps} steps", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if problem is not None:
        raise problem


def _report_problem(result: "RunResult") -> CommandError | None:
    """Writes the report; returns what is wrong with the records of the run."""
    from farstep.cli.report import write_report_of

    if result.log_failure is not None:
        return CommandError(f"event log {result.events_path} breaks off: {result.log_failure}", status=LOCAL)
    again = f"farstep report {result.folder}"
    try:
        write_report_of(result.folder)
    except KeyboardInterrupt:
        return CommandError("stopped while writing the report", status=INTERRUPTED, hint=again)
    except CommandError as error:
        return CommandError(str(error), status=error.status, hint=error.hint or again)
    return None
