"""What a clustering has to beat: k-means on pixels, and on the plain encoder's features."""

from __future__ import annotations

import numpy as np

from deepclust import frozen
from deepclust.algorithms.kmeans import cluster
from deepclust.algorithms.whitening import smooth
from deepclust.config import Settings, read_file, settings
from deepclust.data.images import find_images
from deepclust.data.store import Rows, load_pixels, store_side
from deepclust.device import pick
from deepclust.errors import DataError
from deepclust.methods import find
from deepclust.nets import encoders
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

PIXEL_SIDE = 32


def baselines(
    run: Run, k: int, *, seed: int = 0, progress: Progress = SILENT
) -> dict[str, np.ndarray]:
    """Cluster the pictures of a run without anything that was learnt on them.

    Returns by name the labels (N,) int64 of the k-means of `cluster`, on pixels at 32 × 32, and
    on the features of the packaged ImageNet encoder (or of the run's own frozen encoder); for a
    run that learnt on features, also on these as they were whitened and smoothed before.
    Raises DataError if pictures of the run are gone.
    """
    pixels = squares(run, PIXEL_SIDE, progress)[:].reshape(len(run.names), -1)
    rows, layers = features(run, progress)
    spaces = {
        "k-means on pixels": pixels.astype(np.float32) / 255,
        "k-means on plain features": frozen.plain(rows, layers),
    }
    if run.info["settings"].get("frozen") and run.info["settings"]["method"] != "none":
        space = frozen.Space.load(run.path / "features.safetensors", rows, layers)
        spaces["k-means on whitened features"] = smooth(space.whitened())
    return {name: cluster(x, k, seed=seed).label for name, x in spaces.items()}


def features(run: Run, progress: Progress = SILENT) -> tuple[Rows, dict[str, int]]:
    """Return features of the packaged, or the run's own frozen, encoder, and their layers.

    (N, 1 + V, Σ d) float16, of no views where the encoder is not the run's own.
    """
    chosen = settings_of(run)
    if chosen.encoder.train == "none":
        encoder, weights, count = frozen.encoder(chosen), chosen.encoder.weights, None
        side = store_side(encoder.image_size)
    else:
        encoder, weights, count = encoders.build("lite0", weights="packaged"), "packaged", 0
        side = encoder.image_size
    return frozen.features(
        squares(run, side, progress), encoder, chosen.views, weights_of=weights,
        root=run.image_root, seed=chosen.seed, device=pick("cpu"), count=count, progress=progress,
    )  # fmt: skip


def settings_of(run: Run) -> Settings:
    """Return the settings that a run was made with."""
    file = read_file(run.path / "config.toml")
    return settings(find(file["method"]["name"]).Config, [file])


def squares(run: Run, side: int, progress: Progress) -> Rows:
    """Return the run's pictures at a side, in the order of the run."""
    data = settings_of(run).data
    rows, _ = load_pixels(
        find_images(run.image_root, follow_links=data.follow_links), side, fit=data.fit,
        max_pixels=data.max_pixels, progress=progress,
    )  # fmt: skip
    at = {file.name: i for i, file in enumerate(rows.files)}
    missing = [name for name in run.names if name not in at]
    if missing:
        raise DataError(f"{len(missing)} pictures of the run are gone, such as {missing[0]}")
    order = np.array([at[name] for name in run.names])
    return Rows([rows.files[i] for i in order], rows.row[order], rows.array)
