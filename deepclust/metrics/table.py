"""The contingency table of clusters against classes, from which every score follows.

Only the cells that hold a picture are kept: a million pictures in a thousand clusters are
counted in a blink, and ids with gaps cost nothing. Letters: n pictures, k clusters, c classes,
m non-empty cells. Noise (cluster -1) is never an index: it is the last row, and matches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

DENSE = 4_000_000  # cells; above this the matching stays sparse


@dataclass(frozen=True)
class Contingency:
    """How many pictures each cluster shares with each class; empty cells left out.

    row, col, count: (m,) int64, sorted by row, then column.
    clusters: (k,) the clusters' ids; the last is -1 where there is noise.
    classes: (c,) the classes' ids.
    """

    row: np.ndarray
    col: np.ndarray
    count: np.ndarray
    clusters: np.ndarray
    classes: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """(k,) int64, pictures in each cluster."""
        return _sums(self.row, self.count, len(self.clusters))

    @cached_property
    def class_sizes(self) -> np.ndarray:
        """(c,) int64, pictures of each class."""
        return _sums(self.col, self.count, len(self.classes))

    @property
    def n(self) -> int:
        return int(self.count.sum())

    @property
    def noise(self) -> int:
        """Pictures that are in no cluster."""
        has = len(self.clusters) > 0 and self.clusters[-1] == -1
        return int(self.sizes[-1]) if has else 0

    @property
    def k(self) -> int:
        """Clusters, noise not counted."""
        return len(self.clusters) - (self.noise > 0)

    @cached_property
    def match(self) -> np.ndarray:
        """(len(clusters),) int64: the class column that each cluster stands for, or -1.

        The one-to-one matching with the most pictures on it (Hungarian, any k and c).
        """
        match = np.full(len(self.clusters), -1, dtype=np.int64)
        row, col, count = self.row, self.col, self.count
        if self.noise:
            real = row < self.k
            row, col, count = row[real], col[real], count[real]
        if len(row):
            rows, cols = _matching(row, col, count, self.k, len(self.classes))
            match[rows] = cols
        return match

    @property
    def hits(self) -> np.ndarray:
        """(m,) bool: the cells that lie on the matching."""
        return self.match[self.row] == self.col

    def dense(self, rows: np.ndarray | None = None, cols: np.ndarray | None = None) -> np.ndarray:
        """The table, or its part in these rows and columns, as (rows, cols) int64."""
        rows = np.arange(len(self.clusters)) if rows is None else rows
        cols = np.arange(len(self.classes)) if cols is None else cols
        to_row = np.full(len(self.clusters), -1)
        to_col = np.full(len(self.classes), -1)
        to_row[rows], to_col[cols] = np.arange(len(rows)), np.arange(len(cols))
        row, col = to_row[self.row], to_col[self.col]
        kept = (row >= 0) & (col >= 0)
        table = np.zeros((len(rows), len(cols)), dtype=np.int64)
        table[row[kept], col[kept]] = self.count[kept]
        return table


def contingency(cluster: np.ndarray, label: np.ndarray) -> Contingency:
    """Count pictures by cluster and class.

    cluster: (n,) integer ids, any gaps; negative is noise.
    label: (n,) class ids, integers or text; every picture has one.
    """
    cluster, label = np.asarray(cluster), np.asarray(label)
    if cluster.shape != label.shape or cluster.ndim != 1:
        raise ValueError(f"cluster {cluster.shape} and label {label.shape} have to be (n,)")
    if not len(cluster):
        none = np.empty(0, dtype=np.int64)
        return Contingency(none, none, none, none, none)
    classes, col = _codes(label)
    if cluster.min() < 0:
        real = cluster >= 0
        clusters, codes = _codes(cluster[real])
        row = np.full(len(cluster), len(clusters), dtype=np.int64)
        row[real] = codes
        clusters = np.append(clusters, -1)
    else:
        clusters, row = _codes(cluster)
    cells = len(clusters) * len(classes)
    key = row * len(classes)
    key += col
    if cells <= max(DENSE, 4 * len(key)):
        table = np.bincount(key, minlength=cells)
        used = np.flatnonzero(table != 0)  # of numbers themselves it takes five times as long
        count = table[used]
    else:
        used, count = np.unique(key, return_counts=True)
    row, col = np.divmod(used, len(classes))
    return Contingency(row, col, count.astype(np.int64), clusters, classes)


def covered(table: Contingency) -> Contingency:
    """The table over the pictures that are in a cluster."""
    if not table.noise:
        return table
    real = table.row < table.k
    kept = _sums(table.col[real], table.count[real], len(table.classes)) > 0
    rank = np.cumsum(kept) - 1
    return Contingency(
        table.row[real],
        rank[table.col[real]],
        table.count[real],
        table.clusters[:-1],
        table.classes[kept],
    )


def _codes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct ids, ascending, and the place of each id among them; no sort for small integers."""
    small = ids.dtype.kind in "iu" and len(ids) and ids.min() >= 0 and ids.max() < 4 * len(ids)
    if not small:
        distinct, codes = np.unique(ids, return_inverse=True)
        return distinct, codes.reshape(-1)
    used = np.flatnonzero(np.bincount(ids))
    if len(used) == used[-1] + 1:
        return used, ids.astype(np.int64, copy=False)
    rank = np.zeros(used[-1] + 1, dtype=np.int64)
    rank[used] = np.arange(len(used))
    return used, rank[ids]


def _sums(index: np.ndarray, count: np.ndarray, length: int) -> np.ndarray:
    # Weights make bincount float64, which is exact for counts below 2^53.
    return np.bincount(index, weights=count, minlength=length).astype(np.int64)


def _matching(
    row: np.ndarray, col: np.ndarray, count: np.ndarray, k: int, c: int
) -> tuple[np.ndarray, np.ndarray]:
    """The heaviest one-to-one matching; pairs that share no picture are left out."""
    if k * c <= DENSE:
        from scipy.optimize import linear_sum_assignment

        table = np.zeros(k * c, dtype=np.float64)
        table[row * c + col] = count
        table = table.reshape(k, c)
        rows, cols = linear_sum_assignment(table, maximize=True)
        held = table[rows, cols] > 0
        return rows[held], cols[held]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    # The sparse solver wants every row matched: each gets a column of its own, worth nothing
    # (weight 1, as all others are raised by 1, because a stored 0 would be no edge).
    own = np.arange(k)
    weights = np.concatenate([count + 1.0, np.ones(k)])
    places = (np.concatenate([row, own]), np.concatenate([col, c + own]))
    graph = coo_array((weights, places), shape=(k, c + k)).tocsr()
    rows, cols = min_weight_full_bipartite_matching(graph, maximize=True)
    return rows[cols < c], cols[cols < c]
