from __future__ import annotations

import random

import pytest

from farstep.train.elastic.alignment import Report, align, float_of, word_of


def report(committed: int, **more: object) -> Report:
    return Report(committed=committed, **more)  # type: ignore[arg-type]


def test_numbers_keep_their_order_as_words() -> None:
    values = [0.0, 1e-300, 0.5, 1.0, 3.5, 1e300, float("inf")]
    assert sorted(values, key=word_of) == values
    assert [float_of(word_of(value)) for value in values] == values


def test_reports_survive_the_way_over_the_wire() -> None:
    one = report(
        7, attempt_generation=3, is_prepared=True, may_apply=True, norm_word=5, deal_seats=3, deal_seat=2
    )
    assert Report.from_row(one.to_row().tolist()) == one


def test_who_has_not_committed_what_others_have_applies_what_it_holds() -> None:
    plan = align(
        [
            report(6, last_norm_word=11),
            report(5, attempt_generation=2, is_prepared=True, may_apply=True, norm_word=12),
        ]
    )
    assert (plan.target, plan.forward, plan.behind) == (6, (1,), ())
    assert plan.norm_words == {1: 11}, "the norm that was agreed on, not the own one"


def test_a_step_that_all_hold_is_applied() -> None:
    held = {"attempt_generation": 4, "is_prepared": True, "may_apply": True}
    plan = align([report(5, norm_word=9, **held), report(5, norm_word=8, **held)])
    assert (plan.target, plan.forward) == (6, (0, 1))
    assert set(plan.norm_words.values()) == {8}
    assert plan.is_applied == {0: True, 1: True}


def test_a_step_that_all_hold_is_refused_if_its_gradient_is_not_finite() -> None:
    held = {"attempt_generation": 4, "is_prepared": True}
    plan = align([report(5, may_apply=True, **held), report(5, may_apply=False, **held)])
    assert plan.target == 6
    assert not any(plan.is_applied.values())


def test_a_step_that_somebody_lacks_is_run_again() -> None:
    plan = align(
        [
            report(5, attempt_generation=4, is_prepared=True, may_apply=True),
            report(5, attempt_generation=4),
        ]
    )
    assert (plan.target, plan.forward, plan.behind) == (5, (), ())


def test_a_spare_that_was_no_part_of_the_step_does_not_hold_it_back() -> None:
    held = {"attempt_generation": 4, "is_prepared": True, "may_apply": True}
    plan = align([report(5, **held), report(5, is_newcomer=True), report(5, **held)])
    assert (plan.target, plan.forward, plan.behind) == (6, (0, 2), (1,))
    assert plan.reference == 0
    assert plan.is_compared


def test_a_spare_that_was_told_by_the_one_that_died_brings_the_others_along() -> None:
    held = {"attempt_generation": 4, "is_prepared": True, "may_apply": True}
    plan = align([report(5, **held), report(6, is_newcomer=True, last_norm_word=3)])
    assert (plan.target, plan.forward, plan.behind) == (6, (0,), ())


def test_at_the_start_the_lowest_seat_is_the_reference() -> None:
    plan = align([report(0, is_newcomer=True), report(0, is_newcomer=True)])
    assert (plan.target, plan.reference, plan.behind) == (0, 0, ())


def test_after_a_resume_the_newest_checkpoint_wins() -> None:
    plan = align([report(100, is_newcomer=True), report(200, is_newcomer=True)])
    assert (plan.target, plan.reference, plan.behind) == (200, 1, (0,))


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(2, 0), (2, 1)], None),
        ([(3, 0), (3, 2)], (3, (0, 2))),
        ([(3, 0), (0, -1), (3, 2)], None),
        ([(3, 0), (0, -1)], (3, (0, None))),
        ([(0, -1), (0, -1)], None),
        ([(2, 0), (2, 1), (0, -1)], (2, (0, 1, None))),
        ([(3, 0), (0, -1), (3, 2), (4, 3)], (4, (None, None, None, 3))),  # two deals, of which one is gone by
    ],
)
def test_batches_in_hand_are_kept_unless_a_new_deal_is_the_same(
    reports: list[tuple[int, int]], expected: tuple[int, tuple[int | None, ...]] | None
) -> None:
    plan = align(
        [report(5, attempt_generation=1, deal_seats=seats, deal_seat=seat) for seats, seat in reports]
    )
    found = None if plan.kept_deal is None else (plan.kept_deal.seats, plan.kept_deal.holders)
    assert found == expected


def test_whatever_happens_to_a_step_nobody_applies_what_others_do_not() -> None:
    """Plays steps that break at random points and checks that all living replicas see one history."""
    for seed in range(300):
        _play(random.Random(seed))


def _play(draw: random.Random) -> None:
    seats = [f"m{index}" for index in range(draw.randint(2, 4))]
    history: dict[int, str] = {}
    committed = dict.fromkeys(seats, 0)
    attempts: dict[str, tuple[int, bool, str]] = {}
    for generation in range(1, 8):
        gradient = f"step {committed[seats[0]]} by {'+'.join(seats)} in {generation}"
        # How far each seat gets: 0 not all buckets, 1 all buckets, 2 the vote is in and applied.
        reached = 2 if draw.random() < 0.3 else draw.choice([0, 1])
        progress = {seat: draw.randint(max(0, reached - 1), reached) for seat in seats}
        if reached == 2:
            progress = {
                seat: max(1, level) for seat, level in progress.items()
            }  # a vote needs all buckets of all
        for seat in seats:
            attempts[seat] = (generation, progress[seat] >= 1, gradient)
            if progress[seat] == 2:
                assert history.setdefault(committed[seat], gradient) == gradient
                committed[seat] += 1
                attempts.pop(seat)
        if len(seats) > 1 and draw.random() < 0.5:
            seats.remove(draw.choice(seats))
        rows = [
            report(
                committed[seat],
                attempt_generation=attempts[seat][0] if seat in attempts else 0,
                is_prepared=seat in attempts and attempts[seat][1],
                may_apply=True,
            )
            for seat in seats
        ]
        plan = align(rows)
        assert not plan.behind, "no survivor ever lacks the gradient of a step that another has applied"
        for index in plan.forward:
            seat = seats[index]
            applied = attempts.pop(seat)[2]
            assert history.setdefault(committed[seat], applied) == applied
            committed[seat] += 1
        assert {committed[seat] for seat in seats} == {plan.target}
