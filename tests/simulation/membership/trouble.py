"""Trouble drawn from a seed, and what must be true after it."""

from __future__ import annotations

import random

from farstep.membership import messages as wire
from farstep.membership.records import MembershipConfig
from tests.simulation.membership.world import World


class Trouble:
    """A run of a few members with one to three coordinators, and random misfortune.

    Args:
        seed: decides everything.
        config: of the coordinators; drawn if None.
    """

    def __init__(self, seed: int, config: MembershipConfig | None = None) -> None:
        self.draw = random.Random(seed)
        self.world = World(
            seed,
            self._draw_config() if config is None else config,
            num_places=self.draw.randint(1, 3),
            witnesses=self.draw.random() < 0.8,
            tick_factor=5,
        )
        self.num_joined = 0

    def _draw_config(self) -> MembershipConfig:
        groups = self.draw.randint(2, 5)
        return MembershipConfig(
            groups=groups,
            min_groups=self.draw.randint(1, 2),
            spares=self.draw.randint(0, 1),
            fixed_seats=self.draw.random() < 0.1,
            join_window_s=0.5,
            settle_s=0.3,
        )

    def play(self, seconds: float = 4.0) -> None:
        """Starts the run, lets trouble come, takes all of it back, and looks at what is left."""
        world = self.world
        for place in world.places[: self.draw.randint(1, len(world.places))]:
            world.start_coordinator(place.number)
        for _ in range(world.config.expected_groups + world.config.spares):
            self.join(is_ready=False)
        end_ns = world.now_ns + round(seconds * 1e9)
        while world.now_ns < end_ns:
            world.run(self.draw.uniform(0.02, 0.5))
            self.strike()
        self.calm()
        self.check()

    def join(self, *, is_ready: bool) -> None:
        name = f"m-{self.num_joined}"
        self.num_joined += 1
        host = f"host-{self.draw.randint(0, 2)}"
        wants = "spare" if self.draw.random() < 0.15 and self.num_joined > 2 else "seat"
        self.world.add_member(name, host=host, wants=wants, is_ready=is_ready)

    def strike(self) -> None:
        world, draw = self.world, self.draw
        living = world.living()
        place = draw.choice(world.places)
        match draw.randint(0, 11):
            case 0 if len(living) > 1:
                world.kill(draw.choice(living))
            case 1 | 2 if len(living) < 7:
                self.join(is_ready=True)
            case 3:
                member = draw.choice(living)
                world.stop(member, True)
                world.at(draw.randint(50, 2500) * 1_000_000, lambda: world.stop(member, False))
            case 4 | 5:
                if place.proposer is None:
                    world.start_coordinator(place.number)
                else:
                    world.kill_coordinator(place.number)
            case 6:
                world.pause_coordinator(place.number, True)
                delay_ns = draw.randint(50, 3000) * 1_000_000
                world.at(delay_ns, lambda: world.pause_coordinator(place.number, False))
            case 7 | 8:
                for member in living:
                    if draw.random() < 0.4:
                        direction = draw.randint(0, 2)
                        world.cut(member, place.number, up=direction != 1, down=direction != 0)
            case 9:
                world.heal()
            case 10:
                draw.choice(living).core.leave("maintenance")
            case 11:
                member = draw.choice(living)
                generation = member.generation
                if generation is not None:
                    suspect = draw.choice(generation.seats).member_id
                    report = wire.FailureReport(generation=generation.number, suspects=(suspect,), reason="x")
                    member.core.report_failure(report)

    def calm(self) -> None:
        """Takes everything back that can be, and gives the run time to settle."""
        world = self.world
        for member in world.living():
            if member.is_stopped:
                world.stop(member, False)
        for place in world.places:
            if place.is_paused:
                world.pause_coordinator(place.number, False)
        if all(place.proposer is None for place in world.places):
            world.start_coordinator(0)
        world.heal()
        world.run(4.0)

    def check(self) -> None:
        """If enough voters of the latest generation live, the run must have settled on those that live."""
        world = self.world
        held = [m.generation for m in world.living() if m.generation is not None]
        adopted = {m.generation.run_id for m in world.living() if m.core.was_member and m.generation}
        if len(adopted) != 1:
            return
        # What only the dead knew may have been decided or not: nobody can tell, and nobody goes on without them.
        latest = max((g for g in held if g.run_id in adopted), key=lambda generation: generation.number)
        living = {m.core.info.member_id: m for m in world.living() if not m.core.is_evicted}
        here = latest.voter_ids & set(living)
        if 2 * len(here) <= len(latest.voter_ids):
            return
        for member_id in here:
            member = living[member_id]
            assert member.generation is not None
            assert member.generation.number == latest.number, f"{member.name} lags\n{world.describe()}"
        can_go_on = not world.config.fixed_seats and len(here) - len(latest.spares) >= world.config.min_groups
        if can_go_on and not any(living[member_id].core.leaving for member_id in here):
            lost = latest.voter_ids - set(living)
            assert not lost, f"{lost} are gone but still in {latest.describe()}\n{world.describe()}"


def play(seed: int, seconds: float = 4.0) -> Trouble:
    """Plays one seed; a failure names it."""
    trouble = Trouble(seed)
    try:
        trouble.play(seconds)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from None
    return trouble
