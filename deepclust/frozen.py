"""Features of a frozen encoder: computed once, kept, and turned into an embedding in closed form.

Each picture is embedded clean and in some changed views, at several layers of the network, and
kept as float16, so that a new picture costs only itself. `Space` holds these features with the
whitening fitted on them (`algorithms/whitening.py`): it gives the embedding, and the views that
CC, PCL and SimCLR learn on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepclust import weights
from deepclust.algorithms.neighbours import knn
from deepclust.algorithms.whitening import NEIGHBOURS, Recipe, by_neighbours, fit_recipe
from deepclust.config import Settings, Views
from deepclust.data import views as pictures
from deepclust.data.images import ImageFile
from deepclust.data.loaders import ahead, maker
from deepclust.data.store import Rows, RowStore
from deepclust.device import stream
from deepclust.errors import CheckpointError, UsageError
from deepclust.nets import encoders
from deepclust.nets.encoders import Encoder
from deepclust.nets.inference import prepared
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

BATCH = 32  # pictures prepared at a time, each with its views
CPU_BATCH = 8  # views through the network at a time: their activations stay in the cache


@dataclass(frozen=True)
class Space:
    """Features of N pictures and the whitening fitted on them.

    rows: (N, 1 + V, Σ d) float16, the clean picture first. layers: name and width of each layer,
    in order. recipe: the fitted whitening.
    """

    rows: Rows
    layers: dict[str, int]
    recipe: Recipe

    def plain(self) -> np.ndarray:
        """Return the clean features of the network's head, unit rows (N, d) float32."""
        return plain(self.rows, self.layers)

    def whitened(self) -> np.ndarray:
        """Return the whitened features, unit rows (N, c) float32."""
        layers = taps(self.rows, self.layers)
        if self.rows.array.shape[1] == 1:
            layers = {name: (clean, clean[:, None]) for name, (clean, _) in layers.items()}
        return self.recipe.transform(layers)

    def views(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whitened features clean, (N, c), and of each view, (N, V, c), unit rows.

        Raises UsageError if there are fewer than two views to learn from.
        """
        if self.rows.array.shape[1] < 3:
            raise UsageError("learning on features needs views.cached of at least 2")
        layers = taps(self.rows, self.layers)
        clean = self.recipe.transform(layers)
        changed = [
            self.recipe.transform({n: (v[:, i], v[:, i : i + 1]) for n, (_, v) in layers.items()})
            for i in range(self.rows.array.shape[1] - 1)
        ]
        return clean, np.stack(changed, axis=1).astype(np.float16)

    def save(self, path: Path) -> None:
        """Write the fitted whitening, for pictures that arrive later."""
        arrays = {name: torch.from_numpy(array) for name, array in self.recipe.arrays().items()}
        weights.save(path, arrays, {"kind": "whitening", "layers": list(self.layers.items())})

    @staticmethod
    def load(path: Path, rows: Rows, layers: dict[str, int]) -> Space:
        """Put features of later pictures into the space that `save` wrote.

        Raises CheckpointError if the file is missing, damaged or of another encoder.
        """
        tensors, header = weights.load(path)
        if header.get("kind") != "whitening" or dict(header["layers"]) != layers:
            raise CheckpointError(f"{path} is not the whitening of this encoder")
        fitted = Recipe.from_arrays({name: tensor.numpy() for name, tensor in tensors.items()})
        # A file of weights keeps no order, and the columns have one.
        return Space(rows, layers, Recipe({name: fitted.layers[name] for name in layers}))


def plain(rows: Rows, layers: dict[str, int]) -> np.ndarray:
    """Return the clean features of the network's head, unit rows (N, d) float32."""
    x = taps(rows, layers)["head"][0].astype(np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def taps(rows: Rows, layers: dict[str, int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Split features into layers: name → clean (N, d) and changed (N, V, d) float16."""
    whole = rows[:]
    edges = np.cumsum([0, *layers.values()])
    return {
        name: (whole[:, 0, a:b], whole[:, 1:, a:b])
        for name, a, b in zip(layers, edges[:-1], edges[1:])
    }


def _fit(rows: Rows, layers: dict[str, int]) -> Recipe:
    """Fit the whitening: by views and neighbours, or without any views by neighbours alone."""
    parts = taps(rows, layers)
    if rows.array.shape[1] > 1:
        return fit_recipe(parts)
    return by_neighbours(parts, knn(plain(rows, layers), min(NEIGHBOURS, len(rows) - 1))[0])


def encoder(chosen: Settings, progress: Progress = SILENT) -> Encoder:
    """Build the encoder that the settings name, and say where its weights come from."""
    made = encoders.build(
        chosen.encoder.name, weights=chosen.encoder.weights,
        image_size=chosen.encoder.image_size, seed=chosen.seed,
    )  # fmt: skip
    if made.origin != "from scratch":
        progress.say(f"weights: {made.origin} ({made.licence})")
    return made


def embed(
    run: Run, chosen: Settings, rows: Rows, device: torch.device, workers: int,
    progress: Progress = SILENT,
) -> tuple[Encoder, Space]:  # fmt: skip
    """Compute the features of a run's pictures, fit the whitening and write it to the run."""
    made = encoder(chosen, progress)
    feature_rows, layers = features(
        rows, made, chosen.views, weights_of=chosen.encoder.weights, root=run.image_root,
        seed=chosen.seed, device=device, workers=workers, progress=progress,
    )  # fmt: skip
    with progress.stage("whiten"):
        space = Space(feature_rows, layers, _fit(feature_rows, layers))
    space.save(run.path / "features.safetensors")
    return made, space


def features(
    rows: Rows,
    encoder: Encoder,
    recipe: Views,
    *,
    weights_of: str,
    root: Path,
    seed: int,
    device: torch.device,
    count: int | None = None,
    workers: int = 2,
    progress: Progress = SILENT,
) -> tuple[Rows, dict[str, int]]:
    """Embed each picture once clean and V times changed by `recipe`; what is known is kept.

    rows: N squares. weights_of: the encoder's weights as the settings name them.
    count: V, `recipe.cached` if left out.
    Returns (N, 1 + V, Σ d) float16 and the name and width of each layer.
    """
    net = prepared(encoder, device)
    side = encoder.image_size
    count = recipe.cached if count is None else count
    with torch.inference_mode():
        nothing = torch.zeros(1, 3, side, side, device=device)
        layers = {name: tap.shape[1] for name, tap in net.taps(nothing).items()}
    digest = weights.digest(Path(weights_of)) if Path(weights_of).is_file() else weights_of
    key = (
        root, encoder.name, digest, side, rows.array.shape[1:], net.precision, seed,
        recipe.model_dump_json() if count else "",
    )  # fmt: skip
    shape = (1 + count, sum(layers.values()))
    with RowStore.opened("features", key, shape, "<f2") as store:
        new = [i for i, file in enumerate(rows.files) if store.known(file) is None]
        if new:
            store.check_space(len(new))
            with progress.stage("embed", total=len(new), unit="images") as stage:
                made = _embedded(rows, new, net, recipe, count, seed, device, workers)
                store.append(_counted(made, stage))
        row = np.array([store.known(file) for file in rows.files], dtype=np.int64)
        return Rows(rows.files, row, store.array()), layers


def _counted(made: Iterator, stage: object) -> Iterator[tuple[ImageFile, np.ndarray]]:
    for pair in made:
        yield pair
        stage.advance()  # type: ignore[attr-defined]


def _embedded(
    rows: Rows, new: list[int], net: Encoder, recipe: Views, count: int, seed: int,
    device: torch.device, workers: int,
) -> Iterator[tuple[ImageFile, np.ndarray]]:  # fmt: skip
    side = net.image_size

    def make(index: np.ndarray) -> tuple[np.ndarray, Tensor]:
        squares = rows[index]
        clean = pictures.resize(squares, side)[:, None]
        changed = np.empty((len(index), count, side, side, 3), np.uint8)
        for at, i in enumerate(index if count else []):
            # Drawn from the picture's name, so that it does not depend on the others.
            drawn = pictures.draw(recipe, count, stream(seed, "cached", rows.files[i].name))
            repeated = np.broadcast_to(squares[at], (count, *squares[at].shape))
            changed[at] = maker(recipe)(repeated, drawn, np.arange(count), side)
        both = np.concatenate([clean, changed], axis=1)
        return index, pictures.to_tensor(both.reshape(-1, side, side, 3))

    batches = [np.array(new[at : at + BATCH]) for at in range(0, len(new), BATCH)]
    with torch.inference_mode():
        for index, images in ahead(make, batches, workers):
            size = CPU_BATCH if device.type == "cpu" else len(images)
            parts = [
                torch.cat([tap.float() for tap in net.taps(part.to(device)).values()], dim=1)
                for part in images.split(size)
            ]
            found = torch.cat(parts).cpu().to(torch.float16).numpy()
            block = found.reshape(len(index), 1 + count, -1)
            for i, row in zip(index, block):
                yield rows.files[i], row
