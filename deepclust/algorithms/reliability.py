"""How far to trust a picture's place: is it like the others, and does its cluster hold still?

Two signs. Company: how often a picture is among those that others are nearest to. Pictures of a
kind of their own, noise, broken scans, strangers, keep little company even where they lie close
to each other, which is why density does not find them. Stability: how often the picture comes out
in the same cluster when the clustering is made again of other parts of the folder.

Source of the second idea: SpCL, Ge et al. 2020, arXiv:2006.02713, which trusts clusters that stay
when the clustering changes a little.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from deepclust.algorithms import Clusters, assemble, assign
from deepclust.algorithms.kmeans import fit
from deepclust.algorithms.neighbours import unit
from deepclust.device import stream

SHARE = 1 / 8
"""Share of the folder that counts as near to a picture: larger than any handful of strangers."""
JUDGES = 2_000
"""Pictures at most whose neighbourhoods are looked at."""
ROUNDS = 8
PART = 0.8
"""Share of the pictures that a round of `stability` clusters."""
SAMPLE = 5_000
"""Pictures at most in a round, or ten times k."""
CHUNK = 4096
"""Rows worked on at a time."""
LONELY = 0.2
"""Company below this share of the usual makes an outlier, where their number is not given."""


def company(x: np.ndarray, *, seed: int) -> np.ndarray:
    """Return how usual each row is among the neighbours of others: (N,) float32 in [0, 1].

    With t_i the cosine of picture i to its N/8-th nearest, a row's company is the share of the
    pictures i that it is within t_i of, over 1/8, at most 1.

    x: (N, d) float32.
    """
    rows = unit(x)
    n = len(rows)
    judges = np.arange(n)
    if n > JUDGES:
        judges = np.sort(stream(seed, "company").choice(n, JUDGES, replace=False))
    count = np.zeros(n)
    nearest = max(1, round(SHARE * n))
    for at in range(0, len(judges), 256):
        part = judges[at : at + 256]
        cosine = rows[part] @ rows.T
        cosine[np.arange(len(part)), part] = -2
        bar = np.partition(cosine, n - nearest, axis=1)[:, n - nearest]
        count += (cosine >= bar[:, None]).sum(axis=0)
    return np.minimum(1, count / len(judges) / SHARE).astype(np.float32)


def stability(x: np.ndarray, label: np.ndarray, *, seed: int) -> np.ndarray:
    """Return how often k-means on parts of the rows agrees with `label`: (N,) float32 in [0, 1].

    Each of 8 rounds clusters 80 % of the rows, gives every row to its nearest centre, and is
    matched to `label` one to one.

    x: (N, d) float32. label: (N,) int64, 0..k−1; -1 is in no cluster and gets 0.
    """
    k = int(label.max(initial=-1)) + 1
    inside = np.flatnonzero(label >= 0)
    agreed = np.zeros(len(x), np.float32)
    if k < 2 or len(inside) <= 2 * k:
        return (label >= 0).astype(np.float32)
    rng = stream(seed, "stability")
    size = min(max(SAMPLE, 10 * k), max(k + 1, int(PART * len(inside))))
    for _ in range(ROUNDS):
        part = np.sort(rng.choice(inside, size, replace=False))
        centers, _, _ = fit(x[part], k, seed=int(rng.integers(2**31)), restarts=1)
        found = _nearest(x, centers)
        table = np.bincount(found[inside] * k + label[inside], minlength=len(centers) * k)
        row, column = linear_sum_assignment(table.reshape(len(centers), k), maximize=True)
        name = np.full(len(centers), -1)
        name[row] = column
        agreed += (name[found] == label) & (label >= 0)
    return agreed / ROUNDS


def reliability(
    x: np.ndarray, label: np.ndarray, *, seed: int, space: np.ndarray | None = None
) -> np.ndarray:
    """Return company · (3 + stability)/4 of each row: (N,) float32 in [0, 1].

    x: (N, d) float32, the embedding that was clustered. space: (N, c), the same before smoothing,
    whose company is multiplied in: smoothing draws a stranger towards its neighbours.
    """
    together = company(x, seed=seed)
    if space is not None:
        together = together * company(space, seed=seed)
    return together * (3 + stability(x, label, seed=seed)) / 4


def judged(
    x: np.ndarray, found: Clusters, *, seed: int, space: np.ndarray | None = None,
    apart: float | str | None = None,
) -> Clusters:  # fmt: skip
    """Add reliability to a clustering of x (N, d), and take outliers out of it on request.

    space: as for `reliability`. apart: the share of pictures to take out, "auto" for those that
    are far below the usual, None for none. They become -1, and `nearest` keeps where they lie.
    """
    trust = reliability(x, found.label, seed=seed, space=space)
    if apart is not None:
        chosen = outliers(trust, None if apart == "auto" else float(apart))
        found = assemble(x, np.where(chosen, -1, found.label), found.confidence)
    return replace(found, reliability=trust, nearest=nearest(x, found))


def nearest(x: np.ndarray, found: Clusters) -> np.ndarray:
    """Return each row's cluster, and of an outlier the one whose centre is nearest: (N,) int64."""
    near = found.label.copy()
    out = near < 0
    if found.k and out.any():
        near[out] = _nearest(x[out], found.centers)
    return near


def outliers(trust: np.ndarray, share: float | None) -> np.ndarray:
    """Choose the least reliable rows: (N,) bool.

    share: how many, as a share of N, or None for those under a fifth of the median.
    """
    if share is None:
        return trust < LONELY * np.median(trust)
    chosen = np.zeros(len(trust), dtype=bool)
    chosen[np.argsort(trust, kind="stable")[: round(share * len(trust))]] = True
    return chosen


def _nearest(x: np.ndarray, centers: np.ndarray) -> np.ndarray:
    c = torch.from_numpy(np.asarray(centers, np.float32))
    # Copies, as torch takes no rows of a file that is mapped to be read only.
    parts = (np.array(x[at : at + CHUNK], np.float32) for at in range(0, len(x), CHUNK))
    return torch.cat([assign.nearest(torch.from_numpy(part), c) for part in parts]).numpy()
