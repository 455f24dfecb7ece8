"""`farstep join`: run a training command on this machine as a replica group of a run."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.control import Address, given_address, tls_files
from farstep.cli.errors import LOCAL, USAGE, CommandError

__all__ = ["check_run", "join"]

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def join(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")
    ] = None,
    coordinator: Address = None,
    name: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Name of the replica group; default: the host's.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="What fails together with this machine.")] = None,
    run: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    spare: Annotated[
        bool, typer.Option("--spare", help="Stand by with the state until a seat is free.")
    ] = False,
    tls: Annotated[
        Path | None,
        typer.Option("--tls", metavar="DIR", help="Certificates, with GROUP.pem; default $FARSTEP_TLS."),
    ] = None,
    restart: Annotated[int, typer.Option(min=0, help="Start it again so often if it dies.")] = 0,
) -> None:
    """Run a training command on this machine as a replica group, and stay beside it.

    The command finds everything in its environment, so farstep.join() in it needs no arguments. When it dies,
    the others know at once, and it is started again as often as --restart says. Ctrl-C and SIGTERM go
    to the command: it leaves the run at the next step boundary.
    """
    from farstep.membership import MemberInfo
    from farstep.membership.addresses import AddressError
    from farstep.membership.agent import Agent
    from farstep.membership.client import MembershipClient

    if not command:
        raise CommandError(
            "no command is given", status=USAGE, hint="farstep join --coordinator URL -- python train.py"
        )
    group = name or os.environ.get("FARSTEP_GROUP") or _host_name()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,57}", group):
        raise CommandError(
            f"--name: {group!r} cannot be the name of a replica group; valid: letters, digits, '.', '_' and '-', "
            "at most 58",
            status=USAGE,
        )
    run = run or os.environ.get("FARSTEP_RUN") or "run"
    check_run(run)
    _check_site(site if site is not None else os.environ.get("FARSTEP_SITE", ""))
    address = _from_anywhere(given_address(coordinator))
    files = tls_files(tls, group)
    variables = _variables(address, group, site, run, tls, is_spare=spare)
    try:
        observer = MembershipClient(
            address, MemberInfo.create(f"{group}.agent"), run=run, tls=files, wants="observer"
        )
    except (AddressError, ValueError) as error:
        raise CommandError(str(error).splitlines()[0], status=USAGE) from error
    try:
        agent = Agent(
            command,
            group,
            environment=variables,
            witness=observer,
            restarts=restart,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        raise typer.Exit(agent.run())
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror or error}", status=LOCAL) from error
    finally:
        observer.close()


def _variables(
    address: str, group: str, site: str | None, run: str, tls: Path | None, *, is_spare: bool
) -> dict[str, str]:
    given = {
        "FARSTEP_COORDINATOR": address,
        "FARSTEP_GROUP": group,
        "FARSTEP_SITE": site,
        "FARSTEP_RUN": run,
        "FARSTEP_TLS": str(tls.resolve()) if tls is not None else None,
        "FARSTEP_SPARE": "1" if is_spare else None,
    }
    return {**os.environ, **{key: value for key, value in given.items() if value is not None}}


def check_run(run: str) -> None:
    """Refuses what cannot be the name of a run.

    Raises:
        CommandError: it says what would be valid.
    """
    if not re.fullmatch(NAME, run):
        raise CommandError(
            f"--run: {run!r} cannot be the name of a run; valid: letters, digits, '.', '_' and '-', at most 64",
            status=USAGE,
        )


def _check_site(site: str) -> None:
    """Refuses here what the command would only find out once it has imported everything."""
    if len(site) > 64 or not site.isprintable():
        shown = site if len(site) <= 64 else f"{site[:32]}..."
        raise CommandError(
            f"--site: {shown!r} cannot be the name of a site; valid: at most 64 printable characters",
            status=USAGE,
        )


def _from_anywhere(addresses: str) -> str:
    """Makes paths of `file:` addresses absolute: the command may go to another folder."""
    parts = [part.strip() for part in addresses.split(",")]
    return ",".join(
        f"file:{Path(part[5:]).absolute()}"
        if part.startswith("file:") and not part.startswith("file://")
        else part
        for part in parts
    )


def _host_name() -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()).strip("-.")[:58] or "group"
