"""The one writer: every file that deepclust makes goes through here.

A file is written under a temporary name in its own folder, flushed to the disk and renamed,
so that a reader sees the old file or the new one and never half of either.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deepclust.errors import OutputError

TEMPORARY = ".tmp-"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
DIGEST = "sha256"


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path`, whole or not at all.

    Raises OutputError if the place is full, gone or not writable; what was there stays.
    """
    # File systems count a name in bytes: 255 of them at most.
    name = os.fsdecode(os.fsencode(path.name)[:200])
    temporary = path.with_name(f".{name}{TEMPORARY}{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise output_error(path, error) from error


def output_error(path: Path, error: OSError) -> OutputError:
    """Put a failed write into words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(
            f"no space left to write {path}", hint="make room and run the same command again"
        )
    return OutputError(f"cannot write {path}: {error.strerror or error}")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Make `path` and its parents. Raises OutputError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON that every parser reads: NaN and infinities become null."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Turn arrays, numpy scalars, paths and NaN into what JSON has words for."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def read_json(path: Path) -> Any:
    """Read a JSON file written by `write_json`."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_sealed(path: Path, table: dict[str, Any]) -> None:
    """Write a JSON table that carries a digest of itself, so that a changed bit is noticed."""
    table = {key: value for key, value in plain(table).items() if key != DIGEST}
    write_json(path, {**table, DIGEST: _seal(table)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a table written by `write_sealed`, without its digest.

    Raises OSError if it cannot be read, and ValueError if it is not as it was written.
    """
    try:
        table = read_json(path)
    except RecursionError as error:
        raise ValueError("nested without end") from error
    if not isinstance(table, dict):
        raise ValueError("not a table")
    if table.pop(DIGEST, None) != _seal(table):
        raise ValueError("its content does not match its digest")
    return table


def _seal(table: dict[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises OSError."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table. Names must have been through `path_cell` and free text through `text_cell`."""
    buffer = io.StringIO()
    minimal = csv.writer(buffer, lineterminator="\n")
    quoted = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    minimal.writerow(header)
    for row in rows:
        # With "\n" as terminator the csv module leaves a lone CR unquoted, which tears the row.
        torn = any(isinstance(cell, str) and "\r" in cell for cell in row)
        (quoted if torn else minimal).writerow(row)
    write_bytes(path, buffer.getvalue().encode("utf-8", "backslashreplace"))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a table written by `write_csv` as one dict a row; path cells come back as names."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def path_cell(name: str) -> str:
    """Keep a name from becoming a spreadsheet formula: `=a.png` → `./=a.png`, the same file."""
    return f"./{name}" if name.startswith(FORMULA) else name


def name_of(cell: str) -> str:
    """Undo `path_cell`."""
    return cell[2:] if cell.startswith("./") else cell


def text_cell(text: str) -> str:
    """Keep free text, such as a label, from becoming a spreadsheet formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def write_array(path: Path, array: Any) -> None:
    """Write a numpy array as .npy."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    write_bytes(path, buffer.getbuffer())
