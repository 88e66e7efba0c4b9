"""k-means by tiled matrix products, with faiss as the other engine.

The rounds are those of Lloyd; `assign.py` finds the centres. Rows are moved to their mean first,
which changes no distance and keeps the scores small beside float32's digits.

Large problems stop when a round takes less than 3/10,000 off the inertia, and on a CPU with
bfloat16 units their rounds are in bfloat16. The labels are exact for the centres returned. (First
rounds on a sample were tried and left out: they ended up to 1 % higher.)

Letters: N rows, d columns, k clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from deepclust.algorithms import Clusters, by_size, check_k, checked
from deepclust.algorithms.assign import Rough, nearest, rows_a_tile, squared_distance
from deepclust.algorithms.neighbours import unit
from deepclust.device import has_fast_bf16, stream
from deepclust.progress import SILENT, Progress

Engine = Literal["tiled", "faiss"]

TOLERANCE = 1e-5
"""Lloyd stops when a round takes less than this share off the inertia."""
LARGE = 2e9
"""N·k·d from which bfloat16 rounds pay for the copy they need."""
ENOUGH = 3e-4
"""TOLERANCE of large problems."""
SMALL = 3e7
"""N·k·d up to which thirty starts are cheap."""
CONTEST = 20_000
"""Above this many rows restarts compete on a sample, and only the best one sees all rows."""


@dataclass(frozen=True)
class _Fit:
    centers: Tensor
    label: Tensor
    distance: Tensor

    @property
    def inertia(self) -> float:
        return float(self.distance.double().sum())


def cluster(
    x: np.ndarray,
    k: int | None,
    *,
    seed: int,
    progress: Progress = SILENT,
    restarts: int | None = None,
    engine: Engine = "tiled",
    spherical: bool = False,
    device: str = "cpu",
) -> Clusters:
    """Cluster the rows of x (N, d) float32 into k groups of least squared distance to their mean.

    restarts: 10 if left out, 30 where that costs a second or two: of ten starts on a small folder
        the best often is another one for another seed (spread of ACC 3.5 points on 466 pictures
        in 18 groups, 0.7 with thirty).
    spherical: normalise rows and centres, so that the cosine decides.
    Confidence is 1 − d₁/d₂ with d₁ ≤ d₂ the distances to the two nearest centres: 0 on the border
    of two clusters, 1 on a centre. On smoothed features it told right from wrong images better
    than the share of neighbours with the same label did (area under the curve 0.69 to 0.77).
    Fewer than k distinct rows give that many clusters, with a warning.
    Raises UsageError, DataError and TrainingError as `fit` does.
    """
    x = checked(x)
    k = check_k(k, "k-means", len(x))
    x = unit(x) if spherical else x
    if restarts is None:
        restarts = 30 if x.size * k <= SMALL else 10
    centers, label, distance = fit(
        x, k, seed=seed, restarts=restarts, engine=engine, spherical=spherical, device=device
    )
    if len(centers) < k:
        progress.warn(f"only {len(centers)} distinct embeddings for {k} clusters")
    renamed = by_size(label)
    order = np.full(renamed.max() + 1, -1)
    order[renamed] = label
    return Clusters(renamed, margin(x, centers, label, distance), centers[order])


def spherical(x: np.ndarray, k: int | None, *, seed: int, progress: Progress = SILENT) -> Clusters:
    """Cluster by the cosine: k-means on unit rows with unit centres. See `cluster`."""
    return cluster(x, k, seed=seed, progress=progress, spherical=True)


def fit(
    x: np.ndarray,
    k: int,
    *,
    seed: int,
    restarts: int = 1,
    iterations: int = 100,
    start: np.ndarray | None = None,
    engine: Engine = "tiled",
    spherical: bool = False,
    device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find k centres of the rows of x (N, d) float32.

    k-means++ on a sample seeds each of `restarts` runs and the least inertia is kept; `start`
    (k, d) takes the place of both. At most `iterations` rounds a run. A cluster that runs empty
    takes the row farthest from its own centre. Deterministic for a seed and a thread count.

    Returns centres (k, d) float32, the nearest centre of each row (N,) int64, and the squared
    distance to it (N,) float32. Where x has fewer than k distinct rows the centres are those rows.
    Raises UsageError for k < 2, DataError for N ≤ k, TrainingError for values that are not finite.
    """
    x = checked(x)
    k = check_k(k, "k-means", len(x))
    distinct = _distinct(x, k)
    if distinct is not None:
        centers, label = distinct
        return centers, label, np.zeros(len(x), np.float32)

    mean = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    rows = torch.from_numpy(x - mean).to(device)
    offset = torch.from_numpy(mean).to(device) if spherical else None
    if start is not None:
        first = torch.from_numpy(np.asarray(start, np.float32) - mean).to(device)
    else:
        first = _best_start(rows, k, seed, restarts, iterations, offset)
    if engine == "faiss":
        result = _faiss(rows, first, seed, iterations, spherical, mean)
    else:
        result = _lloyd(rows, first, iterations, offset)
    return (
        result.centers.cpu().numpy() + mean,
        result.label.cpu().numpy(),
        result.distance.cpu().numpy(),
    )


def margin(
    x: np.ndarray, centers: np.ndarray, label: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """Return 1 − d₁/d₂ (N,) float32: how much nearer a row's own centre is than the next one.

    distance: (N,) squared distances to the own centre. One centre alone gives 1.
    """
    confidence = np.ones(len(x), np.float32)
    if len(centers) < 2:
        return confidence
    shift = centers.mean(axis=0)
    c = torch.from_numpy(centers - shift)
    half = -0.5 * c.square().sum(dim=1)
    size = rows_a_tile(len(centers))
    for i in range(0, len(x), size):
        tile = slice(i, i + size)
        rows = torch.from_numpy(x[tile] - shift)
        scores = torch.addmm(half, rows, c.T).numpy()
        scores[np.arange(len(rows)), label[tile]] = -np.inf
        second = rows.square().sum(dim=1).numpy() - 2 * scores.max(axis=1)
        ratio = distance[tile] / np.maximum(second, np.finfo(np.float32).tiny)
        confidence[tile] = 1 - np.sqrt(np.clip(ratio, 0, 1))
    return confidence


def _distinct(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the distinct rows and the place of each among them, or None if more than k."""
    head = x[: 8 * k] + 0.0  # makes −0 and 0 one value
    if len({row.tobytes() for row in head}) > k:
        return None
    rows, place = np.unique(x + 0.0, axis=0, return_inverse=True)
    return (rows, place.reshape(-1).astype(np.int64)) if len(rows) <= k else None


def _best_start(
    x: Tensor, k: int, seed: int, restarts: int, iterations: int, offset: Tensor | None
) -> Tensor:
    """Return centres (k, d) of the best of several k-means++ starts."""
    contest = x
    if restarts > 1 and len(x) > CONTEST:
        contest = x[_sample(len(x), max(CONTEST, 32 * k), stream(seed, "kmeans", "contest"))]
    best = None
    for restart in range(restarts):
        rng = stream(seed, "kmeans", restart)
        pool = x[_sample(len(x), max(5_000, 8 * k), rng)].cpu()
        first = _plus_plus(pool, k, rng).to(x.device)
        if restarts == 1:
            return first
        found = _lloyd(contest, first, iterations, offset)
        if best is None or found.inertia < best.inertia:
            best = found
    assert best is not None
    return best.centers


def _sample(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(n) if n <= size else np.sort(rng.choice(n, size, replace=False))


def _plus_plus(x: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """Draw k of the rows x (n, d), each with a chance as its squared distance to those drawn.

    Of a few draws the one that leaves least distance is kept, as scikit-learn does. Source:
    k-means++, Arthur and Vassilvitskii 2007.
    """
    norms = x.square().sum(dim=1)
    tries = 2 + int(np.log(k))
    chosen = [int(rng.integers(len(x)))]
    left = (x - x[chosen[0]]).square().sum(dim=1)
    while len(chosen) < k:
        mass = np.cumsum(left.numpy(), dtype=np.float64)
        drawn = np.searchsorted(mass, rng.random(tries) * mass[-1]).clip(max=len(x) - 1)
        distance = torch.addmm(norms, x[drawn], x.T, alpha=-2).add_(norms[drawn][:, None])
        distance = torch.minimum(distance.clamp_(min=0), left)
        best = int(distance.sum(dim=1).argmin())
        chosen.append(int(drawn[best]))
        left = distance[best]
        left[chosen[-1]] = 0
    return x[chosen]


def _lloyd(x: Tensor, centers: Tensor, iterations: int, offset: Tensor | None) -> _Fit:
    """Run Lloyd's rounds from `centers` until they stop paying. offset: set for unit centres."""
    large = len(x) * centers.numel() >= LARGE
    fast = large and x.device.type == "cpu" and has_fast_bf16(x.device)
    rough = Rough(x) if fast else None
    tolerance = ENOUGH if large else TOLERANCE
    lengths = torch.cat([torch.linalg.vector_norm(tile, dim=1) for tile in x.split(4_096)])
    total = float(lengths.double().square().sum())
    last = np.inf
    for _ in range(iterations):
        label = nearest(x, centers) if rough is None else rough.nearest(centers)
        means, count = _means(x, label, centers)
        centers = means if offset is None else _on_sphere(means, offset)
        inertia = total + float(
            (count[:, None] * (centers.double() - 2 * means.double()) * centers.double()).sum()
        )
        if inertia >= last * (1 - tolerance):
            break
        last = inertia
    label = nearest(x, centers) if rough is None else rough.exact(centers)
    return _Fit(centers, label, squared_distance(x, centers, label))


def _on_sphere(means: Tensor, offset: Tensor) -> Tensor:
    return torch.nn.functional.normalize(means + offset, dim=1) - offset


def _means(x: Tensor, label: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return cluster means (k, d) and sizes (k,); empty clusters take far rows (label changes)."""
    count = torch.bincount(label, minlength=len(centers))
    empty = torch.nonzero(count == 0).flatten()
    if len(empty):
        _reseed(x, label, centers, count, empty)
        count = torch.bincount(label, minlength=len(centers))
    sums = torch.zeros_like(centers)
    if x.device.type == "cpu":
        sums.index_add_(0, label, x)
    else:  # adds in a fixed order there, which index_add_ does not
        sums.index_put_((label,), x, accumulate=True)
    return torch.where(count[:, None] > 0, sums / count[:, None].clamp(min=1), centers), count


def _reseed(x: Tensor, label: Tensor, centers: Tensor, count: Tensor, empty: Tensor) -> None:
    """Move the rows farthest from their centre into the empty clusters, one distinct row each."""
    distance = squared_distance(x, centers, label)
    distance[count[label] < 2] = 0
    # The far rows are sought among so many that there are enough of them after each choice.
    far = distance.topk(min(len(x), 8 * len(empty) + 1_000)).indices
    rows, distance = x[far], distance[far]
    for cluster in empty.tolist():
        farthest = int(distance.argmax())
        if distance[farthest] <= 0:
            return
        label[far[farthest]] = cluster
        distance = torch.minimum(distance, (rows - rows[farthest]).square().sum(dim=1))


def _faiss(
    x: Tensor, start: Tensor, seed: int, iterations: int, spherical: bool, mean: np.ndarray
) -> _Fit:
    """Run faiss' k-means on all rows from the same start."""
    import faiss

    shift = mean if spherical else np.zeros_like(mean)  # unit centres need the true origin
    rows = x.cpu().numpy() + shift
    kmeans = faiss.Kmeans(
        rows.shape[1],
        len(start),
        niter=iterations,
        seed=seed % 2**31,
        spherical=spherical,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # the default leaves rows out in silence
    )
    kmeans.train(rows, init_centroids=start.cpu().numpy() + shift)
    centers = torch.from_numpy(kmeans.centroids - shift)
    label = nearest(x.cpu(), centers)
    return _Fit(centers, label, squared_distance(x.cpu(), centers, label))
