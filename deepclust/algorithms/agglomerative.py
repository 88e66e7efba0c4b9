"""Ward's agglomerative clustering: merge the two groups that widen the least, again and again.

The merge tree needs every pair of rows, so at most `SAMPLE` rows are merged; the others join the
cluster of the nearest mean. Distances are taken in the first `COMPONENTS` principal components.
"""

from __future__ import annotations

import numpy as np

from deepclust.algorithms import Clusters, assemble, check_k, checked
from deepclust.algorithms.neighbours import agreement, knn
from deepclust.algorithms.whitening import principal
from deepclust.device import stream
from deepclust.progress import SILENT, Progress

SAMPLE = 10_000
"""Rows merged at most: their pairs are 400 MB."""
COMPONENTS = 50


def cluster(x: np.ndarray, k: int | None, *, seed: int, progress: Progress = SILENT) -> Clusters:
    """Cluster the rows of x (N, d) float32 by Ward's rule, Ward 1963, cut at k clusters.

    Confidence is the share of an image's 10 nearest neighbours in its cluster.
    Raises UsageError and DataError where k cannot be.
    """
    from sklearn.cluster import AgglomerativeClustering

    x = checked(x)
    k = check_k(k, "agglomerative", len(x))
    mean, basis = principal(x, COMPONENTS)
    small = (x - mean) @ basis
    merged = np.arange(len(x))
    if len(x) > SAMPLE:
        progress.say(f"agglomerative: {SAMPLE} of {len(x)} images are merged, the others join them")
        merged = np.sort(
            stream(seed, "agglomerative").choice(len(x), max(SAMPLE, k + 1), replace=False)
        )
    label = AgglomerativeClustering(k).fit_predict(small[merged]).astype(np.int64)
    if len(x) > SAMPLE:
        means = assemble(small[merged], label, np.ones(len(merged)))
        label = np.concatenate(
            [
                (tile @ means.centers.T - 0.5 * np.square(means.centers).sum(axis=1)).argmax(axis=1)
                for tile in np.array_split(small, len(small) // 4096 + 1)
            ]
        )
    return assemble(x, label, agreement(label, knn(x, 10)[0]))
