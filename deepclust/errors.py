"""What can go wrong in a way that a person can mend, and the exit code each kind gets.

Only a mistake that someone can act on becomes a `DeepclustError`; a bug stays a traceback.
Nothing heavy may be imported here: every other module imports this one.
"""

from __future__ import annotations


class DeepclustError(Exception):
    """A fact, and the way out.

    message: what is wrong and where, one line.
    hint: what to do about it, one line, or None where there is nothing to do.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DeepclustError):
    """An option, a setting or a path that cannot mean anything."""

    exit_code = 2


class DataError(DeepclustError):
    """Pictures, labels or assignments that cannot be used."""

    exit_code = 3


class CheckpointError(DeepclustError):
    """Weights or a checkpoint that are damaged, foreign or do not fit."""

    exit_code = 4


class OutputError(DeepclustError):
    """The place to write to: taken, locked, full or not writable."""

    exit_code = 5


class TrainingError(DeepclustError):
    """Training or clustering that produced no usable numbers."""

    exit_code = 6


class Stopped(DeepclustError):
    """A signal asked us to stop; the run was left so that it can be resumed.

    signum: the signal's number, 2 for Ctrl-C and 15 for SIGTERM.
    """

    def __init__(self, message: str, hint: str | None = None, *, signum: int = 2) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signum


def nearest(word: str, known: list[str]) -> str:
    """Return a hint that names the closest of `known`, or lists them all if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
