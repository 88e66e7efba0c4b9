"""A cluster head for a representation that was learnt without one.

`pretrain` without `--k` trains no cluster head. This one is CC's, trained on views of the pictures
as the finished network embeds them: on the encoder and not together with it, which costs seconds
and leaves the embedding of the run as it is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepclust import models, training, weights
from deepclust.baselines import settings_of, squares
from deepclust.data.loaders import pieces
from deepclust.data.store import store_side
from deepclust.device import stream, torch_stream
from deepclust.losses import balance, cluster_contrast
from deepclust.nets.parts import mlp
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

VIEWS = 4
STEPS = 400
BATCH = 256
RATE = 1e-3


def train(
    run: Run, k: int, *, seed: int = 0, device: torch.device, workers: int = 2,
    progress: Progress = SILENT,
) -> np.ndarray:  # fmt: skip
    """Train a head of k clusters on a run's network; return probabilities (N, k) float32.

    The loss is CC's between clusters with its balance, Li et al. 2021, arXiv:2009.09687.
    Raises CheckpointError if the run has no model, DataError if its pictures are gone.
    """
    chosen = settings_of(run)
    rows = squares(run, store_side(chosen.encoder.image_size or 128), progress)
    model = models.build(run, chosen, rows, device, workers)
    path = training.model_path(run)
    weights.fit(model.method, weights.load(path)[0], path=path)
    clean, _ = training.infer(model.method, model.source, device, progress)
    views = _views(model, device, progress)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_stream(seed, "head").initial_seed())
        head = mlp(clean.shape[1], k)
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE)
    draw = stream(seed, "head", "order")
    with progress.stage("train the head", total=STEPS, unit="steps") as stage:
        for _ in range(STEPS):
            index = torch.from_numpy(draw.permutation(len(clean))[:BATCH])
            a, b = draw.permutation(VIEWS)[:2]
            pa, pb = head(views[a][index]).softmax(1), head(views[b][index]).softmax(1)
            loss = cluster_contrast(pa, pb, 1.0) + balance(pa) + balance(pb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stage.advance()
            stage.note(f"loss {float(loss.detach()):.3f}")
    with torch.no_grad():
        return head(torch.from_numpy(clean)).softmax(1).numpy()


@torch.no_grad()
def _views(model: models.Model, device: torch.device, progress: Progress) -> list[Tensor]:
    """Embed VIEWS views of every picture: each (N, d) float32 on the CPU."""
    method, n = model.method.eval(), len(model.source)
    found: list[Tensor] = []
    with progress.stage("embed views", total=n * VIEWS, unit="views") as stage:
        for epoch in range(VIEWS // 2):
            parts: list[list[Tensor]] = [[], []]
            for loaded, index in model.source.batches(epoch, pieces(n), 2):
                for part, view in zip(parts, loaded):
                    part.append(method.embed(view.to(device)).float().cpu())
                stage.advance(2 * len(index))
            found += [torch.cat(part) for part in parts]
    return found
