"""How errors end a command: one line, a hint where there is one, and an exit status by family."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import typer

__all__ = ["INTERRUPTED", "LOCAL", "REMOTE", "USAGE", "CommandError", "check_folder", "translated"]

USAGE = 2
"""Something the user wrote cannot be used."""
REMOTE = 3
"""A peer, a rank or the network failed."""
LOCAL = 4
"""This machine cannot do it: a package, a file or a right is missing."""
INTERRUPTED = 130
"""The user pressed Ctrl-C."""

_EXTRAS = {
    "torch": "train",
    "plotly": "train",
    "pandas": "sim",
    "pyarrow": "sim",
    "networkx": "sim",
    "scipy": "sim",
    "ray": "ray",
    "cryptography": "control",
    "fastapi": "control",
    "httpx": "control",
    "prometheus_client": "control",
    "uvicorn": "control",
    "websockets": "control",
}
"""Packages that not every installation has, and the extra that adds each."""

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises: recent versions of typer carry click inside, and export only this subclass."""


class CommandError(Exception):
    """Ends the command.

    Args:
        message: one line, without a full stop.
        status: exit status.
        hint: what to do next.
    """

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.hint = hint


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns the errors that a user can cause or mend into `CommandError`."""
    try:
        yield
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "farstep"
        raise CommandError(_wording(error), status=USAGE, hint=f"{where} --help") from error
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "")
        if extra is not None:
            raise CommandError(
                f"{error.name} is not installed", status=LOCAL, hint=f'pip install "farstep[{extra}]"'
            ) from error
        raise


def _wording(error: Exception) -> str:
    """Returns the parser's message as the rest of our messages look: no capital, no full stop."""
    text = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    return text[:1].lower() + text[1:]


def check_folder(option: str, path: Path | None) -> None:
    """Refuses a path that neither is a folder nor can become one; None stands for none.

    Raises:
        CommandError: naming what is in the way.
    """
    from farstep.fabric.errors import ConfigError
    from farstep.fabric.expected import expect_folder

    if path is not None:
        try:
            expect_folder(option, path)
        except ConfigError as error:
            raise CommandError(str(error), status=USAGE) from error
