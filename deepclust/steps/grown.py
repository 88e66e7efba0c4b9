"""A folder that has grown since it was clustered: its clusters go on, under their old numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepclust import files
from deepclust.progress import Progress
from deepclust.run import Run

if TYPE_CHECKING:
    import numpy as np

    from deepclust.algorithms import Clusters

KNOWN = 0.5
"""Share of today's pictures that an earlier clustering has to know, to be gone on with."""


def earlier(run: Run, name: str, seed: int) -> tuple[Run, np.ndarray] | None:
    """Find the newest clustering `name` of the same folder as it was before.

    Only one of other pictures than the run's, made in the same way and from the same seed:
    another seed is there to see what else could come out.
    Returns the run it is in and the old clusters (N,) int64 of the run's pictures, -1 where
    unknown, or None.
    """
    from deepclust.data.labels import read_assignments

    for old in Run.all(run.path.parent):
        if old.path == run.path or not _same_making(old, run):
            continue
        folder = old.path / "clusters" / name
        if not (folder / "clusters.json").exists():
            continue
        if files.read_json(folder / "clusters.json").get("seed") != seed:
            continue
        label = read_assignments(folder / "assignments.csv").of(run.names).cluster
        if (label >= 0).mean() >= KNOWN:
            return old, label
    return None


def _same_making(old: Run, run: Run) -> bool:
    a, b = old.info, run.info
    if (a.get("images") or {}).get("fingerprint") in (None, b["images"]["fingerprint"]):
        return False
    return (
        a["images"]["root"] == b["images"]["root"]
        and a.get("settings") == b.get("settings")
        and a.get("encoder") == b.get("encoder")
    )


def go_on(
    run: Run, name: str, x: np.ndarray, k: int, seed: int, progress: Progress
) -> Clusters | None:
    """Cluster x (N, d) by k-means from where the clusters of the folder were before.

    Returns None if there is nothing to go on with: no such clustering, or another k.
    """
    import numpy as np

    from deepclust.algorithms import Clusters
    from deepclust.algorithms.kmeans import fit, margin

    before = earlier(run, name, seed)
    if before is None:
        return None
    old, label = before
    known = np.flatnonzero(label >= 0)
    sizes = np.bincount(label[known], minlength=k)
    if len(sizes) != k or not sizes.all():
        return None
    start = np.zeros((k, x.shape[1]), np.float32)
    np.add.at(start, label[known], x[known])
    centers, found, distance = fit(x, k, seed=seed, start=start / sizes[:, None])
    if len(centers) != k or len(np.unique(found)) != k:
        return None
    stayed = float((found[known] == label[known]).mean())
    progress.say(
        f"clusters go on from {old.path}: {len(x) - len(known)} images are new, "
        f"{stayed:.0%} of the others stay where they were (--fresh begins anew)"
    )
    return Clusters(found, margin(x, centers, found, distance), centers)
