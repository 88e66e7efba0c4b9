"""Scores without labels: the shape of the clusters in their embedding."""

from __future__ import annotations

import numpy as np


def label_free(x: np.ndarray, cluster: np.ndarray) -> dict[str, float | None]:
    """How tight and how far apart the clusters are in the embedding, without any label.

    silhouette: Rousseeuw 1987 with cosine distance, in [-1, 1]. The mean cosine distance to a
        cluster follows from the cluster's sum, so this is exact over all pictures, not sampled.
    davies_bouldin: Davies & Bouldin 1979, lower is better.
    calinski_harabasz: Caliński & Harabasz 1974, higher is better.
    All three on rows of length 1. They compare clusterings of one embedding; across embeddings
    they mislead (Wang et al. 2024, arXiv:2403.14830).

    x: (n, d) float, may be a memory map. cluster: (n,) int64; noise is left out.
    All None unless 2 ≤ clusters < pictures.
    """
    from scipy.sparse import csr_array

    kept = np.flatnonzero(cluster >= 0)
    ids, code = np.unique(cluster[kept], return_inverse=True)
    n, k = len(kept), len(ids)
    if not 2 <= k < n:
        return dict.fromkeys(("silhouette", "davies_bouldin", "calinski_harabasz"))
    sizes = np.bincount(code, minlength=k)
    sums = np.zeros((k, x.shape[1]))
    chunks = [slice(i, i + 4096) for i in range(0, n, 4096)]

    def rows(part: slice) -> np.ndarray:
        z = np.asarray(x[kept[part]], dtype=np.float64)
        return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)

    for part in chunks:
        own = code[part]
        one_hot = csr_array((np.ones(len(own)), (own, np.arange(len(own)))), shape=(k, len(own)))
        sums += one_hot @ rows(part)
    centers = sums / sizes[:, None]
    norms = (centers**2).sum(axis=1)
    spread = np.zeros(k)
    within = silhouette = 0.0
    for part in chunks:
        z, own = rows(part), code[part]
        at = np.arange(len(own))
        to = 1 - z @ centers.T
        squared = np.maximum((z**2).sum(axis=1) - 2 * (1 - to[at, own]) + norms[own], 0)
        within += squared.sum()
        spread += np.bincount(own, weights=np.sqrt(squared), minlength=k)
        alone = sizes[own] == 1
        inner = to[at, own] * sizes[own] / np.maximum(sizes[own] - 1, 1)
        to[at, own] = np.inf
        outer = to.min(axis=1)
        width = np.maximum(np.maximum(inner, outer), 1e-12)
        silhouette += np.where(alone, 0, (outer - inner) / width).sum()
    gap = np.sqrt(np.maximum(norms[:, None] + norms - 2 * centers @ centers.T, 0))
    spread /= sizes
    with np.errstate(divide="ignore", invalid="ignore"):
        likeness = (spread[:, None] + spread) / gap
    np.fill_diagonal(likeness, -np.inf)
    worst = likeness.max(axis=1).mean()
    between = sizes @ ((centers - sums.sum(axis=0) / n) ** 2).sum(axis=1)
    return {
        "silhouette": float(silhouette / n),
        "davies_bouldin": float(worst) if np.isfinite(worst) else None,
        "calinski_harabasz": float(between / within * (n - k) / (k - 1)) if within > 0 else None,
    }
