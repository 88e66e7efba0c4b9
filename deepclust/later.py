"""Pictures that arrive after a run was made: embedded as the run embeds its own, and assigned.

Nothing is fitted anew: the encoder, the whitening, the method and the clusters are the run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from deepclust import files, frozen, models, training
from deepclust.algorithms import kmeans
from deepclust.algorithms.neighbours import knn
from deepclust.algorithms.whitening import smooth
from deepclust.config import Settings
from deepclust.data.labels import Assignments, read_assignments
from deepclust.data.loaders import Features, Pixels
from deepclust.data.store import Rows
from deepclust.errors import CheckpointError
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

VOTERS = 10
BY_CENTRE = ("kmeans", "spherical")
"""Algorithms whose clusters are all that is nearest to a centre; elsewhere neighbours vote."""


@dataclass(frozen=True)
class Embedded:
    """M pictures in the spaces of a run.

    x: (M, d) float32, as in embeddings.npy. soft: (M, k) of the run's own head, or None.
    bare, old_bare: (M, c) and (N, c) float32, the new and the old pictures before smoothing,
    in which new pictures are not drawn to old ones; x and embeddings.npy where nothing is smoothed.
    """

    x: np.ndarray
    soft: np.ndarray | None
    bare: np.ndarray
    old_bare: np.ndarray


@dataclass(frozen=True)
class Assigned:
    """Clusters of M pictures. label: (M,) int64 ≥ 0. confidence: (M,) float32 in [0, 1]."""

    label: np.ndarray
    confidence: np.ndarray


def embed(
    run: Run, chosen: Settings, rows: Rows, root: Path, device: torch.device, workers: int = 2,
    progress: Progress = SILENT,
) -> Embedded:  # fmt: skip
    """Embed new pictures as `run` does.

    chosen: the settings of the run. rows: squares of the M pictures. root: their folder.
    Raises CheckpointError if a part of the run is missing or damaged.
    """
    old = np.asarray(run.embeddings(), np.float32)
    seen = None
    if chosen.encoder.train == "none":
        encoder = frozen.encoder(chosen, progress)
        found, layers = frozen.features(
            rows, encoder, chosen.views, weights_of=chosen.encoder.weights, root=root,
            seed=chosen.seed, device=device, workers=workers, progress=progress,
        )  # fmt: skip
        space = frozen.Space.load(run.path / "features.safetensors", found, layers)
        seen = space.whitened()
        if run.info["settings"]["method"] == "none":
            before = run.whitened()
            if before is None:
                raise CheckpointError(f"{run.path / 'whitened.npy'} is missing")
            before = np.asarray(before, np.float32)
            return Embedded(smooth(seen, among=before), None, seen, before)
    method = models.load_model(run)
    source = (
        Pixels(rows, chosen.views, chosen.encoder.image_size or 128, seed=0, workers=workers)
        if seen is None
        else Features(seen, seen[:, None], seed=0)  # only looked at: no views are drawn
    )
    x, soft = training.infer(method, source, device, progress)
    return Embedded(x, soft, x, old)


def assign(run: Run, folder: Path, new: Embedded) -> Assigned:
    """Give new pictures to the clusters of `folder`, whose numbers stay.

    The run's own head decides where the clusters are the head's; the nearest centre where they are
    k-means'; else the 10 nearest old pictures vote, outliers left out. Confidence is the head's
    probability, 1 − d₁/d₂ of the two nearest centres, or the share of votes.
    Raises CheckpointError if the clustering is not of this run's pictures.
    """
    label = labels(run, folder)[1]
    try:
        details = files.read_json(folder / "clusters.json")
        centers = np.load(folder / "centers.npy", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error
    old_soft = run.probabilities()
    algorithm = details.get("algorithm")
    if algorithm == "head" and new.soft is not None and old_soft is not None:
        return _by_head(new.soft, np.asarray(old_soft), label)
    whole = (np.bincount(label[label >= 0], minlength=len(centers)) > 0).all()
    if algorithm in BY_CENTRE and whole and label.max() < len(centers):
        return _by_centre(new.x, centers)
    return _by_vote(new.x, np.asarray(run.embeddings(), np.float32), label)


def labels(run: Run, folder: Path) -> tuple[Assignments, np.ndarray]:
    """Return the table of a clustering, and its clusters (N,) int64 in the order of the run."""
    table = read_assignments(folder / "assignments.csv")
    label = table.of(run.names).cluster
    if label.max(initial=-1) < 0:
        raise CheckpointError(f"{folder} holds no cluster of the run's pictures")
    return table, label


def _by_head(soft: np.ndarray, old: np.ndarray, label: np.ndarray) -> Assigned:
    """Name the columns of a head as the old pictures' clusters are named."""
    column = old.argmax(axis=1)
    name = np.full(old.shape[1], -1, dtype=np.int64)
    for c in np.unique(column):
        name[c] = np.bincount(label[column == c] + 1).argmax() - 1
    soft = np.where(name >= 0, soft, 0)  # a column that no old picture is in has no cluster
    return Assigned(name[soft.argmax(axis=1)], soft.max(axis=1).astype(np.float32))


def _by_centre(x: np.ndarray, centers: np.ndarray) -> Assigned:
    label = (x @ centers.T - 0.5 * np.square(centers).sum(axis=1)).argmax(axis=1)
    distance = np.square(x - centers[label]).sum(axis=1)
    return Assigned(label, kmeans.margin(x, centers, label, distance))


def _by_vote(x: np.ndarray, old: np.ndarray, label: np.ndarray) -> Assigned:
    inside = np.flatnonzero(label >= 0)
    index = knn(x, VOTERS, among=old[inside])[0]
    votes = np.zeros((len(x), label.max() + 1), np.float32)
    np.add.at(votes, (np.arange(len(x))[:, None], label[inside][index]), 1 / index.shape[1])
    return Assigned(votes.argmax(axis=1), votes.max(axis=1))
