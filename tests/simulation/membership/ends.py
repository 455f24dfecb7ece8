"""Runs that end, and those who come too late, from a seed."""

from __future__ import annotations

import random
from functools import partial

from farstep.membership.records import MembershipConfig
from tests.simulation.membership.world import MS, Member, World

STEPS = 100


class End:
    """A run whose members finish one by one while others hang, leave, die, come back and join.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        groups = draw.randint(1, 4)
        config = MembershipConfig(
            groups=groups,
            min_groups=draw.randint(1, min(groups, 2)),
            spares=draw.randint(0, 1),
            join_window_s=0.5,
            settle_s=0.1,
        )
        self.world = World(seed, config, num_places=draw.randint(1, 2), tick_factor=5)
        self.was_said = False
        """Somebody has said that the run is finished."""
        self.was_restarted = False

    def play(self) -> None:
        """Lets the run begin, suffer a little, and end."""
        world, draw = self.world, self.draw
        world.start_coordinator(0)
        if len(world.places) > 1 and draw.random() < 0.3:
            world.start_coordinator(1)
        for number in range(world.config.expected_groups + world.config.spares):
            world.add_member(f"m-{number}").comes_back = True
        world.run_until(lambda: world.agree(world.living()), 3.0)
        for member in world.members:
            member.core.announce_ready(0)
        world.run(draw.uniform(0.2, 0.6))
        for _ in range(draw.randint(0, 2)):
            self.disturb()
            world.run(draw.uniform(0.0, 1.5))
        self.finish()
        world.run(14.0)
        self.check()

    def disturb(self) -> None:
        """Makes somebody who comes too late, if that is soon enough before the end."""
        world, draw = self.world, self.draw
        seated = world.seated()
        member = draw.choice(seated)
        match draw.randint(0, 3):
            case 0 if len(seated) > 2:
                world.stop(member, True)
                world.at(draw.randint(500, 4000) * MS, lambda: world.stop(member, False))
            case 1 if len(seated) > 2:
                world.kill(member)
                delay_ns = draw.randint(0, 4000) * MS
                world.at(delay_ns, lambda: world.add_member(member.name, host=member.host))
            case 2:
                member.core.leave("maintenance")
                world._flush(member)
            case _:
                world.add_member(f"j-{draw.randrange(1000)}", is_ready=draw.random() < 0.5).comes_back = True

    def finish(self) -> None:
        """Those who train together make the last step, and say so one after the other."""
        world, draw = self.world, self.draw
        seated = [m for m in world.seated() if not m.is_stopped]
        latest = max((m.generation for m in seated if m.generation), key=lambda generation: generation.number)
        trained = [m for m in seated if latest.seat_of(m.core.info.member_id) is not None]
        is_hasty = draw.random() < 0.3  # spares were to take over from all of them in the very last step
        for member in trained:
            member.core.step = STEPS
            if is_hasty or draw.random() < 0.2:
                member.core.leave("maintenance")
                world._flush(member)
            self.later(0, 30 if is_hasty else 400, lambda member=member: self.say(member))
        if draw.random() < 0.5:
            self.later(0, 1000, self.restart)
        for number in range(draw.randint(0, 2)):
            self.later(0, 6000, lambda number=number: world.add_member(f"late-{number}"))

    def say(self, member: Member) -> None:
        if member.is_told or member.was_evicted:
            return  # whoever is left out and knows it does not say anything about the run
        member_id = member.core.info.member_id
        proposers = [place.proposer for place in self.world.places if place.proposer is not None]
        bases = [proposer.generation for proposer in proposers if proposer.generation is not None]
        was_let_go = any(base.seat_of(member_id) is None for base in bases)
        if member.core.leaving is None or not was_let_go:
            self.was_said = True
        self.world.finish(member, STEPS)

    def restart(self) -> None:
        """Kills the coordinator; one that knows nothing follows, at the same or at another address."""
        world, draw = self.world, self.draw
        self.was_restarted = True
        world.kill_coordinator(0)
        place = draw.randrange(len(world.places))
        if world.places[place].proposer is None:
            self.later(100, 1500, lambda: world.start_coordinator(place))
        else:
            self.later(100, 1500, lambda: world.start_coordinator(0))

    def later(self, least_ms: int, most_ms: int, call: object) -> None:
        self.world.at(self.draw.randint(least_ms, most_ms) * MS, call)  # type: ignore[arg-type]

    @property
    def is_known(self) -> bool:
        """Whether a coordinator is up that has heard of the end."""
        places = self.world.places
        return any(place.proposer is not None and place.proposer.ended is not None for place in places)

    def check(self) -> None:
        """Where the end is known everybody is told; where it is not, those who wait are told what for."""
        world = self.world
        if not self.was_said:
            return  # all that trained had been let go when they were to say so: the run goes on without them
        behind = [
            member
            for member in world.seated()
            if member.core.step != STEPS
            and member.generation is not None
            and member.generation.seat_of(member.core.info.member_id) is not None
        ]
        if behind and not self.is_known:
            return  # it hung in the last step and has the seat of those that were let go: the run goes on with it
        if not self.was_restarted:
            assert self.is_known, f"the coordinator did not hear of the end\n{world.describe()}"
        for member in world.living():
            proposer = member.line.place.proposer if member.line is not None else None
            is_other_run = proposer is not None and proposer.generation is not None and proposer.ended is None
            if is_other_run or member.is_told:
                continue  # enough of those who came late have begun a new run, where nobody knew of the end
            assert not self.is_known, f"{member.name} was not told of the end\n{world.describe()}"
            told = partial(lambda core: core.waiting is not None, member.core)
            world.run_until(told, 1.0)  # it may be on its way to another address


def play_end(seed: int) -> End:
    """Plays one seed; a failure names it."""
    end = End(seed)
    try:
        end.play()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from None
    return end
