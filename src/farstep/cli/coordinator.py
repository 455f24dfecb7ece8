"""`farstep coordinator` and `farstep certificates`: the process that keeps the members of a run together."""

import contextlib
import datetime
import errno
import ipaddress
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farstep.cli.errors import LOCAL, USAGE, CommandError, check_folder
from farstep.cli.join import check_run

if TYPE_CHECKING:
    from farstep.membership.tls import TlsFiles

__all__ = ["certificates", "coordinator"]

WARN_BEFORE = datetime.timedelta(days=14)
"""A certificate that expires sooner is told at every start."""


def coordinator(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 or :: for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")] = 7077,
    run: Annotated[str, typer.Option(help="Name of the run; members of others are refused.")] = "run",
    groups: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Replica groups to wait for at the start.")
    ] = None,
    min_groups: Annotated[int, typer.Option(min=1, max=1024, help="With fewer, all wait.")] = 1,
    max_groups: Annotated[int, typer.Option(min=1, max=1024, help="More than so many become spares.")] = 1024,
    spares: Annotated[int, typer.Option(min=0, max=1024, help="Hot spares to keep.")] = 0,
    fixed_seats: Annotated[
        bool, typer.Option("--fixed-seats", help="Wait for a replacement instead of going on with fewer.")
    ] = False,
    silence_s: Annotated[
        float, typer.Option(help="Seconds of silence after which a member is given up.")
    ] = 1.2,
    join_window_s: Annotated[float, typer.Option(help="Longest wait for --groups, in seconds.")] = 10.0,
    tls: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Certificates, made by farstep certificates.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No certificates; on loopback only.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the event log.")] = None,
    announce: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the address there; members read file:FILE.")
    ] = None,
    end_with_input: Annotated[bool, typer.Option("--end-with-input", help="End with stdin.")] = False,
) -> None:
    """Keep the members of a run together: who trains, who is spare, who is gone.

    It holds nothing that cannot be learned again: kill it, start it again here or anywhere else that
    members know of, and the run does not notice. Ctrl-C ends the coordinator, not the run.
    """
    from pydantic import ValidationError

    from farstep.coordinator import ServerSettings, run_coordinator
    from farstep.coordinator.journal import Journal
    from farstep.membership.records import MembershipConfig

    check_run(run)
    _check_paths(announce, out)
    files = _tls(tls, insecure=insecure, host=host)
    values: dict[str, Any] = {
        "run": run,
        "groups": groups,
        "min_groups": min_groups,
        "max_groups": max_groups,
        "spares": spares,
        "fixed_seats": fixed_seats,
        "silence_s": silence_s,
        "join_window_s": join_window_s,
    }
    try:
        config = MembershipConfig.model_validate(values)
        log = None if out is None else out / "events.jsonl"
        settings = ServerSettings(host=host, port=port, tls=files, announce=announce, log=log)
        journal = Journal(log)
        if end_with_input:
            threading.Thread(target=_end_with_input, name="farstep-input", daemon=True).start()
        if journal.is_shared:
            print(f"note: {log} is also written by another process; give each its own --out", file=sys.stderr)
        run_coordinator(config, settings, on_listening=_announce, journal=journal)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"--{'.'.join(map(str, first['loc'])).replace('_', '-')}: " if first["loc"] else ""
        raise CommandError(f"{name}{first['msg'].removeprefix('Value error, ')}", status=USAGE) from error
    except OSError as error:
        where = error.filename or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        is_taken = error.errno == errno.EADDRINUSE
        hint = "another program listens there; --port takes another, 0 a free one" if is_taken else ""
        raise CommandError(f"{where}: {error.strerror or error}", status=LOCAL, hint=hint) from error


def _check_paths(path: Path | None, out: Path | None) -> None:
    check_folder("--out", out)
    if path is not None and path.is_dir():
        raise CommandError(f"--announce: {path} is a folder; valid: a file", status=USAGE)
    if path is not None and not path.parent.is_dir():
        raise CommandError(f"--announce: there is no folder {path.parent}", status=USAGE)


def _end_with_input() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _announce(url: str) -> None:
    web = url.replace("ws", "http", 1)
    print(f"coordinator at {url}  (dashboard {web}/)", flush=True)


def _tls(directory: Path | None, *, insecure: bool, host: str) -> "TlsFiles | None":
    if directory is not None and insecure:
        raise CommandError("--tls and --insecure exclude each other", status=USAGE)
    if directory is not None:
        return _checked(directory)
    if not insecure:
        raise CommandError(
            "a coordinator needs --tls DIR, or --insecure on this machine alone",
            status=USAGE,
            hint="farstep certificates DIR --name a-0 --name a-1",
        )
    if not _is_loopback(host):
        raise CommandError(
            f"--insecure is for loopback addresses; --host is {host}",
            status=USAGE,
            hint="farstep certificates DIR --name a-0 --name a-1, then --tls DIR",
        )
    print("note: --insecure: whoever can run a program on this machine can take part", file=sys.stderr)
    return None


def _checked(directory: Path) -> "TlsFiles":
    """Returns the coordinator's certificates once it is sure that they work today."""
    from farstep.cli.control import expiries, tls_files

    files = tls_files(directory, "coordinator")
    assert files is not None
    now = datetime.datetime.now(datetime.UTC)
    for path, until, hint in expiries(files):
        if until - now < WARN_BEFORE:
            print(f"note: {path} expires on {until:%Y-%m-%d}; {hint}", file=sys.stderr)
    return files


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def certificates(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files.")],
    name: Annotated[
        list[str] | None, typer.Option(help="A replica group, or PREFIX* for any; repeatable.")
    ] = None,
    operator: Annotated[list[str] | None, typer.Option(help="Who may drain and evict; repeatable.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of a coordinator, for browsers; repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Lifetime in days.")] = 397,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make all of these anew, not only those that have expired.")
    ] = False,
) -> None:
    """Make the certificates of a run: an authority, the coordinator's, and one for each name.

    What is there stays, so names can be added later; what has expired is made anew. A participant needs
    ca.pem and its own .pem and .key; ca.key never leaves this folder. NAME.p12 of an operator is for a
    browser.
    """
    from farstep.coordinator.certificates import CertificateError, make_certificates

    try:
        made = make_certificates(
            directory,
            name or [],
            operators=tuple(operator or ["operator"]),
            hosts=tuple(host or ()),
            valid_days=days,
            is_renewal=renew,
        )
    except CertificateError as error:
        raise CommandError(str(error), status=USAGE) from error
    for certificate in made:
        state = "made" if certificate.is_new else "is there"
        print(f"{certificate.path}  {certificate.role}  {state}, until {certificate.valid_until:%Y-%m-%d}")
