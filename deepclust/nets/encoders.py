"""Encoders by name: a network, the normalisation it wants, and where its weights come from.

An encoder takes pictures as they are, in [0, 1], and normalises them itself, so that nothing
else has to know which network it feeds. `ENCODERS` is a static table: nothing is imported
before an encoder is asked for. Every other name is one of timm's models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepclust.device import torch_stream
from deepclust.errors import CheckpointError, UsageError
from deepclust.weights import fit, load

ENCODERS = {
    "lite0": ("deepclust.nets.lite0:make", "EfficientNet-Lite0, ImageNet weights packaged"),
    "resnet8": ("deepclust.nets.resnet:make", "small residual net for pictures up to 64 pixels"),
    "resnet18": ("deepclust.nets.resnet:make", "ResNet-18 with the ImageNet stem"),
    "resnet34": ("deepclust.nets.resnet:make", "ResNet-34 with the ImageNet stem"),
    "resnet50": ("deepclust.nets.resnet:make", "ResNet-50 with the ImageNet stem"),
    "resnet18-small": ("deepclust.nets.resnet:make", "ResNet-18 for pictures up to 64 pixels"),
    "resnet34-small": ("deepclust.nets.resnet:make", "ResNet-34 for pictures up to 64 pixels"),
    "resnet50-small": ("deepclust.nets.resnet:make", "ResNet-50 for pictures up to 64 pixels"),
}
OTHERS = "deepclust.nets.timm_models:make"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SMALL_PICTURES = 40
WEIGHTS = "none (from scratch), packaged (lite0), hub (a download) or a file"
WRAPPINGS = ("encoder.", "backbone.", "encoder_q.")
CLASSIFIERS = ("fc", "head", "heads", "classifier")


class Encoder(nn.Module):
    """Pictures in, features out.

    net: maps normalised pictures (n, 3, H, W) to features (n, width).
    image_size: the side in pixels that it works well at.
    mean, std: of each channel, for pictures in [0, 1].
    origin, licence: of the weights, in words.
    precision: dtype of autocast around the network, None for float32.
    layers: maps (net, normalised pictures) to several layers by name, for `taps`.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        name: str,
        width: int,
        image_size: int,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        licence: str = "your own: trained from scratch",
        layers: Callable[[nn.Module, Tensor], dict[str, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.name = name
        self.width = width
        self.image_size = image_size
        self.origin = "from scratch"
        self.licence = licence
        self.layers = layers
        self.precision: torch.dtype | None = None
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1))

    def normalise(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, width) of pictures (n, 3, H, W) float32 in [0, 1]."""
        with self._autocast(images):
            return self.net(self.normalise(images))

    def taps(self, images: Tensor) -> dict[str, Tensor]:
        """Return several layers by name, each pooled to (n, its width); "head" is `forward`."""
        if self.layers is None:
            return {"head": self(images)}
        with self._autocast(images):
            return self.layers(self.net, self.normalise(images))

    def _autocast(self, images: Tensor) -> torch.autocast:
        kind = images.device.type
        return torch.autocast(kind, self.precision, enabled=self.precision is not None)

    def train_last(self) -> None:
        """Freeze all but the last third of the parameter tensors, which are its last stages."""
        own = list(self.net.parameters())
        for parameter in own[: len(own) * 2 // 3]:
            parameter.requires_grad_(False)


def quarters(maps: Tensor) -> Tensor:
    """Average maps (n, c, h, w) over their 2 × 2 quarters: (n, 4c)."""
    return F.adaptive_avg_pool2d(maps, 2).flatten(1)


def auto(median_side: int, grey: bool) -> tuple[str, str]:
    """Return the encoder and its weights that suit pictures whose longer side is `median_side`.

    grey: whether nearly all of them are without colour. On handwritten digits of 28 pixels a
    small net trained on the folder itself found the better clusters; on small photographs in
    colour the packaged one did, by far.
    """
    small = median_side <= SMALL_PICTURES and grey
    return ("resnet8", "none") if small else ("lite0", "packaged")


def build(
    name: str, *, weights: str = "none", image_size: int | None = None, seed: int = 0
) -> Encoder:
    """Make the encoder called `name` and fill it with weights.

    weights: none (random, from `seed`), packaged, hub (downloads) or the path of a file; the
        classifier of a full classification network is left out.
    image_size: side in pixels that it will be used at; its own if left out.
    Raises UsageError for an unknown name or a size it cannot take, CheckpointError for weights
    that do not fit, DataError where a download fails.
    """
    if image_size is not None and image_size < 8:
        raise UsageError(f"an image size of {image_size} is too small", hint="8 pixels at least")
    door = import_module((ENCODERS[name][0] if name in ENCODERS else OTHERS).partition(":")[0])
    with torch.random.fork_rng(devices=[]):
        # torch's and timm's layers draw from the global stream when they are made.
        torch.default_generator.manual_seed(torch_stream(seed, "init", "encoder").initial_seed())
        encoder: Encoder = door.make(name)
    if weights == "packaged":
        _only(encoder, hasattr(door, "packaged"), "has no packaged weights")
        door.packaged(encoder)
    elif weights == "hub":
        _only(encoder, hasattr(door, "hub") and not name.endswith("-small"), "is not on the hub")
        door.hub(encoder)
    elif weights != "none":
        from_file(encoder, Path(weights).expanduser(), getattr(door, "resize", None))
    if image_size is not None:
        if hasattr(door, "resize"):
            door.resize(encoder, image_size)
        encoder.image_size = image_size
    return encoder


def _only(encoder: Encoder, possible: bool, fact: str) -> None:
    if not possible:
        raise UsageError(f"{encoder.name} {fact}", hint=f"weights can be {WEIGHTS}")


def from_file(
    encoder: Encoder, path: Path, resize: Callable[[Encoder, int], None] | None = None
) -> None:
    """Fill `encoder` from a file: one of ours, or of the network alone, with or without classifier.

    resize: makes a network of fixed picture size take the one that a file of ours was made at.
    Raises CheckpointError if the file is damaged or does not fit.
    """
    if not path.exists():
        raise CheckpointError(f"no weights at {path}", hint=f"weights can be {WEIGHTS}")
    tensors, header = load(path)
    for wrapping in WRAPPINGS:
        inside = {n[len(wrapping) :]: t for n, t in tensors.items() if n.startswith(wrapping)}
        tensors = inside or tensors
    if any(name.startswith("net.") for name in tensors):
        if resize is not None and header.get("image_size"):
            resize(encoder, int(header["image_size"]))
        fit(encoder, tensors, path=path)
    else:
        fit_net(encoder, tensors, path=path)
    encoder.origin = str(header.get("origin") or f"weights from {path.name}")
    encoder.licence = str(header.get("licence") or f"as for {path.name}")


def fit_net(encoder: Encoder, tensors: dict[str, Tensor], *, path: Path) -> None:
    """Fill the network alone; keys of a classifier that it does not have are left out."""
    own = encoder.net.state_dict()
    kept = {n: t for n, t in tensors.items() if n in own or n.split(".")[0] not in CLASSIFIERS}
    fit(encoder.net, kept, path=path)


def kaiming(net: nn.Module) -> nn.Module:
    """Set convolutions to Kaiming normal by fan-out, batch norm to weight 1 and bias 0.

    Source: the initialisation of CC's ResNet; the fan-out of a grouped convolution is counted
    per group. Draws from torch's global stream.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels // module.groups * module.weight[0, 0].numel()
            nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    return net
