"""Replica groups are killed or stopped at random moments: how long others stall, what is lost, how soon they are back.

With `--torchft NAME=PYTHON` (repeatable) the same model trains on the same machine under torchft, in the interpreter
it is installed in, in turns with farstep.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from harness.measure import Report, arguments, median, parse
from harness.recovery import Farstep, Job, Outcome, System, Torchft, kill_again_and_again

STALL_MEDIAN_S, STALL_MAX_S, HANG_MAX_S = 0.5, 1.0, 2.0


def measure(
    system: System, *, kills: int, groups: int, size: str, batch: int, seed: int, hang_s: float
) -> Outcome:
    """Runs one job and hurts it."""
    with (
        tempfile.TemporaryDirectory(prefix=f"{system.name}-") as folder,
        Job(system, Path(folder), groups=groups, size=size, batch=batch) as job,
    ):
        return kill_again_and_again(job, kills, seed=seed, hang_s=hang_s)


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
    for n in range(options.rounds):
        for system in systems:
            outcome = measure(
                system,
                kills=kills,
                groups=options.groups,
                size=options.size,
                batch=options.batch,
                seed=options.seed + n,
                hang_s=options.hang_s,
            )
            outcomes[system.name].injuries += outcome.injuries
            outcomes[system.name].rejoin_s += outcome.rejoin_s
    for name, outcome in outcomes.items():
        tell(report, name, outcome, size=options.size)
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
