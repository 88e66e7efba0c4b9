"""Sources of batches: pixels that are changed at random, or features that were changed before.

The training loop sees only the `Source`: how many pictures, batches of views in a given order,
and all pictures unchanged. Batches are prepared ahead in threads (OpenCV lets them run side by
side); what is in a batch does not depend on how many.
"""

from __future__ import annotations

import sys
import threading
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
HELD = 2  # references to an array that nobody uses: the list's and that of the question itself
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
    device: where views are made; on a GPU only whole squares travel.
    """

    def __init__(
        self, rows: Rows, recipe: Views, side: int, *, seed: int, workers: int,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.recipe = recipe
        self.side = side
        self.seed = seed
        self.workers = workers
        self.device = device
        self.buffers = Buffers()

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, epoch: int, order: list[np.ndarray], count: int) -> Iterator[Loaded]:
        drawn = [
            views.draw(self.recipe, len(self), stream(self.seed, "views", epoch, view))
            for view in range(count)
        ]

        if self.device is not None and self.device.type != "cpu" and not self.recipe.exact:
            return self._on_device(drawn, order, self.device)
        apply = maker(self.recipe)

        def make(index: np.ndarray) -> Loaded:
            squares, shape = self.rows[index], (len(index), self.side, self.side, 3)
            made = []
            for one in drawn:
                levels = apply(squares, one, index, self.side, self.buffers.take(shape, "u1"))
                made.append(views.to_tensor(levels, self.buffers.take(shape, "<f4")))
            return made, torch.from_numpy(index)

        return ahead(make, order, self.workers)

    def _on_device(
        self, drawn: list[views.Drawn], order: list[np.ndarray], device: torch.device
    ) -> Iterator[Loaded]:
        from deepclust.data import device_views

        def read(index: np.ndarray) -> tuple[Tensor, np.ndarray]:
            squares = torch.from_numpy(self.rows[index])
            return (squares.pin_memory() if device.type == "cuda" else squares), index

        for squares, index in ahead(read, order, self.workers):
            there = squares.to(device, non_blocking=True)
            made = [device_views.apply(there, one, index, self.side) for one in drawn]
            yield made, torch.from_numpy(index)

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


class Buffers:
    """Memory for batches, used again once nobody holds it: fresh memory costs more than the views.

    An array is free when this list is all that refers to it; tensors made of it refer to it too.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Return an array of this shape and dtype, with anything in it."""
        with self.lock:
            for i in range(len(self.arrays)):
                fits = self.arrays[i].shape == shape and self.arrays[i].dtype == dtype
                if fits and sys.getrefcount(self.arrays[i]) <= HELD:
                    return self.arrays[i]
            self.arrays.append(np.empty(shape, dtype))
            return self.arrays[-1]


def maker(recipe: Views) -> Callable[..., np.ndarray]:
    """Return `views.apply`, or its exact form where the recipe asks for it."""
    if recipe.exact:
        from deepclust.data import exact

        return exact.apply
    return views.apply


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
