"""Packages that only some of the simulator needs, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["EXTRA_PACKAGES", "extra"]

EXTRA_PACKAGES = ("pandas", "pyarrow", "networkx", "plotly", "scipy")
"""What `pip install "farstep[sim]"` adds."""


def extra(module: str) -> Any:
    """Imports a module of the extra `sim`.

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
        raise ModuleNotFoundError(
            f'{package} is not installed; pip install "farstep[sim]"', name=package
        ) from error
