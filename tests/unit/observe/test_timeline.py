import pytest

from farstep.observe.events import (
    Eval,
    Event,
    FaultEvent,
    PathSample,
    PathState,
    PathStateChange,
    Record,
    RunStart,
    Step,
)
from farstep.observe.step_times import StepTimes, fault_costs, percentile
from farstep.observe.timeline import Timeline
from tests.unit.observe.fake_run import CUT_PATH, NUM_PATHS, STEP_NS, fake_run

MS = 1_000_000


def record(t_ms: float, event: Event, rank: int | None = None) -> Record:
    return Record(round(t_ms * MS), "", rank, event)


def step(number: int, time_ms: float, *, loss: float = 2.0, tokens: int = 10) -> Step:
    return Step(step=number, loss=loss, tokens=tokens, step_time_ns=round(time_ms * MS))


def fault(action: str, fault_id: int = 0) -> FaultEvent:
    return FaultEvent.model_validate(
        {"action": action, "fault_id": fault_id, "fault": "path_down", "target": "path 3"}
    )


def test_a_step_is_as_slow_as_its_slowest_rank() -> None:
    timeline = Timeline.of([record(100, step(1, 90, loss=1.0), 0), record(104, step(1, 94, loss=3.0), 1)])
    (row,) = timeline.rows
    assert row.step_time_ns == 94 * MS
    assert row.end_ns == 104 * MS
    assert row.loss == 2.0
    assert row.tokens == 20


def test_a_step_run_again_replaces_its_first_attempt() -> None:
    timeline = Timeline.of([record(100, step(1, 90, loss=9.0), 0), record(300, step(1, 80, loss=1.0), 0)])
    (row,) = timeline.rows
    assert (row.loss, row.step_time_ns, row.tokens) == (1.0, 80 * MS, 10)


def test_rates_and_remaining_time_come_from_recent_steps() -> None:
    timeline = Timeline.of(fake_run(num_steps=100, cut=(200, 201)))
    assert timeline.start is not None
    rate = timeline.tokens_per_s(last_steps=10)
    assert rate == pytest.approx(8192 / (STEP_NS / 1e9), rel=0.1)
    assert timeline.remaining_s() is None  # it is over
    half = Timeline.of(r for r in fake_run(num_steps=100, cut=(200, 201)) if r.t_s < 15)
    last = max(half.steps)
    assert half.remaining_s() == pytest.approx((100 - last) * STEP_NS / 1e9, rel=0.15)


def test_nothing_is_known_of_an_empty_log() -> None:
    timeline = Timeline()
    assert timeline.tokens_per_s() is None
    assert timeline.remaining_s() is None
    assert timeline.final_loss is None
    assert timeline.held_out_loss is None
    assert not timeline.is_complete
    assert StepTimes.of(timeline.rows) is None
    assert fault_costs(timeline) == []


def test_the_same_measurement_from_every_rank_counts_once() -> None:
    timeline = Timeline.of([record(1, Eval(step=5, loss=2.0), rank) for rank in range(3)])
    assert len(timeline.evals) == 1


def test_a_path_is_as_bad_as_its_worst_rank_sees_it() -> None:
    def sample(state: PathState) -> PathSample:
        return PathSample(path="p", state=state, tx_bytes_per_s=100.0)

    timeline = Timeline.of(
        [
            record(250, sample(PathState.GOOD), 0),
            record(251, sample(PathState.GOOD), 1),
            record(300, PathStateChange(path="p", old=PathState.GOOD, new=PathState.ASSUMED_BAD), 1),
            record(500, sample(PathState.GOOD), 0),
            record(501, sample(PathState.SKIP), 1),
            record(751, sample(PathState.GOOD), 1),
        ]
    )
    path = timeline.paths["p"]
    states = [(t_ns // MS, state) for t_ns, state in path.changes]
    assert states == [
        (250, PathState.GOOD),
        (300, PathState.ASSUMED_BAD),
        (501, PathState.SKIP),
        (751, PathState.GOOD),
    ]


def test_bytes_are_rates_times_the_time_between_samples() -> None:
    samples = [
        record(500, PathSample(path="p", tx_bytes_per_s=100.0), 0),
        record(1000, PathSample(path="p", tx_bytes_per_s=300.0), 0),
        record(1000, PathSample(path="p", tx_bytes_per_s=40.0), 1),
    ]
    timeline = Timeline.of(samples)
    assert timeline.paths["p"].bytes_sent == pytest.approx(0.5 * 100 + 0.5 * 300 + 40)
    assert timeline.path_rates("p", 0.5) == pytest.approx([100.0, 340.0])


def test_binned_rates_keep_the_number_of_bytes() -> None:
    timeline = Timeline.of(fake_run(num_steps=60, cut=(20, 30)))
    for name in (f"path {index}" for index in range(NUM_PATHS)):
        rates = timeline.path_rates(name, 0.4)
        last_bin_bytes = max(rates) * 0.4  # the bin that the samples only begin to fill is left out
        missing = timeline.paths[name].bytes_sent - sum(rates) * 0.4
        assert -1 < missing < last_bin_bytes


def test_a_display_keeps_only_recent_samples() -> None:
    timeline = Timeline(recent_samples=10)
    for number in range(1000):
        timeline.add(record(number, PathSample(path="p", tx_bytes_per_s=1000.0, retransmitted=1), 0))
    assert len(timeline.paths["p"].samples) <= 20
    assert timeline.retransmitted == 1000


def test_a_cut_path_is_seen_in_states_and_rates() -> None:
    timeline = Timeline.of(fake_run())
    (cut,) = timeline.faults
    assert cut.end_ns is not None
    assert cut.title == f"path down · path {CUT_PATH}"
    states = [state for _, state in timeline.paths[f"path {CUT_PATH}"].changes]
    assert states == [PathState.GOOD, PathState.ASSUMED_BAD, PathState.GOOD]
    rates = timeline.path_rates(f"path {CUT_PATH}", 0.5)
    middle_s = (cut.start_ns + cut.end_ns) / 2e9
    assert rates[int(middle_s / 0.5)] == 0.0


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (99.1, 100), (100, 100)]
)
def test_percentiles_are_measured_values(percent: float, expected: int) -> None:
    values = list(range(100, 0, -1))
    assert percentile(values, percent) == expected
    assert percentile([7], percent) == 7


def test_a_percentile_of_nothing_or_beyond_100_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 50)
    with pytest.raises(ValueError, match="must lie in"):
        percentile([1], 101)


def test_p100_names_the_slowest_step() -> None:
    times = StepTimes.of(
        Timeline.of([record(i * 20, step(i, 15 if i == 4 else 10)) for i in range(1, 9)]).rows
    )
    assert times is not None
    assert (times.p50_ns, times.p100_ns, times.slowest_step) == (10 * MS, 15 * MS, 4)


def test_the_cost_of_a_fault_is_the_excess_over_healthy_steps() -> None:
    times_ms = [10.0] * 10 + [16.0, 12.0, 11.0, 11.0] + [10.0] * 10
    records, now = [], 0.0
    for number, time_ms in enumerate(times_ms, start=1):
        now += time_ms
        if number == 11:
            records.append(record(now - 8, fault("applied")))
        if number == 14:
            records.append(record(now - 5, fault("reverted")))
        records.append(record(now, step(number, time_ms)))
    (cost,) = fault_costs(Timeline.of(records))
    assert cost.num_steps == 4
    assert cost.median_ns == 10 * MS
    assert cost.excess_ns == 10 * MS
    assert cost.onset_ns == 9 * MS
    assert cost.excess_steps == pytest.approx(1.0)
    assert cost.noise_ns == 0


def test_waiting_for_gradients_is_told_apart_from_computing() -> None:
    def waits(number: int, time_ms: float, waiting_ms: float) -> Step:
        return step(number, time_ms).model_copy(update={"allreduce_ns": round(waiting_ms * MS)})

    records = [record(10 * i + 10, waits(i, 10, 2)) for i in range(8)]
    records += [record(81, fault("applied")), record(100, waits(8, 20, 9)), record(130, waits(9, 30, 2))]
    (cost,) = fault_costs(Timeline.of(records))
    assert (cost.excess_ns, cost.excess_waiting_ns) == (30 * MS, 7 * MS)
    assert (cost.onset_ns, cost.onset_waiting_ns) == (30 * MS, 7 * MS)


def test_a_fault_that_never_ends_is_priced_by_the_steps_before_it() -> None:
    records = [record(10 * i, step(i, 10)) for i in range(1, 6)]
    records += [record(51, fault("applied")), record(75, step(6, 25))]
    (cost,) = fault_costs(Timeline.of(records))
    assert cost.fault.end_ns is None
    assert cost.excess_ns == 15 * MS


def test_a_fault_with_no_healthy_step_around_has_no_price() -> None:
    assert fault_costs(Timeline.of([record(0, fault("applied")), record(75, step(1, 25))])) == []


def test_the_same_fault_may_come_back() -> None:
    records = [record(t, fault("applied" if t % 20 == 0 else "reverted")) for t in range(0, 40, 10)]
    timeline = Timeline.of(records)
    assert [(f.start_ns // MS, (f.end_ns or 0) // MS) for f in timeline.faults] == [(0, 10), (20, 30)]


def test_time_counts_from_the_beginning_of_training() -> None:
    early = [record(5, step(0, 4)), record(6, PathSample(path="p", retransmitted=9), 0)]
    begin = record(1000, RunStart(ranks=2))
    late = [record(990, PathSample(path="q"), 0), record(1030, step(0, 20)), record(1040, fault("applied"))]
    timeline = Timeline.of([*early, begin, *late])
    assert timeline.startup_ns == 1000 * MS
    assert timeline.steps[0].end_ns == 30 * MS
    assert timeline.faults[0].start_ns == 40 * MS
    assert timeline.duration_s == 0.04
    assert list(timeline.paths) == ["q"]
    assert timeline.retransmitted == 0


def test_the_last_of_the_planned_steps_leaves_none_to_do() -> None:
    records = [record(0, RunStart(steps_planned=3)), *(record(10 * i + 10, step(i, 10)) for i in range(3))]
    timeline = Timeline.of(records)
    assert timeline.steps_done == 3
    assert timeline.remaining_s() == 0
