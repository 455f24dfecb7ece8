"""`farstep certs`: a small certificate authority, for runs that have none."""

from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.errors import USAGE, CommandError

__all__ = ["app"]

app = typer.Typer(
    help="Make and look at the certificates by which members know each other.", no_args_is_help=True
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the authority and its certificates.")
]
Days = Annotated[int, typer.Option(min=1, max=3650, help="Lifetime in days.")]


@app.command("init")
def init(
    directory: Directory,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of a coordinator, for browsers; repeatable.")
    ] = None,
    days: Days = 397,
) -> None:
    """Make an authority, and the certificate of the coordinator.

    ca.key signs further certificates and never leaves this folder; everybody needs ca.pem.
    """
    _make(directory, [], operators=(), hosts=tuple(host or ()), days=days, is_renewal=False)


@app.command("issue")
def issue(
    directory: Directory,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Replica groups, or PREFIX* for any.")
    ],
    operator: Annotated[bool, typer.Option("--operator", help="For people who may drain and evict.")] = False,
    days: Days = 397,
    renew: Annotated[bool, typer.Option("--renew", help="Make them anew, with new keys.")] = False,
) -> None:
    """Make certificates for members, or for operators.

    NAME.pem and NAME.key go to whoever has the name, with ca.pem.
    """
    if not (directory / "ca.pem").is_file():
        raise CommandError(
            f"there is no authority in {directory}", status=USAGE, hint=f"farstep certs init {directory}"
        )
    members, operators = ([], names) if operator else (names, [])
    _make(directory, members, operators=tuple(operators), hosts=(), days=days, is_renewal=renew, asked=names)


@app.command("show")
def show(directory: Directory) -> None:
    """List what is in a folder: names, roles, when each expires, and fingerprints."""
    from farstep.coordinator.certificates import CertificateError, list_certificates

    try:
        found = list_certificates(directory)
    except CertificateError as error:
        raise CommandError(str(error), status=USAGE) from error
    width = max(len(one.name) for one in found)
    for one in found:
        remarks = "" if one.is_ours else "  of another authority"
        remarks += "" if one.has_key else "  without its key"
        until = f"{one.valid_until:%Y-%m-%d}"
        print(f"{one.name:{width}}  {one.role:11}  until {until}  sha256:{one.fingerprint[:16]}{remarks}")


def _make(
    directory: Path,
    members: list[str],
    *,
    operators: tuple[str, ...],
    hosts: tuple[str, ...],
    days: int,
    is_renewal: bool,
    asked: list[str] | None = None,
) -> None:
    from farstep.coordinator.certificates import CertificateError, make_certificates

    try:
        made = make_certificates(
            directory,
            members,
            operators=operators,
            hosts=hosts,
            valid_days=days,
            is_renewal=is_renewal,
            with_coordinator=asked is None,
        )
    except CertificateError as error:
        raise CommandError(str(error), status=USAGE) from error
    if asked is None:
        print(f"{directory / 'ca.pem'}  authority")
    for one in made:
        if asked is None or one.name in asked:
            state = "made" if one.is_new else "is there"
            print(f"{one.path}  {one.role}  {state}, until {one.valid_until:%Y-%m-%d}")
