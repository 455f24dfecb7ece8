"""`farstep status`, `events`, `drain`, `evict`, `override`, `groups`: seeing and steering a run from a terminal."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farstep.cli.control import Address, As, Control, Tls
from farstep.cli.errors import REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["drain", "events", "evict", "groups", "override", "status"]

WATCH_S = 0.5
RETRY_S = 0.5
REASON_CHARACTERS_MAX = 500

_STYLES = {
    "training": "green",
    "spare": "cyan",
    "healing": "yellow",
    "ready": "yellow",
    "leaving": "magenta",
    "observer": "dim",
}


def status(
    coordinator: Address = None,
    tls: Tls = None,
    as_: As = "operator",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show who trains, who is spare, who is gone, and what the run waits for."""
    import json

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    control = Control(coordinator, tls, as_)
    if as_json:
        print(json.dumps(control.get("/v1/status"), indent=2))
        return
    console = Console()
    if not watch:
        console.print(_screen(control.get("/v1/status")))
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                shown = _screen(control.get("/v1/status"))
            except CommandError as error:
                if error.status != REMOTE:
                    raise
                shown = Text(f"{error}\n{error.hint}", style="yellow")
            live.update(shown, refresh=True)
            time.sleep(WATCH_S)


def _screen(status: dict[str, Any]) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    generation = status["generation"]
    head = f"run {status['run_id'] or status['run']}"
    if generation is not None:
        head += f"   generation {generation['number']} ({generation['reason'] or 'no reason given'})"
    if status["step"] is not None:
        head += f"   step {status['step']:,}"
    lines: list[RenderableType] = [Text(printable(head))]
    if status["waiting"]:
        lines.append(Text(f"waiting: {printable(status['waiting'])}", style="bold yellow"))
    if status.get("lost"):  # older coordinators do not tell
        lines.append(Text(f"lost: {printable(status['lost'])}", style="bold red"))
    if status["ended"]:
        lines.append(Text(f"ended: {printable(status['ended'])}", style="bold"))
    rows = [_row(member) for member in status["members"]]
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [name for name in _COLUMNS if name in _ALWAYS or any(row[name] for row in rows)]
    for name in shown:
        table.add_column(name, justify=_COLUMNS[name], no_wrap=True, overflow="fold")
    for member, row in zip(status["members"], rows, strict=True):
        style = _STYLES.get(member["state"], "red")
        table.add_row(*(Text(printable(row[name])) for name in shown), style=style)
    lines.append(table if rows else Text("no member is here"))
    # Beside so many figures causes would have no room.
    causes = (f"{member['name']}: {member['cause']}" for member in status["members"] if member["cause"])
    lines.extend(Text(printable(cause)) for cause in causes)
    return Group(*lines)


_COLUMNS: dict[str, Literal["left", "right"]] = {
    "seat": "right",
    "group": "left",
    "site": "left",
    "state": "left",
    "step": "right",
    "P50 ms": "right",
    "P99 ms": "right",
    "P100 ms": "right",
    "loss": "right",
    "silent s": "right",
}
_ALWAYS = ("seat", "group", "state", "step")
"""Columns that are shown also if they are empty."""


def _row(member: dict[str, Any]) -> dict[str, str]:
    figures = {key: value for key, value in member["figures"].items() if value is not None}

    def ms(key: str) -> str:
        return f"{figures[key] / 1e6:.1f}" if key in figures else ""

    values = [
        "" if member["seat"] is None else str(member["seat"]),
        member["name"],
        member["site"],
        member["state"],
        "" if member["step"] is None else f"{member['step']:,}",
        ms("step_p50_ns") or ms("step_time_ns"),
        ms("step_p99_ns"),
        ms("step_max_ns"),
        f"{figures['loss']:.4f}" if "loss" in figures else "",
        "" if member["silent_s"] is None else f"{member['silent_s']:.1f}",
    ]
    return dict(zip(_COLUMNS, values, strict=True))


def printable(text: str) -> str:
    """Takes out what would make a terminal do something; members choose some of the text."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def events(
    coordinator: Address = None,
    tls: Tls = None,
    as_: As = "operator",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Begin with the newest so many.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show what happened in the run: joins, losses, generations, healing, checkpoints."""
    control = Control(coordinator, tls, as_)
    name = control.get("/v1/status")["coordinator"]
    last_id = f"{name}/0"
    for line in control.get("/v1/events", limit=last):
        _print_line(line, as_json=as_json)
        last_id = f"{name}/{line['id']}"
    is_away = False
    while follow:
        try:
            for event_id, line in control.follow("/v1/events/stream", last_id):
                last_id, is_away = event_id, False
                _print_line(line, as_json=as_json)
        except CommandError as error:
            if error.status != REMOTE:
                raise
        if not is_away:
            print("the coordinator is away; waiting for it", file=sys.stderr)
            is_away = True
        time.sleep(RETRY_S)


def _print_line(line: dict[str, Any], *, as_json: bool) -> None:
    import json

    if as_json:
        print(json.dumps(line), flush=True)
        return
    hidden = {"id", "t_ns", "wall", "rank", "kind", "member", "member_id", "run_id"}
    fields = " ".join(
        f"{key}={_shown(value)}" for key, value in line.items() if key not in hidden and value != ""
    )
    when = line["wall"][11:23]
    text = f"{when}  {line.get('member', '-'):12s} {line['kind']:20s} {fields}".rstrip()
    print(printable(text), flush=True)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(map(str, value)) or "none"
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if " " in text else text


Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the replica group.")]
Why = Annotated[str, typer.Option("--reason", help="Written into the event log.")]


def drain(
    group: Name, coordinator: Address = None, tls: Tls = None, as_: As = "operator", reason: Why = ""
) -> None:
    """Have a replica group leave at the next step boundary; this costs no step."""
    print(printable(Control(coordinator, tls, as_).command(group, "drain", _because(reason))["done"]))


def evict(
    group: Name, coordinator: Address = None, tls: Tls = None, as_: As = "operator", reason: Why = ""
) -> None:
    """Take a replica group out at once; the others run the current step again without it."""
    print(printable(Control(coordinator, tls, as_).command(group, "evict", _because(reason))["done"]))


def _because(reason: str) -> dict[str, str]:
    """Returns the body of a command; a reason is one line in logs and tables."""
    if not reason.isprintable() or len(reason) > REASON_CHARACTERS_MAX:
        raise CommandError(
            f"--reason: valid: one line of at most {REASON_CHARACTERS_MAX} printable characters", status=USAGE
        )
    return {"reason": reason}


def override(
    generation: Annotated[
        int, typer.Option(min=1, help="The current generation, as farstep status shows it.")
    ],
    drop: Annotated[list[str], typer.Option(metavar="GROUP", help="Go on without it; repeatable.")],
    coordinator: Address = None,
    tls: Tls = None,
    as_: As = "operator",
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
) -> None:
    """Go on without members that cannot vote, when too few are left to decide.

    Only you can know that they are really gone. If they train on elsewhere, there are two histories
    of one run from here on.
    """
    control = Control(coordinator, tls, as_)
    if not yes:
        names = ", ".join(drop)
        raise CommandError(
            f"nothing was done: --yes says that {names} will never again take part in generation {generation}",
            status=USAGE,
        )
    body = {"generation": generation, "drop": drop, "is_sure": True}
    print(printable(control.send("POST", "/v1/override", body)["done"]))


def groups(
    coordinator: Address = None,
    tls: Tls = None,
    as_: As = "operator",
    min_: Annotated[int | None, typer.Option("--min", min=1, help="With fewer, all wait.")] = None,
    max_: Annotated[int | None, typer.Option("--max", min=1, help="More than so many become spares.")] = None,
    spares: Annotated[int | None, typer.Option(min=0, help="Hot spares to keep.")] = None,
) -> None:
    """Change how many replica groups and spares the run wants; without options, show it."""
    control = Control(coordinator, tls, as_)
    wanted = {"min_groups": min_, "max_groups": max_, "spares": spares}
    changes = {key: value for key, value in wanted.items() if value is not None}
    config = control.send("PATCH", "/v1/config", changes) if changes else control.get("/v1/status")["config"]
    print("  ".join(f"{key} {config[key]}" for key in wanted))
