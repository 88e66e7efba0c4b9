"""Curves as small drawings in SVG: of training, and of the candidates for k."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

WIDTH, HEIGHT, PAD = 300, 120, 6
LEFT_OUT = ("epoch", "images_per_second")
TITLES = {
    "loss": "Loss, all terms",
    "lr": "Learning rate",
    "cluster_left": "Loss cluster above its best",
    "effective_rank": "Directions in use",
    "uniformity": "Spread of the embedding",
    "silhouette": "Silhouette: how far clusters stand apart",
    "modularity": "Modularity: how far neighbours are together",
    "stability": "Stability: how far resamples give the same",
}
SCORES = ("silhouette", "modularity", "stability")
"""Of a candidate for the number of clusters."""
EXPLAINED = {
    "effective_rank": "near 1: every picture looks the same",
    "uniformity": "0: all pictures at one point",
}
COLLAPSE = {"loss_instance": "instance_gap", "loss_cluster": "cluster_gap"}


@dataclass(frozen=True)
class Curve:
    """One drawing. points: of an SVG polyline; line: height of the collapse line, if any."""

    title: str
    note: str
    first: str
    last: str
    low: str
    high: str
    points: str
    line: float | None


def curves(history: list[dict[str, Any]]) -> list[Curve]:
    """Draw every number that each epoch of `history` tells; losses with their collapse line.

    The line is where a loss would be if all pictures looked alike: the loss plus its gap.
    """
    names = [key for key in _names(history) if key not in (*LEFT_OUT, *COLLAPSE.values())]
    return [found for name in names if (found := _curve(name, history)) is not None]


def of_candidates(rows: list[dict[str, float]]) -> list[Curve]:
    """Draw the scores of each candidate k, rising, with the k that each score is best at."""
    made = []
    for name in SCORES:
        found = _curve(name, rows)
        if found is not None:
            best = max(rows, key=lambda row: row[name])
            span = f"k {rows[0]['k']:.0f} to {rows[-1]['k']:.0f}"
            made.append(replace(found, note=f"{span}, best at {best['k']:.0f}"))
    return made


def _names(history: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for line in history for key in line))


def _curve(name: str, history: list[dict[str, Any]]) -> Curve | None:
    at = [(i, line[name]) for i, line in enumerate(history) if _is_number(line.get(name))]
    if len(at) < 2:
        return None
    values = [float(value) for _, value in at]
    gap = history[-1].get(COLLAPSE.get(name, ""))
    ceiling = values[-1] + float(gap) if gap is not None and _is_number(gap) else None
    low, high = min([*values, *_some(ceiling)]), max([*values, *_some(ceiling)])
    span = high - low or 1.0

    def y(value: float) -> float:
        return round(HEIGHT - PAD - (HEIGHT - 2 * PAD) * (value - low) / span, 1)

    last = max(len(history) - 1, 1)
    points = " ".join(f"{WIDTH * i / last:.1f},{y(value)}" for (i, _), value in zip(at, values))
    note = "dashed: total collapse" if ceiling is not None else EXPLAINED.get(name, "")
    first, end = _apart(values[0], values[-1])
    title = TITLES.get(name) or name.replace("_", " ").capitalize()
    return Curve(
        title, note, first, end, _short(low), _short(high), points,
        None if ceiling is None else y(ceiling),
    )  # fmt: skip


def _some(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _is_number(value: object) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(float(value))  # type: ignore[arg-type]


def _apart(a: float, b: float) -> tuple[str, str]:
    """Show two numbers with as many digits as it takes to tell them apart, seven at most."""
    for digits in range(3, 8):
        if a == b or _short(a, digits) != _short(b, digits):
            return _short(a, digits), _short(b, digits)
    return _short(a), _short(b)


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
