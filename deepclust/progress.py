"""How long work reports what it is doing. Code that computes never prints: it calls this.

The caller decides whether a stage is a bar, plain lines or nothing (`screen.py` draws).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Stage:
    """One piece of long work: so many units, done one by one."""

    def advance(self, done: int = 1) -> None:
        """Count `done` more units."""

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


SILENT = Progress()
