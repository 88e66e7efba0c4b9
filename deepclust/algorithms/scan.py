"""A head that gives an image and its neighbours the same cluster: SCAN on a fixed embedding.

Several linear heads train side by side on pairs of neighbours; the one of least loss is kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepclust import losses
from deepclust.algorithms import Clusters, assemble, check_k, checked
from deepclust.algorithms.neighbours import knn, unit
from deepclust.device import stream, torch_stream
from deepclust.progress import SILENT, Progress


def cluster(
    x: np.ndarray,
    k: int | None,
    *,
    seed: int,
    progress: Progress = SILENT,
    neighbours: int = 20,
    heads: int = 8,
    weight: float = 2.0,
    steps: int = 200,
    batch: int = 512,
    rate: float = 1e-2,
    device: str = "cpu",
) -> Clusters:
    """Cluster the rows of x (N, d) float32 with a linear softmax head.

    Minimises `losses.scan` + weight · `losses.balance` over images and one of their nearest
    neighbours each, by Adam with a cosine schedule, so many steps whatever N.
    Source: SCAN, Van Gansbeke et al. 2020, arXiv:2005.12320, clustering step, without its
    augmentation: the embedding is fixed.

    weight: λ of the balance term; published code uses 5, small uneven folders do better with 2.
    Confidence is the winning probability.
    Raises UsageError and DataError where k cannot be. Fewer clusters may come out than k.
    """
    x = checked(x)
    k = check_k(k, "scan", len(x))
    index = knn(x, neighbours)[0]
    rows = unit(x)
    rows = torch.from_numpy(unit(rows - rows.mean(axis=0)) * np.float32(np.sqrt(x.shape[1])))
    rows = rows.to(device)
    batch = min(batch, len(x))
    rng = stream(seed, "scan")
    first = torch.randn(x.shape[1], heads * k, generator=torch_stream(seed, "scan")) * 0.01
    head = first.to(device).requires_grad_()

    def logits(which: np.ndarray | slice) -> Tensor:
        return (rows[which] @ head).view(-1, heads, k).transpose(0, 1)

    optimizer = torch.optim.Adam([head], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with progress.stage("scan", total=steps, unit="steps") as stage:
        for _ in range(steps):
            own = rng.choice(len(x), batch, replace=False)
            other = index[own, rng.integers(index.shape[1], size=batch)]
            loss = _losses(logits(own), logits(other), weight).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            stage.advance()
    with torch.no_grad():
        # Judged on all images, each with its nearest neighbour.
        best = _losses(logits(slice(None)), logits(index[:, 0]), weight).argmin()
        p = logits(slice(None))[best].softmax(dim=1).cpu().numpy()
    return assemble(x, p.argmax(axis=1), p.max(axis=1))


def _losses(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """Return each head's loss (h,). a, b: (h, n, k) logits of images and of a neighbour of each."""
    balance = torch.vmap(losses.balance)(a.softmax(dim=2))
    return torch.vmap(losses.scan)(a, b) + weight * balance
