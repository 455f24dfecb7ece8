"""One HTML file that needs no network: the frame of every report, and what its sections are made of."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Collection, Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go


def require_plotly(extra: str) -> None:
    """Makes sure that figures can be drawn.

    Args:
        extra: optional dependencies of farstep that hold plotly.

    Raises:
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
    """
    if importlib.util.find_spec("plotly") is None:
        message = f"the report needs plotly; install it with: pip install 'farstep[{extra}]'"
        raise ModuleNotFoundError(message, name="plotly")


def page_html(
    *, title: str, subtitle: str, verdict: str, facts: str, sections: Iterable[str], footer: str
) -> str:
    """Returns the whole page; `verdict`, `facts` and `sections` are HTML, the rest is text."""
    from plotly.offline import get_plotlyjs

    parts = {
        "title": escape(title),
        "plotly": get_plotlyjs(),
        "subtitle": escape(subtitle),
        "verdict": verdict,
        "facts": facts,
        "footer": escape(footer),
        "sections": "\n".join(sections),  # last: what a user wrote is not looked through for marks
    }
    page = files("farstep.observe").joinpath("report_page.html").read_text(encoding="utf-8")
    for name, content in parts.items():
        page = page.replace(f"<!--@{name}-->", content)
    return page


def write_page(page: str, html_path: Path) -> Path:
    """Writes a page; what was there before stays as it is until the new one is complete.

    Raises:
        OSError: it cannot be written.
    """
    if html_path.exists() and not html_path.is_file():  # such as /dev/stdout
        html_path.write_text(page, encoding="utf-8")
        return html_path
    new_path = html_path.with_name(html_path.name + ".part")
    try:
        new_path.write_text(page, encoding="utf-8")
        new_path.replace(html_path)
    except BaseException:
        with contextlib.suppress(OSError):
            new_path.unlink()
        raise
    return html_path


def figure_html(figure: go.Figure) -> str:
    """Returns a figure as HTML, without the library that draws it, which the page holds once."""
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"responsive": True, "displayModeBar": False},
    )
    return html


def section(title: str | None, content: str, note: str = "") -> str:
    """Returns a section: heading, a sentence on what is shown, content as HTML."""
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    words = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section>{heading}{words}{content}</section>"


def verdict_box(is_good: bool | None, sentence: str, notes: Sequence[str] = ()) -> str:
    """Returns the box at the top; `is_good` is None where it cannot be told."""
    mark = {True: "✓", False: "✗", None: "?"}[is_good]
    kind = {True: "good", False: "bad", None: "open"}[is_good]
    lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        f'<div class="verdict {kind}"><p><b aria-hidden="true">{mark}</b> {escape(sentence)}</p>{lines}</div>'
    )


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns names with their values, as cards."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f"<dl>{items}</dl>"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: Collection[str] = ()) -> str:
    """Returns a table; the first column holds names, `texts` hold sentences, the others figures."""
    kinds = [' class="text"' if name in texts else "" for name in head]
    cells = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(head, kinds, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(str(value))}</td>" for value, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'
