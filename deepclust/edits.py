"""Fix-ups by a person, in a small text file, that outlast the next clustering.

    clustering = "kmeans-10"          the clustering that the numbers are of; the newest if left out

    [[edit]]
    merge = [3, 7]
    [[edit]]
    rename = 4
    name = "cats"
    [[edit]]
    move = ["a.png", "b.png"]
    to = 5                            or a name: of a cluster, or of a new one
    [[edit]]
    drop = ["c.png"]                  out of every cluster
    [[edit]]
    split = 2
    into = 3

Edits apply in their order. Numbers change with every clustering, so each edit also keeps
`like`: names of some pictures of every cluster it speaks of. The cluster that holds most of them
is the one that is meant, whatever its number is then. No picture is ever touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deepclust import algorithms
from deepclust.config import tomllib
from deepclust.data.labels import Assignments
from deepclust.errors import DataError, UsageError, nearest

KINDS = ("merge", "rename", "move", "drop", "split")
MORE = {"merge": (), "rename": ("name",), "move": ("to",), "drop": (), "split": ("into",)}
LIKE = 25  # pictures by which a cluster is known again
MOST = 0.5  # share of them that has to be in one cluster


@dataclass(frozen=True)
class Edit:
    """One fix-up. clusters: the numbers it names; like: for each, pictures that it holds.

    pictures: of move and drop. name: of rename, or of the target of a move. into: of split.
    """

    kind: str
    clusters: tuple[int, ...] = ()
    like: tuple[tuple[str, ...], ...] = ()
    pictures: tuple[str, ...] = ()
    name: str | None = None
    into: int = 2

    def __str__(self) -> str:
        numbers = " and ".join(map(str, self.clusters))
        if self.kind == "rename":
            return f"rename {numbers} to {self.name!r}"
        if self.kind in ("move", "drop"):
            end = f" to {self.name or numbers}" if self.kind == "move" else ""
            return f"{self.kind} {len(self.pictures)} pictures{end}"
        return f"split {numbers} into {self.into}" if self.kind == "split" else f"merge {numbers}"

    def table(self) -> dict[str, Any]:
        """Return the edit as it stands in the file."""
        one = self.clusters[0] if self.clusters else None
        like = {"like": [list(names) for names in self.like]} if self.like else {}
        if self.kind == "merge":
            return {"merge": list(self.clusters), **like}
        if self.kind == "rename":
            return {"rename": one, "name": self.name, **like}
        if self.kind == "split":
            return {"split": one, "into": self.into, **like}
        target = {"to": self.name or one} if self.kind == "move" else {}
        return {self.kind: list(self.pictures), **target, **like}


@dataclass(frozen=True)
class Edited:
    """A clustering with the edits in it: label (N,), confidence (N,), names by number.

    words: what could not be done, and why.
    """

    label: np.ndarray
    confidence: np.ndarray
    titles: dict[int, str]
    words: list[str] = field(default_factory=list)


def read(path: Path) -> tuple[str | None, list[Edit]]:
    """Read an edits file: the clustering that it speaks of, if it says, and the edits.

    Raises UsageError if there is none or it is not TOML, DataError for an edit that means nothing.
    """
    try:
        table = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    for key in table:
        if key not in ("clustering", "edit"):
            raise DataError(
                f"{path}: unknown key {key!r}", hint=nearest(key, ["clustering", "edit"])
            )
    rows = table.get("edit", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: edits are tables that begin with [[edit]]")
    clustering = table.get("clustering")
    if clustering is not None and not isinstance(clustering, str):
        raise DataError(f"{path}: clustering must be a name")
    edits = []
    for number, row in enumerate(rows, 1):
        try:
            edits.append(_edit(row))
        except ValueError as error:
            raise DataError(f"{path}: edit {number}: {error}") from error
    return clustering, edits


def _edit(row: dict[str, Any]) -> Edit:
    """Check one table. Raises ValueError in words."""
    kinds = [key for key in row if key in KINDS]
    if len(kinds) != 1:
        raise ValueError(f"has to hold exactly one of {', '.join(KINDS)}")
    kind = kinds[0]
    for key in row:
        if key not in (kind, *MORE[kind], "like"):
            raise ValueError(f"{key!r} means nothing beside {kind}")
    missing = [key for key in MORE[kind] if key not in row and key != "into"]
    if missing:
        raise ValueError(f"{kind} needs {missing[0]}")
    groups = row.get("like", [])
    if not isinstance(groups, list):
        raise ValueError("like must be a list of lists of names")
    like = tuple(_names(names, "like") for names in groups)
    if kind == "merge":
        if not isinstance(row["merge"], list):
            raise ValueError("merge must be a list of numbers")
        numbers = tuple(_number(value) for value in row["merge"])
        if len(set(numbers)) < 2:
            raise ValueError("merge needs two clusters or more")
        return _known(Edit(kind, numbers, like))
    if kind == "rename":
        return _known(Edit(kind, (_number(row["rename"]),), like, name=_text(row["name"])))
    if kind == "split":
        into = _number(row.get("into", 2))
        if into < 2:
            raise ValueError("into must be 2 or more")
        return _known(Edit(kind, (_number(row["split"]),), like, into=into))
    pictures = _names(row[kind], kind)
    if kind == "drop":
        return Edit(kind, pictures=pictures)
    if isinstance(row["to"], str):
        return Edit(kind, pictures=pictures, name=_text(row["to"]))
    return _known(Edit(kind, (_number(row["to"]),), like, pictures))


def _known(edit: Edit) -> Edit:
    if edit.like and len(edit.like) != len(edit.clusters):
        raise ValueError("like needs one list of pictures for each cluster")
    return edit


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not the number of a cluster")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name must be text")
    return value.strip()


def _names(value: object, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key} must be a list of names of pictures")
    return tuple(value)


def anchor(edits: Sequence[Edit], found: Assignments) -> list[Edit]:
    """Give every edit without `like` the surest pictures of its clusters in `found`.

    Raises DataError for a number that is no cluster there.
    """
    sure = np.zeros(len(found.names)) if found.confidence is None else found.confidence
    order = np.argsort(-np.nan_to_num(sure), kind="stable")
    done = []
    for edit in edits:
        if edit.clusters and not edit.like:
            like = []
            for number in edit.clusters:
                members = order[found.cluster[order] == number][:LIKE]
                if not len(members):
                    raise DataError(f"{edit}: there is no cluster {number}")
                like.append(tuple(found.names[i] for i in members))
            edit = Edit(edit.kind, edit.clusters, tuple(like), edit.pictures, edit.name, edit.into)
        done.append(edit)
    return done


def dump(edits: Sequence[Edit], clustering: str | None) -> str:
    """Return the edits as a file that `read` reads."""
    import tomli_w

    head = {"clustering": clustering} if clustering else {}
    return tomli_w.dumps(
        {**head, "edit": [edit.table() for edit in edits]}, multiline_strings=False
    )


def apply(
    edits: Sequence[Edit], names: Sequence[str], label: np.ndarray, confidence: np.ndarray,
    x: np.ndarray, *, seed: int = 0,
) -> Edited:  # fmt: skip
    """Apply anchored edits to a clustering, one after the other.

    names, label (N,), confidence (N,), x (N, d): the pictures. A picture that a person moved has
    confidence 1. The numbers that come back have gaps and are not by size; -1 is no cluster.
    """
    state = _State(list(names), label.copy(), confidence.copy(), x, seed)
    for edit in edits:
        problem = getattr(state, edit.kind)(edit)
        if problem:
            state.words.append(f"not done: {edit}: {problem}")
    return Edited(state.label, state.confidence, state.titles, state.words)


class _State:
    """The clustering while edits are applied; each edit returns what kept it from being done."""

    def __init__(
        self, names: list[str], label: np.ndarray, confidence: np.ndarray, x: np.ndarray, seed: int
    ) -> None:
        self.row = {name: i for i, name in enumerate(names)}
        self.label, self.confidence, self.x, self.seed = label, confidence, x, seed
        self.titles: dict[int, str] = {}
        self.named_by: dict[int, set[str]] = {}
        self.words: list[str] = []

    def find(self, like: tuple[str, ...]) -> int | None:
        """Return the cluster that holds more than half of these pictures."""
        rows = [self.row[name] for name in like if name in self.row]
        held = self.label[rows][self.label[rows] >= 0]
        if not len(held):
            return None
        counts = np.bincount(held)
        best = int(counts.argmax())
        return best if counts[best] > MOST * len(rows) else None

    def fresh(self) -> int:
        return int(self.label.max(initial=-1)) + 1

    def merge(self, edit: Edit) -> str | None:
        found = [self.find(like) for like in edit.like]
        keys = list(dict.fromkeys(key for key in found if key is not None))
        lost = [str(n) for n, key in zip(edit.clusters, found) if key is None]
        if len(keys) >= 2:
            title = next((self.titles[key] for key in keys if key in self.titles), None)
            self.label[np.isin(self.label, keys)] = keys[0]
            for key in keys:
                self.titles.pop(key, None)
            if title:
                self.titles[keys[0]] = title
        return f"no cluster holds most of {' and '.join(lost)} now" if lost else None

    def rename(self, edit: Edit) -> str | None:
        key = self.find(edit.like[0])
        if key is None:
            return "no cluster holds most of it now"
        before = self.named_by.get(key)
        if before is not None and key in self.titles and not before & set(edit.like[0]):
            return f"its pictures are now with those called {self.titles[key]!r}"
        assert edit.name is not None
        self.titles[key], self.named_by[key] = edit.name, set(edit.like[0])
        return None

    def move(self, edit: Edit) -> str | None:
        if edit.name is not None:
            named = [key for key, title in self.titles.items() if title == edit.name]
            key = named[0] if named else self.fresh()
        else:
            key = self.find(edit.like[0])
            if key is None:
                return f"no cluster holds most of {edit.clusters[0]} now"
        problem = self._put(edit.pictures, key)
        if edit.name is not None and (self.label == key).any():
            self.titles[key] = edit.name
        return problem

    def drop(self, edit: Edit) -> str | None:
        return self._put(edit.pictures, -1)

    def _put(self, pictures: tuple[str, ...], key: int) -> str | None:
        rows = [self.row[name] for name in pictures if name in self.row]
        self.label[rows] = key
        self.confidence[rows] = 1.0 if key >= 0 else 0.0
        missing = [name for name in pictures if name not in self.row]
        if missing:
            return f"{len(missing)} of the pictures are not in the run, such as {missing[0]}"
        return None

    def split(self, edit: Edit) -> str | None:
        key = self.find(edit.like[0])
        if key is None:
            return "no cluster holds most of it now"
        rows = np.flatnonzero(self.label == key)
        if len(rows) <= edit.into:
            return f"it has {len(rows)} pictures"
        part = np.ascontiguousarray(self.x[rows], dtype=np.float32)
        found = algorithms.run("kmeans", part, edit.into, seed=self.seed)
        first = self.fresh()
        self.label[rows] = np.where(found.label == 0, key, first + found.label - 1)
        return None
