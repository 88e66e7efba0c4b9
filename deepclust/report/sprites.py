"""Thumbnails of many pictures in a few sheets, small enough to travel inside one page.

Every thumbnail is drawn anew from pixels, so that no metadata of a picture (place, camera, text)
survives in the page.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image, features

from deepclust.data.images import ImageFile
from deepclust.data.reader import Unreadable, picture_size, read_image
from deepclust.progress import SILENT, Progress

COLUMNS = 16  # thumbnails in a row of a sheet, and rows in a sheet
QUALITIES = (78, 60, 42, 24, 10)
GONE = (128, 128, 128)


@dataclass(frozen=True)
class Thumbnails:
    """Pictures drawn small, each in the top left of a square cell of a sheet.

    side: of a cell in pixels. sheets: (16·side, 16·side, 3) uint8 each, the last one cut to the
    rows in use. cell: (M,) int64; picture i is in cell c mod 256 of sheet c // 256, by rows, where
    c = cell[i].
    shape: (M, 2) float, width and height as shares of the cell. size: (M, 2) int64, pixels of
    the original. light, colour: (M,) float in [0, 1], mean luma and mean HSV saturation.
    hue: (M,) int64, the twelfth of the colour circle with most of the saturation.
    seen: (M,) bool, False where the picture could not be read.
    """

    side: int
    sheets: list[np.ndarray]
    cell: np.ndarray
    shape: np.ndarray
    size: np.ndarray
    light: np.ndarray
    colour: np.ndarray
    hue: np.ndarray
    seen: np.ndarray


Ready = Callable[[ImageFile], "np.ndarray | None"]
"""Gives a picture that was decoded before, stretched to a square (s, s, 3) uint8, if it has it."""


def thumbnails(
    pictures: Sequence[ImageFile | None], side: int, *, order: np.ndarray | None = None,
    ready: Ready | None = None, threads: int = 2, progress: Progress = SILENT,
) -> Thumbnails:  # fmt: skip
    """Draw M pictures at `side`, their shape kept; None, or one that cannot be read, is grey.

    order: (M,) the pictures in the order of their cells: what is looked at together should lie
    in one sheet, because a browser decodes a sheet as a whole. ready: spares decoding.
    """
    m, per = len(pictures), COLUMNS * COLUMNS
    counts = [min(per, m - first) for first in range(0, m, per)]
    pixels = [
        np.full((-(-count // COLUMNS) * side, COLUMNS * side, 3), 255, np.uint8) for count in counts
    ]
    shape, size = np.ones((m, 2)), np.zeros((m, 2), np.int64)
    light, colour = np.zeros(m), np.zeros(m)
    hue, seen = np.zeros(m, np.int64), np.zeros(m, bool)
    cells = np.arange(m)
    if order is not None:
        cells[order] = np.arange(m)
    with (
        progress.stage("draw", total=m, unit="thumbnails") as stage,
        ThreadPoolExecutor(threads) as pool,
    ):
        for i, found in enumerate(pool.map(lambda file: _draw(file, side, ready), pictures)):
            row, column = divmod(int(cells[i]) % per, COLUMNS)
            cell = pixels[int(cells[i]) // per][row * side : (row + 1) * side]
            cell = cell[:, column * side : (column + 1) * side]
            if found is None:
                cell[:] = GONE
            else:
                small, size[i] = found
                width, height = small.size
                cell[:height, :width] = np.asarray(small)
                shape[i] = width / side, height / side
                light[i], colour[i], hue[i] = _tint(small)
                seen[i] = True
            stage.advance()
    return Thumbnails(side, pixels, cells, shape, size, light, colour, hue, seen)


def _draw(
    file: ImageFile | None, side: int, ready: Ready | None
) -> tuple[Image.Image, tuple[int, int]] | None:
    if file is None:
        return None
    try:
        size = picture_size(file.path)
        square = ready(file) if ready is not None else None
        small = read_image(file.path, side=side) if square is None else Image.fromarray(square)
    except Unreadable:
        return None
    scale = side / max(size)
    width, height = (max(1, round(edge * scale)) for edge in size)
    return small.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0), size


def _tint(small: Image.Image) -> tuple[float, float, int]:
    """Return mean luma, mean saturation, and the twelfth of the colour circle with most of it."""
    hsv = np.asarray(small.convert("HSV").resize((16, 16)), np.float64)
    luma = float(np.asarray(small.convert("L")).mean()) / 255
    saturation = hsv[..., 1] * hsv[..., 2]
    twelfth = (hsv[..., 0] * 12 / 256).astype(np.int64)
    weight = np.bincount(twelfth.reshape(-1), weights=saturation.reshape(-1), minlength=12)
    return luma, float(hsv[..., 1].mean()) / 255, int(weight.argmax())


def encode(sheets: Sequence[np.ndarray], budget: int) -> list[str]:
    """Return the sheets as data URIs that take `budget` characters in all.

    The best quality that fits is taken; WebP where Pillow has it, JPEG elsewhere. Where none
    fits, all is drawn at half the side: a page scales sheets, so nothing else changes.
    """
    strips = [sheet[: len(sheet) // 8 or None] for sheet in sheets[:: max(1, len(sheets) // 4)]]
    scale = sum(sheet.size for sheet in sheets) / max(sum(strip.size for strip in strips), 1)
    for quality in QUALITIES:
        if scale * sum(len(_uri(strip, quality)) for strip in strips) <= 1.05 * budget:
            found = [_uri(sheet, quality) for sheet in sheets]
            if sum(map(len, found)) <= budget:
                return found
    halves = [np.asarray(Image.fromarray(sheet).reduce(2)) for sheet in sheets]
    if not halves or halves[0].shape[1] < 2 * COLUMNS:
        return [_uri(sheet, QUALITIES[-1]) for sheet in sheets]
    return encode(halves, budget)


def _uri(sheet: np.ndarray, quality: int) -> str:
    kind = "webp" if features.check("webp") else "jpeg"
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, kind, quality=quality, method=2)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
