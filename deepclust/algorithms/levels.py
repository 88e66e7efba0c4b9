"""Coarser and finer clusterings around one: a tree that every picture goes down.

Above, whole clusters merge by Ward's rule, the pair that adds least squared distance first.
Below, each cluster is cut in two by k-means, and each half again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepclust.algorithms import Clusters, by_size
from deepclust.algorithms.kmeans import fit
from deepclust.device import stream

FINER = 2
"""Times that each cluster is cut in two."""
LEAST = 8
"""Pictures below which a cluster is not cut."""


@dataclass(frozen=True)
class Levels:
    """Labels by number of clusters, and how clusters merge.

    labels: (N,) int64 each, 0.. by falling size, -1 for outliers; coarse to fine, and every
    cluster lies wholly within one of each coarser level.
    merges: clusters a and b (numbers of the clustering itself; k + i is what merge i made), the
    rise of the sum of squared distances, and the pictures in the result.
    """

    labels: dict[int, np.ndarray]
    merges: list[tuple[int, int, float, int]]


def levels(x: np.ndarray, found: Clusters, *, seed: int) -> Levels:
    """Build the tree around a clustering of x (N, d) float32.

    Levels have k/2, k/4, … ≥ 2 clusters above, and about 2k and 4k below.
    """
    merges, above = _merge(x, found)
    below, label = [], found.label
    for depth in range(FINER):
        label = _halve(x, label, seed, depth)
        below.append(label)
    made = [*above, found.label, *below]
    return Levels({int(one.max(initial=-1)) + 1: by_size(one) for one in made}, merges)


def _merge(
    x: np.ndarray, found: Clusters
) -> tuple[list[tuple[int, int, float, int]], list[np.ndarray]]:
    """Ward, J. Am. Stat. Assoc. 58 (1963) 236: merge a, b of least |a||b|/(|a|+|b|) · ‖a − b‖²."""
    k = found.k
    inside = found.label[found.label >= 0]
    size = np.bincount(inside, minlength=k).astype(np.float64)
    center = np.asarray(found.centers, np.float64).copy()
    name, group = np.arange(k), np.arange(k)  # of the row in the tree; the row of each cluster
    alive = np.ones(k, dtype=bool)
    cost = np.array([_rise(size, center, alive, row) for row in range(k)])
    wanted = {k // 2**i for i in range(1, 32) if k // 2**i >= 2}
    merges, above = [], []
    for step in range(k - 1):
        a, b = sorted(divmod(int(cost.argmin()), k))
        rise, whole = float(cost[a, b]), size[a] + size[b]
        center[a] = (size[a] * center[a] + size[b] * center[b]) / whole
        size[a], alive[b] = whole, False
        cost[b, :] = cost[:, b] = np.inf
        cost[a, :] = cost[:, a] = _rise(size, center, alive, a)
        merges.append((int(name[a]), int(name[b]), rise, int(whole)))
        name[a] = k + step
        group[group == b] = a
        if k - 1 - step in wanted:
            rank = np.unique(group, return_inverse=True)[1].reshape(-1)
            above.append(np.where(found.label < 0, -1, rank[found.label]))
    return merges, above[::-1]


def _rise(size: np.ndarray, center: np.ndarray, alive: np.ndarray, row: int) -> np.ndarray:
    """Return what merging a row with each other one would add; infinity where it cannot be."""
    rise = size * size[row] / (size + size[row]) * np.square(center - center[row]).sum(axis=1)
    rise[~alive] = np.inf
    rise[row] = np.inf
    return rise


def _halve(x: np.ndarray, label: np.ndarray, seed: int, depth: int) -> np.ndarray:
    finer = label.copy()
    following = int(label.max(initial=-1)) + 1
    for c in range(following):
        members = np.flatnonzero(label == c)
        if len(members) < LEAST:
            continue
        draw = int(stream(seed, "levels", depth, c).integers(2**31))
        half = fit(x[members], 2, seed=draw, restarts=5)[1]
        finer[members[half == 1]] = following
        following += 1
    return finer
