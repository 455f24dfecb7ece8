"""Figures, verdicts, pages and plots of reproduced results."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from farstep.sim.reproduce.pages import mrc_page, render_findings, verdicts, write_json
from farstep.sim.reproduce.plot import Plot, cdf
from farstep.sim.reproduce.record import Effort, Experiment, Measure, Verdict, plain_number


def experiment(*values: float, low: float | None = None, high: float | None = None) -> Experiment:
    return Experiment(
        title="Time",
        published="5 us",
        setup="one",
        measure=lambda effort: [Measure.of("us", values, low, high, 5.0)],
    )


def test_the_median_over_seeds_is_what_counts() -> None:
    assert experiment(1, 5, 100, low=4, high=6).finding("Q1", Effort()).verdict is Verdict.MET
    assert experiment(1, 7, 100, low=4, high=6).finding("Q1", Effort()).verdict is Verdict.NOT_MET
    assert experiment(1, 7, 100).finding("Q1", Effort()).verdict is Verdict.SHOWN


def test_an_experiment_without_a_figure_is_a_mistake_and_not_a_verdict() -> None:
    with pytest.raises(ValueError, match="no figure"):
        Measure.of("us", [])
    with pytest.raises(ValueError, match="no figure"):
        Measure.of("us", [float("nan")])


def test_text_of_a_measure_has_median_spread_and_band() -> None:
    measure = Measure.of("us", range(101), 40, 60)

    assert measure.text == "50 (5 to 95)"
    assert measure.band == "40 to 60"
    assert Measure.of("us", 1234.5).text == "1,234"
    assert Measure.of("us", 1.0, high=2).band == "≤ 2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.1235"), (12345.6, "12,346"), (1e-7, "1.00e-07"), (-3.5, "-3.5")],
)
def test_numbers_are_plain(value: float, text: str) -> None:
    assert plain_number(value) == text


def test_quick_efforts_take_two_seeds_and_collisions_twenty() -> None:
    assert list(Effort(seeds=3).range()) == [1, 2, 3]
    assert len(Effort(seeds=3).range(20)) == 20
    assert len(Effort(seeds=50, is_quick=True).range(20)) == 2
    assert Effort(is_quick=True).scaled(100, 4) == 25


def test_pages_and_tables_hold_every_row(tmp_path: Path) -> None:
    rows = [
        experiment(5.0, low=4, high=6).finding("Q1", Effort()),
        experiment(9.0, high=6).finding("Q2", Effort()),
    ]

    page = mrc_page(rows, "# Head")
    assert page.startswith("# Head")
    assert "| Q1 | Time | 5 us |" in page
    assert "**not met**" in page
    assert verdicts(rows) == "1 met, 1 not met"
    assert "band ≤ 6" in " ".join(render_findings(rows, width=200).split())
    assert '"is_met": false' in write_json(rows, tmp_path / "rows.json").read_text()


def test_a_plot_is_well_formed_and_keeps_its_lines_inside(tmp_path: Path) -> None:
    lines = {"a & b": (np.array([1.0, 10.0, 100.0]), np.array([0.0, 1.0, 2.0])), "c (dashed)": cdf([1, 2, 5])}
    path = Plot(title="<Time>", x="us", y="share", lines=lines, log_x=True).write(tmp_path / "plot.svg")

    root = ElementTree.parse(path).getroot()
    for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in line.attrib["points"].split():
            across, down = map(float, point.split(","))
            assert 0 <= across <= 720
            assert 0 <= down <= 400
    assert "a &amp; b" in path.read_text()
    assert "dashed)" not in path.read_text()


def test_a_cdf_rises_to_one() -> None:
    x, y = cdf(np.arange(10_000)[::-1])

    assert len(x) <= 400
    assert np.all(np.diff(x) > 0)
    assert y[-1] == 1.0
