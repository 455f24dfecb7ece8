"""Findings as tables: in a terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farstep.sim.reproduce.plot import Plot, cdf
from farstep.sim.reproduce.record import Finding, Measure, Verdict, plain_number

__all__ = ["htsim_page", "mrc_page", "render_findings", "verdicts", "write_json"]

_STYLES: Mapping[Verdict, str] = {
    Verdict.MET: "green",
    Verdict.WITHIN_SEEDS: "green",
    Verdict.NOT_MET: "red",
    Verdict.SHOWN: "cyan",
    Verdict.NOT_REPRODUCIBLE: "yellow",
}


def verdicts(findings: Iterable[Finding]) -> str:
    """How many rows came to which verdict, in words."""
    counted = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in Verdict if counted[verdict])


def render_findings(findings: Sequence[Finding], *, width: int) -> str:
    """A table for a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_lines=True)
    for column in ("ID", "What", "Published", "Simulated: median (P5 to P95)", "Verdict"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        lines = [_measured(measure, mark="[band ", end="]") for measure in finding.measures]
        lines += [finding.note] if finding.note else []
        style = _STYLES[finding.verdict]
        table.add_row(
            finding.id,
            finding.title,
            finding.published,
            "\n".join(lines).replace("[", r"\["),
            f"[{style}]{finding.verdict.value}[/{style}]",
        )
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get() + verdicts(findings)


def _measured(measure: Measure, *, mark: str, end: str) -> str:
    target = "" if measure.target is None else f", published {plain_number(measure.target)}"
    band = f" {mark}{measure.band}{end}" if measure.is_judged else ""
    return f"{measure.name}: {measure.text}{target}{band}"


def write_json(findings: Iterable[Finding], path: Path) -> Path:
    """Writes the rows with every value of every seed; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps([finding.as_json() for finding in findings], indent=1) + "\n", encoding="utf-8"
    )
    return path


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows]


def mrc_page(findings: Sequence[Finding], head: str) -> str:
    """The page of published MRC results."""
    rows = []
    for finding in findings:
        measured = "<br>".join(_measured(m, mark="(band ", end=")") for m in finding.measures)
        verdict = (
            f"**{finding.verdict.value}**" if finding.verdict is Verdict.NOT_MET else finding.verdict.value
        )
        rows.append(
            (
                finding.id,
                finding.title,
                finding.published,
                finding.setup,
                measured or "—",
                verdict,
                finding.note,
            )
        )
    header = (
        "ID",
        "What",
        "Published",
        "Here",
        "Simulated: median (P5 to P95 over seeds)",
        "Verdict",
        "Remark",
    )
    return "\n".join([head.rstrip(), "", f"Verdicts: {verdicts(findings)}.", "", *_rows(header, rows), ""])


def htsim_page(
    findings: Sequence[Finding],
    not_run: Sequence[tuple[str, str]],
    times: Mapping[str, NDArray[np.float64]],
    folder: Path,
    head: str,
) -> str:
    """The page of htsim; writes its plots beside it.

    Args:
        findings: of `farstep.sim.reproduce.htsim.compare_all`.
        not_run: rows left out and why.
        times: times of flows by `case/transport`, for plots.
        folder: where plots go.
        head: what the page says first.
    """
    names = ("min", "median", "P99", "max")
    cases, others = [], []
    for finding in findings:
        by_name = {measure.name: measure for measure in finding.measures}
        if "median us" not in by_name:
            others.append(finding)
            continue
        for prefix in ("", "flow "):
            if f"{prefix}median us" not in by_name:
                continue
            shown = [_pair(by_name[f"{prefix}{name} us"]) for name in names]
            repeats = by_name["retransmitted"].text if not prefix else ""
            verdict = finding.verdict.value if not prefix else ""
            bold = f"**{verdict}**" if finding.verdict is Verdict.NOT_MET and verdict else verdict
            title = finding.title if not prefix else f"{finding.title}: flow time"
            cases.append((title, finding.setup, *shown, repeats, bold, finding.note if not prefix else ""))
    header = ("Case", "Runs", "Min", "Median", "P99", "Max", "Retransmitted", "Verdict", "Remark")
    exact = [
        (
            f.title,
            f.published,
            "; ".join(_measured(m, mark="(band ", end=")") for m in f.measures),
            f.verdict.value,
        )
        for f in others
    ]
    plots = _plots(times, folder)
    return "\n".join(
        [
            head.rstrip(),
            "",
            f"Verdicts: {verdicts(findings)}.",
            "",
            "## Closed forms, order, bounds",
            "",
            *_rows(("What", "Expected", "Simulated", "Verdict"), exact),
            "",
            "## Distributions",
            "",
            "Times of the last acknowledgement at the sender in µs: ours, median over seeds, then htsim's in brackets.",
            "",
            *_rows(header, cases),
            "",
            "## Not run",
            "",
            *[f"* {name}: {why}." for name, why in not_run],
            "",
            "## Plots",
            "",
            *[line for name, title in plots for line in (f"![{title}]({name})", "")],
        ]
    )


def _pair(measure: Measure) -> str:
    assert measure.target is not None
    return f"{plain_number(measure.median)} ({plain_number(measure.target)})"


_CDFS: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "htsim-perm128",
        "Permutation of 128, 2 MB: finish",
        ["uec_nscc_reps_perm128", "uec_nscc_obl_perm128", "x_perm128_mixed"],
    ),
    (
        "htsim-degraded",
        "Permutation of 128 with 4 slow links: finish",
        ["x_perm128_failed4_reps", "x_perm128_failed4_oblivious"],
    ),
    (
        "htsim-incast",
        "Incast 32:1, 1 MB: finish",
        ["uec_nscc_reps_incast128", "uec_rccc_incast128", "ndp_incast128"],
    ),
    (
        "htsim-perm1024",
        "Permutation of 1,024, 2 MB: finish",
        ["uec_nscc_reps_perm1024", "uec_nscc_obl_perm1024", "uec_rccc_perm1024"],
    ),
    ("htsim-a2a128", "All-to-all of 128, 100 KB: flow time", ["uec_nscc_reps_a2a128"]),
    ("htsim-ring128", "Ring all-reduce of 128, 100 KB: step time", ["uec_nscc_reps_ring128"]),
)
"""Plots of distributions: file, title and runs."""
_LABELS: Mapping[str, str] = {
    "obl": "oblivious",
    "reps": "REPS",
    "rccc": "RCCC",
    "ndp": "NDP",
    "mixed": "mixed",
}


def _label(case: str) -> str:
    """What a plot calls a run's transport."""
    words = [word for word in case.split("_") if word in _LABELS or word == "oblivious"]
    return _LABELS.get(words[-1], words[-1]) if words else case


def _plots(times: Mapping[str, NDArray[np.float64]], folder: Path) -> list[tuple[str, str]]:
    written = []
    for name, title, cases in _CDFS:
        lines = {}
        for case in cases:
            for key, values in times.items():
                of, _, transport = key.partition("/")
                if of == case:
                    who = "htsim (dashed)" if transport == "htsim" else "here"
                    text = "MRC" if transport == "mrc" else f"{_label(case)}, {who}"
                    lines[text] = cdf(values)
        if lines:
            Plot(title=title, x="us", y="share of flows", lines=lines, y_from_zero=True).write(
                folder / f"{name}.svg"
            )
            written.append((f"{name}.svg", title))
    return written
