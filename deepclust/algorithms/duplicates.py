"""Pictures that repeat another one, exactly or nearly, as the reader sees them.

Two sizes or two qualities of the same picture are near; two photographs of the same thing are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from deepclust.algorithms.neighbours import knn
from deepclust.data.store import Rows
from deepclust.data.views import resize

SIDE = 32
"""Side in pixels at which pictures are compared."""
COARSE = 8
"""Side at which candidates are looked for."""
CANDIDATES = 10
"""Nearest pictures of each that are compared with it."""
LEVELS = 5.0
"""Near pictures differ by at most so many levels of 255 on the mean."""
ALIKE = 0.98
"""Near pictures correlate at least this well, unless both are nearly flat."""
FLAT = 3.0
"""Standard deviation in levels up to which a picture is nearly flat."""
CHUNK = 4096
"""Pictures or pairs worked on at a time."""


@dataclass(frozen=True)
class Duplicates:
    """Which of N pictures repeat an earlier one.

    of: (N,) int64, the first picture of its group, or -1 for one that repeats none.
    same: (N,) bool, whether it is equal to that one at SIDE, pixel by pixel.
    """

    of: np.ndarray
    same: np.ndarray

    @property
    def count(self) -> int:
        return int((self.of >= 0).sum())


def find(rows: Rows) -> Duplicates:
    """Find repeated pictures among N squares of any side, uint8.

    Groups are closed under "near": of three pictures, the first and the third may differ more.
    """
    n = len(rows)
    if n < 2:
        return Duplicates(np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=bool))
    squares = np.empty((n, SIDE, SIDE, 3), np.uint8)
    for at in range(0, n, CHUNK):
        squares[at : at + CHUNK] = resize(rows[at : at + CHUNK], SIDE)
    index = knn(_coarse(squares), CANDIDATES)[0]
    row = np.repeat(np.arange(n), index.shape[1])
    other = index.reshape(-1)
    row, other = np.minimum(row, other), np.maximum(row, other)
    row, other = np.unique(np.stack([row, other]), axis=1)
    near = np.zeros(len(row), dtype=bool)
    for at in range(0, len(row), CHUNK):
        part = slice(at, at + CHUNK)
        near[part] = _near(squares[row[part]], squares[other[part]])
    links = coo_matrix((np.ones(near.sum()), (row[near], other[near])), shape=(n, n))
    group = connected_components(links, directed=False)[1]
    _, first = np.unique(group, return_index=True)
    of = first[group].astype(np.int64)
    of[of == np.arange(n)] = -1
    same = np.zeros(n, dtype=bool)
    for i in np.flatnonzero(of >= 0):
        same[i] = np.array_equal(squares[i], squares[of[i]])
    return Duplicates(of, same)


def _coarse(squares: np.ndarray) -> np.ndarray:
    """Return a small description (N, COARSE² · 3 + 1) float32 that the cosine can compare."""
    step = SIDE // COARSE
    small = np.empty((len(squares), COARSE * COARSE * 3 + 1), np.float32)
    for at in range(0, len(squares), CHUNK):
        part = np.asarray(squares[at : at + CHUNK], np.float32)
        cells = part.reshape(len(part), COARSE, step, COARSE, step, 3).mean(axis=(2, 4))
        small[at : at + len(part), :-1] = cells.reshape(len(part), -1)
    small[:, :-1] -= small[:, :-1].mean(axis=1, keepdims=True)
    small[:, -1] = FLAT * COARSE  # so that flat pictures resemble each other
    return small


def _near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Tell which pairs (m, SIDE, SIDE, 3) are near: (m,) bool."""
    x = a.reshape(len(a), -1).astype(np.float32)
    y = b.reshape(len(b), -1).astype(np.float32)
    close = np.abs(x - y).mean(axis=1) <= LEVELS
    x -= x.mean(axis=1, keepdims=True)
    y -= y.mean(axis=1, keepdims=True)
    wide = np.sqrt((x * x).mean(axis=1)), np.sqrt((y * y).mean(axis=1))
    alike = (x * y).mean(axis=1) >= ALIKE * wide[0] * wide[1]
    return close & (alike | (np.maximum(*wide) <= FLAT))
