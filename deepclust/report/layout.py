"""Where pictures lie on the map: an embedding brought down to two dimensions."""

from __future__ import annotations

import warnings

import numpy as np

LEAST = 15  # pictures below which UMAP has nothing to work with


def plane(x: np.ndarray, *, seed: int = 0) -> tuple[np.ndarray, str]:
    """Bring rows x (M, d) to the unit square, (M, 2) float64; also return how: UMAP or PCA.

    UMAP, McInnes et al. 2018, arXiv:1802.03426, where umap-learn is installed and there are 15
    rows; else the two main axes. The same rows and seed give the same place.
    """
    if len(x) >= LEAST:
        try:
            return _square(_umap(x, seed)), "UMAP"
        except ImportError:
            pass
    return _square(principal(x)), "PCA"


def principal(x: np.ndarray) -> np.ndarray:
    """Return x (M, d) on its two axes of largest variance, (M, 2) float64.

    The largest loading of each axis is positive, so that the sign is no accident.
    """
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    flat = np.zeros((len(x), 2))
    flat[:, : axes.shape[1]] = centred @ axes
    return flat


def _umap(x: np.ndarray, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a seed costs it its threads
        from umap import UMAP  # pyright: ignore[reportMissingImports]

        return UMAP(metric="cosine", random_state=seed, n_jobs=1).fit_transform(x)


def _square(flat: np.ndarray) -> np.ndarray:
    """Shift and scale, by one factor, into the unit square, in the middle of it."""
    low, high = flat.min(axis=0), flat.max(axis=0)
    edge = float((high - low).max())
    return (flat - (low + high) / 2) / (edge if edge > 0 else 1.0) + 0.5
