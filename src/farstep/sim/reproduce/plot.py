"""Line plots as SVG, for pages: no more than axes, lines and a legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Plot", "cdf"]

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 36, 52
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Told apart by colour-blind readers, too."""
_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines over common axes.

    Attributes:
        title: above the plot.
        x: label of the horizontal axis, with its unit.
        y: label of the vertical axis, with its unit.
        lines: x and y of each line by its name; a name that ends in ` (dashed)` is drawn so, without saying it.
        log_x: whether x is drawn by its logarithm; then all x are above 0.
        log_y: whether y is.
        y_from_zero: whether the vertical axis begins at 0.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]]
    log_x: bool = False
    log_y: bool = False
    y_from_zero: bool = False

    def write(self, path: Path) -> Path:
        """Writes the plot; returns its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.svg(), encoding="utf-8")
        return path

    def svg(self) -> str:
        """The plot as text."""
        lines = {name: (np.asarray(x, float), np.asarray(y, float)) for name, (x, y) in self.lines.items()}
        x_axis = _Axis.over([x for x, _ in lines.values()], is_log=self.log_x)
        y_axis = _Axis.over(
            [y for _, y in lines.values()], is_log=self.log_y, from_zero=self.y_from_zero and not self.log_y
        )
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
            ' font-size="12">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="22" font-size="14" font-weight="bold">{escape(self.title)}</text>',
            *self._frame(x_axis, y_axis),
        ]
        for index, (name, (x, y)) in enumerate(lines.items()):
            parts += _line(index, name, _across(x_axis.share(x)), _up(y_axis.share(y)))
        return "\n".join([*parts, "</svg>", ""])

    def _frame(self, x_axis: _Axis, y_axis: _Axis) -> list[str]:
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        parts = []
        for tick in x_axis.ticks():
            at = float(_across(x_axis.share(np.array(tick))))
            parts.append(f'<path d="M{at:.1f} {_TOP}V{bottom}" stroke="#dddddd"/>')
            parts.append(
                f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{_tick_text(tick)}</text>'
            )
        for tick in y_axis.ticks():
            at = float(_up(y_axis.share(np.array(tick))))
            parts.append(f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="#dddddd"/>')
            parts.append(
                f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{_tick_text(tick)}</text>'
            )
        middle = (_TOP + bottom) / 2
        return [
            *parts,
            f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#333333"/>',
            f'<text x="{(_LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(self.x)}</text>',
            f'<text transform="rotate(-90 16 {middle})" x="16" y="{middle}" text-anchor="middle">'
            f"{escape(self.y)}</text>",
        ]


def cdf(values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns x and y of a distribution's cumulative share, at most 400 points."""
    ordered = np.sort(np.asarray(values, float))
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    if len(ordered) > 400:
        kept = np.unique(np.linspace(0, len(ordered) - 1, 400).astype(int))
        ordered, share = ordered[kept], share[kept]
    return ordered, share


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, columns: Sequence[np.ndarray], *, is_log: bool, from_zero: bool = False) -> _Axis:
        values = np.concatenate(columns) if columns else np.array([0.0, 1.0])
        values = values[np.isfinite(values) & ((values > 0) | (not is_log))]
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        if is_log:
            return cls(math.log10(low) - 0.02, max(math.log10(high), math.log10(low) + 0.1) + 0.02, True)
        if from_zero:
            low = min(low, 0.0)
        room = (high - low or abs(high) or 1.0) * 0.04
        return cls(low if from_zero else low - room, high + room, False)

    def share(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            placed = np.log10(values) if self.is_log else values
        return (placed - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.is_log:
            exponents = range(math.ceil(self.low), math.floor(self.high) + 1)
            factors = (1,) if len(exponents) > 3 else (1, 2, 5)
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            found = [f * 10.0**e for e in decades for f in factors]
            found = [tick for tick in found if self.low <= math.log10(tick) <= self.high]
            if len(found) >= 3:
                return found
        low, high = (10.0**self.low, 10.0**self.high) if self.is_log else (self.low, self.high)
        raw = (high - low) / _TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= raw)
        return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _across(share: np.ndarray) -> np.ndarray:
    return np.asarray(_LEFT + share * (WIDTH - _LEFT - _RIGHT))


def _up(share: np.ndarray) -> np.ndarray:
    return np.asarray(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM))


def _line(index: int, name: str, x: np.ndarray, y: np.ndarray) -> list[str]:
    colour = _COLOURS[index % len(_COLOURS)]
    label = name.removesuffix(" (dashed)")
    dash = ' stroke-dasharray="6 4"' if label != name else ""
    kept = np.isfinite(x) & np.isfinite(y)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[kept], y[kept], strict=True))
    drawn = f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'
    if kept.sum() <= 24:
        drawn += "".join(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{colour}"/>'
            for a, b in zip(x[kept], y[kept], strict=True)
        )
    left, top = WIDTH - _RIGHT + 12, _TOP + 10 + 19 * index
    return [
        drawn,
        f'<path d="M{left} {top}h22" stroke="{colour}" stroke-width="2.2"{dash}/>',
        f'<text x="{left + 28}" y="{top + 4}">{escape(label)}</text>',
    ]


def _tick_text(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1 or value == 0 else f"{value:.6g}"
