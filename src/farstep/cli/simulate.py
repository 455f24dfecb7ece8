"""`farstep simulate`: what a fabric does to a workload, with one transport or several side by side."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farstep.cli.errors import INTERRUPTED, LOCAL, REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    from farstep.sim.result import SimResult
    from farstep.sim.run import SimulationStalled
    from farstep.sim.scenario import Scenario

__all__ = ["simulate"]

SLOWEST = "slowest"
"""What `--trace` calls the slowest flow of each transport."""
QUICK_S = 20.0
"""Simulations that took less are run again to follow their slowest flow without being asked."""


def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO.TOML]", help="Fabric, jobs and faults; without it, a small one."),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Transports to run side by side.")
    ] = None,
    level: Annotated[str | None, typer.Option(help="packet or flow, instead of run.level.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of run.seed.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key, such as transport.evs=16."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results as Parquet and JSON.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.HTML", help="Write an HTML report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the scenario and exit.")] = False,
    story: Annotated[bool, typer.Option("--story", help="Tell what happened to the slowest flow.")] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FLOW,FLOW", help="Record the packets of flows: their numbers, slowest, or none."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Simulate a workload on a fabric, packet by packet or as flows.

    Prints times of flows and steps, goodput, losses, the balance of the planes and the busiest
    link. The same seed gives the same result, so --story and --report follow the packets of the
    slowest flow in a second run, where the first was quick; --trace slowest does so in any case.
    Ends with status 3 if a transport leaves tasks unfinished because nothing happens any more.
    """
    from farstep.fabric.errors import ConfigError
    from farstep.sim.scenario import dump_toml, load_scenario

    try:
        followed = _followed(trace)
        overrides = _overrides(level, seed, set_ or [])
        if isinstance(followed, list):
            overrides["run.trace_flows"] = followed
        loaded = load_scenario(scenario, overrides)
        if show_config:
            print(dump_toml(loaded), end="")
            return
        names = _transports(compare, loaded)
        _check_targets(out, report)
        results, stuck = _run(loaded, names, is_quiet=quiet or as_json)
        if followed == SLOWEST or (
            followed is None and (story or report is not None) and _are_quick(results)
        ):
            results = _with_slowest_followed(loaded, results)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    except KeyboardInterrupt as error:
        raise CommandError("stopped", status=INTERRUPTED) from error
    except MemoryError as error:
        raise CommandError(
            'not enough memory; run.level = "flow", fewer NICs or transport.evs need less', status=LOCAL
        ) from error
    if results:
        _print(results, as_json=as_json, with_story=story)
        _keep(results, out, report)
    if stuck:
        raise CommandError(_left_unfinished(stuck), status=REMOTE)


def _followed(text: str | None) -> str | list[int] | None:
    """What `--trace` asks for: flows by number, the slowest, none, or nothing said."""
    from farstep.fabric.errors import ConfigError

    if text is None or text in (SLOWEST, "none"):
        return text
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 11 for part in parts):
        raise ConfigError(f"--trace {text!r}: write numbers of flows, such as 3,17, or slowest, or none")
    return [int(part) for part in parts]


def _are_quick(results: "dict[str, SimResult]") -> bool:
    """Whether running all of them once more costs nothing worth asking for."""
    return sum(float(result.meta["wall_s"]) for result in results.values()) < QUICK_S


def _with_slowest_followed(scenario: "Scenario", results: "dict[str, SimResult]") -> "dict[str, SimResult]":
    """Runs again what has packets, with the slowest flow followed; nothing else differs."""
    from farstep.sim.run import SimulationStalled, compare

    found = dict(results)
    for name, result in results.items():
        worst = result.worst_flow
        if worst is None or result.meta["level"] != "packet" or len(result.trace.get("task", ())):
            continue
        told: list[SimulationStalled] = []
        again = compare(
            scenario.with_overrides({"run.trace_flows": [worst]}),
            [name],
            on_stall=lambda _, stalled, told=told: told.append(stalled),  # type: ignore[misc]
        )
        if name in again:
            found[name] = again[name]
            found[name].meta["wall_s"] = result.meta["wall_s"]
            found[name].meta["scenario"] = result.meta.get("scenario")
    return found


def _overrides(level: str | None, seed: int | None, settings: list[str]) -> dict[str, Any]:
    from farstep.fabric.errors import ConfigError
    from farstep.sim.toml_text import parse_value

    overrides: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r}: write KEY=VALUE, such as transport.evs=16")
        overrides[key.strip()] = parse_value(value)
    if level is not None:
        overrides["run.level"] = level
    if seed is not None:
        overrides["run.seed"] = seed
    return overrides


def _transports(compare: str | None, scenario: "Scenario") -> list[str]:
    from farstep.fabric.errors import ConfigError, names
    from farstep.sim.transports import TRANSPORTS

    wanted = (
        [name.strip() for name in compare.split(",")] if compare is not None else [scenario.transport.name]
    )
    for name in wanted:
        if name not in TRANSPORTS:
            raise ConfigError(f"--compare {name!r}: no such transport; valid: {names(TRANSPORTS)}")
    return list(dict.fromkeys(wanted))


def _run(
    scenario: "Scenario", names: list[str], *, is_quiet: bool
) -> "tuple[dict[str, SimResult], dict[str, SimulationStalled]]":
    """Results, of transports that got stuck as far as they came, and those."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from farstep.sim.run import Progress as Step
    from farstep.sim.run import compare

    stuck: dict[str, SimulationStalled] = {}

    def tell(name: str, stalled: "SimulationStalled") -> None:
        stuck[name] = stalled
        if len(names) > 1:
            print(f"note: {name}: {stalled}", file=sys.stderr)

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=is_quiet or not console.is_terminal
    ) as bar:
        rows = {name: bar.add_task(name, total=1.0, now="") for name in names}

        def show(name: str, step: Step) -> None:
            now = f"{step.done:,} of {step.tasks:,} tasks at {step.now_ns / 1000:,.0f} us"
            bar.update(rows[name], completed=step.share, now=now)

        results = compare(scenario, names, on_progress=show, on_stall=tell)
    return results, stuck


def _left_unfinished(stuck: "dict[str, SimulationStalled]") -> str:
    """Which transports left what unfinished, and what that waits for; of several, the first of it."""
    if len(stuck) == 1:
        return "".join(f"{name}: {stalled}" for name, stalled in stuck.items())
    return "; ".join(f"{name}: {str(stalled).partition('; ')[0]}" for name, stalled in stuck.items())


def _print(results: "dict[str, SimResult]", *, as_json: bool, with_story: bool) -> None:
    from rich.console import Console

    from farstep.sim.summary import render

    if as_json:
        figures = {
            name: {"meta": result.meta, "metrics": result.metrics(), "story": result.story()}
            for name, result in results.items()
        }
        print(json.dumps(figures, indent=1))
        return
    print(_headline(results))
    print(render(results, width=max(80, Console().width)))
    for name, result in results.items():
        prefix = f"{name}: " if len(results) > 1 else ""
        if with_story:
            print("\n" + "\n".join(f"{prefix}{line}" for line in result.story()))
        if result.meta.get("ignored"):
            unused = ", ".join(result.meta["ignored"])
            print(f"note: {prefix}the {result.meta['level']} level has no use for {unused}", file=sys.stderr)
        if result.meta.get("limits"):
            told = "; ".join(result.meta["limits"])
            print(f"note: {prefix}the flow level is beyond its accuracy here: {told}", file=sys.stderr)
        unfinished = int((~result.finished).sum())
        if unfinished:
            print(f"note: {prefix}{unfinished} tasks unfinished when the simulation ended", file=sys.stderr)


def _headline(results: "dict[str, SimResult]") -> str:
    """What was simulated, in a line."""
    result = next(iter(results.values()))
    flows, delays = result.tasks.num_flows, len(result.tasks) - result.tasks.num_flows
    work = f"{flows:,} flows" + (f" and {delays:,} delays" if delays else "")
    took_s = sum(each.meta["wall_s"] for each in results.values())
    return f"{result.meta['fabric']}: {work}, {result.meta['level']} level, seed {result.meta['seed']}, {took_s:.2g} s"


def _check_targets(out: Path | None, report: Path | None) -> None:
    """Refuses files that cannot be written, before hours are spent on what they would hold."""
    if report is not None:
        if not report.parent.is_dir():
            raise CommandError(f"--report {report}: there is no folder {report.parent}", status=USAGE)
        if report.is_dir():
            raise CommandError(f"--report {report}: is a folder; name a file in it", status=USAGE)
        _check_writable("--report", report, report.parent)
    if out is not None:
        there = next(folder for folder in (out, *out.parents) if folder.exists())
        if not there.is_dir():
            raise CommandError(f"--out {out}: {there} is no folder", status=USAGE)
        _check_writable("--out", out, there)


def _check_writable(option: str, target: Path, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandError(f"{option} {target}: may not be written: no right to {folder}", status=LOCAL)


def _keep(results: "dict[str, SimResult]", out: Path | None, report: Path | None) -> None:
    """Writes what is asked for; one that cannot be written does not take the other with it."""
    try:
        if out is not None:
            _write(results, out)
    finally:
        if report is not None:
            _write_report(results, report)


def _write(results: "dict[str, SimResult]", out: Path) -> None:
    try:
        for name, result in results.items():
            folder = out / name if len(results) > 1 else out
            result.to_parquet(folder)
    except OSError as error:
        raise CommandError(f"{out}: cannot be written: {error.strerror or error}", status=LOCAL) from error
    print(f"results are in {out}", file=sys.stderr)


def _write_report(results: "dict[str, SimResult]", path: Path) -> None:
    from farstep.observe.sim_report import write_sim_report

    try:
        write_sim_report(results, path)
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror or error}", status=LOCAL) from error
    print(f"the report is {path}", file=sys.stderr)
