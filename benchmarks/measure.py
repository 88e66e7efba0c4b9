"""How the benchmarks measure: A and B in turn in one process, CPU seconds, ratios.

The CPU seconds of a process move with whatever else the machine does, for both sides alike; so A
and B take turns, the figure is the ratio within a turn, and the median over the turns counts.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

TURNS = 5


@dataclass
class Row:
    """A line of the table.

    ratios: theirs / ours of each turn, empty where a limit and not a ratio is asked for. least: the
    ratio or the limit. value: what is held against a limit. flops: floating point operations of
    one turn of ours, for the share of the peak. note: what else to know.
    """

    number: str
    work: str
    against: str
    least: float
    ratios: list[float] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)
    value: float | None = None
    unit: str = ""
    flops: float = 0.0
    note: str = ""

    def reached(self) -> bool:
        if self.value is not None:
            return self.value < self.least
        return median(self.ratios) >= self.least

    def cells(self, peak: float) -> list[str]:
        share = f"{self.flops / self.seconds[1] / peak:.0%}" if self.flops else "–"
        if self.value is not None:
            measured = f"{self.value:.3g} {self.unit}"
            least, seconds = f"< {self.least:g} {self.unit}", "–"
        else:
            low, high = min(self.ratios), max(self.ratios)
            measured = f"**{median(self.ratios):.1f}×** ({low:.1f}–{high:.1f})"
            least = f"{self.least:g}×"
            seconds = " / ".join(f"{one:.3g}" for one in self.seconds)
        return [
            self.number, self.work, self.against, measured, least,
            "yes" if self.reached() else "no", seconds, share, self.note,
        ]  # fmt: skip


HEADER = [
    "#", "work", "against", "measured", "at least", "reached", "CPU s theirs / ours", "of peak",
    "note",
]  # fmt: skip


def alternate(
    theirs: Callable[[], Any], ours: Callable[[], Any], turns: int = TURNS, warm: bool = True
) -> tuple[list[float], tuple[float, float]]:
    """Run both in turn; return the ratios and the median CPU seconds of each."""
    spent: tuple[list[float], list[float]] = ([], [])
    if warm:
        theirs()
        ours()
    for _ in range(turns):
        for run, times in zip((theirs, ours), spent, strict=True):
            began = time.process_time()
            run()
            times.append(time.process_time() - began)
    ratios = [a / b for a, b in zip(*spent, strict=True)]
    return ratios, (median(spent[0]), median(spent[1]))


def child(words: Sequence[str], **options: Any) -> tuple[float, float, str]:
    """Run a command; return its CPU seconds, wall seconds and standard output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, done.stdout
    )  # fmt: skip


def peak(dtype: torch.dtype, side: int = 1_024) -> float:
    """Return the floating point operations a CPU second of the quickest large matrix product."""
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    times = []
    for _ in range(50):
        began = time.process_time()
        torch.mm(a, b)
        times.append(time.process_time() - began)
    return 2 * side**3 / min(times)
