"""Leiden: communities of the nearest-neighbour graph, as many as the graph has.

It finds the number of clusters itself. Needs scikit-network, the extra `graph`.
"""

from __future__ import annotations

import numpy as np

from deepclust.algorithms import Clusters, assemble, checked, refuse_k
from deepclust.algorithms.neighbours import agreement, graph, knn
from deepclust.device import stream
from deepclust.errors import UsageError
from deepclust.progress import SILENT, Progress

NEIGHBOURS = 15


def cluster(
    x: np.ndarray,
    k: int | None,
    *,
    seed: int,
    progress: Progress = SILENT,
    resolution: float = 1.0,
) -> Clusters:
    """Cluster the rows of x (N, d) float32 into communities of most modularity.

    Source: Traag et al. 2019, arXiv:1810.08473, on the 15-neighbour graph with links of weight 1.
    resolution: above 1 gives more clusters, below 1 fewer.
    Confidence is the share of an image's neighbours in its cluster.
    Raises UsageError if k is given or scikit-network is not installed.
    """
    refuse_k(k, "leiden")
    try:
        from sknetwork.clustering import Leiden  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            "leiden needs the package scikit-network", hint="pip install 'deepclust[graph]'"
        ) from error
    x = checked(x)
    index, _ = knn(x, NEIGHBOURS)
    start = int(stream(seed, "leiden").integers(2**31))
    label = Leiden(resolution, shuffle_nodes=True, random_state=start).fit_predict(graph(index))
    label = label.astype(np.int64)
    progress.say(f"leiden found {label.max() + 1} clusters")
    return assemble(x, label, agreement(label, index))
