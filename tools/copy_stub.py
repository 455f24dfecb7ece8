"""Copies the generated types of the compiled module into the source tree, where mypy reads them.

The build installs `_native.pyi` beside the compiled module. With an editable install that is not where
the Python sources are, and a type checker looks only there.
"""

import importlib.util
import shutil
import sys
from pathlib import Path


def main() -> None:
    """Copies the stub, unless it is there already with the same content."""
    found = importlib.util.find_spec("farstep._native")
    if found is None or found.origin is None:
        sys.exit("error: the compiled module farstep._native is not installed; run `make test` or pip first")
    source = Path(found.origin).parent / "_native.pyi"
    target = Path(__file__).resolve().parent.parent / "src" / "farstep" / "_native.pyi"
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
