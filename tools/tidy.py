"""Checks that no linter makes: sizes, names, prints, and text that does not belong in the repository.

Looks at the files git tracks (and at new ones it does not ignore). Prints one line per finding and
fails if there is any.

Usage: python tools/tidy.py
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LINES_PER_MODULE_MAX = 600
LINES_PER_FUNCTION_MAX = 70
BANNED_MODULES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
SOURCE_SUFFIXES = frozenset({".py", ".hpp", ".cpp"})

# Written in pieces so that this file does not find itself.
_UNFINISHED = re.compile(r"\b(?:" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.$})-])/(?:work|root|opt|home/\w+|Users/\w+)/")


def tracked_files(root: Path) -> list[Path]:
    """Returns the files of the repository that git does not ignore, relative to its root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(name) for name in listing.split("\0") if name and (root / name).is_file()]


def findings_in_text(path: Path, text: str) -> Iterator[str]:
    """Yields what is wrong with any text file."""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _UNFINISHED.search(line):
            yield f"{path}:{number}: {match[0]}: finish it, or file an issue"
        if match := _MACHINE_PATH.search(line):
            yield f"{path}:{number}: {match[0]} is a path of one machine"


def findings_in_source(path: Path, text: str) -> Iterator[str]:
    """Yields what is wrong with a source file as a whole."""
    num_lines = text.count("\n")
    if num_lines > LINES_PER_MODULE_MAX:
        yield f"{path}: {num_lines} lines, at most {LINES_PER_MODULE_MAX}: split it by noun"
    if path.stem in BANNED_MODULES:
        yield f"{path}: name a module after the noun it holds, not {path.stem!r}"


def findings_in_python(path: Path, text: str) -> Iterator[str]:
    """Yields functions that are too long, and prints outside of programs."""
    is_product = path.parts[0] == "src"
    may_print = not is_product or "cli" in path.parts or path.name == "__main__.py"
    for node in ast.walk(ast.parse(text, filename=str(path))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > LINES_PER_FUNCTION_MAX:
                    excess = f"{num_lines} lines, at most {LINES_PER_FUNCTION_MAX}"
                    yield f"{path}:{node.lineno}: {node.name} has {excess}"
            case ast.Call(func=ast.Name(id="print")) if not may_print:
                yield f"{path}:{node.lineno}: print belongs into farstep.cli"


def findings(root: Path) -> Iterator[str]:
    """Yields everything that is wrong in the repository at `root`."""
    for path in tracked_files(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file
        yield from findings_in_text(path, text)
        if path.suffix in SOURCE_SUFFIXES:
            yield from findings_in_source(path, text)
        if path.suffix == ".py":
            yield from findings_in_python(path, text)


def main() -> None:
    """Prints all findings and exits with 1 if there are any."""
    found = list(findings(Path(__file__).resolve().parent.parent))
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
