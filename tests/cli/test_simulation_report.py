"""Reports of real simulations, and of what `farstep simulate --out` left."""

import pytest

from farstep import sim
from farstep.cli.errors import CommandError
from farstep.cli.report import report
from tests.unit.observe.parsed_page import Page
from tests.unit.sim.small_result import small_result

pytest.importorskip("plotly", reason="reports are drawn with plotly, of the extra `sim`")
pytest.importorskip("pyarrow", reason="results are kept as Parquet")


def test_results_make_their_report_again(tmp_path, capsys):
    small_result().to_parquet(tmp_path)
    report(tmp_path)
    assert "<h2>In figures</h2>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert capsys.readouterr().err == f"report: {tmp_path / 'report.html'}\n"


def test_results_beside_each_other_are_compared(tmp_path):
    for name in ("mrc", "roce"):
        small_result(transport=name).to_parquet(tmp_path / name)
    report(tmp_path, tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "<h2>Side by side</h2>" in page
    assert "mrc against roce" in page


def test_results_of_one_transport_are_called_by_their_folders(tmp_path):
    for name in ("few", "many"):
        small_result().to_parquet(tmp_path / name)
    report(tmp_path)
    assert "few against many" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "meta.json").write_text('{"format": "other"}')
    with pytest.raises(CommandError, match='format is "other"'):
        report(tmp_path)


@pytest.mark.parametrize("level", ["packet", "flow"])
def test_a_real_simulation_fills_every_part(tmp_path, level):
    fabric = sim.fabric("clos", nics=16, planes=2, radix=8)
    result = sim.simulate(
        fabric,
        sim.permutation(size_bytes=400_000, repeat=4),
        faults=[{"kind": "switch_down", "switch": "t1/p0/0", "at_us": 20, "duration_us": 40}],
        sample_interval_us=2,
        level=level,
    )
    page = Page(result.write_html(tmp_path / "report.html").read_text(encoding="utf-8"))
    assert {"Flow times", "Step times", "Faults", "Throughput", "Load of the links"} <= set(page.headings)
    assert "1. switch down · switch t1/p0/0" in page.text
    if level == "packet":
        assert {"Queues", "Losses and repetitions", "States of the paths"} <= set(page.headings)
        assert "Not recorded" not in page.text
