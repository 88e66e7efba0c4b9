"""Views: how a picture is changed at random so that the network learns what does not matter.

The parameters of a view of all pictures are drawn at once as arrays, from the stream of that
epoch and view, so that a view depends on (seed, epoch, picture, view) alone and not on workers
or batches. They are applied with OpenCV on uint8: crop, turn and flip in one resampling, then
brightness, contrast, saturation, hue and grey as one 3×3 colour matrix, then blur.

Differs from the papers' PIL pipeline: no clamp between the colour steps, hue turns in YIQ and
not in HSV, and the order of the colour steps is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor

from deepclust.config import Views

GREY = np.array([0.299, 0.587, 0.114], np.float32)
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
BLUR_SIDE = 224  # the papers' blur is in pixels of a picture of this side

cv2.setNumThreads(0)  # the loader's own threads are enough, and results must not depend on them


@dataclass(frozen=True)
class Drawn:
    """What is done to each of n pictures to make one view of it.

    box: (n, 4) float32 left, top, width, height in shares of the side. flip: (n, 2) bool,
    horizontally and vertically. angle: (n,) float32 degrees. slant: (n,) float32, how far the
    top moves for a unit of height. colour: (n, 3, 3) float32 for RGB
    columns. lift: (n,) float32, share of the mean grey that contrast adds. tint: (n, 3) float32,
    levels added to each channel. sigma: (n,) float32
    pixels at BLUR_SIDE, 0 where there is no blur.
    """

    box: np.ndarray
    flip: np.ndarray
    angle: np.ndarray
    slant: np.ndarray
    colour: np.ndarray
    lift: np.ndarray
    tint: np.ndarray
    sigma: np.ndarray


def draw(recipe: Views, n: int, stream: np.random.Generator) -> Drawn:
    """Draw one view of each of n pictures."""
    flip = stream.random((n, 2)) < 0.5
    flip &= np.array([recipe.flip, recipe.flip_vertical])
    colour, lift = _colours(recipe, n, stream)
    tinted = stream.random((n, 1)) < recipe.jitter
    tint = stream.uniform(-255, 255, (n, 3)) * recipe.tint * tinted
    blurred = stream.random(n) < recipe.blur
    return Drawn(
        box=_boxes(recipe, n, stream),
        flip=flip,
        angle=stream.uniform(-recipe.rotation, recipe.rotation, n).astype(np.float32),
        slant=stream.uniform(-recipe.shear, recipe.shear, n).astype(np.float32),
        colour=colour,
        lift=lift,
        tint=tint.astype(np.float32),
        sigma=(stream.uniform(0.1, 2.0, n) * blurred).astype(np.float32),
    )


def _boxes(recipe: Views, n: int, stream: np.random.Generator) -> np.ndarray:
    """Random resized crops: area uniform, side ratio log-uniform, ten tries, else the whole."""
    box = np.tile(np.array([0, 0, 1, 1], np.float32), (n, 1))
    low, high = min(recipe.crop_min, recipe.crop_max), recipe.crop_max
    widest = np.log(recipe.crop_ratio)
    open_ = np.ones(n, dtype=bool)
    for _ in range(10):
        area = stream.uniform(low, high, n)
        ratio = np.exp(stream.uniform(-widest, widest, n))
        place = stream.random((n, 2))
        size = np.sqrt(np.stack([area * ratio, area / ratio], axis=1))
        fits = open_ & (size <= 1).all(axis=1)
        box[fits] = np.hstack([place * (1 - size), size])[fits]
        open_ &= ~fits
    return box


def _colours(recipe: Views, n: int, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    def around_one(width: float) -> np.ndarray:
        return stream.uniform(1 - width, 1 + width, n)

    bright, contrast = around_one(recipe.brightness), around_one(recipe.contrast)
    saturation = around_one(recipe.saturation)
    turn = stream.uniform(-recipe.hue, recipe.hue, n) * 2 * np.pi
    still = stream.random(n) >= recipe.jitter
    grey = stream.random(n) < recipe.grey
    bright[still], contrast[still], saturation[still], turn[still] = 1, 1, 1, 0
    saturation[grey] = 0
    # In YIQ saturation scales the plane of I and Q, and hue turns it.
    plane = np.zeros((n, 3, 3))
    plane[:, 0, 0] = 1
    plane[:, 1, 1] = plane[:, 2, 2] = saturation * np.cos(turn)
    plane[:, 2, 1] = saturation * np.sin(turn)
    plane[:, 1, 2] = -plane[:, 2, 1]
    matrix = np.linalg.inv(YIQ) @ plane @ YIQ * (bright * contrast)[:, None, None]
    return matrix.astype(np.float32), ((1 - contrast) * bright).astype(np.float32)


def apply(squares: np.ndarray, drawn: Drawn, index: np.ndarray, side: int) -> np.ndarray:
    """Make the drawn views of some pictures.

    squares: (n, S, S, 3) uint8. index: (n,) int64, their rows in `drawn`.
    Returns (n, side, side, 3) uint8.
    """
    views = np.empty((len(squares), side, side, 3), np.uint8)
    for view, square, i in zip(views, squares, index):
        turn = float(drawn.angle[i]), float(drawn.slant[i])
        picture = _resample(square, drawn.box[i], drawn.flip[i], turn, side)
        lift = float(drawn.lift[i])
        colour = np.empty((3, 4), np.float32)
        colour[:, :3] = drawn.colour[i]
        colour[:, 3] = lift * float(np.dot(cv2.mean(picture)[:3], GREY)) if lift else 0
        colour[:, 3] += drawn.tint[i]
        picture = cv2.transform(picture, colour)
        sigma = float(drawn.sigma[i]) * side / BLUR_SIDE
        if sigma > 0.1:
            picture = cv2.GaussianBlur(picture, (0, 0), sigma)
        view[:] = picture
    return views


def _resample(
    square: np.ndarray, box: np.ndarray, flip: np.ndarray, turned: tuple[float, float], side: int
) -> np.ndarray:
    angle, slant = turned
    size = square.shape[0]
    left, top, width, height = box * size
    if angle == 0 and slant == 0:
        x, y = round(float(left)), round(float(top))
        w = max(1, min(round(float(width)), size - x))
        h = max(1, min(round(float(height)), size - y))
        x, y = min(x, size - w), min(y, size - h)
        shrinks = min(w, h) > 1.5 * side
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        picture = cv2.resize(square[y : y + h, x : x + w], (side, side), interpolation=how)
        if flip.any():
            picture = cv2.flip(picture, -1 if flip.all() else (1 if flip[0] else 0))
        return picture
    # From a place in the view to a place in the picture: scale, mirror, slant, turn, move.
    cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    scale = np.array([width, height]) / side * np.where(flip, -1, 1)
    turn = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, slant], [0, 1]]) * scale
    middle = np.array([left + width / 2, top + height / 2]) - 0.5
    move = middle - turn @ np.full(2, (side - 1) / 2)
    matrix = np.column_stack([turn, move]).astype(np.float32)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(
        square, matrix, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )


def resize(squares: np.ndarray, side: int) -> np.ndarray:
    """Resize squares (n, S, S, 3) uint8 to (n, side, side, 3), unchanged where they fit."""
    if squares.shape[1] == side:
        return squares
    how = cv2.INTER_AREA if squares.shape[1] > side else cv2.INTER_CUBIC
    return np.stack([cv2.resize(square, (side, side), interpolation=how) for square in squares])


def to_tensor(pictures: np.ndarray) -> Tensor:
    """Turn (n, H, W, 3) uint8 into (n, 3, H, W) float32 in [0, 1], channels last in memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2)
    return tensor.to(torch.float32).div_(255)
