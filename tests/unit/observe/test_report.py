import importlib.util
import re
from pathlib import Path

import pytest

from farstep.observe.events import EventFile, EventLog, EventLogError, Record, RunEnd, RunStart
from farstep.observe.report import report_html, write_report
from tests.unit.observe.fake_run import fake_run, with_loss
from tests.unit.observe.parsed_page import Page

pytest.importorskip("plotly", reason="reports are drawn with plotly, of the extra `train`")


def page_of(records: list[Record]) -> Page:
    return Page(report_html(EventFile(Path("events.jsonl"), records)))


def test_a_report_shows_every_part_of_a_run() -> None:
    page = page_of(list(fake_run()))
    assert page.headings == [
        "two sites, one cut path",
        "Loss",
        "Step time",
        "Faults and their cost",
        "Paths around “path down · path 3”",
        "Paths over the whole run",
        "State of the paths",
        "Retransmissions",
        "Paths in figures",
        "To repeat this run",
    ]
    assert page.figures == 7
    assert "All 4 replicas hold bit-identical parameters" in page.text
    assert "learning_rate" in page.text


def test_a_report_shows_losses_and_recoveries() -> None:
    page = page_of(with_loss(list(fake_run())))
    assert "Losses and recoveries" in page.headings
    assert "rank 3 (b-1) was killed by SIGKILL" in page.text
    assert "training went on with 3 replica groups" in page.text


def test_a_report_needs_no_network() -> None:
    page = page_of(list(fake_run(num_steps=5, cut=(2, 3))))
    assert page.sources == []


def test_every_axis_has_a_title_with_its_unit() -> None:
    from farstep.observe import figures
    from farstep.observe.step_times import StepTimes
    from farstep.observe.timeline import Timeline

    timeline = Timeline.of(fake_run())
    times = StepTimes.of(timeline.rows)
    assert times is not None
    titles = []
    for figure in (
        figures.loss_figure(timeline),
        figures.step_distribution_figure(timeline.rows, times),
        figures.step_time_figure(timeline),
        figures.path_rate_figure(timeline),
        figures.path_state_figure(timeline),
        figures.retransmission_figure(timeline),
    ):
        titles += [figure.layout.xaxis.title.text, figure.layout.yaxis.title.text]
    assert titles == [
        *("step", "loss (nats per token)"),
        *("step time (ms)", "number of steps"),
        *("time since training began (s)", "step time (ms)"),
        *("time since training began (s)", "sent over one path (MB/s)"),
        *("time since training began (s)", ""),  # names of paths
        *("time since training began (s)", "packets resent per 0.5 s"),
    ]


def test_no_spike_is_lost_in_a_long_run() -> None:
    from farstep.observe.canvas import POINTS_MAX, thinned

    values = [1.0] * 100_000
    values[77_777], values[12_345] = 9.0, -9.0
    xs, ys = thinned(list(range(100_000)), values)
    assert len(xs) <= POINTS_MAX
    assert (77_777, 9.0) in zip(xs, ys, strict=True)
    assert (12_345, -9.0) in zip(xs, ys, strict=True)


def test_every_step_is_in_the_distribution() -> None:
    from farstep.observe.figures import step_distribution_figure
    from farstep.observe.step_times import StepTimes
    from farstep.observe.timeline import StepRow

    for times_ms in ([100.0] * 5, [90.0, 100.0, 110.0], [100.0] * 99 + [5000.0], [0.0, 0.0, 1.0]):
        rows = [StepRow(i, 0, round(t * 1e6), 0, 1, 1.0, 1) for i, t in enumerate(times_ms)]
        times = StepTimes.of(rows)
        assert times is not None
        assert sum(step_distribution_figure(rows, times).data[0].y) == len(rows)


@pytest.mark.parametrize("until_s", [0, 1, 2.5, 5, 36])
def test_a_run_that_was_killed_has_a_report(until_s: float, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    lines = [record.to_json() for record in fake_run() if record.t_s <= until_s]
    log.write_text("\n".join(lines) + "\n" + lines[-1][: len(lines[-1]) // 2])
    page = Page(write_report(log, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "The last line of the log broke off" in page.text
    assert "no hash of the parameters" in page.text


def test_text_from_the_log_cannot_become_markup() -> None:
    start = RunStart(name="<script>alert(1)</script>", config={"a": "</pre><b>"}, text_name="<i>")
    html = report_html(EventFile(Path("x"), [Record(0, "", None, start)]))
    assert "<script>alert" not in html
    assert "</pre><b>" not in html
    assert Page(html).headings[0] == "<script>alert(1)</script>"


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(EventLogError, match=r"holds no event"):
        write_report(tmp_path / "events.jsonl", tmp_path / "report.html")
    with pytest.raises(EventLogError, match="cannot read"):
        write_report(tmp_path / "none.jsonl", tmp_path / "report.html")


def test_a_report_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(next(fake_run()).to_json() + "\n")
    with pytest.raises(OSError, match="no-such-directory"):
        write_report(log, tmp_path / "no-such-directory" / "report.html")


def test_without_plotly_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'farstep[train]'")) as caught:
        report_html(EventFile(Path("x"), list(fake_run(num_steps=1, cut=(5, 6)))))
    assert caught.value.name == "plotly"


def test_a_report_that_breaks_off_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, report = tmp_path / "events.jsonl", tmp_path / "report.html"
    with EventLog(log) as writer:
        writer.emit(RunEnd(status="finished"))
    report.write_text("before")

    def full(path: Path, text: str, **_: object) -> int:
        with open(path, "w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(log, report)
    assert report.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [log, report]
