"""The clustering algorithms by name, and the type they all return.

`ALGORITHMS` is a static table: nothing is imported before an algorithm is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from deepclust.errors import DataError, TrainingError, UsageError, nearest

ALGORITHMS = {
    "kmeans": "deepclust.algorithms.kmeans:cluster",
    "spherical": "deepclust.algorithms.kmeans:spherical",
    "agglomerative": "deepclust.algorithms.agglomerative:cluster",
    "spectral": "deepclust.algorithms.spectral:cluster",
    "consensus": "deepclust.algorithms.consensus:cluster",
    "scan": "deepclust.algorithms.scan:cluster",
    "temi": "deepclust.algorithms.temi:cluster",
    "hdbscan": "deepclust.algorithms.hdbscan:cluster",
    "leiden": "deepclust.algorithms.leiden:cluster",
}

OWN_K = ("hdbscan", "leiden")
"""Algorithms that find the number of clusters themselves; the others have to be told."""

LIMIT = 1e15
"""Largest value taken: squares of larger ones leave float32, where faiss ends the process."""


@dataclass(frozen=True)
class Clusters:
    """A clustering of N pictures.

    label: (N,) int64, 0..k-1 by falling size; -1 is an outlier, and no other value is negative.
    confidence: (N,) float32 in [0, 1]; what it means is the algorithm's to say.
    centers: (k, d) float32, the clusters' means in the embedding.
    reliability: (N,) float32 in [0, 1], see `reliability.py`; None where it was not looked at.
    nearest: (N,) int64, the cluster an outlier lies nearest to, and of any other its own.
    """

    label: np.ndarray
    confidence: np.ndarray
    centers: np.ndarray
    reliability: np.ndarray | None = None
    nearest: np.ndarray | None = None

    @property
    def k(self) -> int:
        return len(self.centers)


def by_size(label: np.ndarray) -> np.ndarray:
    """Renumber clusters 0..k-1 by falling size, ties by first member; -1 stays -1.

    label: (N,) int64, any ids ≥ -1. Returns (N,) int64.
    """
    ids, first, inverse, counts = np.unique(
        label, return_index=True, return_inverse=True, return_counts=True
    )
    real = np.flatnonzero(ids >= 0)
    order = real[np.lexsort((first[real], -counts[real]))]
    rank = np.full(len(ids), -1, dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse.reshape(-1)]


def assemble(x: np.ndarray, label: np.ndarray, confidence: np.ndarray) -> Clusters:
    """Make Clusters of any labelling of x (N, d): ids by size, centres the clusters' means.

    label: (N,) int64, any ids ≥ -1. confidence: (N,) in [0, 1].
    """
    label = by_size(label)
    centers = np.zeros((label.max(initial=-1) + 1, x.shape[1]))
    np.add.at(centers, label[label >= 0], x[label >= 0])
    centers /= np.bincount(label[label >= 0], minlength=len(centers))[:, None]
    return Clusters(label, confidence.astype(np.float32), centers.astype(np.float32))


def checked(x: np.ndarray) -> np.ndarray:
    """Return x (N, d) as contiguous float32; raises TrainingError unless all finite and < 1e15."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    for start in range(0, len(x), 2_048):
        # NaN fails every comparison, so this one line refuses it too.
        if not np.abs(x[start : start + 2_048]).max(initial=0) < LIMIT:
            raise TrainingError(
                "the embeddings hold values that are not finite or beyond 1e15",
                hint="training went wrong; try a lower learning rate",
            )
    return x


def check_k(k: int | None, name: str, images: int) -> int:
    """Return k if `name` can make k clusters of so many images.

    Raises UsageError unless k is a whole number from 2 up, DataError unless images > k.
    """
    if k is None:
        raise UsageError(f"{name} needs the number of clusters", hint="give it with --k")
    if k != int(k) or k < 2:
        raise UsageError(f"{name} cannot make {k} clusters", hint="k is a whole number from 2 up")
    if images <= k:
        raise DataError(
            f"{images} images cannot make {k} clusters", hint="ask for fewer clusters than images"
        )
    return int(k)


def refuse_k(k: int | None, name: str) -> None:
    """Raise UsageError if k was given to an algorithm that finds its own."""
    if k is not None:
        raise UsageError(
            f"{name} finds the number of clusters itself and cannot be told {k}",
            hint="leave --k out, or use --algorithm kmeans",
        )


def run(name: str, x: np.ndarray, k: int | None, *, seed: int, **options: Any) -> Clusters:
    """Cluster the rows of x (N, d) float32 with the algorithm called `name`.

    Raises UsageError for an unknown name.
    """
    if name not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {name!r}", hint=nearest(name, list(ALGORITHMS)))
    module, _, function = ALGORITHMS[name].partition(":")
    return getattr(import_module(module), function)(x, k, seed=seed, **options)
