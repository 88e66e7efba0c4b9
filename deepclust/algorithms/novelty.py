"""Which pictures that arrive later are unlike the old ones, and whether they make a group.

Two signs, both from nearest neighbours. A picture is far if it lies farther from the old pictures
than nearly all of these do from each other. A picture is one of a crowd if far more of its
neighbours are new than chance would give: such pictures resemble each other more than anything
known. The second sign is the stronger one. Classes left out of digits, stamps and small photos
and added later as 8 to 15 pictures: it named 34 % of them and under 1 % of the others; the first
named 1 % of both, but it needs no company, and noise among digits it never missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom

from deepclust.algorithms.neighbours import knn

NEIGHBOURS = 10
FAR = 0.02
"""Share of the old pictures that would count as far themselves."""
CHANCE = 1e-3
"""Probability of a crowd among pictures that are no different from the old ones."""
GROUP = 5
"""Pictures that make a group worth a word."""
SAMPLE = 5_000
"""Old pictures at most whose own distances are looked at."""
DRIFT = 0.5
"""Standard deviations by which all new pictures together lie farther off, to be called drift."""


@dataclass(frozen=True)
class Novelty:
    """What is known of M new pictures.

    novel: (M,) bool, far or in a crowd. group: (M,) int64, groups of novel pictures by falling
    size, -1 for none. closeness: mean cosine of a new picture to its 10 nearest old ones.
    usual: the same of the old pictures. drift: whether the first is far below the second.
    """

    novel: np.ndarray
    group: np.ndarray
    closeness: float
    usual: float
    drift: bool


def judge(new: np.ndarray, old: np.ndarray) -> Novelty:
    """Compare new pictures (M, d) with old ones (N, d), N ≥ 3, both float32, by the cosine.

    With s the mean cosine to the 10 nearest old pictures, a new one is far if s is below the 2 %
    quantile of that of the old ones. It is in a crowd if the number c of new pictures among its
    10 nearest of all has P(Binomial(10, M/(N + M)) ≥ c) < 0.001. Novel pictures that are
    neighbours belong to one group; groups have 5 pictures or more.
    """
    sample = old[:: -(-len(old) // SAMPLE)]
    count = min(NEIGHBOURS, len(old) - 1)
    own = knn(sample, count + 1, among=old)[1][:, 1:].mean(axis=1)
    near = knn(new, count, among=old)[1].mean(axis=1)
    index = _fellows(new, old)
    fellow = index >= len(old)
    chance = len(new) / (len(old) + len(new))
    crowd = binom.sf(fellow.sum(axis=1) - 1, index.shape[1], chance) < CHANCE
    novel = crowd | (near < np.quantile(own, FAR))
    fall, spread = float(own.mean() - near.mean()), float(own.std())
    return Novelty(
        novel=novel,
        group=_groups(index - len(old), novel),
        closeness=float(near.mean()),
        usual=float(own.mean()),
        drift=fall > max(DRIFT, 3 / np.sqrt(len(new))) * spread,
    )


def _fellows(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the nearest of all other pictures to each new one: (M, 10), the old ones first."""
    count = min(NEIGHBOURS, len(old) + len(new) - 1)
    index = knn(new, count + 1, among=np.concatenate([old, new]))[0]
    drop = index == len(old) + np.arange(len(new))[:, None]
    drop[~drop.any(axis=1), -1] = True  # hidden behind copies of itself
    return index[~drop].reshape(-1, count)


def _groups(index: np.ndarray, novel: np.ndarray) -> np.ndarray:
    row, place = np.nonzero(index >= 0)
    other = index[row, place]
    both = novel[row] & novel[other]
    links = coo_matrix((np.ones(both.sum()), (row[both], other[both])), shape=[len(novel)] * 2)
    part = connected_components(links, directed=False)[1]
    size = np.bincount(part)
    group = np.full(len(novel), -1, dtype=np.int64)
    large = [p for p in np.argsort(-size, kind="stable") if size[p] >= GROUP]
    for number, p in enumerate(large):
        group[part == p] = number
    return group
