"""`farstep resume`: what a run could go on from, and going on from it."""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farstep.cli.errors import LOCAL, REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    from farstep.train.checkpoint.folder import CheckpointFolder, CheckpointInfo
    from farstep.train.config import RunConfig

__all__ = ["resume"]

CONFIG = "config.toml"
"""What `farstep train` leaves in the folder of a run."""


def resume(
    run: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run, or of the checkpoints of one.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Show what would be resumed, verify it, and exit.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps in all, instead of run.steps.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
) -> None:
    """Go on with a run of farstep train from its newest checkpoint that is whole.

    Every byte is compared before anything starts; broken checkpoints are named and passed over. The
    resumed run has a folder of its own beside the old one, and both show all checkpoints.
    """
    from farstep.train.checkpoint.folder import CheckpointFolder
    from farstep.train.config_file import load_config
    from farstep.train.errors import ConfigError, RunFailed
    from farstep.train.launcher import CHECKPOINTS

    folder = CheckpointFolder(run / CHECKPOINTS if (run / CHECKPOINTS).is_dir() else run)
    has_config = (run / CONFIG).is_file()
    info = _newest(folder, run, is_of_train=has_config)
    try:
        overrides = {} if steps is None else {"run.steps": steps}
        config = load_config(run / CONFIG, overrides) if has_config else None
        _show(folder, info, config)
        if check:
            return
        if config is None:
            _tell_how(info)
            return
        _resume(run, config, info, plain=plain, with_report=not no_report)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    except RunFailed as error:
        raise CommandError(str(error), status=REMOTE) from error


def _newest(folder: "CheckpointFolder", run: Path, *, is_of_train: bool) -> "CheckpointInfo":
    if not run.is_dir():
        raise CommandError(f"{run} is not a folder", status=USAGE)
    info, broken = folder.newest()
    for one in broken:
        print(f"broken     {one}", file=sys.stderr)
    if info is None:
        what = "no checkpoint that is whole" if broken else "no checkpoint"
        hint = "with run.checkpoint_every_steps above 0, farstep train saves some" if is_of_train else ""
        raise CommandError(f"{folder.path} holds {what}", status=LOCAL, hint=hint)
    return info


def _show(folder: "CheckpointFolder", info: "CheckpointInfo", config: "RunConfig | None") -> None:
    of = "" if config is None else f" of {config.run.steps}"
    size = f"{info.length_bytes / 1e6:,.1f} MB in {len(info.manifest.files)} files"
    print(f"checkpoint {info.path}")
    print(f"step       {info.step}{of}, saved {info.saved_at}")
    print(f"verified   {size}: every byte matches its hash")
    older = [str(one.step) for one in folder.survey()[0] if one.path != info.path]
    if older:
        print(f"also there steps {', '.join(older)}")


def _tell_how(info: "CheckpointInfo") -> None:
    """Says how to go on with a program of the user's own, which alone knows how it is started."""
    command = info.manifest.info.get("command")
    folder = info.manifest.info.get("working_folder")
    print(f"\nStart the run as you did before: its trainer goes on from step {info.step}.")
    if isinstance(command, list) and command:
        print(f"It was saved by: {shlex.join(map(str, command))}" + (f"  (in {folder})" if folder else ""))


def _resume(
    run: Path, config: "RunConfig", info: "CheckpointInfo", *, plain: bool, with_report: bool
) -> None:
    from farstep.cli.train import run_to_end
    from farstep.train.orders import TorchrunPlace

    if info.step >= config.run.steps:
        print(f"\nThe run is complete; --steps N with N above {info.step} goes on with it.")
        return
    if find_spec("torch") is None:
        raise CommandError("torch is not installed", status=LOCAL, hint='pip install "farstep[train]"')
    beside = config.model_copy(
        update={"run": config.run.model_copy(update={"out": str(run.resolve().parent)})}
    )
    place = TorchrunPlace.from_environment(os.environ)
    run_to_end(beside, place, plain=plain, with_report=with_report, resume=run.resolve())
