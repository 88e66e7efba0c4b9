"""A guess at the number of clusters, and how far to trust it.

Three rules look at k-means clusterings for a grid of k; the middle one of their choices is the
guess. Measured on seven image sets and subsets of their classes, it was within a quarter of the
number of classes in about half of the cases, so the table and the doubt belong beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deepclust.algorithms import checked
from deepclust.algorithms.assign import nearest
from deepclust.algorithms.kmeans import fit
from deepclust.algorithms.neighbours import graph, knn, modularity
from deepclust.device import stream
from deepclust.errors import DataError, UsageError
from deepclust.metrics import ari, contingency, label_free
from deepclust.progress import SILENT, Progress

NEIGHBOURS = 15
RESTARTS = 5
RESAMPLES = 3
SHARE = 0.6
"""Of the images in a resample."""
SAMPLE = 3_000
"""Images at most that the silhouette looks at."""
LARGEST = 20_000
"""Images in a resample at most."""
AGREE = 1.25
"""Choices whose largest is within this factor of the smallest count as one."""
FAINT = 0.1
"""A best silhouette (cosine) under this says that the clusters hardly stand apart."""


@dataclass(frozen=True)
class KChoice:
    """A table of candidates, the three choices and what to make of them.

    ks: candidates, rising. silhouette, modularity, stability: the scores of each.
    by_silhouette, by_elbow, by_stability: the k that each rule chooses. k: the middle one.
    clear: whether the rules agree and the clusters stand apart. advice: that in words.
    """

    ks: tuple[int, ...]
    silhouette: tuple[float, ...]
    modularity: tuple[float, ...]
    stability: tuple[float, ...]
    by_silhouette: int
    by_elbow: int
    by_stability: int
    k: int
    clear: bool
    advice: str


def grid(images: int, most: int = 40) -> list[int]:
    """Return candidates from 2 up: each k to 12, then steps of a tenth, with 5 images a cluster."""
    ks, k = [], 2
    while k <= min(most, images // 5):
        ks.append(k)
        k = max(k + 1, round(1.1 * k)) if k >= 12 else k + 1
    return ks


def choose(
    z: np.ndarray,
    ks: list[int] | None = None,
    *,
    seed: int,
    space: np.ndarray | None = None,
    progress: Progress = SILENT,
) -> KChoice:
    """Guess the number of clusters in z (N, d) float32.

    Each k is clustered in z by k-means with 5 restarts and judged in `space`: by the silhouette
    (cosine), by the elbow of the modularity of its 15-neighbour graph, and by the modularity times
    the stability, which is the ARI with clusterings of resamples. The guess is the median of the
    three, which is the same on a log scale.

    ks: candidates, each ≥ 2 and < N; `grid(N)` if left out.
    space: (N, c), the features before smoothing, which would flatter every clustering; z itself
        if left out.
    Raises DataError for fewer than 15 images, UsageError for fewer than three usable candidates.
    """
    z = checked(z)
    judge = z if space is None else checked(space)
    if len(z) < 15:
        raise DataError(
            f"{len(z)} images are too few to guess the number of clusters",
            hint="give it with --k",
        )
    ks = sorted({k for k in (grid(len(z)) if ks is None else ks) if 2 <= k < len(z)})
    if len(ks) < 3:
        raise UsageError(
            "guessing the number of clusters takes three candidates or more",
            hint=f"candidates are whole numbers from 2 to {len(z) - 1}",
        )
    links = graph(knn(judge, NEIGHBOURS)[0])
    seen = np.arange(len(z))
    if len(z) > SAMPLE:
        seen = np.sort(stream(seed, "choose k").choice(len(z), SAMPLE, replace=False))
    resamples = [
        np.sort(stream(seed, "resample", i).choice(len(z), size, replace=False))
        for i, size in enumerate([min(round(SHARE * len(z)), LARGEST)] * RESAMPLES)
    ]
    silhouettes, modularities, stabilities = [], [], []
    with progress.stage("choose k", total=len(ks), unit="values of k") as stage:
        for k in ks:
            label = fit(z, k, seed=seed, restarts=RESTARTS)[1]
            silhouettes.append(label_free(judge[seen], label[seen])["silhouette"] or 0.0)
            modularities.append(modularity(links, label))
            stabilities.append(_stability(z, label, resamples, seen, seed))
            stage.note(f"k {k}, silhouette {silhouettes[-1]:.3f}")
            stage.advance()
    return verdict(ks, silhouettes, modularities, stabilities)


def _stability(
    z: np.ndarray, label: np.ndarray, resamples: list[np.ndarray], seen: np.ndarray, seed: int
) -> float:
    """Return the mean ARI, over the rows `seen`, of a labelling with clusterings of resamples."""
    k, rows = int(label.max()) + 1, torch.from_numpy(z[seen])
    agreed = []
    for resample in resamples:
        if len(resample) <= k:
            return 0.0
        centers = fit(z[resample], k, seed=seed + 1, restarts=3)[0]
        other = nearest(rows, torch.from_numpy(centers)).numpy()
        agreed.append(ari(contingency(other, label[seen])) or 0.0)
    return float(np.mean(agreed))


def verdict(
    ks: list[int], silhouettes: list[float], modularities: list[float], stabilities: list[float]
) -> KChoice:
    """Read the three choices off the scores of each candidate; see `choose`."""
    by_silhouette = ks[int(np.argmax(silhouettes))]
    by_elbow = ks[elbow(np.log(ks), np.array(modularities))]
    by_stability = ks[int(np.argmax(np.array(modularities) * stabilities))]
    choices = sorted([by_silhouette, by_elbow, by_stability])
    k = choices[1]
    agree = choices[2] <= AGREE * choices[0]
    apart = max(silhouettes) >= FAINT
    at_end = k == ks[-1]
    reasons = [
        text
        for holds, text in [
            (not agree, f"the rules disagree, from {choices[0]} to {choices[2]}"),
            (not apart, f"clusters hardly stand apart, silhouette {max(silhouettes):.2f} at best"),
            (at_end, f"{k} is the largest candidate, so there may be more"),
        ]
        if holds
    ]
    head = f"no clear k, {k} is a weak guess: {'; '.join(reasons)}" if reasons else f"k {k}"
    return KChoice(
        ks=tuple(ks),
        silhouette=tuple(silhouettes),
        modularity=tuple(modularities),
        stability=tuple(stabilities),
        by_silhouette=by_silhouette,
        by_elbow=by_elbow,
        by_stability=by_stability,
        k=k,
        clear=not reasons,
        advice=f"{head}. This k is a guess: compare --k {max(2, k // 2)} and --k {2 * k}.",
    )


def elbow(x: np.ndarray, y: np.ndarray) -> int:
    """Return the place of the point farthest above the chord from the first to the last point.

    x: (m,) rising. y: (m,).
    """
    share = (x - x[0]) / (x[-1] - x[0])
    return int(np.argmax(y - (y[0] + share * (y[-1] - y[0]))))
