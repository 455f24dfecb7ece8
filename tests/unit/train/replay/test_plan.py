"""What is read out of an event log, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from farstep.membership import MemberInfo, MembershipTimeout, RunEnded
from farstep.train.errors import ConfigError
from farstep.train.replay import ReplayPlan, Span, read_plan
from farstep.train.replay.membership import PLAN, ReplayMembership
from farstep.train.replay.plan import plan_of

RUN = "run/0123456789ab"


def generation(number: int, *names: str) -> dict[str, Any]:
    return {"kind": "generation", "number": number, "run_id": RUN, "members": list(names)}


def regroup(number: int, step: int, **more: Any) -> dict[str, Any]:
    return {"kind": "regroup", "generation": number, "step": step, **more}


LOG = [
    {"kind": "coordinator_start"},
    {"kind": "member_joined", "member": "a-0", "site": "a"},
    {"kind": "member_joined", "member": "b-0", "site": "b"},
    generation(1, "a-0", "b-0"),
    regroup(1, 0),
    regroup(1, 0),
    generation(2, "a-0"),  # nobody came to it: another followed at once
    generation(3, "a-0"),
    regroup(3, 7),
    {"kind": "member_joined", "member": "c-0", "site": "c"},
    generation(4, "a-0", "c-0"),
    regroup(4, 9),
    generation(5, "b-0", "c-0"),
    regroup(5, 9),
    {"kind": "final_state", "step": 12, "sha256": "ab"},
]


def test_spans_are_read_from_the_steps_at_which_members_stood_together() -> None:
    plan = plan_of(LOG)
    assert plan.spans == (
        Span(0, ("a-0", "b-0"), ("a", "b")),
        Span(7, ("a-0",), ("a",)),
        Span(9, ("b-0", "c-0"), ("b", "c")),  # generation 4 had no step
    )
    assert (plan.run_id, plan.seats, plan.end_step, plan.sha256) == (RUN, 2, 12, "ab")
    assert ReplayPlan.from_json(plan.to_json()) == plan


def test_a_line_torn_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LOG[:5]) + '{"kind": "regr')
    assert read_plan(path).spans == (Span(0, ("a-0", "b-0"), ("a", "b")),)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "holds 0 runs"),
        ([*LOG, {**generation(1, "x"), "run_id": "run/ba9876543210"}], "holds 2 runs"),
        (LOG[6:], "who was in generation|begin at step 0"),
        ([generation(4, "a-0"), regroup(4, 30)], "does not begin at step 0"),
        ([generation(1, "a-0"), regroup(1, 0), regroup(2, 5)], "does not say who was in generation 2"),
        ([*LOG, regroup(5, 9, keeps_deal=True)], r"only loops that call trainer.step\(function, batch\)"),
        ([*LOG, {"kind": "log_gap", "lines": 3}], "3 lines are missing"),
    ],
)
def test_what_cannot_be_replayed_is_refused(lines: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_of(lines)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_plan(tmp_path / "nowhere.jsonl")


def test_generations_are_announced_in_the_step_before_they_begin(tmp_path: Path) -> None:
    plan = ReplayPlan(
        RUN, (Span(0, ("a", "b"), ("", "")), Span(3, ("a",), ("",)), Span(4, ("a", "b"), ("", "")))
    )
    (tmp_path / PLAN).write_text(plan.to_json())
    first, second = (ReplayMembership(tmp_path, n, MemberInfo.create(f"x-{n}")) for n in range(2))
    heard: list[int] = []
    first.on_generation(lambda generation: heard.append(generation.number))
    with pytest.raises(MembershipTimeout):
        second.wait_generation(0, timeout_s=0.0)  # the first member says when it begins
    assert first.wait_generation(0).number == second.wait_generation(0).number == 1
    first.event("regroup", step=0)
    first.report_progress(1)
    assert heard == []
    first.report_progress(2)
    assert heard == [2]
    assert first.wait_generation(1).number == 2
    first.event("regroup", step=3)
    assert heard == [2, 3], "generation 2 has one step only"
    with pytest.raises(MembershipTimeout):
        second.wait_generation(1, timeout_s=0.0)
    assert first.wait_generation(2).number == 3
    assert second.wait_generation(1).number == 3
    first.leave("", finished=True, step=9)
    with pytest.raises(RunEnded):
        second.wait_generation(3)


def test_values_pass_between_members(tmp_path: Path) -> None:
    (tmp_path / PLAN).write_text(ReplayPlan(RUN, (Span(0, ("a",), ("",)),)).to_json())
    member = ReplayMembership(tmp_path, 0, MemberInfo.create("x"))
    member.store("g1").set("key/0", b"value")
    assert member.store("g1").get("key/0", 0.0) == b"value"
    with pytest.raises(TimeoutError):
        member.store("g2").get("key/0", 0.01)
