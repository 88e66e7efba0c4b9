"""What the page shows: which pictures, how they lie to each other, and what to say about them.

Letters: N pictures of the run, M of them on the page, k clusters.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepclust import files
from deepclust.algorithms.neighbours import agreement, knn, unit
from deepclust.config import read_file
from deepclust.data.images import ImageFile, find_images
from deepclust.data.labels import Labels, read_assignments
from deepclust.data.reader import head_of, sniff
from deepclust.data.store import store_side, stored_pixels
from deepclust.errors import DeepclustError
from deepclust.progress import SILENT, Progress
from deepclust.report import layout, nuisance, sprites
from deepclust.report.nuisance import Trait
from deepclust.report.sprites import Thumbnails
from deepclust.run import Run

MOST = 6000  # pictures on a page
SIDES = ((600, 128), (2000, 104), (MOST, 80))  # pixels of a thumbnail, by pictures on the page
NEIGHBOURS = 6  # of a picture, shown with it
CIRCLE = 10  # neighbours that tell whether a cluster is mixed
MIXED = 0.6  # mean share of them in the same cluster below which it is
EXAMPLES = 4  # pictures of each kind on a card


@dataclass(frozen=True)
class Group:
    """One cluster on the page; id -1 holds the pictures in no cluster.

    size: of all N; shown: of the M. confidence, together: means, None where nothing is known;
    `together` is the share of a picture's nearest ten that are in its cluster.
    near, across, edge: rows of the M; all: every row, the surest first.
    """

    id: int
    title: str
    size: int
    share: float
    confidence: float | None
    together: float | None
    near: list[int]
    across: list[int]
    edge: list[int]
    all: list[int]

    @property
    def mixed(self) -> bool:
        return self.id >= 0 and self.together is not None and self.together < MIXED


@dataclass(frozen=True)
class Contents:
    """All of it. Rows are the M pictures of the page, `total` of the run.

    names, place (M, 2), group: (M,) place in `groups`, second: (M,) the same for the next best
    cluster or -1, sure: (M,), neighbours: (M, 6), label: (M,) place in `classes` or -1.
    missing: pictures that could not be read.
    """

    total: int
    names: list[str]
    groups: list[Group]
    group: np.ndarray
    second: np.ndarray
    sure: np.ndarray
    neighbours: np.ndarray
    place: np.ndarray
    how_placed: str
    drawn: Thumbnails
    traits: list[Trait]
    label: np.ndarray
    classes: list[str]
    missing: int


def gather(
    run: Run, folder: Path, labels: Labels | None = None, progress: Progress = SILENT
) -> Contents:
    """Collect what the page of the clustering in `folder` shows."""
    names = run.names
    cluster, sure, words = _assignments(folder, names)
    words |= given_names(folder)
    ids, sizes = np.unique(cluster[cluster >= 0], return_counts=True)
    rows = sample(cluster, sure, MOST)
    x = unit(np.ascontiguousarray(run.embeddings()[rows], dtype=np.float32))
    own = np.searchsorted(ids, cluster[rows])
    own[cluster[rows] < 0] = len(ids)
    second, typical = _against_centres(x, own, len(ids))
    confidence = np.where(np.isfinite(sure[rows]), sure[rows], typical.clip(0, 1))
    index = knn(x, CIRCLE)[0] if len(x) > 1 else np.zeros((len(x), 0), np.int64)
    close = agreement(own, index) if index.size else np.ones(len(x), np.float32)
    titles = {int(i): words.get(int(i), f"Cluster {i}") for i in ids}
    groups = [
        _group(
            int(key), titles[int(key)], int(size), len(names), g, own, confidence, typical, close
        )
        for g, (key, size) in enumerate(zip(ids, sizes))
    ]
    out = len(names) - int(sizes.sum())
    if out:
        last = len(ids)
        groups.append(
            _group(-1, "In no cluster", out, len(names), last, own, confidence, typical, close)
        )
    found = _files(run, [names[i] for i in rows], progress)
    side = next(side for most, side in SIDES if len(rows) <= most)
    order = _cells(groups)
    drawn = sprites.thumbnails(found, side, order=order, ready=_ready(run, side), progress=progress)
    place, how = layout.plane(x)
    return Contents(
        total=len(names), names=[names[i] for i in rows], groups=groups, group=own, second=second,
        sure=confidence, neighbours=index[:, :NEIGHBOURS], place=place, how_placed=how,
        drawn=drawn, traits=nuisance.traits(cluster[rows], found, drawn, titles),
        label=np.full(len(rows), -1) if labels is None else labels.code[rows],
        classes=[] if labels is None else labels.classes,
        missing=int((~drawn.seen).sum()),
    )  # fmt: skip


def _assignments(folder: Path, names: list[str]) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Return cluster (N,), -1 for a picture that the table does not name, and confidence (N,)."""
    found = read_assignments(folder / "assignments.csv").of(names)
    sure = np.full(len(names), np.nan) if found.confidence is None else found.confidence
    return found.cluster, sure, found.words


def given_names(folder: Path) -> dict[int, str]:
    """Return the names that a person gave to clusters, by number."""
    try:
        named = files.read_json(folder / "clusters.json")["names"]
        return {int(key): str(title) for key, title in named.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def sample(cluster: np.ndarray, sure: np.ndarray, most: int) -> np.ndarray:
    """Choose at most about `most` of the N rows, ascending: all if that is enough.

    Half goes to clusters by size and half evenly, so that no cluster is lost; within one they
    lie evenly from the surest to the least sure, both ends among them.
    """
    n = len(cluster)
    if n <= most:
        return np.arange(n)
    keys, sizes = np.unique(cluster, return_counts=True)
    chosen = []
    for key, size in zip(keys, sizes):
        want = min(size, max(1, int(most / 2 * size / n) + int(most / 2 / len(keys))))
        members = np.flatnonzero(cluster == key)
        members = members[np.argsort(-np.nan_to_num(sure[members]), kind="stable")]
        chosen.append(members[np.linspace(0, size - 1, want).round().astype(np.int64)])
    return np.sort(np.concatenate(chosen))


def _against_centres(x: np.ndarray, own: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best cluster other than its own (M,), -1 if none, and cosine to the own centre."""
    if k == 0:
        return np.full(len(x), -1), np.zeros(len(x))
    sums = np.zeros((k + 1, x.shape[1]))
    np.add.at(sums, own, x)
    near = x @ unit(sums[:k]).T
    inside = own < k
    at = np.flatnonzero(inside)
    typical = np.zeros(len(x))
    typical[at] = near[at, own[at]]
    near[at, own[at]] = -np.inf
    second = near.argmax(axis=1)
    return np.where(inside & (k == 1), -1, second), typical


def _group(
    key: int, title: str, size: int, total: int, g: int, own: np.ndarray, sure: np.ndarray,
    typical: np.ndarray, close: np.ndarray,
) -> Group:  # fmt: skip
    members = np.flatnonzero(own == g)
    by_typical = members[np.argsort(-typical[members], kind="stable")]
    by_sure = members[np.argsort(-sure[members], kind="stable")]
    near = by_typical[:EXAMPLES].tolist()
    rest = [i for i in by_sure[::-1].tolist() if i not in near]
    edge = rest[:EXAMPLES]
    middle = [i for i in by_typical.tolist() if i not in near and i not in edge]
    at = np.linspace(0, len(middle) - 1, EXAMPLES + 2).round().astype(int)[1:-1] if middle else []
    across = list(dict.fromkeys(middle[i] for i in at))
    real = key >= 0 and len(members) > 0
    return Group(
        key, title, size, size / total,
        float(sure[members].mean()) if real else None,
        float(close[members].mean()) if real and size > 1 else None,
        near, across, edge, by_sure.tolist(),
    )  # fmt: skip


def _cells(groups: list[Group]) -> np.ndarray:
    """Order the M pictures for the sheets: those on cards first, then cluster by cluster."""
    on_cards = [i for g in groups for i in (*g.near, *g.across, *g.edge)]
    return np.array(list(dict.fromkeys([*on_cards, *(i for g in groups for i in g.all)])), np.int64)


def _ready(run: Run, side: int) -> sprites.Ready | None:
    """Return a look-up of the pictures that the run's encoder was fed, if they are large enough.

    JPEG alone: there `auto` never pads, as it does where a picture is transparent.
    """
    try:
        config = read_file(run.path / "config.toml")
        data, encoder = config.get("data", {}), config.get("encoder", {})
        stored = store_side(encoder.get("image_size") or 128)
        fit, most = data.get("fit", "auto"), data["max_pixels"]
        if stored < side or fit not in ("auto", "stretch"):
            return None
        store = stored_pixels(run.image_root, stored, fit=fit, max_pixels=most)
        rows = store.array()
    except (DeepclustError, KeyError, OSError, ValueError):
        return None

    def ready(file: ImageFile) -> np.ndarray | None:
        row = store.known(file)
        if not isinstance(row, int) or sniff(head_of(file.path)) != "JPEG":
            return None
        return rows[row]

    return ready


def _files(run: Run, names: list[str], progress: Progress) -> list[ImageFile | None]:
    """Find the pictures again as the scan does, which follows no link out of the folder."""
    try:
        chosen = read_file(run.path / "config.toml").get("data", {})
        follow = bool(chosen.get("follow_links", False))
        listing = find_images(run.image_root, follow_links=follow)
    except DeepclustError as error:
        progress.say(f"the page has no thumbnails: {error.message}")
        return [None] * len(names)
    known = {file.name: file for file in listing.files}
    return [known.get(name) for name in names]


def verdict(contents: Contents) -> list[str]:
    """Say in plain words what came out: how many, how even, how mixed, and what may explain it."""
    real = [group for group in contents.groups if group.id >= 0]
    if not real:
        return [f"{contents.total:,} pictures, and not one is in a cluster."]
    largest = max(real, key=lambda group: group.size)
    plural = "cluster" if len(real) == 1 else "clusters"
    lines = [
        f"{contents.total:,} pictures in {len(real):,} {plural};"
        f" the largest holds {largest.share:.0%}."
    ]
    mixed = [group.title for group in real if group.mixed]
    if len(real) > 1:
        lines.append(_mixed_words(mixed, len(real)))
    for trait in contents.traits:
        if trait.word == "much":
            lines.append(
                f"The {trait.name} goes along with the clusters (AMI {trait.ami:.2f}):"
                " make sure that this is not all they are about."
            )
    return lines


def _mixed_words(mixed: list[str], k: int) -> str:
    if not mixed:
        return "No cluster looks mixed: most pictures have their nearest neighbours in their own."
    some = ", ".join(mixed[:5]) + (f" and {len(mixed) - 5} more" if len(mixed) > 5 else "")
    if len(mixed) == 1:
        return f"One looks mixed, with many of its nearest neighbours in other clusters: {some}."
    return f"{len(mixed)} of {k} look mixed, with many nearest neighbours in others: {some}."


def history(run: Run) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, [] where there was no training or they are damaged."""
    if not run.intact("metrics.jsonl"):
        return []
    try:
        lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError):
        return []
    return [line for line in found if isinstance(line, dict)]


def candidates(folder: Path) -> list[dict[str, float]]:
    """Return the table of k.csv, [] where k was given or the table is damaged."""
    try:
        rows = files.read_csv(folder / "k.csv")
        return [{key: float(cell) for key, cell in row.items()} for row in rows]
    except (OSError, ValueError, TypeError):
        return []


def skipped(run: Run) -> list[tuple[str, int]]:
    """Return the reasons why files were left out, with their number, the commonest first."""
    if not run.intact("skipped.csv"):
        return []
    try:
        rows = files.read_csv(run.path / "skipped.csv")
    except (OSError, UnicodeDecodeError):
        return []
    return Counter(row.get("reason", "") for row in rows).most_common()


def limit(n: int) -> int:
    """Return how many bytes a page on n pictures may take: 2 MB to 300, 15 at 10⁴, 25 from 10⁵."""
    corners = [(300, 2e6), (10_000, 15e6), (100_000, 25e6)]
    logs = [(math.log(count), math.log(size)) for count, size in corners]
    at, out = zip(*logs)
    return int(math.exp(np.interp(math.log(max(n, 1)), at, out)))
