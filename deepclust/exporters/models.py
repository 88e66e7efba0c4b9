"""The model of a run: its encoder, and the whole of it as one graph from pictures to clusters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepclust import config, files, frozen, models
from deepclust import weights as weight_files
from deepclust.config import Settings
from deepclust.exporters import Item, Job
from deepclust.methods import find
from deepclust.methods.base import Method
from deepclust.nets.encoders import Encoder
from deepclust.run import Run

ENCODER_FILE = "encoder.safetensors"
COPIED = ("model.safetensors", "features.safetensors", "config.toml")


def settings_of(run: Run) -> Settings:
    """Return the settings that the run was made with."""
    given = config.read_file(run.path / "config.toml")
    name = given.get("method", {}).get("name", "cc")
    return config.settings(find(name).Config, [given])


class Graph(nn.Module):
    """Pictures (n, 3, S, S) float32 in [0, 1] → embedding (n, d), and (n, k) of a cluster head.

    encoder: the one that embeds. method: None for a run that was never trained. whitening: name
    of each layer → its mean and projection, of a frozen encoder.

    Differs: a frozen run averages over views of each picture, and smooths over neighbours; a
    graph that sees one picture alone can do neither.
    """

    def __init__(
        self, encoder: Encoder, method: Method | None, whitening: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.method = method
        # In the order of the fit: columns of the layers stand side by side in it.
        self.layers = [n.removesuffix(".mean") for n in whitening if n.endswith(".mean")]
        for name in self.layers:
            for part in ("mean", "projection"):
                self.register_buffer(f"{name}_{part}", whitening[f"{name}.{part}"].float())

    def features(self, images: Tensor) -> Tensor:
        """What the method takes: pictures as they are, or the whitened features of a frozen net."""
        if not self.layers:
            return images
        taps = self.encoder.taps(images)
        parts = []
        for name in self.layers:
            mean, projection = (getattr(self, f"{name}_{p}") for p in ("mean", "projection"))
            rows = F.normalize(taps[name].float(), dim=1) - mean
            parts.append(F.normalize(rows @ projection, dim=1))
        return F.normalize(torch.cat(parts, dim=1), dim=1)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x = self.features(images)
        if self.method is None:
            return (x,)
        soft = self.method.assign(x)
        embedding = self.method.embed(x)
        return (embedding,) if soft is None else (embedding, soft)


def graph(run: Run) -> Graph:
    """Return the model of a run in eval mode on the CPU, in float32.

    Raises CheckpointError if its weights are missing or damaged.
    """
    chosen = settings_of(run)
    trained = run.info.get("settings", {}).get("method") != "none"
    method = models.load_model(run) if trained else None
    whitening: Mapping[str, Tensor] = {}
    if chosen.encoder.train == "none":
        encoder = frozen.encoder(chosen)
        tensors, header = weight_files.load(run.path / "features.safetensors")
        layers = [name for name, _ in header["layers"]]
        whitening = {
            f"{n}.{p}": tensors[f"{n}.{p}"] for n in layers for p in ("mean", "projection")
        }
    else:
        assert method is not None
        found = getattr(method, "slow_encoder", method.encoder)  # PCL embeds with its slow copy
        assert isinstance(found, Encoder)
        encoder = found
    encoder.precision = None
    return Graph(encoder, method, whitening).eval()


def weights(job: Job) -> list[Item]:
    """encoder.safetensors under the names of torchvision and timm, the run's files, a model card.

    The encoder is the one that embeds: trained, or frozen and then complete, so that nothing
    has to be found or downloaded elsewhere.
    """
    run = job.run
    made = graph(run)
    encoder = made.encoder
    about = {
        "encoder": encoder.name, "width": encoder.width, "image_size": encoder.image_size,
        "mean": encoder.mean.flatten().tolist(), "std": encoder.std.flatten().tolist(),
        **run.info.get("encoder", {}),
    }  # fmt: skip
    items = [
        Item(ENCODER_FILE, lambda path: weight_files.save(path, encoder.net.state_dict(), about)),
        Item("README.md", lambda path: files.write_text(path, card(job, about))),
    ]
    for name in COPIED:
        source = run.path / name
        if source.exists():
            items.append(Item(name, lambda path, source=source: _copy(source, path)))
    return items


def _copy(source: Path, path: Path) -> None:
    files.write_bytes(path, source.read_bytes())


def card(job: Job, about: dict[str, Any]) -> str:
    """Return the model card: what this is, what it was made of and with, and its licence."""
    run, info = job.run, job.run.info
    chosen = settings_of(run)
    images = info["images"]
    method = info.get("settings", {}).get("method", chosen.method)
    facts = {
        "method": "none: the encoder as it came" if method == "none" else method,
        "encoder": f"{about['encoder']}, {about['width']} columns",
        "weights of the encoder": f"{about.get('origin')} (licence: {about.get('licence')})",
        "pictures": f"{images['used']} used, {images['skipped']} skipped",
        "input": f"RGB in [0, 1], {about['image_size']} × {about['image_size']}, less mean"
        f" {_numbers(about['mean'])}, by std {_numbers(about['std'])}",
        "clusters": _clusters(job),
        "seed": chosen.seed,
        "made with": f"deepclust {info.get('deepclust')}, torch"
        f" {info.get('machine', {}).get('torch')}",
    }
    rows = "\n".join(f"| {key} | {_cell(value)} |" for key, value in facts.items())
    return (
        "---\nlibrary_name: deepclust\npipeline_tag: image-feature-extraction\n"
        "tags:\n- deep-clustering\n- image-clustering\n---\n\n"
        f"# {_cell(run.name)}\n\nAn image encoder from a deepclust run, and what belongs to it.\n\n"
        f"| | |\n|---|---|\n{rows}\n\n"
        "## Files\n\n"
        f"- `{ENCODER_FILE}`: the network without normalisation and classifier; its tensors are\n"
        "  named as timm and torchvision name them. The header holds the table above as JSON.\n"
        "- `model.safetensors`, `features.safetensors`, `config.toml`: as in the run, where they\n"
        "  exist: the method's own weights, the whitening of a frozen encoder, every setting.\n\n"
        "## Use\n\n"
        f"    deepclust pretrain IMAGES --encoder {about['encoder']} --weights {ENCODER_FILE}\n\n"
        "## Limits\n\n"
        "Clusters group pictures that look alike to this encoder. They are not classes until\n"
        "someone has looked at them, and were found on these pictures alone. The licence of the\n"
        "base weights applies to what was made from them.\n"
    )


def _clusters(job: Job) -> str:
    if job.clusters is None:
        return "none made"
    return f"{job.details.get('k_found')} by {job.details.get('algorithm')} ({job.clusters.name})"


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def _cell(value: Any) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return "".join(f"\\{c}" if c in "|<>[]`*_" else c for c in text)
