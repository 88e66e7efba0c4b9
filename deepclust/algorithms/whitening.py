"""Whitening: features in which what does not change the content of a picture counts little.

The views of one picture show which directions of a frozen encoder's features say nothing about
its content. Features are divided by that scatter (within-class covariance normalisation with
every picture its own class), which is contrastive learning of a linear map in closed form. In
what comes of it a picture's nearest neighbours mostly show what the picture shows, and they
scatter in ways that no augmentation does: so the features are divided once more, by the scatter
between neighbours in place of views. The rows are then blended with those of their neighbours.

Everything is fitted once and applied to later pictures by the same arrays.
Letters: N pictures, V views of each, d columns in, c columns out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from deepclust.algorithms.neighbours import knn, unit
from deepclust.errors import UsageError

COMPONENTS = 256
SHRINKAGE = 1.0
VIEWS_WEIGHT = 2.0
"""Weight of the mean view beside the clean picture's 1."""
NEIGHBOURS = 10
ROUNDS = 10
PULL = 0.8
"""How much of a blended row is its neighbours'."""
ONE_SIDED = 0.5
"""Weight of a neighbour that does not have the row among its own, beside 1."""
FEW = 40
CHUNK = 2048
"""Pictures in float64 at a time, so that features may stay on the disk."""

Taps = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Layers by name: features of the clean pictures (N, d) and of their views (N, V, d)."""


@dataclass(frozen=True)
class Whitening:
    """A fitted map of one layer. mean: (d,) float64. projection: (d, c) float64."""

    mean: np.ndarray
    projection: np.ndarray

    def transform(
        self, clean: np.ndarray, views: np.ndarray, weight: float = VIEWS_WEIGHT
    ) -> np.ndarray:
        """Return unit rows (N, c) float32: the clean picture plus `weight` times its mean view.

        With w(x) = L2((L2(x) − mean) · projection): L2( w(clean) + weight · mean_v w(view v) ).
        clean: (N, d) float. views: (N, V, d) float. Both may be memory maps.
        """
        out = np.empty((len(clean), self.projection.shape[1]), np.float32)
        for part in _parts(len(clean)):
            seen = self._apply(views[part]).mean(axis=1)
            out[part] = unit(self._apply(clean[part]) + weight * seen)
        return out

    def _apply(self, x: np.ndarray) -> np.ndarray:
        rows = unit(np.asarray(x, np.float32)) - self.mean.astype(np.float32)
        return unit(rows @ self.projection.astype(np.float32))


@dataclass(frozen=True)
class Recipe:
    """A fitted map of several layers, side by side."""

    layers: dict[str, Whitening]

    def transform(self, taps: Taps) -> np.ndarray:
        """Return unit rows (N, Σ c) float32. Raises UsageError if a layer is missing."""
        missing = [name for name in self.layers if name not in taps]
        if missing:
            raise UsageError(f"features of the layers {', '.join(missing)} are missing")
        return unit(np.hstack([w.transform(*taps[name]) for name, w in self.layers.items()]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that `from_arrays` needs, to be written to a file."""
        return {
            f"{name}.{part}": getattr(layer, part)
            for name, layer in self.layers.items()
            for part in ("mean", "projection")
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Recipe:
        """Undo `arrays`."""
        names = [key.removesuffix(".mean") for key in arrays if key.endswith(".mean")]
        return cls({n: Whitening(arrays[f"{n}.mean"], arrays[f"{n}.projection"]) for n in names})


def fit_whitening(
    clean: np.ndarray,
    views: np.ndarray,
    *,
    components: int = COMPONENTS,
    shrinkage: float = SHRINKAGE,
) -> Whitening:
    """Fit the map of one layer.

    Rows are normalised; the clean ones give principal components (not scaled); in these

        S = 1/(N V) Σ_i Σ_v (x_iv − x̄_i)(x_iv − x̄_i)ᵀ,   x̄_i the mean view of picture i,
        projection = components · ( S + shrinkage · trace(S)/c · I )^(−½)

    Source: within-class covariance normalisation, Hatch et al. 2006, every picture its own class.

    clean: (N, d) float, N ≥ 2. views: (N, V, d) float, V ≥ 2; both may be memory maps.
    components: c, cut to min(d, N − 1).
    Raises UsageError for one view alone, which has no scatter.
    """
    if views.shape[1] < 2:
        raise UsageError("whitening needs at least two views of each picture")
    mean, basis = principal(clean, components, normalise=True)
    width = basis.shape[1]
    scatter = np.zeros((width, width))
    for part in _parts(len(clean)):
        projected = _unit64(views[part]) @ basis
        inner = (projected - projected.mean(axis=1, keepdims=True)).reshape(-1, width)
        scatter += inner.T @ inner
    scatter /= views.shape[0] * views.shape[1]
    spread = np.trace(scatter) / width
    if spread < 1e-14:  # the views are all alike, so there is nothing to divide by
        return Whitening(mean, basis)
    values, vectors = eigh(scatter + shrinkage * spread * np.eye(width))
    floor = values[-1] * np.finfo(np.float64).eps * width
    root = (vectors / np.sqrt(np.maximum(values, floor))) @ vectors.T
    return Whitening(mean, basis @ root)


def by_views(taps: Taps, *, components: int = COMPONENTS, shrinkage: float = SHRINKAGE) -> Recipe:
    """Fit the map of several layers to the scatter of views; see `fit_whitening`."""
    return Recipe(
        {
            name: fit_whitening(clean, views, components=components, shrinkage=shrinkage)
            for name, (clean, views) in taps.items()
        }
    )


def by_neighbours(taps: Taps, near: np.ndarray) -> Recipe:
    """Fit the map of several layers to the scatter of neighbours, as if they were views.

    near: (N, n) int64, n ≥ 2, the neighbours of each picture.
    """
    return by_views({name: (clean, _Near(clean, near)) for name, (clean, _) in taps.items()})  # type: ignore[dict-item]


def fit_recipe(taps: Taps) -> Recipe:
    """Fit the map of several layers: by views, then by the neighbours found in what that gives.

    With fewer than `FEW` pictures neighbours are too far to say anything, and views alone count.
    """
    first = by_views(taps)
    n = len(next(iter(taps.values()))[0])
    if n < FEW:
        return first
    return by_neighbours(taps, knn(smooth(first.transform(taps)), min(NEIGHBOURS, n // 20))[0])


class _Near:
    """The neighbours of each picture as if they were views of it, gathered when asked for."""

    def __init__(self, clean: np.ndarray, near: np.ndarray) -> None:
        self.clean = clean
        self.near = near
        self.shape = (*near.shape, clean.shape[1])

    def __getitem__(self, part: slice) -> np.ndarray:
        return self.clean[self.near[part]]


def smooth(
    z: np.ndarray,
    neighbours: int = NEIGHBOURS,
    rounds: int = ROUNDS,
    *,
    among: np.ndarray | None = None,
) -> np.ndarray:
    """Blend each row with its nearest neighbours, their neighbours, and so on.

        x ← L2( (1 − PULL) z + PULL · W x ),   `rounds` times from x = z

    W holds the nearest neighbours by cosine in z, at most N/20 of them, with weights that sum to
    1: a neighbour counts `ONE_SIDED` where the row is not among its own nearest. As z stays in
    each round, clusters do not run together. Source: personalised propagation, Gasteiger et al.
    2019, arXiv:1810.05997, eq. 5, without a network; the weights are ours.

    z: (N, c) float32 unit rows.
    among: (M, c), the rows that were there before, not smoothed, for pictures that arrive later:
        these blend with old rows only, which goes as it went when the old ones were smoothed.
    Returns unit rows (N, c) float32.
    """
    old = z if among is None else among
    count = min(neighbours, len(old) // 20)
    if count == 0:
        return unit(z)
    near, similar = knn(old, count)
    inner = _weights(near, similar, similar[:, -1])
    if among is not None:
        there, likeness = knn(z, count, among=old)
        outer = _weights(there, likeness, similar[:, -1])
    old_rows, rows = old, z
    for _ in range(rounds):
        if among is not None:
            rows = _blend(z, old_rows, there, outer)
        old_rows = _blend(old, old_rows, near, inner)
    return old_rows if among is None else rows


def _weights(near: np.ndarray, similar: np.ndarray, farthest: np.ndarray) -> np.ndarray:
    """Weigh neighbours (N, n): fully where the row is as near as the farthest of their own."""
    both = similar >= farthest[near] - 1e-6  # the same product, summed in another order
    weight = np.where(both, 1, ONE_SIDED).astype(np.float32)
    return weight / weight.sum(axis=1, keepdims=True)


def principal(
    x: np.ndarray, components: int, *, normalise: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (d,) and the leading principal directions (d, c) of x (N, d), float64.

    c = min(components, d, N − 1), widest direction first, its largest entry positive.
    normalise: take the rows at length 1.
    """
    n, width = x.shape

    def rows(part: slice) -> np.ndarray:
        return _unit64(x[part]) if normalise else np.asarray(x[part], np.float64)

    mean = sum((rows(part).sum(axis=0) for part in _parts(n)), np.zeros(width)) / n
    covariance = np.zeros((width, width))
    for part in _parts(n):
        centred = rows(part) - mean
        covariance += centred.T @ centred
    kept = max(1, min(components, width, n - 1))
    _, vectors = eigh(covariance / n, subset_by_index=[width - kept, width - 1])
    # A direction's sign is free; fixed, it does not hang on how the sums were rounded.
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(kept)])
    return mean, np.ascontiguousarray((vectors * signs)[:, ::-1])


def _blend(z: np.ndarray, x: np.ndarray, near: np.ndarray, weight: np.ndarray) -> np.ndarray:
    out = np.empty(z.shape, np.float32)
    for part in _parts(len(z)):
        pulled = np.einsum("nk,nkc->nc", weight[part], x[near[part]])
        out[part] = unit((1 - PULL) * z[part] + PULL * pulled)
    return out


def _unit64(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def _parts(n: int) -> list[slice]:
    return [slice(i, i + CHUNK) for i in range(0, n, CHUNK)]
