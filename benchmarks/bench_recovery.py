"""Replica groups are killed or stopped at random moments: how long others stall, what is lost, how soon they are back.

With `--torchft NAME=PYTHON` (repeatable) the same model trains on the same machine under torchft, in the interpreter
it is installed in, in turns with farstep.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness.measure import Report, arguments, median, parse
from harness.recovery import (
    Farstep,
    Job,
    Outcome,
    System,
    Torchft,
    kill_again_and_again,
    kill_coordinators,
)

STALL_MEDIAN_S, STALL_MAX_S, HANG_MAX_S = 0.5, 1.0, 2.0


def measure(system: System, options: argparse.Namespace, *, kills: int, seed: int) -> tuple[Outcome, Outcome]:
    """Runs one job and hurts its groups, then its coordinator."""
    spares = options.spares if isinstance(system, Farstep) else 0
    with (
        tempfile.TemporaryDirectory(prefix=f"{system.name}-") as folder,
        Job(
            system,
            Path(folder),
            groups=options.groups,
            size=options.size,
            batch=options.batch,
            spares=spares,
        ) as job,
    ):
        of_groups = kill_again_and_again(job, kills, seed=seed, hang_s=options.hang_s)
        coordinator_kills = options.coordinator_kills if isinstance(system, Farstep) else 0
        return of_groups, kill_coordinators(job, coordinator_kills, seed=seed)


def tell(report: Report, name: str, outcome: Outcome, *, size: str) -> None:
    """Adds what happened to one system."""
    what = f"{name}, {size}"
    stalls = [injury.stall_s for injury in outcome.injuries]
    report.add(
        f"{what}: stall of survivors", stalls, "s", died=sum(injury.died for injury in outcome.injuries)
    )
    report.add(f"{what}: steps lost", [float(injury.steps_lost) for injury in outcome.injuries], "")
    if outcome.rejoin_s:
        report.add(f"{what}: ready to contributing", outcome.rejoin_s, "s")
    if outcome.join_stall_s:
        report.add(f"{what}: stall of the others when it takes its seat", outcome.join_stall_s, "s")


def main() -> int:
    """Measures all systems."""
    parser = arguments(__doc__ or "", rounds=1)
    parser.add_argument("--kills", type=int, default=20, help="injuries per system and round (%(default)s)")
    parser.add_argument("--groups", type=int, default=3, help="replica groups (%(default)s)")
    parser.add_argument(
        "--size", choices=("small", "big"), default="small", help="0.56 or 18.2 million parameters"
    )
    parser.add_argument("--batch", type=int, default=64, help="samples of a group in each step (%(default)s)")
    parser.add_argument(
        "--hang-s", type=float, default=0.0, help="stop the victim for so long instead of killing it"
    )
    parser.add_argument(
        "--torchft", action="append", default=[], metavar="NAME=PYTHON", help="also measure torchft"
    )
    parser.add_argument("--seed", type=int, default=1, help="of victims and moments (%(default)s)")
    parser.add_argument("--spares", type=int, default=0, help="hot spares, of farstep alone (%(default)s)")
    parser.add_argument(
        "--coordinator-kills",
        type=int,
        default=0,
        help="afterwards kill farstep's coordinator so often (%(default)s)",
    )
    parser.add_argument("--only-torchft", action="store_true", help="leave farstep out")
    options = parse(parser)
    kills = 2 if options.quick else options.kills
    systems: list[System] = [] if options.only_torchft else [Farstep()]
    for given in options.torchft:
        name, _, python = given.partition("=")
        systems.append(Torchft(python=python, name=name))
    injury = f"stopped for {options.hang_s:g} s" if options.hang_s else "killed (SIGKILL)"
    report = Report(
        "Recovery",
        f"{options.groups} groups of {options.batch} samples; one is {injury} at random and comes back, {kills} times; "
        "stall: longest time between two committed steps of a survivor less its median step",
        is_silent=options.json,
    )
    report.begin()
    outcomes: dict[str, Outcome] = {system.name: Outcome() for system in systems}
    coordinators = Outcome()
    for n in range(options.rounds):
        for system in systems:
            outcome, without = measure(system, options, kills=kills, seed=options.seed + n)
            outcomes[system.name].injuries += outcome.injuries
            outcomes[system.name].rejoin_s += outcome.rejoin_s
            outcomes[system.name].join_stall_s += outcome.join_stall_s
            coordinators.injuries += without.injuries
    for name, outcome in outcomes.items():
        tell(report, name, outcome, size=options.size)
    if coordinators.injuries:
        tell(report, "farstep, coordinator killed", coordinators, size=options.size)
        gone = sum(one.died + one.steps_lost for one in coordinators.injuries)
        report.check("groups that died or lost a step with their coordinator", float(gone), 0, at_least=False)
    if "farstep" in outcomes:
        ours = outcomes["farstep"].injuries
        stalls = [one.stall_s for one in ours]
        limit_s = HANG_MAX_S if options.hang_s else STALL_MAX_S
        if not options.hang_s:
            report.check("median stall", median(stalls), STALL_MEDIAN_S, at_least=False, unit="s")
        report.check("longest stall", max(stalls), limit_s, at_least=False, unit="s")
        report.check("survivors that died", float(sum(one.died for one in ours)), 0, at_least=False)
        report.check("most steps lost", float(max(one.steps_lost for one in ours)), 1, at_least=False)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
