"""What is known about the pictures: labels from a table or from folders, and assignments.

Rows are joined to pictures by name, never by order, and no file that a row names is opened.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import numpy as np

from deepclust.data.tables import Table, read_table, shown, text_of
from deepclust.errors import DataError
from deepclust.files import name_of

NAME_COLUMNS = (
    "file_name", "filename", "file", "path", "file_path", "filepath", "image", "image_path",
    "image_name", "image_id", "img", "id",
)  # fmt: skip
LABEL_COLUMNS = ("label", "class", "category", "target", "class_name", "labels", "y")
CLUSTER_COLUMNS = ("cluster", "cluster_id", "prediction", "pred", "assignment", *LABEL_COLUMNS)
CONFIDENCE_COLUMNS = ("confidence", "probability", "prob")
NOISE = ("", "noise", "outlier", "outliers")


@dataclass(frozen=True)
class Labels:
    """What the pictures are, as far as someone said.

    label: a class for each of the N pictures, or None.
    classes: the classes in order, numbers by value.
    unmatched: rows that name no picture.
    columns: titles of the columns taken; None without a header, or for folders.
    warnings: what a person should know before reading a score.
    """

    label: list[str | None]
    classes: list[str]
    unmatched: int = 0
    columns: tuple[str, str] | None = None
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def code(self) -> np.ndarray:
        """(N,) int64, the place of each label in `classes`; -1 where there is none."""
        place: dict[str | None, int] = {name: i for i, name in enumerate(self.classes)}
        return np.array([place.get(name, -1) for name in self.label], dtype=np.int64)

    @property
    def labelled(self) -> int:
        return len(self.label) - self.unlabelled

    @property
    def unlabelled(self) -> int:
        return self.label.count(None)


def _labels(
    label: list[str | None],
    unmatched: int = 0,
    columns: tuple[str, str] | None = None,
    warnings: list[str] | None = None,
) -> Labels:
    """Sort the classes, and warn of labels that make scores say little."""
    classes = sorted({name for name in label if name is not None}, key=_natural)
    warnings = list(warnings or [])
    missing, n = label.count(None), len(label)
    if missing:
        warnings.append(
            f"{missing:,} of {n:,} pictures have no label;"
            f" scores are over the other {n - missing:,}"
        )
    if len(classes) == 1:
        warnings.append(f"all labels are {shown(classes[0])}: scores against one class say nothing")
    elif len(classes) == n - missing:
        warnings.append("every picture has a label of its own: scores say nothing")
    return Labels(label, classes, unmatched, columns, warnings)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key by which 2 comes before 10."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(p), p) if p.isdecimal() else (0, 0, p) for p in parts if p] + [(-1, 0, text)]


def folder_labels(names: list[str]) -> Labels:
    """Take the first folder in each name as its label; folders that hold everything are passed.

    Raises DataError if no picture is in a sub-folder.
    """
    parts = [name.split("/")[:-1] for name in names]
    deepest = max(map(len, parts), default=0)
    level = 0
    while level + 1 < deepest and len({tuple(p[: level + 1]) for p in parts}) == 1:
        level += 1
    label = [p[level] if len(p) > level else None for p in parts]
    if not any(label):
        raise DataError(
            "no picture is in a sub-folder, so folders say nothing",
            hint="--labels FILE.csv takes the labels from a table",
        )
    return _labels(label)


def read_labels(
    path: Path,
    names: list[str],
    *,
    root: Path | None = None,
    name_column: str | None = None,
    label_column: str | None = None,
) -> Labels:
    """Read labels from a table and join them to the pictures by name.

    A row names a picture by its path in the folder (with either slash, with ./ in front, or
    absolute), or without the extension, or by its base name alone, where that leaves no doubt.
    An empty label cell is no label.

    names: the N pictures, relative to `root`, with /.
    root: the folder of the pictures, for absolute paths.
    Raises UsageError if there is no such file or column; DataError if the table cannot be read,
    no row names a picture, a name fits two pictures, or a picture has two labels.
    """
    table = read_table(path, (*NAME_COLUMNS, *LABEL_COLUMNS), "labels")
    known = _Names(names, root)
    name, label, header = _columns(table, known, name_column, label_column)
    seen: dict[int, tuple[int, str]] = {}
    stray: list[str] = []
    repeated: list[str] = []
    for number, cells in table.rows[header:]:
        index = known.find(cells[name], f"{table.path}, row {number}")
        text = text_of(cells[label])
        if index is None:
            stray.append(cells[name])
        elif index not in seen or not seen[index][1]:
            seen[index] = number, text
        elif text and text != seen[index][1]:
            first, other = seen[index]
            raise DataError(
                f"{table.path}: rows {first} and {number} give {shown(names[index])} two labels,"
                f" {shown(other, 30)} and {shown(text, 30)}",
                hint="keep one of the two rows",
            )
        else:
            repeated.append(names[index])
    if not seen:
        raise _nothing_matches(table.path, stray, names)
    if not any(text for _, text in seen.values()):
        raise DataError(f"{table.path}: every label is empty")
    warnings = []
    for rows, what in (
        (stray, "no picture of these"),
        (repeated, "a picture that had one already"),
    ):
        if rows:
            many = "1 row names" if len(rows) == 1 else f"{len(rows):,} rows name"
            warnings.append(f"labels: {many} {what}, such as {shown(rows[0])}")
    found = [seen.get(i, (0, ""))[1] or None for i in range(len(names))]
    titles = (table.first[name].strip(), table.first[label].strip()) if header else None
    return _labels(found, len(stray), titles, warnings)


def _columns(
    table: Table, known: _Names, name_column: str | None, label_column: str | None
) -> tuple[int, int, bool]:
    """Choose the columns of names and of labels; whether the first row is a header."""
    name = table.column(NAME_COLUMNS)
    label = table.column(LABEL_COLUMNS)
    if name_column is not None:
        name = table.named(name_column, "--name-column")
    if label_column is not None:
        label = table.named(label_column, "--label-column")
    if name is not None and label is not None and name != label:
        return name, label, True
    two = len(table.first) == 2
    asked = name_column is not None or label_column is not None
    data = [i for i, cell in enumerate(table.first) if known.find(cell) is not None]
    if two and data and not asked:
        return data[0], 1 - data[0], False
    if two and name is not None:
        return name, 1 - name, True
    if two and label is not None:
        return 1 - label, label, True
    missing = "names" if name is None else "labels"
    option, usual = (
        ("--name-column", NAME_COLUMNS) if name is None else ("--label-column", LABEL_COLUMNS)
    )
    titles = shown(", ".join(table.first))
    raise DataError(
        f"{table.path}: no column of {missing} among {titles}",
        hint=f"give its title with {option}, or call it one of {', '.join(usual)}",
    )


class _Names:
    """Finds the picture that a cell of a table means."""

    def __init__(self, names: list[str], root: Path | None) -> None:
        self.names = names
        folders = [root.expanduser().absolute(), root.expanduser().resolve()] if root else []
        self.roots = [f"{folder}".replace("\\", "/").rstrip("/") + "/" for folder in folders]
        self.exact = {name: i for i, name in enumerate(names)}

    @cached_property
    def escaped(self) -> dict[str, int]:
        """Names that are not UTF-8, as `files.write_csv` writes them."""
        pairs = ((n.encode("utf-8", "backslashreplace").decode(), i) for n, i in self.exact.items())
        return {text: i for text, i in pairs if text not in self.exact}

    @cached_property
    def shorter(self) -> list[tuple[Callable[[str], bool], dict[str, int]]]:
        """Shorter and other spellings, the closest first, and when each may be meant."""
        names = [name.replace("\\", "/") for name in self.names]
        stem = [posixpath.splitext(name)[0] for name in names]
        bare: Callable[[str], bool] = lambda cell: "/" not in cell  # noqa: E731
        return [
            (lambda cell: True, _index(names)),
            (lambda cell: True, _index(stem)),
            (bare, _index(map(posixpath.basename, names))),
            (bare, _index(map(posixpath.basename, stem))),
        ]

    def find(self, cell: str, where: str | None = None) -> int | None:
        """Return the index of the picture, or None.

        where: the row, for the DataError that a name of two pictures raises; None: no error.
        """
        for text in (cell, name_of(cell), cell.strip()):
            if text in self.exact:
                return self.exact[text]
        if "\\" in cell and name_of(cell) in self.escaped:
            return self.escaped[name_of(cell)]
        path = self._relative(cell.strip())
        if path is None:
            return None
        if path in self.exact:
            return self.exact[path]
        key = normalize("NFC", path)
        for meant, index in self.shorter:
            found = index.get(key) if meant(key) else None
            if found is not None and found < 0:
                if where is None:
                    return None
                raise DataError(
                    f"{where}: {shown(cell)} fits more than one picture",
                    hint="write the path within the folder, with the extension",
                )
            if found is not None:
                return found
        # Pictures of another program's table may be called by their stem.
        stem, extension = posixpath.splitext(path)
        return self.exact.get(stem) if re.fullmatch(r"\.[A-Za-z]\w{1,4}", extension) else None

    def _relative(self, cell: str) -> str | None:
        """The path within the folder, or None where it lies outside."""
        path = cell.replace("\\", "/")
        if path.startswith("/") or re.match(r"[A-Za-z]:/", path):
            path = posixpath.normpath(path)
            for root in self.roots:
                if path.startswith(root):
                    return path[len(root) :]
            return None
        path = posixpath.normpath(path) if path else ""
        return None if path in ("", ".", "..") or path.startswith("../") else path


def _index(keys: Iterable[str]) -> dict[str, int]:
    """The place of each key in NFC; -1 for a key that occurs twice."""
    index: dict[str, int] = {}
    for i, key in enumerate(keys):
        key = normalize("NFC", key)
        index[key] = -1 if key in index else i
    return index


def _nothing_matches(path: Path, cells: list[str], names: list[str]) -> DataError:
    """Say so with an example of each side, and guess why."""
    cell, name = cells[0] if cells else "", names[0] if names else ""
    a = cell.strip().replace("\\", "/")
    spellings: list[tuple[Callable[[str], str], str]] = [
        (posixpath.basename, "the folders in front of the names differ"),
        (lambda n: posixpath.splitext(n)[0], "the extensions differ"),
        (lambda n: posixpath.splitext(posixpath.basename(n))[0], "folders and extensions differ"),
        (str.casefold, "capitals differ"),
        (
            lambda n: posixpath.splitext(posixpath.basename(n))[0].lstrip("0"),
            "leading zeros are gone, as a spreadsheet does to numbers",
        ),
    ]
    hint = "are these the labels of another folder?"
    for spelling, guess in spellings:
        close = [n for n in names if a and spelling(n) == spelling(a)]
        if close:
            name, hint = close[0], guess
            break
    return DataError(
        f"{path}: none of its {len(cells):,} rows names a picture; it has {shown(cell)},"
        f" the pictures are called {shown(name)}",
        hint=hint,
    )


@dataclass(frozen=True)
class Assignments:
    """A clustering read from a table.

    names: the N pictures. cluster: (N,) int64, -1 is noise.
    confidence: (N,) float32, or None. words: the text ids by number, empty for number ids.
    """

    names: list[str]
    cluster: np.ndarray
    confidence: np.ndarray | None
    words: dict[int, str]

    def of(self, names: Sequence[str]) -> Assignments:
        """Return the same of these pictures, in this order.

        A picture that the table does not name is in no cluster, with a confidence of 0.
        """
        row = {name: i for i, name in enumerate(self.names)}
        at = np.array([row.get(name, -1) for name in names], dtype=np.int64)
        sure = self.confidence
        return Assignments(
            list(names),
            np.where(at >= 0, self.cluster[at], -1),
            None if sure is None else np.where(at >= 0, sure[at], np.float32(0)),
            self.words,
        )


def read_assignments(path: Path) -> Assignments:
    """Read our assignments.csv, or the clusters that another program wrote.

    Ids may be numbers or text; -1, noise, outlier and an empty cell are noise.
    Raises UsageError if there is no such file; DataError, with the line, if it does not say
    which picture is in which cluster.
    """
    table = read_table(path, (*NAME_COLUMNS, *CLUSTER_COLUMNS), "assignments")
    name, cluster = table.column(NAME_COLUMNS), table.column(CLUSTER_COLUMNS)
    if name is None or cluster is None:
        raise DataError(
            f"{table.path}: no column of {'names' if name is None else 'clusters'} among"
            f" {shown(', '.join(table.first))}",
            hint="a header row such as file_name,cluster is wanted",
        )
    sure = table.column(CONFIDENCE_COLUMNS)
    rows: dict[str, tuple[int, str, float]] = {}
    for number, cells in table.rows[1:]:
        picture, text = name_of(cells[name]), text_of(cells[cluster])
        if picture in rows and rows[picture][1] != text:
            raise DataError(
                f"{table.path}: rows {rows[picture][0]} and {number} put {shown(picture)} into"
                " two clusters",
                hint="keep one of the two rows",
            )
        rows[picture] = (
            number,
            text,
            _number(cells[sure], table, number) if sure is not None else np.nan,
        )
    if not rows:
        raise DataError(f"{table.path} has a header and no row")
    ids, words = _ids([text for _, text, _ in rows.values()])
    confidence = np.array([value for *_, value in rows.values()], dtype=np.float32)
    return Assignments(list(rows), ids, confidence if sure is not None else None, words)


def _number(cell: str, table: Table, row: int) -> float:
    try:
        return float(cell) if cell.strip() else np.nan
    except ValueError as error:
        raise DataError(f"{table.path}, row {row}: {shown(cell)} is no confidence") from error


def _ids(cells: list[str]) -> tuple[np.ndarray, dict[int, str]]:
    """Number the clusters: their own numbers where all are plain integers, else in order."""
    real = [c for c in Counter(cells) if c.casefold() not in NOISE and not _negative(c)]
    # 3.0 is how some tools write 3 in a column with gaps; 03 is a name.
    if all(re.fullmatch(r"(0|[1-9]\d{0,17})(\.0+)?", c, re.ASCII) for c in real):
        number = {c: int(c.partition(".")[0]) for c in real}
        words = {}
    else:
        number = {c: i for i, c in enumerate(sorted(real, key=_natural))}
        words = {i: c for c, i in number.items()}
    return np.array([number.get(c, -1) for c in cells], dtype=np.int64), words


def _negative(cell: str) -> bool:
    return re.fullmatch(r"-[1-9]\d*(\.0+)?", cell, re.ASCII) is not None
