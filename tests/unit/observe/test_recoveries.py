"""Recoveries folded from the event log of coordinators, and the report that shows them."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from farstep.observe.events import EventLogError
from farstep.observe.recoveries import RunRecoveries, is_coordinator_log
from farstep.observe.recovery_report import recovery_report_html, write_recovery_report
from tests.unit.observe.parsed_page import Page

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def line(at_s, kind, member=None, **fields):
    wall = (BEGIN + timedelta(seconds=at_s)).isoformat()
    envelope = {"id": 1, "t_ns": int(at_s * 1e9), "wall": wall, "rank": None, "kind": kind}
    return {**envelope, **({"member": member} if member else {}), **fields}


def generation(at_s, number, members, *, urgent=False, changes=(), spares=(), took_ms=0.0):
    reason = "; ".join(changes) or "the run begins"
    more = {"members": members, "spares": list(spares), "changes": list(changes), "took_ms": took_ms}
    return line(at_s, "generation", number=number, run_id="job/0a1b", urgent=urgent, reason=reason, **more)


STORY = [
    line(0, "coordinator_start", coordinator="x", run="job"),
    line(1, "member_joined", "w-0", wants="observer"),
    line(1, "member_joined", "a-0", wants="seat"),
    line(1, "member_joined", "b-0"),
    line(1, "member_joined", "c-0"),
    generation(1, 1, ["a-0", "b-0", "c-0"], spares=["s-0"]),
    line(2, "progress", step=5, training=3, generation=1, step_p50_ns=2e7, step_max_ns=4e7, loss=2.5),
    line(10, "member_lost", "c-0", cause="its process has exited"),
    line(10.01, "death_certificate", "c-0"),
    generation(
        10.02, 2, ["a-0", "b-0", "s-0"], urgent=True, changes=["s-0 takes the seat of c-0"], took_ms=15.5
    ),
    line(10.03, "step_failed", "a-0", step=90, generation=1, cause="c-0 is gone"),
    line(10.1, "regroup", "a-0", generation=2, step=90, took_ms=80.0, rolled_forward=False),
    line(10.14, "regroup", "b-0", generation=2, step=90, took_ms=120.0, rolled_forward=True),
    line(12, "member_joined", "c-0"),
    line(12, "heal_start", "c-0", at_step=0),
    line(13, "heal_state", "c-0", step=120, bytes=4_000_000, took_ms=310.0, sources={"a-0/1": 2, "b-0/2": 2}),
    line(14, "heal_done", "c-0", step=150),
    generation(14, 3, ["a-0", "b-0", "s-0", "c-0"], changes=["c-0 joins"]),
    line(20, "coordinator_start", coordinator="y", run="job"),
    line(21, "straggler", "b-0", reason="<b>slow</b>"),
    line(30, "progress", step=400, training=4, generation=3),
]


def written(tmp_path, lines):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def test_the_story_of_a_run(tmp_path):
    run = RunRecoveries.read(written(tmp_path, STORY))
    assert (run.name, run.duration_s, run.num_joined) == ("job/0a1b", 30, 4)
    assert run.coordinator_starts_s == [0, 20]
    assert [item.number for item in run.generations] == [1, 2, 3]
    (recovery,) = run.recoveries
    assert recovery.at_s == 10
    assert recovery.lost == ("c-0",)
    assert recovery.causes == ("c-0: its process has exited",)
    assert recovery.generation is run.generations[1]
    assert recovery.generation.stalls_ms == {"a-0": 80.0, "b-0": 120.0}
    assert recovery.standstill_ms == pytest.approx(140)
    assert recovery.generation.rolled_forward == ("b-0",)
    (heal,) = run.heals
    assert (heal.member, heal.at_s, heal.done_s, heal.from_step, heal.to_step) == ("c-0", 12, 14, 0, 150)
    assert (heal.num_bytes, heal.transfer_ms, heal.num_sources) == (4_000_000, 310.0, 2)
    assert [sample.step for sample in run.samples] == [5, 400]
    assert run.trouble == [(21, "b-0", "straggler", "reason <b>slow</b>")]


def test_a_failure_without_a_loss_is_a_recovery_too(tmp_path):
    story = [
        STORY[0],
        generation(1, 1, ["a-0"]),
        line(2, "failure_report", "a-0", reason="timeout"),
        generation(2.1, 2, ["a-0"], urgent=True, changes=["the same members try again"]),
        generation(3, 3, ["a-0"], urgent=True, changes=["out of nothing"]),
    ]
    run = RunRecoveries.read(written(tmp_path, story))
    assert [(item.causes, item.lost, item.generation.number) for item in run.recoveries] == [
        (("a-0: timeout",), (), 2),
        (("out of nothing",), (), 3),
    ]


def test_late_reports_leavers_and_short_pauses_are_no_failures(tmp_path):
    story = [
        *STORY[:9],
        line(11, "step_failed", "b-0", generation=1, cause="c-0 is gone"),
        line(11, "failure_report", "b-0", generation=1, reason="c-0 is gone"),
        line(11, "coordinator_paused", pause_s=0.2),
        line(12, "member_leaves", "s-0", reason="preempted"),
        line(12, "member_lost", "s-0", cause="it closed its membership"),
        line(13, "coordinator_paused", pause_s=3.5),
    ]
    run = RunRecoveries.read(written(tmp_path, story))
    assert len(run.recoveries) == 1
    assert run.trouble == [(13, "", "coordinator_paused", "pause_s 3.5")]


def test_a_run_that_lost_its_last_member_did_not_go_on(tmp_path):
    lost = line(31, "run_dropped", run_id="job/0a1b", number=3, reason="has no member left that could go on")
    run = RunRecoveries.read(written(tmp_path, [*STORY, lost]))
    page = Page(recovery_report_html(run))
    assert "The run was lost: it has no member left that could go on." in page.text
    assert "The log ends at step 400; it does not say that the run has ended." in page.text
    again = [*STORY, lost, {**generation(40, 1, ["a-0"]), "run_id": "job/ffff"}]
    assert RunRecoveries.read(written(tmp_path, again)).lost is None


def test_ranks_of_a_group_are_named_once(tmp_path):
    told = [item for item in STORY if item["kind"] == "regroup" and item.get("rolled_forward")]
    run = RunRecoveries.read(written(tmp_path, [*STORY, *told]))
    assert run.generations[1].rolled_forward == ("b-0",)


def test_what_was_not_answered_is_open(tmp_path):
    story = [*STORY[:6], line(10, "member_lost", "c-0", cause="silent"), line(11, "heal_start", "b-0")]
    run = RunRecoveries.read(written(tmp_path, story))
    assert run.recoveries[0].generation is None
    page = Page(recovery_report_html(run))
    assert "1 failure, 1 of them not answered" in page.text
    assert "nothing until the log ended" in page.text
    assert "not through" in page.text


def test_a_heal_that_its_member_did_not_survive(tmp_path):
    story = [STORY[0], line(1, "heal_start", "c-0"), line(2, "member_lost", "c-0", cause="silent")]
    (heal,) = RunRecoveries.read(written(tmp_path, story)).heals
    assert heal.is_cut_short


def test_broken_and_foreign_lines_are_counted_and_left_out(tmp_path):
    path = written(tmp_path, STORY)
    odd = ['{"t_ns": 1, "wa', "[]", "1", '{"kind": "x"}', '{"wall": "yesterday", "kind": "x"}', "[" * 100_000]
    odd += [json.dumps(line(31, 7)), json.dumps(line(31, "unheard_of", "a-0", x=1))]
    odd += [json.dumps({**line(31, "generation"), "number": "x", "members": 7, "took_ms": "NaN"})]
    odd += [
        json.dumps(line(31, "progress", step=True, loss="NaN")),
        json.dumps(line(31, "regroup", generation=[])),
    ]
    path.write_text(path.read_text() + "\n".join(odd))
    run = RunRecoveries.read(path)
    assert run.num_broken == 7
    assert len(run.generations) == 4
    assert "7 lines of the log are broken" in Page(recovery_report_html(run)).text


def test_a_log_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(EventLogError, match="cannot read"):
        RunRecoveries.read(tmp_path / "none")
    with pytest.raises(EventLogError, match="holds no event"):
        RunRecoveries.read(written(tmp_path, []))


def test_logs_are_told_apart(tmp_path):
    assert is_coordinator_log(written(tmp_path, STORY))
    assert not is_coordinator_log(written(tmp_path, STORY[1:5]))
    assert not is_coordinator_log(tmp_path / "none")


def test_the_report_tells_the_story(tmp_path):
    html = write_recovery_report(written(tmp_path, STORY), tmp_path / "report.html")
    page = Page(html.read_text())
    assert "1 failure, and training went on after it; the longest standstill was 140 ms." in page.text
    for heading in ("Steps over time", "Who trained", "Failures, and what was done", "Heals", "Generations"):
        assert heading in page.text
    assert "generation 2: s-0 takes the seat of c-0; step finished without a retry by b-0" in page.text
    assert "4.00 MB" in page.text
    assert "<b>slow</b>" in page.text  # as text
    assert "<b>slow</b>" not in html.read_text()


def test_a_calm_run_is_told_to_be_calm(tmp_path):
    page = Page(recovery_report_html(RunRecoveries.read(written(tmp_path, STORY[:6]))))
    assert "Nothing failed." in page.text
    page = Page(recovery_report_html(RunRecoveries.read(written(tmp_path, STORY[:2]))))
    assert "no generation" in page.text
