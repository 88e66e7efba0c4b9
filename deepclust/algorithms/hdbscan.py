"""HDBSCAN: clusters are the dense places, what lies between them is noise.

It finds the number of clusters itself. Density means little in many columns, so it works on the
first `COMPONENTS` principal components. Its time grows with the square of the rows: at most
`SAMPLE` are clustered, and every other row takes the label of its nearest neighbour among them.
"""

from __future__ import annotations

import warnings

import numpy as np

from deepclust.algorithms import Clusters, assemble, checked, refuse_k
from deepclust.algorithms.neighbours import knn
from deepclust.algorithms.whitening import principal
from deepclust.device import stream
from deepclust.errors import DataError
from deepclust.progress import SILENT, Progress

SAMPLE = 10_000
COMPONENTS = 20
SHARE = 50
"""The smallest cluster has N / SHARE images, and 5 at least."""


def cluster(x: np.ndarray, k: int | None, *, seed: int, progress: Progress = SILENT) -> Clusters:
    """Cluster the rows of x (N, d) float32 by density, Campello et al. 2013; noise is -1.

    Confidence is HDBSCAN's membership strength, 0 for noise; a row outside the sample has the
    strength of its nearest neighbour there times their cosine.
    Raises UsageError if k is given, DataError for fewer than 10 images.
    """
    from sklearn.cluster import HDBSCAN

    refuse_k(k, "hdbscan")
    x = checked(x)
    if len(x) < 10:
        raise DataError(
            f"{len(x)} images are too few to measure density", hint="use --algorithm kmeans"
        )
    mean, basis = principal(x, COMPONENTS)
    small = (x - mean) @ basis
    kept = np.arange(len(x))
    if len(x) > SAMPLE:
        progress.say(f"hdbscan: {SAMPLE} of {len(x)} images are clustered, the others join them")
        kept = np.sort(stream(seed, "hdbscan").choice(len(x), SAMPLE, replace=False))
    with warnings.catch_warnings():
        # It announces that it will copy its input one day; ours is a copy already.
        warnings.simplefilter("ignore", FutureWarning)
        found = HDBSCAN(min_cluster_size=max(5, len(kept) // SHARE), min_samples=5).fit(small[kept])
    label, strength = found.labels_.astype(np.int64), found.probabilities_
    if len(x) > SAMPLE:
        index, cosine = knn(x, 1, among=x[kept])
        nearest = index[:, 0]
        label = label[nearest]
        strength = strength[nearest] * np.clip(cosine[:, 0], 0, 1)
    if label.max(initial=-1) < 0:
        progress.warn("hdbscan found no dense place: every image is noise; try --algorithm kmeans")
    return assemble(x, label, np.where(label < 0, 0, strength))
