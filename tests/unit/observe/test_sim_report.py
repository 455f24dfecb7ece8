import importlib.util
import re
from pathlib import Path

import pytest

from farstep.observe.sim_report import sim_report_html, write_sim_report
from tests.unit.observe.fake_simulation import fake_simulation
from tests.unit.observe.parsed_page import Page
from tests.unit.sim.small_result import small_result

pytest.importorskip("plotly", reason="reports are drawn with plotly, of the extra `sim`")

SECTIONS = [
    "Flow times",
    "Faults",
    "Throughput",
    "Load of the links",
    "Queues",
    "Losses and repetitions",
    "States of the paths",
]


def test_a_comparison_shows_every_part() -> None:
    page = Page(sim_report_html([fake_simulation("mrc"), fake_simulation("roce")]))
    assert page.headings == [
        "Job",
        "Side by side",
        *SECTIONS,
        "The slowest flow with mrc",
        "The slowest flow with roce",
        "To repeat this simulation",
    ]
    assert "size_bytes = 8_000_000" in page.text
    assert "1. 0.1 % loss on NIC 3's port of plane 1" in page.text
    assert re.search(r"Slowest flow: mrc [\d.]+ µs; roce [\d.]+ µs \(3\.\d+ times\)", page.text)


def test_a_report_needs_no_network() -> None:
    assert Page(sim_report_html([fake_simulation()])).sources == []


def test_what_was_not_recorded_is_named_with_how_to_record_it() -> None:
    page = Page(sim_report_html([fake_simulation(samples=0, has_faults=False)]))
    assert "Flows under way" in page.headings
    assert "Throughput was not recorded. Set sample_interval_us in [run]" in page.text
    assert "Their course was not recorded." in page.text
    assert "Faults" not in page.headings


def test_a_transport_without_samples_is_named() -> None:
    page = Page(sim_report_html({"a": fake_simulation(), "b": fake_simulation(samples=0)}))
    assert "summed over all NICs. Not recorded by b." in page.text


def test_tasks_that_are_not_done_are_said_first() -> None:
    result = fake_simulation("roce", unfinished=3)
    result.meta["unfinished"] = ["task 7: NIC 3 waits for a path"]
    page = Page(sim_report_html([fake_simulation(), result]))
    assert "3 tasks are not done." in page.text
    assert "roce: 3 tasks were not done when the simulation ended." in page.text
    assert "roce: task 7: NIC 3 waits for a path." in page.text
    assert "A line that ends below 100 %" in page.text


def test_a_simulation_in_which_nothing_was_done_has_a_report() -> None:
    page = Page(sim_report_html([fake_simulation(unfinished=64)]))
    assert "No flow was done." in page.text
    assert "It was not done when the simulation ended." in page.text


def test_the_slowest_flow_tells_what_it_waited_for() -> None:
    page = Page(sim_report_html([small_result()]))
    assert "It waited for victim NIC 1 → 0, step 0, done at 2 µs, when it started." in page.text
    assert "Flow times by phase" in page.headings


def test_a_scenario_can_be_copied_out_of_the_page() -> None:
    result = fake_simulation()
    result.meta["scenario"] = {"fabric": {"kind": "clos", "nics": 64}, "workload": [{"kind": "incast"}]}
    assert (
        '[fabric]\nkind = "clos"\nnics = 64\n\n[[workload]]\nkind = "incast"'
        in Page(sim_report_html([result])).text
    )


def test_steps_have_a_figure_once_there_are_some() -> None:
    page = Page(
        sim_report_html({"a": fake_simulation(steps=5), "b": fake_simulation(steps=5, unfinished=320)})
    )
    assert "Step times" in page.headings


def test_names_from_outside_are_text_and_not_markup() -> None:
    result = fake_simulation()
    result.meta["scenario"] = "<!--@title--><script>alert(1)</script>"
    result.meta["name"] = "<b>bold</b>"
    page = sim_report_html({"<i>x</i>": result, "y": fake_simulation()})
    assert "<script>alert" not in page
    assert "<b>bold</b>" not in page
    assert "<i>x</i>" not in page.replace(r"\u003ci\u003ex\u003c/i\u003e", "")
    Page(page)


@pytest.mark.slow
def test_a_large_result_makes_a_page_that_can_be_mailed(tmp_path: Path) -> None:
    results = [
        fake_simulation(name, nics=1024, planes=8, flows=100_000, samples=5_000) for name in ("mrc", "roce")
    ]
    path = write_sim_report(results, tmp_path / "report.html")
    assert path.stat().st_size < 8_000_000


def test_a_report_replaces_the_one_before_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    assert write_sim_report([small_result()], path) == path
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_without_plotly_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"farstep\[sim\]"):
        sim_report_html([small_result()])


def test_every_axis_has_a_title_with_its_unit() -> None:
    from farstep.observe import sim_figures, sim_story_figure
    from farstep.observe.sim_view import faults_of

    results = {"mrc": fake_simulation(steps=4), "roce": fake_simulation("roce", steps=4)}
    first, faults = results["mrc"], faults_of(results["mrc"])
    figures = [
        sim_figures.flow_time_figure(results),
        sim_figures.flow_tail_figure(results),
        sim_figures.step_time_figure(results),
        sim_figures.goodput_figure(results, faults),
        sim_figures.plane_figure(first, faults),
        sim_figures.under_way_figure(results, faults),
        sim_story_figure.worst_flow_figure(first, faults),
    ]
    titles = [(figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) for figure in figures]
    assert titles == [
        ("flow time (µs)", "share of the flows (%)"),
        ("flow time (µs)", "share that took longer (%)"),
        ("step", "step time (µs)"),
        ("simulated time (ms)", "delivered (Tb/s)"),
        ("simulated time (µs)", "sent into a plane (Tb/s)"),
        ("simulated time (ms)", "flows under way"),
        ("simulated time (µs)", ""),  # names of flows
    ]
    stacked = sim_figures.queue_figure(results, faults)
    headings = [note.text for note in stacked.layout.annotations]
    assert "in front of T0 → NIC (kB)" in headings


def test_a_transport_has_one_colour_in_all_figures() -> None:
    from farstep.observe import sim_figures

    results = {"mrc": fake_simulation(), "roce": fake_simulation("roce")}
    for figure in (
        sim_figures.flow_time_figure(results),
        sim_figures.goodput_figure(results, []),
        sim_figures.queue_figure(results, []),
    ):
        colours = {trace.name: set() for trace in figure.data}
        for trace in figure.data:
            colours[trace.name].add(trace.line.color)
        assert {name: len(found) for name, found in colours.items()} == {"mrc": 1, "roce": 1}
        assert colours["mrc"] != colours["roce"]
