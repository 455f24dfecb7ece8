"""`farstep lab`: networks to try things on, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.errors import USAGE, CommandError

__all__ = ["app"]

app = typer.Typer(
    help="Networks to try things on, on this machine.", invoke_without_command=True, rich_markup_mode=None
)


@app.callback()
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("emulate")
def emulate(
    network: Annotated[Path, typer.Argument(metavar="NETWORK.TOML", help="Sites, paths, ports and faults.")],
    for_s: Annotated[
        float | None, typer.Option(min=0.0, max=1e9, help="End after so many seconds, not at Ctrl-C.")
    ] = None,
) -> None:
    """Carry UDP between sites over emulated paths, for any program.

    The file lists sites and paths as for a run, under [[expose]] the ports to make reachable, and
    under [[faults]] what goes wrong. Ctrl-C ends it with a summary.
    """
    from farstep.fabric.errors import ConfigError
    from farstep.lab.standalone import run_emulator

    try:
        run_emulator(network, for_s=for_s)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
