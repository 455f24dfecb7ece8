"""`farstep compare`: one scenario over real sockets and in the simulator, side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farstep.cli.errors import INTERRUPTED, REMOTE, USAGE, CommandError

if TYPE_CHECKING:
    import numpy as np

    from farstep.fabric import FaultScript
    from farstep.sim.result import SimResult
    from farstep.sim.two_sites import TwoSites

__all__ = ["compare"]

BAND = 0.10
"""By how much times may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Figures of one side, a value for each run."""

    finish_s: list[np.ndarray]
    retransmitted: list[int]
    packets: list[int]
    losses: list[int]
    bad_evs: list[int]


def compare(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO.TOML", help="Two sites, paths, flows and faults.")
    ],
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Runs over real sockets.")] = 5,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Simulations.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Run one scenario over the path emulator and in the simulator, and say how far they are apart.

    Ends with status 1 if the time of a flow differs by more than 10 %.
    """
    from farstep.engine import EngineError
    from farstep.fabric import ConfigError
    from farstep.lab import EmulatorError
    from farstep.sim.packet import SimulationStalled

    try:
        loaded, faults = _load(scenario)
        wire = _measured(loaded, faults, rounds)
        simulated = _simulated(loaded, faults, seeds)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    except (EngineError, EmulatorError, SimulationStalled) as error:
        raise CommandError(str(error), status=REMOTE) from error
    except KeyboardInterrupt as error:
        raise CommandError("stopped", status=INTERRUPTED) from error
    rows = _rows(loaded, wire, simulated)
    is_close = all(abs(row["difference"]) <= BAND for row in rows if row["is_judged"])
    if as_json:
        print(json.dumps({"rows": rows, "is_within_band": is_close}, indent=1))
    else:
        _print(rows, is_close)
    if not is_close:
        raise typer.Exit(1)


def _load(path: Path) -> tuple[TwoSites, FaultScript]:
    """Reads network, flows and faults.

    Raises:
        ConfigError: one line that names file, key and what is valid.
    """
    from pydantic import ValidationError

    from farstep.fabric import ConfigError, FaultScript
    from farstep.fabric.errors import describe_validation_error, read_toml
    from farstep.sim.two_sites import TwoSites

    table = dict(read_toml(path))
    faults = FaultScript.parse({"faults": table.pop("faults", [])}, source=str(path))
    flows = table.pop("flows", None)
    if flows is None:
        raise ConfigError(f'{path}: flows: is required, as in [[flows]] with sender = "SITE"')
    try:
        return TwoSites.model_validate({"network": table, "flows": flows}), faults
    except ValidationError as error:
        line = describe_validation_error(error, str(path)).splitlines()[0]
        raise ConfigError(line.replace("network.", "")) from error


def _measured(scenario: TwoSites, faults: FaultScript, rounds: int) -> _Side:
    from farstep.cli.wire import measured_sites

    runs = [measured_sites(scenario, faults.faults, seed=seed) for seed in range(1, rounds + 1)]
    return _Side(
        finish_s=[each.finish_s for each in runs],
        retransmitted=[each.retransmitted for each in runs],
        packets=[each.packets for each in runs],
        losses=[each.losses for each in runs],
        bad_evs=[each.bad_evs for each in runs],
    )


def _simulated(scenario: TwoSites, faults: FaultScript, seeds: int) -> _Side:
    import numpy as np

    from farstep.sim.two_sites import simulated_sites

    runs = [simulated_sites(scenario, faults.faults, seed=seed)[0] for seed in range(1, seeds + 1)]
    return _Side(
        finish_s=[np.asarray(each.finish_ns, float) / 1e9 for each in runs],
        retransmitted=[int(each.retransmitted.sum()) for each in runs],
        packets=[int(each.packets.sum()) for each in runs],
        losses=[int(each.dropped.sum()) for each in runs],
        bad_evs=[_bad_at_the_end(each) for each in runs],
    )


def _bad_at_the_end(result: SimResult) -> int:
    """EVs whose last change of state was to be given up."""
    events, assumed_bad = result.ev_events, 2
    last = {
        (int(connection), int(ev)): int(state)
        for connection, ev, state in zip(events["connection"], events["ev"], events["state"], strict=True)
    }
    return sum(state == assumed_bad for state in last.values())


def _rows(scenario: TwoSites, wire: _Side, simulated: _Side) -> list[dict[str, Any]]:
    """Medians of both sides; times of each flow's first, middle and last message, and counts."""
    import numpy as np

    rows: list[dict[str, Any]] = []
    first = 0
    for flow in scenario.flows:
        last = first + flow.messages - 1
        for name, index in (("first", first), ("middle", (first + last) // 2), ("last", last)):
            a = float(np.median([times[index] for times in wire.finish_s]))
            b = float(np.median([times[index] for times in simulated.finish_s]))
            rows.append(
                {
                    "what": f"{flow.sender}: {name} message done, s",
                    "wire": a,
                    "simulated": b,
                    "difference": b / a - 1 if a else 0.0,
                    "is_judged": name == "last",
                }
            )
        first = last + 1
    for name in ("packets", "retransmitted", "losses", "bad_evs"):
        a, b = (float(np.median(getattr(side, name))) for side in (wire, simulated))
        words = {
            "packets": "data packets",
            "retransmitted": "sent again",
            "losses": "lost",
            "bad_evs": "EVs out of use at the end",
        }
        rows.append(
            {
                "what": words[name],
                "wire": a,
                "simulated": b,
                "difference": b / a - 1 if a else 0.0 if not b else float(b),
                "is_judged": False,
            }
        )
    return rows


def _print(rows: list[dict[str, Any]], is_close: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("", "over sockets", "simulated", "difference"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        difference = f"{100 * row['difference']:+.1f} %" if row["wire"] else ""
        table.add_row(row["what"], f"{row['wire']:,.4g}", f"{row['simulated']:,.4g}", difference)
    Console().print(table)
    print(f"times are within {BAND:.0%}" if is_close else f"a time is more than {BAND:.0%} off")
