"""Nearest neighbours by cosine, and what is read off their graph.

Exact by faiss' flat index up to `EXACT` rows, an inverted file above; both give the same answer
each time they are asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from deepclust.algorithms import checked

EXACT = 50_000
"""Rows up to which every pair is compared."""
PROBES = 32
"""Cells of the inverted file that are searched for a row; recall 0.99 and more on embeddings."""


def knn(
    x: np.ndarray, k: int, *, among: np.ndarray | None = None, exclude_self: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows nearest to each row by cosine, nearest first.

    x: (N, d) float32, any lengths. among: (M, d) rows to look in, x itself if left out.
    exclude_self: a row is not its own neighbour; means nothing where `among` is given.
    k is cut to the rows there are to find.
    Returns indices (N, k) int64 and cosine similarities (N, k) float32.
    """
    own = among is None and exclude_self
    rows = unit(checked(x))
    pool = rows if among is None else unit(checked(among))
    k = min(k, len(pool) - own)
    similarity, index = _index(pool).search(rows, k + own)
    missed = np.flatnonzero((index < 0).any(axis=1))
    if len(missed):  # too few rows in the cells probed
        similarity[missed], index[missed] = _flat(pool).search(rows[missed], k + own)
    if own:
        drop = index == np.arange(len(rows))[:, None]
        drop[~drop.any(axis=1), -1] = True  # hidden behind copies of itself
        index, similarity = index[~drop].reshape(-1, k), similarity[~drop].reshape(-1, k)
    return index.astype(np.int64), np.clip(similarity, -1, 1)


def unit(x: np.ndarray) -> np.ndarray:
    """Return the rows of x (…, d) at length 1; a row of zeros stays."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1).astype(x.dtype)


def graph(index: np.ndarray) -> csr_matrix:
    """Return the neighbour graph of `knn`'s indices (N, k): (N, N) sparse, symmetric, weights 1.

    Two rows are joined if either has the other among its neighbours.
    """
    n, k = index.shape
    one_way = csr_matrix(
        (np.ones(n * k, np.float32), index.reshape(-1), np.arange(0, n * k + 1, k)), shape=(n, n)
    )
    return csr_matrix(one_way.maximum(one_way.T))


def modularity(links: csr_matrix, label: np.ndarray) -> float:
    """Return Newman's modularity of a labelling (N,) of a graph (N, N): in [-1/2, 1].

    Σ_c ( share of links inside c − (share of link ends in c)² ), Newman & Girvan 2004,
    arXiv:cond-mat/0308217, eq. 5. Label -1 counts as a cluster of its own kind.
    """
    group = label - label.min()
    degree = np.asarray(links.sum(axis=1), dtype=np.float64).reshape(-1)
    total = degree.sum()
    if total == 0:
        return 0.0
    pairs = links.tocoo()
    inside = pairs.data[group[pairs.row] == group[pairs.col]].sum(dtype=np.float64)
    ends = np.bincount(group, weights=degree)
    return float(inside / total - np.square(ends / total).sum())


def agreement(label: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the share (N,) float32 of each row's neighbours (N, k) that have its label."""
    return (label[index] == label[:, None]).mean(axis=1, dtype=np.float32)


def _flat(pool: np.ndarray) -> Any:
    import faiss

    index = faiss.IndexFlatIP(pool.shape[1])
    index.add(pool)
    return index


def _index(pool: np.ndarray) -> Any:
    import faiss

    if len(pool) <= EXACT:
        return _flat(pool)
    cells = int(4 * np.sqrt(len(pool)))
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(pool.shape[1]), pool.shape[1], cells, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.min_points_per_centroid = 1  # else it prints a warning past our output
    index.nprobe = min(PROBES, cells)
    index.train(pool)
    index.add(pool)
    return index
