"""The papers' views: PIL pictures, one step after the other, as torchvision computes them.

For `views.exact=true` and to test `views.py` against; the parameters are the same ones. Brightness,
contrast, saturation and hue come in an order of chance and are cut to 0..255 after each step, hue
turns in HSV, and the blur is a Gaussian. Slower by far than `views.py`.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from PIL import Image
from torchvision.transforms import functional as F

from deepclust.data.views import BLUR_SIDE, Drawn, turn

STEPS: tuple[Any, ...] = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def apply(
    squares: np.ndarray, drawn: Drawn, index: np.ndarray, side: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Make the drawn views of some pictures: shapes as in `views.apply`."""
    views = np.empty((len(squares), side, side, 3), np.uint8) if out is None else out
    for view, square, i in zip(views, squares, index):
        picture: Any = _crop(Image.fromarray(square), drawn, i, side)
        amount = drawn.jitter[i].tolist()
        amount[3] = -amount[3]  # from red to green in HSV, from red to blue in YIQ
        for step in drawn.order[i]:
            if amount[step] != (0 if step == 3 else 1):
                picture = STEPS[step](picture, amount[step])
        if drawn.grey[i]:
            picture = F.to_grayscale(picture, num_output_channels=3)
        view[:] = np.clip(np.asarray(picture) + np.rint(drawn.tint[i]), 0, 255)
        sigma = float(drawn.sigma[i]) * side / BLUR_SIDE
        if sigma > 0.1:
            view[:] = cv2.GaussianBlur(view, (0, 0), sigma)
    return views


def _crop(picture: Any, drawn: Drawn, i: int, side: int) -> Image.Image:
    size, box = picture.width, drawn.box[i] * picture.width
    if drawn.angle[i] or drawn.slant[i]:
        matrix = turn(drawn, i, box, side)
        # PIL counts from the corner of a pixel, and brings in black from outside: so the edges are
        # repeated around the square.
        matrix[:, 2] += size + 0.5 - matrix[:, :2].sum(axis=1) / 2
        wide = Image.fromarray(
            np.pad(np.asarray(picture), ((size, size), (size, size), (0, 0)), "edge")
        )
        how = Image.Transform.AFFINE, tuple(matrix.flatten().tolist()), Image.Resampling.BILINEAR
        return wide.transform((side, side), *how)
    left, top, width, height = (int(v) for v in np.rint(box))
    picture = F.resized_crop(picture, top, left, max(height, 1), max(width, 1), [side, side])
    for flip, mirror in zip(drawn.flip[i], (F.hflip, F.vflip)):
        picture = mirror(picture) if flip else picture
    return picture
