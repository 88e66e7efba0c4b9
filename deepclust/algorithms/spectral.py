"""Spectral clustering: cut the nearest-neighbour graph where few links cross.

The smoothest eigenvectors of the graph are a map in which its loosely joined parts lie apart;
k-means finds them there. Nothing N×N is kept, only the graph's links.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from deepclust.algorithms import Clusters, assemble, check_k, checked
from deepclust.algorithms.kmeans import fit
from deepclust.algorithms.neighbours import agreement, graph, knn, unit
from deepclust.device import stream
from deepclust.errors import TrainingError, UsageError
from deepclust.progress import SILENT, Progress

NEIGHBOURS = 15
MOST = 200_000
"""Images beyond which the eigenvectors take too long."""
DENSE = 500
"""Images up to which all eigenvectors are found at once, which is quicker and never fails."""


def cluster(x: np.ndarray, k: int | None, *, seed: int, progress: Progress = SILENT) -> Clusters:
    """Cluster the rows of x (N, d) float32 by the normalised cut of their 15-neighbour graph.

    Source: Ng, Jordan & Weiss 2001, with neighbour links of weight 1 in place of a kernel.
    Confidence is the share of an image's neighbours in its cluster.
    Raises UsageError and DataError where k cannot be, UsageError above 200,000 images.
    """
    x = checked(x)
    k = check_k(k, "spectral", len(x))
    if len(x) > MOST:
        raise UsageError(
            f"spectral takes at most {MOST} images, not {len(x)}", hint="use --algorithm kmeans"
        )
    index, _ = knn(x, NEIGHBOURS)
    rows = unit(embed(graph(index), k, seed))
    _, label, _ = fit(rows, k, seed=seed, restarts=10)
    return assemble(x, label, agreement(label, index))


def embed(links: csr_matrix, dims: int, seed: int) -> np.ndarray:
    """Return the `dims` leading eigenvectors (N, dims) float32 of D^-½ A D^-½.

    links: A, (N, N) symmetric. Raises TrainingError if they cannot be found.
    """
    degree = np.asarray(links.sum(axis=1), dtype=np.float64).reshape(-1)
    scale = diags(1 / np.sqrt(np.maximum(degree, 1)))
    matrix = (scale @ links.astype(np.float64) @ scale).tocsr()
    n = matrix.shape[0]
    if n <= max(DENSE, 2 * dims):
        return np.linalg.eigh(matrix.toarray())[1][:, -dims:].astype(np.float32)
    first = stream(seed, "spectral").normal(size=n)
    try:
        # Adding 1 makes every eigenvalue positive, so that the largest are also the leading ones.
        _, vectors = eigsh(matrix + diags(np.ones(n)), dims, v0=first, ncv=min(n, 3 * dims + 20))
    except ArpackNoConvergence as error:
        raise TrainingError(
            "the eigenvectors of the neighbour graph were not found",
            hint="use --algorithm kmeans",
        ) from error
    return vectors.astype(np.float32)
