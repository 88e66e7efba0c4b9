"""Heads that teach themselves from neighbours: TEMI on a fixed embedding.

Several heads, each a set of directions on the sphere, learn side by side to give a picture what
their own slow copy gives to one of its neighbours; the one of least loss is kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from deepclust import losses
from deepclust.algorithms import Clusters, assemble, check_k, checked
from deepclust.algorithms.neighbours import knn, unit
from deepclust.device import stream, torch_stream
from deepclust.progress import SILENT, Progress

TEMPERATURE = 0.1
MARGINAL = 0.9
"""Share of the teacher's running mean that a step keeps."""


def cluster(
    x: np.ndarray,
    k: int | None,
    *,
    seed: int,
    progress: Progress = SILENT,
    neighbours: int = 50,
    heads: int = 8,
    beta: float = 0.6,
    momentum: float = 0.98,
    steps: int = 600,
    batch: int = 512,
    rate: float = 1e-2,
    device: str = "cpu",
) -> Clusters:
    """Cluster the rows of x (N, d) float32 with a softmax head of k directions.

    Minimises `losses.temi` over pictures and one of their nearest neighbours each, by Adam with a
    cosine schedule, so many steps whatever N: on small folders epochs say little.
    Source: TEMI, Adaloglou et al. 2023, arXiv:2303.17896.
    Differs: a head is its last layer alone, on centred rows of unit length; the published one has
    two layers before it, which small folders cannot feed.

    neighbours: at most N/20 of them. beta: below 1, it keeps clusters from vanishing. momentum:
    of the slow copy; the published 0.996 is for tens of thousands of steps.
    Confidence is the winning probability.
    Raises UsageError and DataError where k cannot be. Fewer clusters may come out than k.
    """
    x = checked(x)
    k = check_k(k, "temi", len(x))
    index = knn(x, max(1, min(neighbours, len(x) // 20)))[0]
    rows = unit(x)
    rows = torch.from_numpy(unit(rows - rows.mean(axis=0))).to(device)
    batch = min(batch, len(x))
    rng = stream(seed, "temi")
    first = torch.randn(heads, x.shape[1], k, generator=torch_stream(seed, "temi"))
    first /= x.shape[1] ** 0.5  # of length 1 or so, as the steps of Adam do not know the scale
    student = first.to(device).requires_grad_()
    teacher = first.to(device).clone()
    marginal = torch.full((heads, k), 1 / k, device=device)

    def logits(head: Tensor, which: np.ndarray | slice) -> Tensor:
        return rows[which] @ normalize(head, dim=1)

    optimizer = torch.optim.Adam([student], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with progress.stage("temi", total=steps, unit="steps") as stage:
        for _ in range(steps):
            own = rng.choice(len(x), batch, replace=False)
            pair = np.concatenate([own, index[own, rng.integers(index.shape[1], size=batch)]])
            with torch.no_grad():
                taught = logits(teacher, pair)
                mean = (taught / TEMPERATURE).softmax(dim=2).mean(dim=1)
                marginal = MARGINAL * marginal + (1 - MARGINAL) * mean
            loss = losses.temi(logits(student, pair), taught, marginal, beta=beta).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                teacher.lerp_(student, 1 - momentum)
            stage.advance()
    with torch.no_grad():
        # Judged on all pictures, each with its nearest neighbour.
        pair = np.concatenate([np.arange(len(x)), index[:, 0]])
        everything = logits(teacher, pair)
        best = losses.temi(everything, everything, marginal, beta=beta).argmin()
        p = (logits(teacher, slice(None))[best] / TEMPERATURE).softmax(dim=1).cpu().numpy()
    return assemble(x, p.argmax(axis=1), p.max(axis=1))
