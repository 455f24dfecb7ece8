"""`farstep replay`: a recorded run once more, and whether it comes to the same bits."""

from pathlib import Path
from typing import Annotated

import typer

from farstep.cli.errors import REMOTE, USAGE, CommandError

__all__ = ["replay"]


def replay(
    events: Annotated[
        Path,
        typer.Argument(metavar="EVENTS.jsonl", help="Event log that the run's coordinators have written."),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The program that its members ran."),
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Run it so often; all must come to the same state.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the logs of the members.")
    ] = None,
) -> None:
    """Run a recorded run again on this machine: the same seats at the same steps, without failures.

    Ends with the SHA-256 of model, optimizer and position in the data. It must be the one in the event log, if the
    run came to its end. Without a command, shows who had seats from which step on.
    """
    from farstep.train.errors import ConfigError, RunFailed
    from farstep.train.replay import read_plan
    from farstep.train.replay import replay as run_again

    try:
        plan = read_plan(events)
    except ConfigError as error:
        raise CommandError(str(error), status=USAGE) from error
    if not command:
        for span in plan.spans:
            print(f"from step {span.step}: {', '.join(span.names)}")
        if plan.end_step is not None:
            print(f"end after {plan.end_step} steps, SHA-256 {plan.sha256}")
        return
    found = set()
    for number in range(times):
        folder = out / str(number + 1) if out is not None else None
        try:
            end = run_again(plan, command, folder=folder)
        except RunFailed as error:
            raise CommandError(str(error), status=REMOTE) from error
        found.add(end)
        print(f"{end.step} steps, SHA-256 {end.sha256}")
    if len(found) > 1:
        raise CommandError("the replays differ from each other", status=REMOTE)
    end = found.pop()
    if plan.sha256 is not None and (end.step, end.sha256) != (plan.end_step, plan.sha256):
        recorded = f"{plan.end_step} steps, SHA-256 {plan.sha256}"
        raise CommandError(f"the replay differs from what was recorded: {recorded}", status=REMOTE)
