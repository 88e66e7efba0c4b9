"""Views: how a picture is changed at random so that the network learns what does not matter.

The parameters of a view of all pictures are drawn at once as arrays, from the stream of that
epoch and view, so that a view depends on (seed, epoch, picture, view) alone and not on workers
or batches. They are applied with OpenCV on uint8: crop, turn and flip in one resampling, then
brightness, contrast, saturation, hue and grey as one 3×3 colour matrix, then blur. That takes the
place of torchvision's transforms on PIL pictures, at 15 to 30 times their speed from decoded
squares (`benchmarks/run.py`, row 4).

Differs from the papers' PIL pipeline: no clamp between the colour steps, hue turns in YIQ and
not in HSV, the order of the colour steps is fixed, and blurs from 0.7 pixels up are two box blurs
of the same width. `exact.py` has the papers' order of operations on the same parameters; a test
shows that mean and covariance of the views agree. `device_views.py` is this file for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor

from deepclust.config import Views

RED, GREEN, BLUE = 0.299, 0.587, 0.114  # in the grey of a colour
YIQ = np.array([[RED, GREEN, BLUE], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
BLUR_SIDE = 224  # the papers' blur is in pixels of a picture of this side
FLIPS = {1: 1, 2: 0, 3: -1}  # OpenCV's names for a flip of left and right, top and bottom, both
BOXES_FROM = 0.7
BOXES = {
    pair: ((pair[0] ** 2 + pair[1] ** 2 - 2) / 12) ** 0.5
    for pair in ((3, 1), (3, 3), (5, 1), (5, 3), (5, 5), (7, 3), (7, 5), (7, 7), (9, 7), (9, 9))
}
"""Widths of two boxes and their σ, from 0.8 to 3.7 pixels: pictures of up to 400 pixels."""

cv2.setNumThreads(0)  # the loader's own threads are enough, and results must not depend on them


@dataclass(frozen=True)
class Drawn:
    """What is done to each of n pictures to make one view of it.

    box: (n, 4) float32 left, top, width, height in shares of the side. flip: (n, 2) bool,
    horizontally and vertically. angle: (n,) float32 degrees. slant: (n,) float32, how far the
    top moves for a unit of height. colour: (n, 3, 3) float32 for RGB
    columns. lift: (n,) float32, share of the mean grey that contrast adds. tint: (n, 3) float32,
    levels added to each channel. sigma: (n,) float32
    pixels at BLUR_SIDE, 0 where there is no blur. jitter: (n, 4) float32, what colour and lift are
    made of: brightness, contrast and saturation as factors, hue in turns. grey: (n,) bool.
    order: (n, 4) int64, of the steps of colour, where they are taken one by one.
    """

    box: np.ndarray
    flip: np.ndarray
    angle: np.ndarray
    slant: np.ndarray
    colour: np.ndarray
    lift: np.ndarray
    tint: np.ndarray
    sigma: np.ndarray
    jitter: np.ndarray
    grey: np.ndarray
    order: np.ndarray


def draw(recipe: Views, n: int, stream: np.random.Generator) -> Drawn:
    """Draw one view of each of n pictures."""
    flip = stream.random((n, 2)) < 0.5
    flip &= np.array([recipe.flip, recipe.flip_vertical])
    jitter, grey = _jitter(recipe, n, stream)
    colour, lift = _colours(jitter, grey)
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
        jitter=jitter.astype(np.float32),
        grey=grey,
        order=np.argsort(stream.random((n, 4)), axis=1),
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


def _jitter(recipe: Views, n: int, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    def around_one(width: float) -> np.ndarray:
        return stream.uniform(1 - width, 1 + width, n)

    bright, contrast = around_one(recipe.brightness), around_one(recipe.contrast)
    saturation = around_one(recipe.saturation)
    turn = stream.uniform(-recipe.hue, recipe.hue, n)
    still = stream.random(n) >= recipe.jitter
    grey = stream.random(n) < recipe.grey
    bright[still], contrast[still], saturation[still], turn[still] = 1, 1, 1, 0
    return np.stack([bright, contrast, saturation, turn], axis=1), grey


def _colours(jitter: np.ndarray, grey: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the colour matrix (n, 3, 3) and lift (n,) that all steps of colour come to."""
    bright, contrast, saturation, turn = jitter.T
    saturation, turn = np.where(grey, 0, saturation), turn * 2 * np.pi
    # In YIQ saturation scales the plane of I and Q, and hue turns it.
    plane = np.zeros((len(jitter), 3, 3))
    plane[:, 0, 0] = 1
    plane[:, 1, 1] = plane[:, 2, 2] = saturation * np.cos(turn)
    plane[:, 2, 1] = saturation * np.sin(turn)
    plane[:, 1, 2] = -plane[:, 2, 1]
    matrix = np.linalg.inv(YIQ) @ plane @ YIQ * (bright * contrast)[:, None, None]
    return matrix.astype(np.float32), ((1 - contrast) * bright).astype(np.float32)


def apply(
    squares: np.ndarray, drawn: Drawn, index: np.ndarray, side: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Make the drawn views of some pictures.

    squares: (n, S, S, 3) uint8. index: (n,) int64, their rows in `drawn`. out: where to put them.
    Returns (n, side, side, 3) uint8.
    """
    views = np.empty((len(squares), side, side, 3), np.uint8) if out is None else out
    # All that numpy can do for the batch at once: on small pictures its calls are most of the time.
    size = squares.shape[1]
    box = drawn.box[index] * size
    colour = np.concatenate([drawn.colour[index], drawn.tint[index][:, :, None]], axis=2)
    lift, sigma = drawn.lift[index].tolist(), (drawn.sigma[index] * side / BLUR_SIDE).tolist()
    turned = np.flatnonzero((drawn.angle[index] != 0) | (drawn.slant[index] != 0))
    turns = {int(i): turn(drawn, int(index[i]), box[i], side) for i in turned}
    flip = (drawn.flip[index] @ np.array([1, 2])).tolist()
    for i, (view, square, cut) in enumerate(zip(views, squares, _cuts(box, size))):
        if i in turns:
            picture = cv2.warpAffine(
                square, turns[i], (side, side), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REPLICATE,
            )  # fmt: skip
        else:
            left, top, right, bottom = cut
            shrinks = min(right - left, bottom - top) > 1.5 * side
            how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
            picture = cv2.resize(square[top:bottom, left:right], (side, side), interpolation=how)
            if flip[i]:
                picture = cv2.flip(picture, FLIPS[flip[i]])
        if lift[i]:
            red, green, blue, _ = cv2.mean(picture)
            colour[i, :, 3] += lift[i] * (RED * red + GREEN * green + BLUE * blue)
        cv2.transform(picture, colour[i], dst=view)
        if sigma[i] > 0.1:
            _blur(view, sigma[i])
    return views


def _cuts(box: np.ndarray, size: int) -> list[list[int]]:
    """Return left, top, right and bottom of boxes (n, 4) in whole pixels, one at least."""
    start = np.rint(box[:, :2]).astype(int)
    length = np.maximum(np.minimum(np.rint(box[:, 2:]).astype(int), size - start), 1)
    start = np.minimum(start, size - length)
    return np.hstack([start, start + length]).tolist()


def turn(drawn: Drawn, i: int, box: np.ndarray, side: int) -> np.ndarray:
    """Return (2, 3), from a place in the view to one in the square: scale, mirror, slant, turn."""
    left, top, width, height = box
    angle, slant = np.deg2rad(float(drawn.angle[i])), float(drawn.slant[i])
    cos, sin = np.cos(angle), np.sin(angle)
    scale = np.array([width, height]) / side * np.where(drawn.flip[i], -1, 1)
    linear = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, slant], [0, 1]]) * scale
    middle = np.array([left + width / 2, top + height / 2]) - 0.5
    move = middle - linear @ np.full(2, (side - 1) / 2)
    return np.column_stack([linear, move]).astype(np.float32)


def _blur(view: np.ndarray, sigma: float) -> None:
    """Blur a picture in place, from BOXES_FROM up by two boxes: their time is that of their width.

    A box of w pixels has the variance (w² − 1) / 12, two boxes the sum of theirs.
    """
    if sigma < BOXES_FROM:
        cv2.GaussianBlur(view, (0, 0), sigma, dst=view)
        return
    for width in min(BOXES, key=lambda pair: abs(BOXES[pair] - sigma)):
        cv2.blur(view, (width, width), dst=view)


def resize(squares: np.ndarray, side: int) -> np.ndarray:
    """Resize squares (n, S, S, 3) uint8 to (n, side, side, 3), unchanged where they fit."""
    if squares.shape[1] == side:
        return squares
    how = cv2.INTER_AREA if squares.shape[1] > side else cv2.INTER_CUBIC
    return np.stack([cv2.resize(square, (side, side), interpolation=how) for square in squares])


def to_tensor(pictures: np.ndarray, out: np.ndarray | None = None) -> Tensor:
    """Turn (n, H, W, 3) uint8 into (n, 3, H, W) float32 in [0, 1], channels last in memory.

    out: (n, H, W, 3) float32 to use the memory of.
    """
    values = np.empty(pictures.shape, np.float32) if out is None else out
    np.divide(pictures, np.float32(255), out=values)
    return torch.from_numpy(values).permute(0, 3, 1, 2)
