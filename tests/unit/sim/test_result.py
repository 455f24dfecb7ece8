"""What is read out of a result, worked by hand, and that files give it back."""

import json

import numpy as np
import pytest

from farstep.sim.result import SimResult, quantiles
from farstep.sim.summary import duration, render
from tests.unit.sim.small_result import small_result


def test_flow_and_step_times():
    result = small_result()
    assert result.flow_times_ns().tolist() == [1_000, 2_000, 3_000]
    assert result.flow_times_ns(phase="victim").tolist() == [1_000, 2_000]
    assert result.flow_time.p50_ns == 2_000
    assert result.flow_time.p100_ns == 3_000
    assert result.step_times_ns().tolist() == [2_000, 3_000]
    assert result.duration_ns == 5_000


def test_a_step_that_overlaps_the_one_before_counts_from_its_end():
    result = small_result()
    result.start_ns[2] = 500
    assert result.step_times_ns().tolist() == [2_000, 3_000]


def test_an_unfinished_task_ends_the_known_steps():
    result = small_result(end_ns=7_000)
    result.finish_ns[2] = -1
    assert not result.is_complete
    assert result.step_times_ns().tolist() == [2_000]
    assert result.worst_flow == 2
    assert result.duration_ns == 7_000
    assert "It was not done when the simulation ended." in result.story()


def test_rates_and_fairness():
    result = small_result()
    assert result.goodput_gbps == pytest.approx(50_000 * 8 / 5_000)
    assert result.flow_rates_gbps().tolist() == pytest.approx([100.0, 50.0, 200 / 3])
    assert result.jain(phase="victim") == pytest.approx(150**2 / (2 * (100**2 + 50**2)))
    assert result.victim_ratio == pytest.approx(50 / 200)  # two planes of 100 Gb/s
    assert small_result(payload_share=0.5).victim_ratio == pytest.approx(50 / 100)
    assert result.retransmission_ratio == pytest.approx(2 / 16)


def test_links():
    result = small_result()
    assert result.plane_bytes().tolist() == [20_000, 18_000]
    assert result.plane_balance == pytest.approx(20 / 18)
    assert result.links.name(result.worst_link) == "t0/p0/0->nic/1"
    assert result.links.utilisation(5_000)[3] == pytest.approx(20_000 * 8 / (100 * 5_000))


def test_the_slowest_flow_has_a_story():
    story = "\n".join(small_result().story())
    assert "task 2 (train: NIC 0 -> 1, 25000 B), started at 2 us" in story
    assert "1.50 times the median" in story
    assert "It sent 8 packets, 1 of them again; 1 were dropped and 3 trimmed" in story
    assert "Path 7 (plane 1) became ASSUMED_BAD at 2.5 us." in story
    assert "Fault during it: link 5 down began at 2.4 us." in story
    assert "became GOOD" not in story  # after it was done


def test_the_summary_shows_results_side_by_side():
    text = render({"mrc": small_result(), "roce": small_result()})
    lines = {line.strip().split("  ")[0]: line for line in text.splitlines()}
    assert lines["flow time P100"].split()[-4:] == ["3", "us", "3", "us"]
    assert lines["of packets"].split()[-2:] == ["12.50", "%"]
    assert "1.111" in lines["plane balance"]
    assert "tasks unfinished" not in text
    assert text.splitlines()[-1] == "worst link of roce: t0/p0/0->nic/1"


def test_an_unknown_phase_is_named():
    with pytest.raises(ValueError, match='"incast" is not part of this result; it has victim, flow'):
        small_result().flow_times_ns(phase="incast")


def assert_same(left: SimResult, right: SimResult) -> None:
    for name, column in left.tasks.columns().items():
        np.testing.assert_array_equal(column, right.tasks.columns()[name], strict=True)
    assert left.tasks.job_names == right.tasks.job_names
    assert left.metrics() == right.metrics()
    for part in ("series", "ev_events"):
        assert getattr(left, part).keys() == getattr(right, part).keys()
        for name, column in getattr(left, part).items():
            np.testing.assert_array_equal(column, getattr(right, part)[name])
    assert (left.counters, left.meta) == (right.counters, right.meta)
    assert left.story() == right.story()


def test_json_gives_back_what_was_written(tmp_path):
    result = small_result()
    path = result.to_json(tmp_path / "deep" / "result.json")
    assert json.loads(path.read_text())["metrics"]["flow_time_p100_ns"] == 3_000
    assert_same(result, SimResult.load(path))


def test_parquet_gives_back_what_was_written(tmp_path):
    pytest.importorskip("pyarrow")
    result = small_result()
    assert_same(result, SimResult.load(result.to_parquet(tmp_path / "result")))


def test_a_result_writes_its_report(tmp_path):
    pytest.importorskip("plotly")
    path = small_result(level="packet", seed=1, fabric="two planes").write_html(tmp_path / "x.html")
    assert "two planes" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json: "):
        SimResult.load(tmp_path / "x.json")
    with pytest.raises(ValueError, match="cannot be read"):
        SimResult.load(tmp_path / "none.json")


def test_frames():
    pytest.importorskip("pandas")
    result = small_result()
    assert result.flows["time_ns"].tolist() == [1_000, 2_000, 3_000]
    assert result.flows["phase"].tolist() == ["victim", "victim", "flow"]
    assert len(result.link_frame) == 8
    assert result.event_frame["ev"].tolist() == [7, 7]


def test_columns_must_fit_the_tasks():
    result = small_result()
    with pytest.raises(ValueError, match="start_ns has shape"):
        SimResult.of(result.tasks, {"start_ns": np.zeros(2)}, result.links)


def test_no_durations_have_no_quantiles():
    assert quantiles(np.zeros(0)) is None


@pytest.mark.parametrize(
    ("time_ns", "text"), [(None, "-"), (5, "5 ns"), (1500, "1.5 us"), (2.5e6, "2.5 ms"), (1e10, "10 s")]
)
def test_times_have_the_unit_that_suits_them(time_ns, text):
    assert duration(time_ns) == text
