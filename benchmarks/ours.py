"""deepclust's own steps for the benchmarks: the functions that `pretrain` and `cluster` call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepclust import training
from deepclust.config import PRESETS, Train, Views
from deepclust.data.images import find_images
from deepclust.data.loaders import Pixels
from deepclust.data.store import load_pixels, store_side
from deepclust.device import stream, torch_stream
from deepclust.frozen import CPU_BATCH
from deepclust.methods import find
from deepclust.methods.base import Batch, Facts, Method
from deepclust.models import precision
from deepclust.nets import encoders, routing
from deepclust.nets.inference import prepared

CPU = torch.device("cpu")


def pixels(folder: Path, preset: str, side: int) -> Pixels:
    """Decode a folder, once, and return the source that training takes its views from."""
    rows, _ = load_pixels(find_images(folder), store_side(side), workers=0)
    recipe = Views(**{**PRESETS[preset], "preset": preset})
    return Pixels(rows, recipe, side, seed=0, workers=0)


def endless(source: Pixels, batch: int) -> Iterator[tuple[list[Tensor], Tensor]]:
    epoch = 0
    while True:
        order = stream(0, "order", epoch).permutation(len(source))
        whole = range(0, len(order) - batch + 1, batch)
        yield from source.batches(epoch, [order[at : at + batch] for at in whole], 2)
        epoch += 1


def step(
    method: str, folder: Path, name: str, side: int, batch: int, preset: str, facts: Facts,
    train: Train, options: dict | None = None,
) -> Callable[[], None]:  # fmt: skip
    """Return a function that makes a batch of views and takes one step, as `pretrain` does."""
    encoder = encoders.build(name, image_size=side)
    encoder.precision = precision(train, CPU)
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    routing.route(encoder)
    cls = find(method)
    net = cls(
        encoder, Facts(facts.images, facts.clusters, encoder.width), cls.Config(**(options or {}))
    )
    if method == "pcl":
        _prototypes(net)
    net.train()
    optimizer = training._optimizer(net, train)
    batches = endless(pixels(folder, preset, side), batch)

    def take() -> None:
        views, index = next(batches)
        ready = Batch([training._to(view, CPU) for view in views], index)
        training._step(net, optimizer, ready, train.lr, torch_stream(0, 0))

    return take


def _prototypes(net: Method) -> None:
    """Put PCL behind its warm-up: prototypes of every size, and a full queue."""
    net.prototypes.copy_(torch.nn.functional.normalize(torch.randn_like(net.prototypes), dim=1))
    sizes = torch.tensor(net.sizes)[:, None]
    net.label.copy_(torch.arange(net.label.shape[1])[None] % sizes)
    net.ready.fill_(True)
    net.queue.push(torch.nn.functional.normalize(torch.randn_like(net.queue.keys), dim=1))


def embedder(name: str, side: int) -> Callable[[Tensor], Tensor]:
    """Return what turns pictures (n, 3, side, side) into features, as `frozen.features` does."""
    net = prepared(encoders.build(name, image_size=side), CPU)

    def embed(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([net(part).float() for part in images.split(CPU_BATCH)])

    return embed


def labels(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw true labels and clusters (n,) of which about half agree."""
    rng = np.random.default_rng(0)
    label = rng.integers(k, size=n)
    cluster = np.where(rng.random(n) < 0.5, label, rng.integers(k, size=n))
    return label, cluster
