"""Draw folders of pictures to measure on: smooth noise with edges, as heavy as photographs."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from PIL import Image


def draw(folder: Path, count: int, width: int, height: int, kind: str = "JPEG") -> Path:
    """Draw `count` pictures into a class folder of `folder`, as ImageFolder wants it."""
    place = folder / "all"
    place.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    for i in range(count):
        picture = np.zeros((height, width, 3), np.float32)
        for cells in (2, 5, 16, 64):
            rough = noise.normal(0, 60 / cells**0.6, (cells, cells, 3)).astype(np.float32)
            picture += cv2.resize(rough, (width, height), interpolation=cv2.INTER_CUBIC)
        for _ in range(4):
            (x, y), size = noise.random(2), noise.uniform(0.1, 0.4)
            colour = noise.uniform(0, 255, 3).tolist()
            cv2.circle(
                picture, (int(x * width), int(y * height)), int(size * height / 2), colour, -1
            )
        picture += 110 + noise.normal(0, 6, picture.shape)
        options = {"quality": 90} if kind == "JPEG" else {}
        name = place / f"{i:05d}.{'jpg' if kind == 'JPEG' else 'png'}"
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(name, kind, **options)
    return folder
