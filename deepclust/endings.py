"""How a command ends when it cannot go on: what went wrong in words, and an exit code."""

from __future__ import annotations

import errno
import traceback

from deepclust import screen
from deepclust.errors import DeepclustError, OutputError, Stopped, TrainingError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LONGEST = 300  # characters of a message


def in_words(problem: BaseException) -> DeepclustError:
    """Turn what stopped a command into an error of ours; what we do not know is a bug."""
    name = type(problem).__name__
    if isinstance(problem, DeepclustError):
        return problem
    if isinstance(problem, KeyboardInterrupt) or name == "Abort":
        return Stopped("interrupted")
    # Typer may carry its own copy of click, so its errors are known by their shape.
    if hasattr(problem, "format_message"):
        return UsageError(problem.format_message(), _help_hint(problem))  # type: ignore[attr-defined]
    text = " ".join(str(problem).split())
    if isinstance(problem, OSError) and problem.errno in FULL:
        return OutputError(f"no space left: {text}", "make room and run the same command again")
    if isinstance(problem, PermissionError):
        return OutputError(f"no permission for {problem.filename}")
    if (
        isinstance(problem, MemoryError)
        or name == "OutOfMemoryError"
        or "t allocate memory" in text
    ):
        return TrainingError("out of memory", "a smaller --batch-size or --image-size")
    bug = DeepclustError(f"a bug, {name}: {text}", "deepclust --debug … shows where")
    bug.__cause__ = problem
    return bug


def fail(problem: DeepclustError, debug: bool) -> int:
    """Show an error, shortened in its middle where a path is endless; return its exit code."""
    if debug:
        traceback.print_exception(problem)
    message = problem.message
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} … {message[3 - LONGEST // 2 :]}"
    screen.error(DeepclustError(message, problem.hint))
    return problem.exit_code


def _help_hint(problem: BaseException) -> str:
    context = getattr(problem, "ctx", None)
    return f"{context.command_path if context else 'deepclust'} --help"
