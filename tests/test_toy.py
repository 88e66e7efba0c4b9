"""From pixels to clusters, with nothing but a method: shapes that colour and place tell nothing of.

A filled disc or diagonal stripes, of any colour, anywhere: k-means on the pixels is at chance.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from deepclust.algorithms.kmeans import fit
from deepclust.methods.base import Batch, Facts
from deepclust.methods.cc import CC

EACH, SIDE = 80, 16


def shapes(rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """Draw the pictures (2 · EACH, 3, SIDE, SIDE) in [0, 1], discs first; label (2 · EACH,)."""
    down, right = np.mgrid[:SIDE, :SIDE]
    pictures = []
    for stripes in (False, True):
        for _ in range(EACH):
            (y, x), radius = rng.uniform(6, 10, 2), rng.uniform(3, 5)
            square = (abs(down - y) < radius) & (abs(right - x) < radius)
            disc = np.hypot(down - y, right - x) < radius
            inside = square & ((down + right) % 6 < 3) if stripes else disc
            back, front = rng.uniform(0, 0.5, 3), rng.uniform(0.5, 1, 3)
            picture = np.where(inside[..., None], front, back)
            pictures.append(picture + rng.normal(0, 0.05, picture.shape))
    pixels = np.stack(pictures).clip(0, 1).transpose(0, 3, 1, 2)
    return torch.from_numpy(pixels).float(), np.repeat([0, 1], EACH)


def changed(x: Tensor, g: torch.Generator) -> Tensor:
    """A view of each picture: crop, flip, colour shift, contrast, grey."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(len(x), *shape, generator=g)

    scale = uniform(0.4, 1).sqrt()
    box = torch.zeros(len(x), 2, 3)
    box[:, 0, 0] = scale * uniform(-1, 1).sign()
    box[:, 1, 1] = scale
    box[:, :, 2] = uniform(-1, 1, 2) * (1 - scale)[:, None]
    grid = affine_grid(box, list(x.shape), align_corners=False)
    x = grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x = (x - mean) * uniform(0.6, 1.4, 1, 1, 1) + mean * uniform(0.6, 1.4, 1, 1, 1)
    x = x + uniform(-0.3, 0.3, 3, 1, 1)
    grey = uniform(0, 1, 1, 1, 1) < 0.2
    return torch.where(grey, x.mean(dim=1, keepdim=True), x).clamp(0, 1)


def network() -> nn.Sequential:
    layers, before = [], 3
    for width, stride in [(24, 2), (48, 1), (48, 2), (128, 1)]:
        conv = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture
def one_thread():
    # So little work gains nothing from more, and loses much on a busy machine.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def accuracy(label: np.ndarray, truth: np.ndarray) -> float:
    """Of two clusters matched to two classes."""
    same = float((label == truth).mean())
    return max(same, 1 - same)


@pytest.mark.usefixtures("one_thread")
def test_cc_finds_shapes_from_scratch_where_pixels_say_nothing():
    x, truth = shapes(np.random.default_rng(0))
    pixels = fit(x.flatten(1).numpy(), 2, seed=0, restarts=5)[1]
    assert accuracy(pixels, truth) < 0.7
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = CC(network(), Facts(len(x), 2, 128), CC.Config())
    optimiser = torch.optim.Adam(method.trained(), lr=2e-3)
    for _ in range(30):
        for index in torch.randperm(len(x), generator=g).split(40):
            batch = Batch([changed(x[index], g), changed(x[index], g)], index)
            terms = method.losses(batch, g)
            optimiser.zero_grad()
            sum(terms.values()).backward()
            optimiser.step()
    head = method.eval().assign(x)
    assert head is not None
    assert accuracy(head.argmax(dim=1).numpy(), truth) >= 0.95
    with torch.no_grad():
        found = fit(method.embed(x).numpy(), 2, seed=0, restarts=5)[1]
    assert accuracy(found, truth) >= 0.95
