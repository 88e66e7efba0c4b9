"""From settings to a model: the encoder, the method on it, and the source of its views.

One function builds it for training, one reads it back from a run. What a frozen encoder sees is
turned into features by `frozen.py`, and the method then learns on those with no encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepclust import config, frozen, weights
from deepclust.config import Settings, Train
from deepclust.data.loaders import Features, Pixels, Source
from deepclust.data.store import Rows
from deepclust.device import has_fast_bf16, torch_stream
from deepclust.errors import CheckpointError
from deepclust.methods import find
from deepclust.methods.base import Facts, Method
from deepclust.nets import encoders, routing
from deepclust.nets.parts import Adapter
from deepclust.progress import SILENT, Progress
from deepclust.run import Run


@dataclass(frozen=True)
class Model:
    """A method and where its views come from.

    train: the settings in force, the batch clamped to the data. header: what model.safetensors
    says of itself. origin: of the encoder's weights, in words.
    """

    method: Method
    source: Source
    train: Train
    header: dict[str, Any]
    origin: dict[str, str]
    space: frozen.Space | None


def build(
    run: Run, chosen: Settings, rows: Rows, device: torch.device, workers: int,
    progress: Progress = SILENT,
) -> Model:  # fmt: skip
    """Build the model that `chosen` describes for N pictures."""
    size = chosen.encoder.image_size or 128
    source: Source
    trunk: nn.Module
    space: frozen.Space | None = None
    if chosen.encoder.train == "none":
        encoder, space = frozen.embed(run, chosen, rows, device, workers, progress)
        source = Features(*space.views(), seed=chosen.seed)
        width = source.rows.shape[1]
        trunk = adapter(width, chosen.seed)
    else:
        encoder = frozen.encoder(chosen, progress)
        if chosen.encoder.train == "last":
            encoder.train_last()
        encoder.precision = precision(chosen.train, device)
        encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        routing.route(encoder)
        source = Pixels(
            rows, chosen.views, size, seed=chosen.seed, workers=workers, device=device
        )  # fmt: skip
        trunk, width = encoder, encoder.width
    origin = {"name": encoder.name, "origin": encoder.origin, "licence": encoder.licence}
    facts = Facts(len(rows), chosen.k, width)
    method = _method(chosen, trunk, facts)
    batch = min(chosen.train.batch_size, len(rows))
    if batch < chosen.train.batch_size:
        progress.say(f"batch: {batch}, all the images there are")
    train = chosen.train.model_copy(update={"batch_size": batch})
    header = {
        "method": chosen.method, "options": chosen.options.model_dump(), "k": chosen.k,
        "encoder": chosen.encoder.name, "image_size": size, "width": width,
        "frozen": chosen.encoder.train == "none", "images": len(rows),
    }  # fmt: skip
    return Model(method, source, train, header, origin, space)


def adapter(width: int, seed: int) -> Adapter:
    """Return the trunk that learns on features of that width."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_stream(seed, "init", "adapter").initial_seed())
        return Adapter(width)


def precision(train: Train, device: torch.device) -> torch.dtype | None:
    """Return the dtype of autocast around the encoder, None for float32."""
    if train.precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else None
    return torch.bfloat16 if train.precision == "bf16" else None


def _method(chosen: Settings, trunk: nn.Module, facts: Facts) -> Method:
    cls = find(chosen.method)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_stream(chosen.seed, "init").initial_seed() % 2**63)
        return cls(trunk, facts, chosen.options)


def load_model(run: Run) -> Method:
    """Return the trained method of a run, in eval mode on the CPU.

    Raises CheckpointError if it is missing, damaged or does not fit.
    """
    path = run.path / "model.safetensors"
    if not path.exists():
        raise CheckpointError(
            f"{run.path} has no trained model", hint=f"deepclust pretrain --resume {run.path}"
        )
    tensors, header = weights.load(path)
    if header.get("kind") != "model":
        raise CheckpointError(f"{path} is not a model of deepclust")
    cls = find(header["method"])
    chosen = config.settings(cls.Config, [config.read_file(run.path / "config.toml")])
    if header["frozen"]:
        trunk: nn.Module = Adapter(header["width"])
    else:
        trunk = encoders.build(header["encoder"], weights="none", image_size=header["image_size"])
    method = _method(chosen, trunk, Facts(header["images"], header["k"], header["width"]))
    weights.fit(method, tensors, path=path)
    return method.eval()


def initialise(method: Method, path: Path, progress: Progress = SILENT) -> None:
    """Take the weights of the encoder, and what else fits, from a run or a file.

    Raises CheckpointError if not even the encoder fits.
    """
    file = path / "model.safetensors" if path.is_dir() else path
    tensors, _ = weights.load(file)
    own = method.state_dict()
    fitting = {n: t for n, t in tensors.items() if n in own and t.shape == own[n].shape}
    missing = [n for n in own if n.startswith("encoder.") and n not in fitting]
    if missing:
        raise CheckpointError(
            f"{file} does not fit the encoder, such as {', '.join(missing[:3])}",
            hint="name the encoder it was trained with, such as --encoder resnet18-small",
        )
    if not fitting:
        raise CheckpointError(f"{file} has no weights that fit this method")
    method.load_state_dict({**own, **fitting})
    progress.say(f"weights: {len(fitting)} of {len(own)} tensors from {file}")
