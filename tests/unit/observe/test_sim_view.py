from dataclasses import replace

import numpy as np
import pytest

from farstep.observe import sim_view
from farstep.observe.sim_view import (
    BINS_MAX,
    CDF_POINTS_MAX,
    LoadProfile,
    SimulatedFault,
    TimeUnit,
    chain,
    counted_flows,
    distribution,
    fault_marks,
    faults_of,
    labelled,
    link_groups,
    sampled_peaks,
    sampled_sums,
    state_counts,
    time_text,
    under_way,
    window_ns,
)
from tests.unit.observe.fake_simulation import fake_simulation
from tests.unit.sim.small_result import small_result


def test_a_distribution_holds_every_flow_when_they_are_few() -> None:
    times, shares = distribution(np.array([30, 10, 20]), total=4)
    assert times.tolist() == [10, 20, 30]
    assert shares.tolist() == [0.25, 0.5, 0.75]  # one was not done


def test_a_thinned_distribution_keeps_its_ends_and_its_tail() -> None:
    values = np.random.default_rng(1).permutation(100_000)
    times, shares = distribution(values, len(values))
    assert len(times) <= CDF_POINTS_MAX
    assert (np.diff(times) > 0).all()
    assert set(times[-5:]) == {99_995, 99_996, 99_997, 99_998, 99_999}
    assert times[0] == 0
    assert shares == pytest.approx((times + 1) / 100_000)


def test_flows_under_way_are_those_begun_and_not_done() -> None:
    times, counts = under_way(small_result(), 5_000)
    assert dict(zip(times.tolist(), counts.tolist(), strict=True)) == {0: 2, 1000: 1, 2000: 1, 5000: 0}


def test_a_flow_that_never_ended_is_under_way_until_the_end() -> None:
    result = fake_simulation("roce", unfinished=3)
    times, counts = under_way(result, 1e9)
    assert len(times) <= BINS_MAX
    assert counts[-2] >= 3


def test_the_chain_goes_back_through_the_last_of_the_predecessors() -> None:
    assert chain(small_result(), 2) == [1, 2]  # of flows 0 and 1, flow 1 was done later
    assert chain(small_result(), 0) == [0]


def test_tasks_that_only_join_others_are_passed_over() -> None:
    result = small_result()
    kind = np.array([0, 1, 0], np.uint8)
    start, finish = np.array([0, 1_000, 1_000]), np.array([1_000, 1_000, 5_000])
    offset, index = np.array([0, 0, 1, 2]), np.array([0, 1], np.int32)
    tasks = replace(result.tasks, kind=kind, dep_offset=offset, dep_index=index)
    assert chain(replace(result, tasks=tasks, start_ns=start, finish_ns=finish), 2) == [0, 2]


def test_links_are_grouped_from_the_nic_up_and_down_again() -> None:
    result = fake_simulation(samples=0)
    groups = link_groups(result.links)
    assert list(groups) == ["NIC → T0", "T0 → T1", "T1 → T0", "T0 → NIC"]
    assert sorted(np.concatenate(list(groups.values())).tolist()) == list(range(len(result.links)))


def test_a_load_profile_shows_the_busiest_link_and_every_mean() -> None:
    result = fake_simulation("roce", nics=256, planes=2, samples=0)
    load = result.links.utilisation(result.duration_ns)
    profile = LoadProfile.of(result)
    assert np.nanmax(profile.load) == load.max()
    assert profile.load.shape == (4, 2 * profile.cells)
    assert (np.diff(profile.load.reshape(4, 2, -1), axis=2) <= 0).all()
    for row, chosen in enumerate(link_groups(result.links).values()):
        for plane in range(2):
            here = load[chosen[result.links.plane[chosen] == plane]]
            assert profile.mean[row, plane] == pytest.approx(here.mean())
            assert profile.links[row, plane] == len(here)


def test_joined_samples_keep_their_sum_and_their_peak() -> None:
    result = fake_simulation(samples=7_001)
    ends, lasted, amounts = sampled_sums(result, "plane_bytes", 1e9)
    assert len(ends) <= BINS_MAX
    assert amounts.sum(axis=0) == pytest.approx(result.series["plane_bytes"].sum(axis=0))
    assert lasted.sum() == result.series["time_ns"][-1]
    _, peaks = sampled_peaks(result, "queue_max_bytes", 1e9)
    assert peaks.max(axis=0).tolist() == result.series["queue_max_bytes"].max(axis=0).tolist()


def test_samples_are_finer_in_the_window_and_lose_nothing_after_it() -> None:
    result = fake_simulation(samples=50_000)
    end = int(result.series["time_ns"][-1])
    ends, lasted, amounts = sampled_sums(result, "goodput_bytes", end / 10)
    assert (ends <= end / 10).sum() == BINS_MAX
    assert (ends > end / 10).sum() == BINS_MAX // 2
    assert amounts.sum() == pytest.approx(result.series["goodput_bytes"].sum())
    assert lasted.sum() == end


def test_a_short_result_is_not_lost_beside_a_long_one() -> None:
    short, long = fake_simulation(samples=0), fake_simulation(samples=0, size_bytes=800_000_000)
    assert window_ns({"a": short, "b": short}) == short.duration_ns
    assert window_ns({"a": short, "b": long}) == 4 * short.duration_ns


def test_a_stalled_result_is_shown_until_it_stalled() -> None:
    result = fake_simulation("roce", unfinished=3, samples=0)
    result.meta["end_ns"] = 10**9
    assert window_ns({"roce": result}) == pytest.approx(1.1 * result.finish_ns.max())


def test_a_sample_at_the_very_beginning_lasts_no_time_and_is_left_out() -> None:
    ends, lasted, amounts = sampled_sums(small_result(), "plane_bytes", 1e9)
    assert (ends.tolist(), lasted.tolist(), amounts.tolist()) == ([1000], [1000], [[3, 4]])


def test_changes_of_paths_become_counts() -> None:
    times, counts = state_counts(small_result(), 1e9)
    assert times.tolist()[:2] == [2_500, 9_000]
    assert counts[:, 2].tolist()[:2] == [1, 0]


def test_the_worst_moment_of_many_changes_is_kept() -> None:
    result = fake_simulation(nics=256)
    times, counts = state_counts(result, 1e9)
    assert len(times) == BINS_MAX
    events = result.ev_events
    expected = 0
    bad = set()
    for key in sorted(
        zip(*(events[name] for name in ("time_ns", "source", "target", "ev", "state")), strict=True)
    ):
        (bad.add if key[4] == 2 else bad.discard)(key[1:4])
        expected = max(expected, len(bad))
    assert counts[:, 2].max() == expected


def test_no_change_of_a_path_is_no_count() -> None:
    assert state_counts(fake_simulation("roce"), 1e9) is None


def test_background_flows_are_not_counted() -> None:
    result = small_result()
    result.tasks.tag[1] = -1
    assert counted_flows(result).tolist() == [True, False, True]


def test_results_of_one_name_are_told_apart() -> None:
    assert list(labelled([small_result(), small_result(), small_result(transport="roce")])) == [
        "mrc",
        "mrc (2)",
        "roce",
    ]
    assert list(labelled({"a": small_result()})) == ["a"]
    with pytest.raises(ValueError, match="no result"):
        labelled([])


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(None, "-"), (0, "0 ns"), (999, "999 ns"), (1_000, "1 µs"), (201_300, "201.3 µs"), (2.5e9, "2.5 s")],
)
def test_times_have_the_unit_that_suits_them(time_ns: float | None, text: str) -> None:
    assert time_text(time_ns) == text


def test_an_axis_has_a_unit_with_figures_of_few_digits() -> None:
    assert [TimeUnit.of(t).name for t in (1_000, 5_000, 1_500_000, 5e6, 5e9)] == ["ns", "µs", "µs", "ms", "s"]


def test_faults_too_near_each_other_share_a_mark() -> None:
    faults = [SimulatedFault(t, None, "x") for t in (0, 10, 500)] + [SimulatedFault(800, 900, "y")]
    assert list(fault_marks(faults, 1_000)) == [(0, None, "1-2"), (500, None, "3"), (800, 900, "4")]


def test_faults_are_in_the_order_of_their_time_and_have_words() -> None:
    found = faults_of(small_result(faults=[{"time_ns": 9, "kind": "link_down"}, {"time_ns": 3, "text": "a"}]))
    assert [(fault.start_ns, fault.text) for fault in found] == [(3, "a"), (9, "link down")]


def test_a_fault_that_is_taken_back_has_an_end() -> None:
    actions = [
        {"time_ns": 10, "kind": "down", "value": 0.0, "text": "flap: down"},
        {"time_ns": 15, "kind": "loss", "value": 0.1, "text": "loss link=t0/p0/1-t1/p0/0: loss"},
        {"time_ns": 20, "kind": "up", "value": 0.0, "text": "flap: up"},
        {"time_ns": 30, "kind": "down", "value": 0.0, "text": "flap: down"},
        {"time_ns": 40, "kind": "loss", "value": 0.0, "text": "loss link=t0/p0/1-t1/p0/0: loss"},
    ]
    found = [(fault.start_ns, fault.end_ns, fault.text) for fault in faults_of(small_result(faults=actions))]
    assert found == [
        (10, 20, "flap"),
        (15, 40, "loss · link t0/p0/1-t1/p0/0 · 10 % lost"),
        (30, None, "flap"),
    ]


def test_links_that_join_planes_are_shown_beside_them() -> None:
    result = fake_simulation(samples=0)
    plane = np.concatenate(([-1, -1], result.links.plane[2:]))
    profile = LoadProfile.of(replace(result, links=replace(result.links, plane=plane)))
    assert profile.planes == (-1, 0, 1, 2, 3)
    assert profile.links[:, 0].sum() == 2


def test_columns_of_a_series_have_names() -> None:
    result = fake_simulation()
    assert sim_view.column_names(result, "plane_bytes") == ["plane 0", "plane 1", "plane 2", "plane 3"]
    assert sim_view.column_names(result, "queue_max_bytes")[0] == "NIC → T0"
