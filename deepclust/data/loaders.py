"""Sources of batches: pixels that are changed at random, or features that were changed before.

The training loop sees only the `Source`: how many pictures, batches of views in a given order,
and all pictures unchanged. Batches are prepared ahead in threads (OpenCV lets them run side by
side); what is in a batch does not depend on how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from deepclust.config import Views
from deepclust.data import views
from deepclust.data.store import Rows
from deepclust.device import stream

CLEAN_BATCH = 128  # fixed: the bits of an embedding depend on the batch it was computed in
Loaded = tuple[list[Tensor], Tensor]


class Source(Protocol):
    """Where a training loop gets its pictures from."""

    def __len__(self) -> int: ...

    def batches(self, epoch: int, order: list[np.ndarray], count: int) -> Iterator[Loaded]:
        """Yield `count` views of each index array of `order`, and the index as (n,) int64."""
        ...

    def clean(self) -> Iterator[Tensor]:
        """Yield all pictures unchanged, in order, in batches of a fixed size."""
        ...


class Pixels:
    """Pictures from a store, changed at random anew in each epoch.

    rows: N squares. side: pixels the encoder sees. workers: threads; 0 prepares nothing ahead.
    """

    def __init__(self, rows: Rows, recipe: Views, side: int, *, seed: int, workers: int) -> None:
        self.rows = rows
        self.recipe = recipe
        self.side = side
        self.seed = seed
        self.workers = workers

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, epoch: int, order: list[np.ndarray], count: int) -> Iterator[Loaded]:
        drawn = [
            views.draw(self.recipe, len(self), stream(self.seed, "views", epoch, view))
            for view in range(count)
        ]

        def make(index: np.ndarray) -> Loaded:
            squares = self.rows[index]
            made = [views.apply(squares, one, index, self.side) for one in drawn]
            return [views.to_tensor(view) for view in made], torch.from_numpy(index)

        return ahead(make, order, self.workers)

    def clean(self) -> Iterator[Tensor]:
        def make(index: np.ndarray) -> Tensor:
            return views.to_tensor(views.resize(self.rows[index], self.side))

        return ahead(make, pieces(len(self)), self.workers)


class Features:
    """Cached features of a frozen encoder: a view of a picture is one of its stored views.

    clean: (N, d) float32. changed: (N, V, d), V ≥ 2; two views of a batch are always two
    different ones.
    """

    def __init__(self, clean: np.ndarray, changed: np.ndarray, *, seed: int) -> None:
        self.rows = clean
        self.changed = changed
        self.seed = seed

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, epoch: int, order: list[np.ndarray], count: int) -> Iterator[Loaded]:
        among = self.changed.shape[1]
        chance = stream(self.seed, "views", epoch).random((len(self), among))
        chosen = np.argsort(chance, axis=1)
        for index in order:
            made = [self.changed[index, chosen[index, view % among]] for view in range(count)]
            yield (
                [torch.from_numpy(view.astype(np.float32)) for view in made],
                torch.from_numpy(index),
            )

    def clean(self) -> Iterator[Tensor]:
        for index in pieces(len(self)):
            yield torch.from_numpy(np.asarray(self.rows[index], np.float32))


def pieces(n: int, size: int = CLEAN_BATCH) -> list[np.ndarray]:
    """Cut 0..n-1 into index arrays of `size`, the last one shorter."""
    return [np.arange(at, min(at + size, n)) for at in range(0, n, size)]


def ahead(make: Callable, items: list, workers: int) -> Iterator:
    """Yield make(item) for each item, in order, prepared ahead in `workers` threads."""
    if workers == 0:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        rest = iter(items)
        waiting = [pool.submit(make, item) for item in islice(rest, workers + 1)]
        try:
            while waiting:
                done = waiting.pop(0).result()
                waiting += [pool.submit(make, item) for item in islice(rest, 1)]
                yield done
        finally:
            for future in waiting:
                future.cancel()
