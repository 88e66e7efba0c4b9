"""The clustering algorithms by name, and the type they all return.

`ALGORITHMS` is a static table: nothing is imported before an algorithm is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from deepclust.errors import UsageError, nearest

ALGORITHMS = {
    "kmeans": "deepclust.algorithms.kmeans:cluster",
    "agglomerative": "deepclust.algorithms.agglomerative:cluster",
    "hdbscan": "deepclust.algorithms.hdbscan:cluster",
}


@dataclass(frozen=True)
class Clusters:
    """A clustering of N pictures.

    label: (N,) int64, 0..k-1 by falling size; -1 is an outlier, and no other value is negative.
    confidence: (N,) float32 in [0, 1]; what it means is the algorithm's to say.
    centers: (k, d) float32, the clusters' means in the embedding.
    """

    label: np.ndarray
    confidence: np.ndarray
    centers: np.ndarray

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


def run(name: str, x: np.ndarray, k: int | None, *, seed: int, **options: Any) -> Clusters:
    """Cluster the rows of x (N, d) float32 with the algorithm called `name`.

    Raises UsageError for an unknown name.
    """
    if name not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {name!r}", hint=nearest(name, list(ALGORITHMS)))
    module, _, function = ALGORITHMS[name].partition(":")
    return getattr(import_module(module), function)(x, k, seed=seed, **options)
