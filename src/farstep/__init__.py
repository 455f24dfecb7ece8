"""Lockstep training across many machines and sites over a network that is allowed to fail.

Importing this package is cheap: nothing below it is loaded until it is asked for.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
