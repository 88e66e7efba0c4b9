"""From a look at the pictures to settings without an `auto` in them, and the reasons in words.

What is chosen for a person is said on screen, and any of it can be set by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepclust.config import PRESETS, Settings, settings
from deepclust.data.images import Listing
from deepclust.data.reader import Unreadable, picture_size, read_square
from deepclust.errors import UsageError, nearest
from deepclust.methods.base import Method
from deepclust.nets import encoders

SURVEYED = 200  # pictures looked at
SMALL = 40  # pixels: pictures up to this side are not like photographs to an ImageNet encoder
GREY = 12  # levels: the largest difference of channels in a picture without colour
SEEN = 200_000  # pictures that scratch training shows the network in all, by default
FEATURE_STEPS = 200  # optimiser steps of training on features, by default


@dataclass(frozen=True)
class Survey:
    """What a sample of the pictures looks like.

    side: median of the longer side in pixels. grey: share of pictures without colour.
    """

    side: int
    grey: float


def survey(listing: Listing) -> Survey:
    """Look at up to SURVEYED pictures, evenly spread over the folder."""
    step = max(1, len(listing.files) // SURVEYED)
    sides, grey = [], []
    for file in listing.files[::step]:
        try:
            sides.append(max(picture_size(file.path)))
            square = read_square(file.path, 32).astype(np.int16)
        except Unreadable:
            continue
        grey.append(float(np.ptp(square, axis=2).max()) <= GREY)
    if not sides:
        return Survey(0, 0.0)
    return Survey(int(np.median(sides)), float(np.mean(grey)) if grey else 0.0)


def advice(seen: Survey) -> list[str]:
    """Return a line for folders that a network from scratch does better on (docs/results.md)."""
    if seen.side > SMALL or seen.grey <= 0.9:
        return []
    return [
        f"these pictures are small ({seen.side} px), grey and unlike the photographs that the "
        "encoder knows: deepclust pretrain IMAGES learns from them alone, which on handwritten "
        "digits was better (ACC 0.94 against 0.85) and takes minutes"
    ]


def settle(
    method: type[Method], layers: Sequence[Mapping[str, Any]], seen: Survey, images: int
) -> tuple[Settings, list[str]]:
    """Fill in every `auto`. Returns the settings in force and a line for each choice made.

    layers: what the person gave, later ones first. images: how many there are about.
    Raises UsageError for a value that cannot be.
    """
    asked = settings(method.Config, layers)
    said = []
    encoder, why = _encoder(asked, seen)
    frozen = encoder["train"] == "none"
    said.append(why)
    preset = asked.views.preset
    views: dict[str, Any]
    if preset == "auto":
        if seen.grey > 0.9 and seen.side <= SMALL:
            preset = "letters"
            said.append("views: letters (grey and small: no flip, mild crops, some rotation)")
        else:
            preset = "mild" if frozen else method.preset
            said.append(f"views: {preset}")
    if preset not in PRESETS:
        raise UsageError(
            f"views.preset = {preset!r} is not known", hint=nearest(preset, ["auto", *PRESETS])
        )
    views = {**PRESETS[preset], "preset": preset}
    recipe = dict(method.feature_recipe if frozen else method.recipe)
    own = dict(method.feature_options if frozen else {})
    pinned = {"encoder": encoder, "views": {"preset": preset}}
    done = settings(
        method.Config, [{"method": own, "train": recipe, "views": views}, *layers, pinned]
    )
    train: dict[str, Any] = {}
    if done.train.epochs is None:
        train["epochs"] = _epochs(images, done.train.batch_size, frozen)
    return settings(
        method.Config,
        [{"method": own, "train": recipe, "views": views}, *layers, pinned, {"train": train}],
    ), said


def _encoder(asked: Settings, seen: Survey) -> tuple[dict[str, Any], str]:
    name, weights, train = asked.encoder.name, asked.encoder.weights, asked.encoder.train
    why = ""
    if name == "auto":
        name, chosen = encoders.auto(seen.side, seen.grey > 0.9)
        weights = chosen if weights == "auto" else weights
        why = f" (pictures are about {seen.side} px{', grey' if seen.grey > 0.9 else ''})"
    if weights == "auto":
        weights = "packaged" if name == "lite0" else "none"
    if train == "auto":
        train = "all" if weights == "none" else "none"
    size = asked.encoder.image_size or _image_size(name, weights, seen)
    how = {
        "all": "trained whole", "last": "its last stage trained", "none": "frozen, on its features"
    }[train]  # fmt: skip
    origin = "from scratch" if weights == "none" else f"weights: {weights}"
    line = f"encoder: {name}, {origin}, {how}, at {size} px{why}"
    return {"name": name, "weights": weights, "train": train, "image_size": size}, line


def _image_size(name: str, weights: str, seen: Survey) -> int:
    if name == "lite0":
        return 128
    if name == "resnet8" or name.endswith("-small"):
        return 32 if seen.side <= SMALL else 64
    if name in encoders.ENCODERS and weights == "none":
        return min(224, max(64, 32 * math.ceil(seen.side / 32)))
    return encoders.build(name).image_size


def _epochs(images: int, batch: int, frozen: bool) -> int:
    if frozen:
        steps = max(1, images // batch)
        return max(5, min(50, round(FEATURE_STEPS / steps)))
    return max(20, min(400, round(SEEN / max(images, 1))))
