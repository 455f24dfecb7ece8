"""The published figures of the MRC papers (see docs/validation/mrc.md)."""

import pytest

from farstep.sim.reproduce import mrc
from farstep.sim.reproduce.record import Effort, Finding, Verdict

QUICK = ["Q8", "Q9", "Q10", "Q12", "Q14", "Q15", "Q16", "Q30"]
NOT_MET = {"Q20", "Q23", "Q33", "Q34"}
"""As the page says, with the reasons."""
NO_BAND = {"Q4", "Q6", "Q7"}


@pytest.mark.parametrize("id_", QUICK)
def test_a_published_figure_is_met(id_: str) -> None:
    finding = mrc.EXPERIMENTS[id_].finding(id_, Effort(seeds=3))

    assert finding.verdict is Verdict.MET, finding


def test_the_host_latency_is_fitted_to_one_figure_and_predicts_the_other() -> None:
    finding = mrc.EXPERIMENTS["Q9"].finding("Q9", Effort(seeds=1))
    figures = {measure.name: measure.median for measure in finding.measures}

    assert figures["within a rack us"] == pytest.approx(5.09, abs=0.01)
    assert figures["across T1 us"] == pytest.approx(6.54, rel=0.01)


def test_rows_are_in_order_and_each_says_what_was_published() -> None:
    assert list(mrc.EXPERIMENTS) == sorted(mrc.EXPERIMENTS, key=lambda id_: int(id_[1:]))
    for experiment in mrc.EXPERIMENTS.values():
        assert experiment.title
        assert experiment.published
        assert experiment.measure is not None or experiment.note


def test_a_row_that_cannot_be_run_says_why() -> None:
    finding = mrc.EXPERIMENTS["Q7"].finding("Q7", Effort())

    assert finding.verdict is Verdict.NOT_REPRODUCIBLE
    assert finding.measures == ()
    assert "statistic" in finding.note


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("id_", [id_ for id_ in mrc.EXPERIMENTS if id_ not in NO_BAND])
def test_every_row_has_the_verdict_of_the_page(id_: str) -> None:
    finding: Finding = mrc.EXPERIMENTS[id_].finding(id_, Effort(seeds=4))

    assert finding.verdict is (Verdict.NOT_MET if id_ in NOT_MET else Verdict.MET), finding
