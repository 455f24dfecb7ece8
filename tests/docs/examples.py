"""Finds the examples in a Markdown page and tells what is to be done with each.

A fenced block of `console` holds commands after `$ ` and, below each, the output it must have: nothing to
accept any, `...` for whatever comes. A block of `bash` is a script, a block of `python` a program. All
examples of a page run in one directory, in the order of the page. A comment right above a block says more:

    <!-- skip: reason -->        not run, and why
    <!-- slow -->                takes long; runs with the slow suite, together with all before it
    <!-- file: NAME -->          written to NAME and not run, for a command that follows
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RUNNABLE = ("console", "bash", "python")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^`]*)$")
_COMMENT = re.compile(r"^ *<!-- (?P<word>skip|slow|file)(?:: (?P<value>.*?))? -->\s*$")


@dataclass(frozen=True)
class Command:
    """One command of a console block and the output it must have."""

    text: str
    output: str


@dataclass(frozen=True)
class Example:
    """One fenced block."""

    page: Path
    line: int
    language: str
    code: str
    skip: str | None = None
    is_slow: bool = False
    file: str | None = None
    commands: tuple[Command, ...] = field(default=())

    @property
    def where(self) -> str:
        """Page and line, as editors understand it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page whose examples must work."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if "_build" not in path.parts)


def examples_of(page: Path) -> list[Example]:
    """Returns the runnable examples of a page in their order.

    Raises:
        ValueError: a fence is not closed, a comment lacks its value, or a console block shows no command.
    """
    found: list[Example] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    notes: dict[str, str] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        if comment := _COMMENT.match(line):
            word, value = comment["word"], comment["value"] or ""
            if (word == "slow") == bool(value):
                raise ValueError(f"{page}:{index + 1}: {word} {'takes no' if value else 'needs a'} value")
            notes[word] = value
        elif line.startswith((":::", "~~~")):
            notes = {}
        elif fence := _FENCE.match(line):
            start = index
            body = []
            index += 1
            while index < len(lines) and lines[index].strip() != "```":
                body.append(lines[index].removeprefix(fence["indent"]))
                index += 1
            if index == len(lines):
                raise ValueError(f"{page}:{start + 1}: the fence is not closed")
            if fence["language"] in RUNNABLE or "file" in notes:
                found.append(_example(page, start + 1, fence["language"], body, notes))
            notes = {}
        elif line.strip():
            notes = {}
        index += 1
    return found


def is_as_shown(shown: str, printed: str) -> bool:
    """Tells whether a command printed what its page shows.

    Three dots stand for anything, also nothing; with more dots in a row it is the last three. Blanks and line feeds
    count as one blank.
    """
    pieces = re.split(r"\.\.\.(?!\.)", " ".join(shown.split()))
    pattern = ".*".join(re.escape(piece) for piece in pieces)
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None


def _example(page: Path, line: int, language: str, body: list[str], notes: dict[str, str]) -> Example:
    commands = tuple(_commands(body)) if language == "console" else ()
    if language == "console" and not commands:
        raise ValueError(f"{page}:{line}: a console block must show a command after `$ `")
    return Example(
        page,
        line,
        language,
        "\n".join(body) + "\n",
        notes.get("skip"),
        "slow" in notes,
        notes.get("file"),
        commands,
    )


def _commands(body: list[str]) -> list[Command]:
    found: list[Command] = []
    for line in body:
        if line.startswith("$ "):
            found.append(Command(line[2:].split("  #")[0], ""))
        elif found:
            found[-1] = Command(found[-1].text, f"{found[-1].output}{line}\n")
    return found
