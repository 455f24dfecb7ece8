"""Prints the requirements of parts of the project, one a line, as pyproject.toml states them.

Lets the Makefile install everything the package needs without building the package itself.

Usage: python tools/requirements.py PART...   where PART is `build`, `run` or the name of an extra.
"""

import sys
import tomllib
from pathlib import Path

# pip would add these two to an isolated build by itself; without isolation they must be asked for.
_BUILD_PROGRAMS = ("cmake>=3.25", "ninja>=1.11")


def requirements(part: str, pyproject: Path) -> list[str]:
    """Returns the requirements of one part.

    Raises:
        KeyError: pyproject.toml has no such extra.
    """
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    if part == "build":
        return [*content["build-system"]["requires"], *_BUILD_PROGRAMS]
    if part == "run":
        return list(content["project"]["dependencies"])
    return list(content["project"]["optional-dependencies"][part])


def main() -> None:
    """Prints the requirements of every part named on the command line."""
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    for part in sys.argv[1:]:
        sys.stdout.writelines(f"{line}\n" for line in requirements(part, pyproject))


if __name__ == "__main__":
    main()
