"""The nearest centre of each row, a tile at a time: where k-means spends its time.

A row's nearest centre is the largest score x·c − ½|c|², so it takes one matrix product and one
argmax. Scores are made for so few rows at a time that they stay in the cache, and on a CPU numpy
takes the argmax: torch's is several times slower there. Replaces faiss' flat index and
scikit-learn's assignment; one thread, 100,000 × 128 rows, 1,000 centres: 1.3 times their speed in
float32, 4 times in bfloat16 on a CPU that has units for it. `benchmarks/run.py` measures it again.

`Rough` keeps rows in bfloat16, with two columns of ones. They meet the halved norms of the centres,
a bfloat16 number and its remainder. Its `nearest` is for the rounds of Lloyd: the norms are those
of the *rounded* centres (those of unrounded ones would pull rows to the wrong centre). Its `exact`
is for the last labels: where the two best scores of a row are farther apart than rounding can have
moved them, the best one is right; the other rows are scored again in float32. The tests compare
both with float64.

Letters: N rows, d columns, k centres.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

CACHED = 2**18
"""Scores a tile: 1 MB in float32, beside rows and centres in the second-level cache of a core."""
UNIT = 2.0**-8
"""Rounding to bfloat16 moves a number by this share of it at most."""


def rows_a_tile(k: int) -> int:
    """Return how many rows are scored at a time."""
    return max(128, min(CACHED // k // 64 * 64, 4_096))


def nearest(x: Tensor, centers: Tensor) -> Tensor:
    """Return the nearest centre (k, d) of each row of x (N, d) as (N,) int64; float32 throughout.

    Of centres equally near, the first.
    """
    half = -0.5 * centers.square().sum(dim=1)
    turned = centers.T.contiguous()
    if x.device.type != "cpu":
        return torch.cat(
            [torch.addmm(half, tile, turned).argmax(dim=1) for tile in x.split(65_536)]
        )
    size = rows_a_tile(len(centers))
    label = np.empty(len(x), np.int64)
    out = torch.empty(size, len(centers))
    for i in range(0, len(x), size):
        tile = x[i : i + size]
        scores = out[: len(tile)]
        torch.addmm(half, tile, turned, out=scores)
        scores.numpy().argmax(axis=1, out=label[i : i + size])
    return torch.from_numpy(label)


def squared_distance(x: Tensor, centers: Tensor, label: Tensor) -> Tensor:
    """Return the squared distance (N,) float32 of each row to the centre that `label` names."""
    size = 1_024 if x.device.type == "cpu" else 65_536
    return torch.cat(
        [
            (tile - centers.index_select(0, own)).square_().sum(dim=1)
            for tile, own in zip(x.split(size), label.split(size), strict=True)
        ]
    )


class Rough:
    """The rows x (N, d) in bfloat16, on a CPU."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.padded = torch.ones(len(x), x.shape[1] + 2, dtype=torch.bfloat16)
        self.padded[:, :-2] = x

    def nearest(self, centers: Tensor) -> Tensor:
        """Return the nearest centres as bfloat16 sees them, (N,) int64."""
        rounded = centers.bfloat16()
        label = np.empty(len(self.x), np.int64)
        for tile, bits in self._scores(rounded, rounded.float().square().sum(dim=1)):
            label[tile] = _argmax(bits)
        return torch.from_numpy(label)

    def exact(self, centers: Tensor) -> Tensor:
        """Return the nearest centres, (N,) int64: `nearest` of the rows that were rounded."""
        norms = centers.square().sum(dim=1)
        length = float(norms.max()) ** 0.5
        # |x̂·ĉ − x·c| ≤ (2u + u²) |x| |c|; the rest of 2.1 u is for float32's own sums.
        moved = 2 * 2.1 * UNIT * length * torch.linalg.vector_norm(self.x, dim=1).numpy()
        label = np.empty(len(self.x), np.int64)
        unsure = []
        for tile, bits in self._scores(centers.bfloat16(), norms):
            rows = np.arange(len(bits))
            own = label[tile] = _argmax(bits)
            best = _values(bits, rows, own)
            bits[rows, own] = np.int16(-0x80)  # −∞
            second = _values(bits, rows, _argmax(bits))
            gap = moved[tile] + UNIT * (np.abs(best) + np.abs(second))
            unsure.append(tile.start + np.flatnonzero(~(best - second > gap)))
        again = torch.from_numpy(np.concatenate(unsure))
        found = torch.from_numpy(label)
        for part in again.split(65_536):
            found[part] = nearest(self.x[part], centers)
        return found

    def _scores(self, rounded: Tensor, norms: Tensor) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of rows and the bits of their scores, int16, good until the next slice."""
        half = -0.5 * norms[:, None]
        coarse = half.bfloat16()
        turned = torch.cat([rounded, coarse, (half - coarse).bfloat16()], dim=1).T.contiguous()
        size = 4 * rows_a_tile(len(rounded))
        out = torch.empty(size, len(rounded), dtype=torch.bfloat16)
        for i in range(0, len(self.x), size):
            part = self.padded[i : i + size]
            scores = out[: len(part)]
            torch.mm(part, turned, out=scores)
            yield slice(i, i + len(part)), scores.view(torch.int16).numpy()


def _argmax(bits: np.ndarray) -> np.ndarray:
    """Return the column of the largest of bfloat16 numbers given as bits (n, k) int16.

    Bits of positive numbers sort like integers, those of negative ones the other way round: so
    it is numpy's integer argmax, or argmin where all are negative.
    """
    own = bits.argmax(axis=1)
    negative = np.flatnonzero(bits[np.arange(len(own)), own] < 0)
    if len(negative):
        own[negative] = bits[negative].argmin(axis=1)
    return own


def _values(bits: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    wide = bits[rows, columns].astype(np.int32) << 16
    return wide.view(np.float32)
