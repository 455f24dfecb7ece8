"""Experiments on what the MRC papers leave open (see docs/validation/questions.md)."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from farstep.sim.reproduce import questions
from farstep.sim.reproduce.record import Effort


def figures_of(letter: str, tmp_path: Path) -> dict[str, float]:
    """Runs one question quickly, checks its plots and its paragraph, and returns its medians."""
    (finding,) = questions.answer([letter], Effort(seeds=2, is_quick=True), folder=tmp_path)
    for plot in questions.QUESTIONS[letter].plots:
        assert ElementTree.parse(tmp_path / f"{plot}.svg").getroot().tag.endswith("svg")
    page = questions.page([finding])
    assert f"## ({letter})" in page
    assert "{" not in page
    return {measure.name: measure.median for measure in finding.measures}


def test_goodput_of_a_small_mpr_is_its_share_of_a_round_trip(tmp_path: Path) -> None:
    figures = figures_of("h", tmp_path)

    whole = figures["MPR 128 packets: goodput of line"]
    assert figures["MPR 256 packets: goodput of line"] == pytest.approx(2 * whole, rel=0.02)
    assert figures["MPR 1024 packets: goodput of line"] == pytest.approx(1.0, rel=0.02)


def test_more_acknowledgements_cost_what_they_weigh(tmp_path: Path) -> None:
    figures = figures_of("g", tmp_path)

    assert figures["4 KiB: control bytes of data bytes %"] == pytest.approx(
        4 * figures["16 KiB: control bytes of data bytes %"], rel=0.1
    )


def test_lost_answers_touch_the_tail_alone(tmp_path: Path) -> None:
    figures = figures_of("j", tmp_path)

    assert figures["5 %: P50 us"] == pytest.approx(figures["0 %: P50 us"], rel=0.02)
    assert figures["5 %: P99 us"] > 1.2 * figures["0 %: P99 us"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("letter", list(questions.QUESTIONS))
def test_every_question_has_an_answer(letter: str, tmp_path: Path) -> None:
    assert figures_of(letter, tmp_path)
