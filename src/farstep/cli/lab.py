"""`farstep lab`: networks to try things on, on this machine."""

import typer

__all__ = ["app"]

app = typer.Typer(
    help="Networks to try things on, on this machine.", invoke_without_command=True, rich_markup_mode=None
)


@app.callback()
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
