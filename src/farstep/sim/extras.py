"""Packages that only some of the simulator needs, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["EXTRA_PACKAGES", "extra"]

EXTRA_PACKAGES = {
    "pandas": "sim",
    "pyarrow": "sim",
    "networkx": "sim",
    "plotly": "sim",
    "scipy": "sim",
    "ray": "ray",
}
"""Packages, and the extra that adds each: `pip install "farstep[sim]"`."""


def extra(module: str) -> Any:
    """Imports a module that an extra adds.

    Args:
        module: its name, such as `pyarrow.parquet`.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        name = EXTRA_PACKAGES.get(package, "sim")
        raise ModuleNotFoundError(
            f'{package} is not installed; pip install "farstep[{name}]"', name=package
        ) from error
