"""`farstep local`: a whole job on this machine, to try things out."""

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.errors import LOCAL, REMOTE, USAGE, CommandError, check_folder

__all__ = ["local"]


def local(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What every member runs.")],
    groups: Annotated[int, typer.Option(min=1, max=64, help="Replica groups.")] = 2,
    spares: Annotated[int, typer.Option(min=0, max=64, help="Hot spares.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the event log; temporary by default.")
    ] = None,
) -> int:
    """Run a coordinator and several replica groups of one command on this machine.

    Every member gets a name (group-0, group-1, ..., spare-0, ...), and what it prints comes with that name in
    front. Kill some of them and see what happens. Ctrl-C lets all of them leave.
    """
    from farstep.train.elastic.launch import LocalJob
    from farstep.train.errors import RunFailed

    if not command[0]:
        raise CommandError("the command is empty", status=USAGE, hint="farstep local train.py")

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):  # the members must not outlive this process
        signal.signal(number, end)
    check_folder("--out", out)
    if command[0].endswith(".py") and not Path(command[0]).is_file():
        raise CommandError(f"there is no file {command[0]!r}", status=USAGE)
    words = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    job = LocalJob(words, groups=groups, spares=spares, folder=out, echo=sys.stdout)
    try:
        job.start()
        while any(process.poll() is None for process in job.members.values()):
            time.sleep(0.1)
    except KeyboardInterrupt:
        for name, process in job.members.items():
            if process.poll() is None:
                job.send(name, signal.SIGTERM)
        deadline_s = time.monotonic() + 15.0
        while any(p.poll() is None for p in job.members.values()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        raise typer.Abort from None
    except RunFailed as error:
        raise CommandError(str(error), status=REMOTE) from error
    except OSError as error:
        raise CommandError(f"cannot start {words[0]}: {error.strerror}", status=LOCAL) from error
    finally:
        job.close()
    bad = [f"{name} ({process.returncode})" for name, process in job.members.items() if process.returncode]
    if len(bad) == len(job.members):
        raise CommandError(f"no member ended well: {', '.join(bad)}", status=REMOTE)
    if bad:
        raise CommandError(f"the others ended well, but not {', '.join(bad)}", status=REMOTE)
    return 0
