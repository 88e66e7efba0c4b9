"""How long work reports what it is doing. Code that computes never prints: it calls this.

The caller decides whether a stage is a bar, plain lines or nothing (`screen.py` draws).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Stage:
    """One piece of long work: so many units, done one by one."""

    def advance(self, done: int = 1) -> None:
        """Count `done` more units."""

    def skip(self, done: int) -> None:
        """Count units that an earlier command has done: they say nothing about the speed."""

    def note(self, text: str) -> None:
        """Show a short text beside the bar, such as the current loss."""


class Progress:
    """Where long work reports to. This one is silent; subclasses show."""

    def stage(
        self, name: str, total: int | None = None, unit: str = ""
    ) -> AbstractContextManager[Stage]:
        """Open a stage called `name` of `total` units (None where it is not known)."""
        return nullcontext(Stage())

    def say(self, text: str) -> None:
        """A line that a person should see: a choice that was made, or a result."""

    def warn(self, text: str) -> None:
        """A line that a person must see."""


def duration(seconds: float) -> str:
    """Return a time in words: 8 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


SILENT = Progress()
