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
    spaces = {
        "k-means on pixels": pixels.astype(np.float32) / 255,
        "k-means on plain features": plain_features(run, progress),
    }
    if run.info["settings"].get("frozen") and run.info["settings"]["method"] != "none":
        spaces["k-means on whitened features"] = _whitened(run, progress)
    return {name: cluster(x, k, seed=seed).label for name, x in spaces.items()}


def plain_features(run: Run, progress: Progress = SILENT) -> np.ndarray:
    """Return features of the packaged, or the run's own frozen, encoder: unit rows (N, d)."""
    chosen = settings_of(run)
    if chosen.encoder.train == "none":
        encoder, weights, count = frozen.encoder(chosen), chosen.encoder.weights, None
        side = store_side(encoder.image_size)
    else:
        encoder, weights, count = encoders.build("lite0", weights="packaged"), "packaged", 0
        side = encoder.image_size
    rows, layers = frozen.features(
        squares(run, side, progress), encoder, chosen.views, weights_of=weights,
        root=run.image_root, seed=chosen.seed, device=pick("cpu"), count=count, progress=progress,
    )  # fmt: skip
    return frozen.plain(rows, layers)


def _whitened(run: Run, progress: Progress) -> np.ndarray:
    """Return the features that a run learnt on, whitened and smoothed: unit rows (N, c)."""
    chosen = settings_of(run)
    encoder = frozen.encoder(chosen)
    rows, layers = frozen.features(
        squares(run, store_side(encoder.image_size), progress), encoder, chosen.views,
        weights_of=chosen.encoder.weights, root=run.image_root, seed=chosen.seed,
        device=pick("cpu"), progress=progress,
    )  # fmt: skip
    return smooth(frozen.Space.load(run.path / "features.safetensors", rows, layers).whitened())


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
