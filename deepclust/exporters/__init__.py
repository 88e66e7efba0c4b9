"""The formats of `export` by name, and what an exporter is.

An exporter plans: it returns the files that an export would hold, each with how it is made. The
writing, and all care about what is there already, is in `place.py`. To add a format: one function
from a `Job` to a list of `Item`, one line in `EXPORTERS`, one test.

`EXPORTERS` is a static table: nothing is imported before a format is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

from deepclust import files
from deepclust.errors import DataError, UsageError
from deepclust.exporters.names import Names
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

EXPORTERS = {
    "csv": "deepclust.exporters.tables:csv",
    "json": "deepclust.exporters.tables:json",
    "parquet": "deepclust.exporters.tables:parquet",
    "folders": "deepclust.exporters.pictures:folders",
    "imagefolder": "deepclust.exporters.pictures:imagefolder",
    "labelstudio": "deepclust.exporters.labelling:labelstudio",
    "cvat": "deepclust.exporters.labelling:cvat",
    "coco": "deepclust.exporters.labelling:coco",
    "fiftyone": "deepclust.exporters.labelling:fiftyone",
    "yolo": "deepclust.exporters.labelling:yolo",
    "sheets": "deepclust.exporters.sheets:sheets",
    "embeddings": "deepclust.exporters.arrays:embeddings",
    "tensorboard": "deepclust.exporters.arrays:tensorboard",
    "faiss": "deepclust.exporters.arrays:faiss",
    "weights": "deepclust.exporters.models:weights",
    "onnx": "deepclust.exporters.onnx:onnx",
}
WITHOUT_CLUSTERS = ("embeddings", "tensorboard", "faiss", "weights", "onnx")
"""Formats that are about the run alone; clusters are used where there are any."""

OUTLIER = -1


@dataclass(frozen=True)
class Row:
    """A picture of the run: its row in images.csv, its cluster (-1: outlier) and what else the
    assignments say of it."""

    index: int
    name: str
    cluster: int
    confidence: float | None
    more: dict[str, str]


@dataclass(frozen=True)
class Item:
    """A file that an export holds, with one way to make it.

    name: relative to the export, with `/`. make: writes the file at the path it is given.
    source: a picture to copy, or with `link` to link to. picture, cluster: for the manifest.
    """

    name: str
    make: Callable[[Path], None] | None = None
    source: Path | None = None
    link: bool = False
    picture: str = ""
    cluster: int | None = None


@dataclass(frozen=True)
class Job:
    """What is exported. clusters: the folder of the clustering, or None if there is none."""

    run: Run
    clusters: Path | None
    link: bool = False
    progress: Progress = SILENT

    @cached_property
    def rows(self) -> list[Row]:
        """The pictures of the clustering in the order of the run.

        Assignments may have been edited by hand: rows are matched by name.
        Raises DataError, with the line, for a row that cannot be read.
        """
        if self.clusters is None:
            raise UsageError(f"{self.run.path} has no clusters yet")
        path = self.clusters / "assignments.csv"
        try:
            table = files.read_csv(path)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {path}: {error}") from error
        where = {name: i for i, name in enumerate(self.run.names)}
        rows = [row for at, cells in enumerate(table, 2) if (row := _row(path, at, cells, where))]
        if not rows:
            raise DataError(f"{path} names no picture of the run")
        if len(rows) < len(table):
            self.progress.warn(f"{len(table) - len(rows)} rows of {path} are not of this run")
        return sorted(rows, key=lambda row: row.index)

    @cached_property
    def columns(self) -> list[str]:
        """The columns of the assignments beyond name, cluster and confidence."""
        return list(self.rows[0].more)

    @cached_property
    def details(self) -> dict[str, Any]:
        """What clusters.json says of the clustering; {} without one."""
        if self.clusters is None:
            return {}
        try:
            return dict(files.read_json(self.clusters / "clusters.json"))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {self.clusters / 'clusters.json'}: {error}") from error

    def label(self, cluster: int) -> str:
        """Return the word for a cluster: what a person called it, else `cluster-07` of 12.

        Outliers are `outliers`. No two clusters have the same word; all of it can be seen.
        """
        return self._words[cluster]

    def folder(self, cluster: int) -> str:
        """Return the word for a cluster as the name of a folder or file, on any system."""
        return self._folders[cluster]

    @cached_property
    def _words(self) -> dict[int, str]:
        last = max(row.cluster for row in self.rows)
        words, given = {OUTLIER: "outliers"}, self.details.get("names", {})
        digits = len(str(last))
        plain = {c: f"cluster-{c:0{digits}d}" for c in range(last + 1) if str(c) not in given}
        words |= plain
        for c in range(last + 1):
            if c in plain:
                continue
            shown = "".join(x if x.isprintable() else "?" for x in str(given[str(c)]))
            taken = set(words.values())
            words[c] = next(w for w in chain([shown], _numbered(shown)) if w not in taken)
        return words

    @cached_property
    def _folders(self) -> dict[int, str]:
        names = Names()
        order = sorted(self._words, key=lambda c: str(c) in self.details.get("names", {}))
        return {c: names.give(self._words[c].replace("/", "_")) for c in order}


def _numbered(word: str) -> Iterator[str]:
    return (f"{word}-{number}" for number in count(2))


def _row(path: Path, at: int, cells: dict[str, str], where: dict[str, int]) -> Row | None:
    cells = dict(cells)
    try:
        name = files.name_of(cells.pop("file_name"))
        cluster = int(cells.pop("cluster"))
        sure = cells.pop("confidence", "")
        confidence = float(sure) if sure else None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}, line {at}: no file_name with the number of a cluster",
            hint="wanted are the columns file_name,cluster, -1 for an outlier",
        ) from error
    if cluster < OUTLIER:
        raise DataError(f"{path}, line {at}: no cluster has the number {cluster}")
    more = {key: value or "" for key, value in cells.items() if isinstance(key, str)}
    return Row(where[name], name, cluster, confidence, more) if name in where else None


def need(module: str, extra: str) -> None:
    """Raise UsageError that says what to install if `module` is missing."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise UsageError(f"this format needs {module}", hint=f"pip install 'deepclust[{extra}]'")
