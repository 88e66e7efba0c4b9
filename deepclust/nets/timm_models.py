"""Any other encoder: one of timm's models by name. timm takes seconds to import, so only then."""

from __future__ import annotations

import socket
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import timm
from torch import Tensor

from deepclust.errors import DataError, UsageError
from deepclust.nets.encoders import ENCODERS, Encoder, fit_net
from deepclust.weights import load

REACH_SECONDS = 5
HUB_FILE = "model.safetensors"


def make(name: str) -> Encoder:
    """Make timm's model called `name`, without its classifier, with random weights.

    Raises UsageError, with the nearest names, if there is none.
    """
    if not timm.is_model(name):
        close = get_close_matches(name, [*ENCODERS, *timm.list_models()], n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"known: {', '.join(ENCODERS)}, and every model of timm"
        )
        raise UsageError(f"unknown encoder {name!r}", hint=hint)
    try:
        net: Any = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:  # a tag after the dot that timm does not know
        raise UsageError(f"encoder {name}: {error}") from error
    about = net.pretrained_cfg
    return Encoder(
        net,
        name=name,
        width=getattr(net, "head_hidden_size", None) or net.num_features,
        image_size=about["input_size"][-1],
        mean=about["mean"],
        std=about["std"],
        layers=_token_layers if hasattr(net, "num_prefix_tokens") else None,
    )


def _token_layers(net: Any, x: Tensor) -> dict[str, Tensor]:
    """head: what the model pools; patches or cls: the mean patch token or the class token."""
    tokens = net.forward_features(x)
    head = net.forward_head(tokens, pre_logits=True)
    prefix = int(net.num_prefix_tokens)
    if tokens.ndim != 3 or not prefix:
        return {"head": head}
    if net.global_pool == "token":
        return {"head": head, "patches": tokens[:, prefix:].mean(dim=1)}
    return {"head": head, "cls": tokens[:, 0]}


def resize(encoder: Encoder, image_size: int) -> None:
    """Make a model of fixed picture size, such as a ViT, take another: its positions are resampled.

    Raises UsageError for a size that it cannot take.
    """
    net: Any = encoder.net
    if not net.pretrained_cfg.get("fixed_input_size"):
        return
    patch = getattr(getattr(net, "patch_embed", None), "patch_size", (1, 1))[0]
    if image_size % patch:
        near = max(round(image_size / patch), 1) * patch
        raise UsageError(
            f"{encoder.name} takes pictures of a multiple of {patch} pixels, not {image_size}",
            hint=f"use {near}",
        )
    if image_size == encoder.image_size:
        return
    try:
        net.set_input_size(img_size=(image_size, image_size))
    except (AttributeError, AssertionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{encoder.name} cannot take pictures of {image_size} pixels",
            hint=f"leave the image size out: its own is {encoder.image_size}",
        ) from error
    encoder.image_size = image_size


def hub(encoder: Encoder) -> None:
    """Fill the encoder with the weights that timm's authors publish (a download)."""
    tensors, path = download(encoder)
    fit_net(encoder, tensors, path=path)


def download(encoder: Encoder) -> tuple[dict[str, Tensor], Path]:
    """Fetch the published weights of the timm model of the same name; set origin and licence.

    Raises DataError at once where there is no network, with how to pass a file instead.
    """
    import huggingface_hub as hf

    about = timm.get_pretrained_cfg(encoder.name)
    source = about.hf_hub_id if about else None
    if about is None or not source:
        raise DataError(f"{encoder.name} has no published weights", hint="use none, or a file")
    file = about.hf_hub_filename or HUB_FILE
    if not isinstance(hf.try_to_load_from_cache(source, file), str):
        _reach(str(hf.constants.ENDPOINT), encoder.name, f"{source}/{file}")
    try:
        path = Path(hf.hf_hub_download(source, file))
    except Exception as error:  # the client has some twenty kinds of failure, none of them ours
        raise _failed(encoder.name, f"{source}/{file}", type(error).__name__) from error
    encoder.origin = f"{source}, published by timm"
    encoder.licence = about.license or "not stated by its authors"
    return load(path)[0], path


def _reach(endpoint: str, name: str, source: str) -> None:
    """Ask once whether the hub answers: its client would try again for most of a minute."""
    host = urlsplit(endpoint)
    if getproxies() or host.hostname is None:
        return
    try:
        socket.create_connection((host.hostname, host.port or 443), REACH_SECONDS).close()
    except OSError as error:
        raise _failed(name, source, f"{host.hostname} does not answer") from error


def _failed(name: str, source: str, why: str) -> DataError:
    return DataError(
        f"cannot download the weights of {name}: {why}",
        hint=f"fetch {source} on another machine, and give its path as the weights",
    )
