"""Edits of a person in a clustering: read before it is made, applied after, kept in the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepclust import files
from deepclust.progress import Progress
from deepclust.run import Run

if TYPE_CHECKING:
    from deepclust.algorithms import Clusters
    from deepclust.data.labels import Assignments
    from deepclust.edits import Edit

FILE = "edits.toml"
ENDING = "-edited"


@dataclass(frozen=True)
class Plan:
    """Edits to apply. base: clusters.json of the clustering that they were made on, {} if none."""

    edits: list[Edit]
    base: dict[str, Any]


def plan(run: Run, path: Path) -> Plan:
    """Read an edits file and note which pictures its numbers mean, before they change.

    Edits made on an edited clustering come after the ones that the run keeps.
    Raises UsageError or DataError for a file that cannot be used.
    """
    from deepclust import edits
    from deepclust.data.labels import read_assignments

    name, new = edits.read(path)
    anchored = all(edit.like for edit in new if edit.clusters)
    known = {folder.name: folder for folder in run.clusterings()}
    if name is None:
        name = next((n for n in known if not n.endswith(ENDING)), None)
    if not anchored and known:
        folder = run.clustering(name)
        new = edits.anchor(new, read_assignments(folder / "assignments.csv"))
    earlier: list[Edit] = []
    kept = run.path / FILE
    if name is not None and name.endswith(ENDING) and kept.exists() and not _same(kept, path):
        _, earlier = edits.read(kept)
        name = name[: -len(ENDING)]
    base = files.read_json(known[name] / "clusters.json") if name in known else {}
    return Plan([*earlier, *new], base)


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.expanduser().resolve()


def apply(
    run: Run, plan: Plan, found: Clusters, name: str, *, seed: int, progress: Progress
) -> tuple[Clusters, dict[int, str]]:
    """Apply a plan to a clustering called `name`; return the result and names of its clusters.

    The run keeps the edits, so that they can be given again. What could not be done is said.
    """
    import numpy as np

    from deepclust import edits
    from deepclust.algorithms import by_size

    names, x = run.names, np.asarray(run.embeddings())
    anchored = edits.anchor(plan.edits, _as_table(names, found))
    done = edits.apply(anchored, names, found.label, found.confidence, x, seed=seed)
    for line in done.words:
        progress.warn(line)
    label = by_size(done.label)
    titles = {
        int(label[done.label == key][0]): title
        for key, title in done.titles.items()
        if (done.label == key).any()
    }
    k = int(label.max(initial=-1)) + 1
    centers = np.zeros((k, x.shape[1]), np.float32)
    inside = label >= 0
    np.add.at(centers, label[inside], x[inside])
    centers /= np.bincount(label[inside], minlength=k)[:, None]
    files.write_text(run.path / FILE, edits.dump(anchored, name))
    confidence = done.confidence.astype(np.float32)
    return replace(found, label=label, confidence=confidence, centers=centers), titles


def _as_table(names: list[str], found: Clusters) -> Assignments:
    from deepclust.data.labels import Assignments

    return Assignments(names, found.label, found.confidence, {})
