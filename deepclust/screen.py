"""What a person or a script sees: results on standard output, everything else on standard error.

Progress is a bar on a terminal and plain lines elsewhere. File names are untrusted: they are
never read as markup, and control characters in them are shown as escapes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deepclust.errors import DeepclustError
from deepclust.progress import Progress, Stage, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn, TaskID

EVERY = 10.0  # seconds between two plain lines of progress


def safe(text: str) -> str:
    """Show control characters as escapes, so that no name steers a terminal."""
    return "".join(c if c.isprintable() or c == " " else ascii(c)[1:-1] for c in text)


def fancy() -> bool:
    """Tell whether standard error is a terminal that draws."""
    plain = os.environ.get("CI") or os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not plain


class Screen(Progress):
    """Shows progress, choices and warnings on standard error.

    level: 0 shows warnings only, 1 the normal, 2 more.
    """

    def __init__(self, level: int = 1) -> None:
        self.level = level

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
        if self.level == 0:
            yield Stage()
        elif fancy():
            with _bars() as bars:
                yield _Bar(bars, bars.add_task(name, total=total, note="", unit=unit))
        else:
            line = _Lines(name, total, unit)
            yield line
            line.end()

    def say(self, text: str) -> None:
        if self.level:
            print(safe(text), file=sys.stderr)

    def warn(self, text: str) -> None:
        print(f"warning: {safe(text)}", file=sys.stderr)


def _bars() -> Bars:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.completed}/{task.total} {task.fields[unit]}", markup=False),
        _speed()(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
    )


def _speed() -> type[ProgressColumn]:
    """Return the column that shows units a second."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{pace(speed)} {task.fields['unit']}/s" if speed else "")

    return Speed


class _Bar(Stage):
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self.bars = bars
        self.task = task

    def advance(self, done: int = 1) -> None:
        self.bars.advance(self.task, done)

    def skip(self, done: int) -> None:
        self.bars.reset(self.task, completed=done)

    def note(self, text: str) -> None:
        self.bars.update(self.task, note=safe(text))


class _Lines(Stage):
    """A line when a stage takes long, one now and then, and one at its end."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done, self.text, self.first = 0, "", 0
        self.began = self.shown = time.monotonic()

    def advance(self, done: int = 1) -> None:
        self.done += done
        now = time.monotonic()
        if now - self.shown >= EVERY and self.total:
            self.shown = now
            speed = max(self.done - self.first, 1) / (now - self.began)
            left = duration((self.total - self.done) / speed)
            self._print(
                f"{self.done}/{self.total} {self.unit}, {pace(speed)} {self.unit}/s, {left} left"
            )

    def skip(self, done: int) -> None:
        self.done = self.first = done

    def note(self, text: str) -> None:
        self.text = text

    def end(self) -> None:
        took = time.monotonic() - self.began
        if took >= 1:
            self._print(f"done in {duration(took)}")

    def _print(self, what: str) -> None:
        note = f" ({safe(self.text)})" if self.text else ""
        print(f"{self.name}: {what}{note}", file=sys.stderr, flush=True)


def pace(speed: float) -> str:
    """Return a number of units a second with as many digits as mean something."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def console() -> Console:
    """Return a console on standard output, wide enough for a table in a log."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 100
    return Console(width=wide, highlight=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print a table; columns whose cells are all numbers stand right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for i, column in enumerate(columns):
        numeric = all(isinstance(row[i], (int, float)) or _number(row[i]) for row in rows)
        shown.add_column(column, justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(safe(str(cell))) for cell in row))
    console().print(shown)


def _number(cell: object) -> bool:
    return isinstance(cell, str) and cell[:1] in "-.0123456789" and cell[:1] != ""


def result(text: str) -> None:
    """Print a line of the result."""
    print(safe(text))


def as_json(value: Any) -> None:
    """Print the result for a machine."""
    from deepclust.files import plain

    print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def error(problem: DeepclustError) -> None:
    """Print what went wrong and the way out, each on one line, the error last but for its hint."""
    message = safe(problem.message.replace("\n", " "))
    print(f"error: {message}", file=sys.stderr)
    if problem.hint:
        print(f"hint: {safe(problem.hint)}", file=sys.stderr)
