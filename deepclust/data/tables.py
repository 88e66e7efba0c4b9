"""Tables that people bring: CSV files from spreadsheets, scripts and other systems.

Every cell stays the text it is: numbers are names here, and so is NA. What is wrong with a file
is said with its line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepclust.errors import DataError, UsageError, nearest
from deepclust.files import FORMULA

SEPARATORS = (",", ";", "\t")
BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True)
class Table:
    """A CSV file as it stands.

    rows: number and cells of each row that is not empty, the first row (a header or not)
        included. Rows count from 1, as a spreadsheet shows them. All are equally long.
    """

    path: Path
    rows: list[tuple[int, list[str]]]

    @property
    def first(self) -> list[str]:
        return self.rows[0][1]

    def column(self, known: Sequence[str]) -> int | None:
        """Return the place in the first row of the earliest of `known`, capitals ignored."""
        words = [cell.strip().casefold() for cell in self.first]
        return next((words.index(name) for name in known if name in words), None)

    def named(self, name: str, option: str) -> int:
        """Return the place of the column called `name`. Raises UsageError if there is none."""
        titles = [cell.strip() for cell in self.first]
        if name in titles:
            return titles.index(name)
        place = self.column([name.casefold()])
        if place is None:
            raise UsageError(
                f"{option}: {self.path} has no column {shown(name)}", hint=nearest(name, titles)
            )
        return place


def shown(text: str, width: int = 60) -> str:
    """Text from outside as it may stand in a message: quoted, escaped and not too long."""
    return repr(text if len(text) <= width else f"{text[: width - 1]}…")


def read_table(path: Path, known: Sequence[str], what: str) -> Table:
    """Read a table with commas, semicolons or tabs; the first row decides which.

    known: titles that a column may have, in small letters; they help to find the separator.
    what: what the file is for, for messages: "labels".
    Raises UsageError if there is no such file, DataError if it is no table.
    """
    path = path.expanduser()
    text = _text(path, what)
    separator = max(SEPARATORS, key=lambda mark: _likeness(text, mark, known))
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for number, cells in enumerate(reader, start=1):
            if any(cell.strip() for cell in cells):
                rows.append((number, _even(cells, rows, path, reader.line_num)))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty", hint=f"{what}: a row for each picture is wanted")
    if len(rows[0][1]) < 2:
        raise DataError(
            f"{path}, line {rows[0][0]}: one column only, {shown(rows[0][1][0])}",
            hint="two are wanted, with a comma, a semicolon or a tab between them",
        )
    return Table(path, rows)


def _text(path: Path, what: str) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"no {what} file {path}") from error
    except IsADirectoryError as error:
        raise DataError(
            f"{path} is a folder, not a {what} file",
            hint="--labels folders takes the names of the sub-folders"
            if what == "labels"
            else None,
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    encoding = next((name for bom, name in BOMS if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = len(data[: error.start].splitlines()) or 1
        raise DataError(
            f"{path}, line {line}: byte 0x{data[error.start]:02X} is not {encoding.upper()} text",
            hint="save the file as CSV in UTF-8",
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(
            f"{path}, line {line}: a NUL character; this is no text file in UTF-8",
            hint="save the file as CSV in UTF-8",
        )
    return text


def _likeness(text: str, separator: str, known: Sequence[str]) -> tuple[int, int]:
    """How well the first row falls into columns: known titles, then columns."""
    try:
        first = next(r for r in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if r)
    except (StopIteration, csv.Error):
        return 0, 0
    return sum(cell.strip().casefold() in known for cell in first), len(first)


def _even(cells: list[str], rows: list[tuple[int, list[str]]], path: Path, line: int) -> list[str]:
    """Cut the empty cells that spreadsheets leave at the end of a row; refuse other raggedness."""
    width = len(rows[0][1]) if rows else len(cells)
    if len(cells) > width and not any(cell.strip() for cell in cells[width:]):
        return cells[:width]
    if len(cells) != width:
        raise DataError(
            f"{path}, line {line}: {len(cells)} columns where the first row has {width}",
            hint="a cell that holds the separator has to stand in quotes",
        )
    return cells


def text_of(cell: str) -> str:
    """Strip a cell, and undo the mark that keeps it from being a spreadsheet formula."""
    cell = cell.strip()
    return cell[1:].strip() if cell[:1] == "'" and cell[1:].startswith(FORMULA) else cell
