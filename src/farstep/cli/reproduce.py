"""`farstep reproduce`: published results again, and what the simulator makes of them."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farstep.cli.errors import INTERRUPTED, LOCAL, REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    from farstep.sim.reproduce.record import Effort, Finding

__all__ = ["app"]

app = typer.Typer(
    help="Published results again: what was published, what is simulated, and whether they agree.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Seeds = Annotated[int, typer.Option(min=1, max=10_000, help="Seeds of each experiment; collisions take 20.")]
Quick = Annotated[bool, typer.Option("--quick", help="Two seeds and shorter runs, to see that it works.")]
Json = Annotated[bool, typer.Option("--json", help="Print every value as JSON.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write page, plots and JSON there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not say what comes next.")]


@app.command("mrc")
def mrc(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Such as Q20; all if none.")
    ] = None,
    seeds: Seeds = 10,
    quick: Quick = False,
    as_json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run the published results of the MRC papers, Q1 to Q36."""
    from farstep.sim.reproduce import mrc as module
    from farstep.sim.reproduce.pages import mrc_page

    wanted = _known(ids, module.EXPERIMENTS, "mrc")

    def work(effort: "Effort") -> list["Finding"]:
        return module.reproduce(wanted, effort, told=None if quiet or as_json else _tell)

    findings = _done(work, seeds, quick)
    _show(findings, as_json)
    if out is not None:
        _write(out, "mrc", findings, mrc_page(findings, module.HEAD))


@app.command("questions")
def questions(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[LETTER]...", help="a to j; all if none.")
    ] = None,
    seeds: Seeds = 5,
    quick: Quick = False,
    as_json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run experiments on what the MRC papers leave open, a to j."""
    from farstep.sim.reproduce import questions as module

    wanted = _known(ids, module.QUESTIONS, "questions")

    def work(effort: "Effort") -> list["Finding"]:
        return module.answer(wanted, effort, folder=out, told=None if quiet or as_json else _tell)

    findings = _done(work, seeds, quick)
    _show(findings, as_json)
    if out is not None:
        _write(out, "questions", findings, module.page(findings))


@app.command("htsim")
def htsim(
    data: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Matrices, topologies and results of htsim.")
    ],
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE]...", help="Names of runs; all if none.")
    ] = None,
    seeds: Seeds = 20,
    quick: Quick = False,
    as_json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Compare flow by flow with results of htsim."""
    from farstep.sim.reproduce import htsim as module
    from farstep.sim.reproduce.pages import htsim_page

    if not (data / "tm").is_dir() or not (data / "out").is_dir():
        raise CommandError(
            f"{data}: has no folders tm and out with htsim's matrices and results", status=USAGE
        )
    wanted = (
        _known(cases, {case.id: case for case in module.CASES}, "htsim FOLDER", fold=False) if cases else []
    )
    times: dict[str, module.Times] = {}

    def work(effort: "Effort") -> list["Finding"]:
        told = None if quiet or as_json else _tell
        return module.compare_all(data, effort, only=wanted, told=told, keep=times)

    findings = _done(work, seeds, quick)
    _show(findings, as_json)
    if out is not None:
        _write(out, "htsim", findings, htsim_page(findings, module.not_run(), times, out, module.HEAD))


def _known(ids: list[str] | None, known: Iterable[str], verb: str, *, fold: bool = True) -> list[str]:
    """The ids as they are written, or all of them."""
    spelled = {name.casefold() if fold else name: name for name in known}
    wanted = []
    for given in ids or ():
        name = spelled.get(given.casefold() if fold else given)
        if name is None:
            raise CommandError(
                f"reproduce {verb} {given!r}: no such experiment; valid: {', '.join(known)}", status=USAGE
            )
        wanted.append(name)
    return wanted or list(known)


def _done(work: "Callable[[Effort], list[Finding]]", seeds: int, quick: bool) -> "list[Finding]":
    from farstep.sim.packet import SimulationCancelled, SimulationStalled
    from farstep.sim.reproduce.record import Effort

    try:
        return work(Effort(seeds=seeds, is_quick=quick))
    except (SimulationStalled, SimulationCancelled) as error:
        raise CommandError(str(error), status=REMOTE) from error
    except KeyboardInterrupt as error:
        raise CommandError("stopped", status=INTERRUPTED) from error


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(findings: list["Finding"], as_json: bool) -> None:
    from rich.console import Console

    from farstep.sim.reproduce.pages import render_findings

    if as_json:
        print(json.dumps([finding.as_json() for finding in findings], indent=1))
    else:
        print(render_findings(findings, width=max(100, Console().width)))


def _write(out: Path, name: str, findings: list["Finding"], page: str) -> None:
    from farstep.sim.reproduce.pages import write_json

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(page, encoding="utf-8")
        write_json(findings, out / f"{name}.json")
    except OSError as error:
        raise CommandError(f"{out}: cannot be written: {error.strerror or error}", status=LOCAL) from error
    print(f"the page is {out / name}.md", file=sys.stderr)
