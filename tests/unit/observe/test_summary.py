import io

import pytest
from rich.console import Console

from farstep.observe.events import MembersChanged, Record, RunEnd
from farstep.observe.summary import recovery_rows, summary, verdict
from farstep.observe.timeline import Timeline
from farstep.observe.units import (
    bytes_text,
    duration_text,
    milliseconds_text,
    quantity_text,
    rate_text,
    spark_line,
)
from tests.unit.observe.fake_run import CUT_PATH, fake_run, with_loss


def printed(timeline: Timeline, width: int = 110) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(summary(timeline))
    return file.getvalue()


def test_the_summary_tells_everything_a_run_is_judged_by() -> None:
    text = printed(Timeline.of(fake_run()))
    for name in (
        "steps",
        "training took",
        "starting up took",
        "training loss",
        "held-out loss",
        "tokens per second",
    ):
        assert name in text
    for name in ("step time P50", "step time P99", "step time P100", "packets resent", "sent in all"):
        assert name in text
    assert f"path down · path {CUT_PATH}" in text
    assert "+0.10" in text  # of a step, at once
    assert "All 4 replicas hold bit-identical parameters (hash 9f2c61d07be3a845)." in text


def test_a_loss_is_told_with_what_was_done_and_what_it_cost() -> None:
    timeline = Timeline.of(with_loss(list(fake_run())))
    ((_, *row),) = recovery_rows(timeline)
    assert row == [
        "100",
        "rank 3 (b-1) was killed by SIGKILL",
        "training went on with 3 replica groups",
        "202 ms",  # the longest standstill of a rank
    ]
    text = printed(timeline, width=140)
    assert "Losses and recoveries" in text
    assert "All 3 replicas that were left hold bit-identical parameters" in text


def test_a_change_of_members_that_no_loss_explains_is_told_too() -> None:
    records = with_loss(list(fake_run()))
    joined = MembersChanged(
        generation=3, step=200, groups=["a-0", "a-1", "b-0", "b-1"], changes=["b-1 takes a seat"]
    )
    timeline = Timeline.of([*records[:-1], Record(records[-1].t_ns, "", 0, joined), records[-1]])
    assert [row[2:4] for row in recovery_rows(timeline)] == [
        ("rank 3 (b-1) was killed by SIGKILL", "training went on with 3 replica groups"),
        ("b-1 takes a seat", "training went on with 4 replica groups"),
    ]


def test_a_loss_that_nothing_was_done_about_is_told_as_such() -> None:
    records = [r for r in with_loss(list(fake_run())) if not isinstance(r.event, MembersChanged)]
    ((_, _, _, done, standstill),) = recovery_rows(Timeline.of(records))
    assert (done, standstill) == ("the run ended", "-")


def test_replicas_that_differ_are_named() -> None:
    is_identical, sentence = verdict(Timeline.of(fake_run(identical=False)))
    assert is_identical is False
    assert "2 different sets" in sentence
    assert "0b77aa12cc90d3fe: replica 2" in sentence


def test_a_log_without_an_end_gets_no_verdict() -> None:
    timeline = Timeline.of(record for record in fake_run() if record.t_s < 40)
    assert verdict(timeline)[0] is None
    assert "broken off" in printed(timeline)


def test_one_replica_alone_gets_no_verdict() -> None:
    end = RunEnd(status="finished", replica_hashes={"0": "ab"})
    assert verdict(Timeline.of([Record(1, "", None, end)]))[0] is None


@pytest.mark.parametrize("until_s", [-1, 0, 1, 5, 36])
def test_any_beginning_of_a_log_can_be_summed_up(until_s: float) -> None:
    text = printed(Timeline.of(record for record in fake_run() if record.t_s <= until_s), width=60)
    assert "broken off" in text


def test_the_reason_of_a_failure_is_shown() -> None:
    end = RunEnd(status="failed", reason="rank 2 lost its peer rank0")
    assert "failed: rank 2 lost its peer rank0" in printed(Timeline.of([Record(1, "", None, end)]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(999.6), "1.00 kB"),
        (bytes_text(4_432_000), "4.43 MB"),
        (rate_text(44_320_000), "44.3 MB/s"),
        (quantity_text(1.25, "Gb/s"), "1.25 Gb/s"),
        (quantity_text(float("nan"), "B"), "nan B"),
        (milliseconds_text(1_234_000), "1.23 ms"),
        (milliseconds_text(21_340_000), "21.3 ms"),
        (milliseconds_text(1_119_200_000), "1,119 ms"),
        (duration_text(59.4), "0:59"),
        (duration_text(3723), "1:02:03"),
        (spark_line([0, 1, 2, 7], 6), "   ▂▃█"),
        (spark_line([5, 5], 2, low=None), "▁▁"),
        (spark_line([], 3), "   "),
        (spark_line([1, 2, 3], 0), ""),
        (spark_line([0, 7], 2, ascii_only=True), " @"),
    ],
)
def test_quantities_read_well(text: str, expected: str) -> None:
    assert text == expected
