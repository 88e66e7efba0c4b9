"""Read a picture: the one reader, used by the scan, training, features and thumbnails.

Files come from strangers: a format outside `FORMATS` is never handed to a decoder, the size is
checked before anything is decoded, a pipe is never waited for, and whatever goes wrong becomes
`Unreadable` with one of `REASONS`. Every picture comes out as 8-bit RGB, upright, on white.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image

NOT_ALLOWED, NOT_SUPPORTED = "format not allowed", "format not supported"
LEAVES = "link leaves the folder"
TOO_MANY = "too many pixels"
REASONS = (
    "not an image",
    "truncated",
    "damaged",
    "pixel type",
    TOO_MANY,
    "file too large",
    "not enough memory",
    NOT_ALLOWED,
    NOT_SUPPORTED,
    "no permission",
    "missing",
    "vanished",
    LEAVES,
    "not a regular file",
    "decoder crashed",
)
MAX_PIXELS = 89_478_485
MAX_BYTES = 256 * 2**20
# Decoders that hold several copies of a picture: a pixel of theirs counts as that many.
COPIES = {"WEBP": 4, "AVIF": 3}
BAND = 2**20  # pixels
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF")
FITS = ("auto", "stretch", "pad", "crop")
MAGIC = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "TIFF"),
    (0, b"MM\0+", "TIFF"),
    (8, b"WEBP", "WEBP"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftypavis", "AVIF"),
    (4, b"ftyp", NOT_SUPPORTED),
    (0, b"\xff\x0a", NOT_SUPPORTED),
    (4, b"JXL \r\n", NOT_SUPPORTED),
    (4, b"jP  \r\n", NOT_SUPPORTED),
    (0, b"\xff\x4f\xff\x51", NOT_SUPPORTED),
    (0, b"<svg", NOT_SUPPORTED),
    (0, b"%!PS", NOT_ALLOWED),
    (0, b"\xc5\xd0\xd3\xc6", NOT_ALLOWED),
    (0, b"%PDF", NOT_ALLOWED),
    (0, b"8BPS", NOT_ALLOWED),
    (0, b"SIMPLE  =", NOT_ALLOWED),
    (0, b"PK\x03\x04", NOT_ALLOWED),
    (0, b"\x80\x02", NOT_ALLOWED),
    (0, b"\x80\x04", NOT_ALLOWED),
)
END = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b";"}
OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Unreadable(Exception):
    """A file that gives no picture; `reason` is one of `REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def sniff(head: bytes) -> str | None:
    """Tell a file's kind from its first 64 bytes: one of `FORMATS`, a reason, or None."""
    for offset, magic, kind in MAGIC:
        if head.startswith(magic, offset):
            if kind == NOT_SUPPORTED and b"avif" in head[8:]:
                return "AVIF"  # the brand may stand among the compatible ones
            return kind
    if head[:2] == b"BM" and head[14:18] in {
        bytes((n, 0, 0, 0)) for n in (12, 40, 52, 56, 108, 124)
    }:
        return "BMP"
    return "PPM" if re.match(rb"P[1-6]\s+[\d#]", head) else None


def head_of(path: str | Path, size: int = 64) -> bytes:
    """Return a file's first bytes, or none if it cannot be opened."""
    try:
        fd = os.open(path, OPEN)
        try:
            return os.read(fd, size)
        finally:
            os.close(fd)
    except OSError:
        return b""


def read_image(path: Path, *, side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the first frame of a picture as RGB, upright by its EXIF orientation, alpha on white.

    side: the picture will be shrunk to this many pixels, so that a large one may come out smaller
    than it is, by a whole factor, its shorter side at least 2·side (the reduction is a box average,
    on JPEG a scaled inverse DCT; what follows is then as good as from the full picture).
    max_pixels: a picture with more is refused from its header; a pixel of WebP counts as four and
    one of AVIF as three, as their decoders need so much more memory.
    16-bit grey is scaled by its container; 32-bit and float pixels are scaled by 1, 255 or 65535 if
    all lie between 0 and that, else from their smallest to their largest.
    The result's `info` holds `transparent`, True if any pixel was not opaque, and no metadata.

    Raises Unreadable.
    """
    try:
        with _regular(path) as file:
            image = _open(file, max_pixels)
            if side is not None and image.format in ("JPEG", "MPO"):
                image.draft(None, (2 * side, 2 * side))
            image.load()
            turn = TURNS.get(_orientation(image))
            picture = _to_rgb(image, max(1, min(image.size) // (2 * side)) if side else 1)
    except Exception as error:  # decoders raise OSError, ValueError, SyntaxError, RuntimeError, …
        raise Unreadable(_reason(error, path)) from error
    if turn is None:
        return picture
    turned = picture.transpose(turn)
    turned.info = picture.info
    return turned


def read_square(
    path: Path, side: int, *, fit: str = "auto", max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """Return a picture as (side, side, 3) uint8 RGB, resampled with Pillow's antialiased bicubic.

    fit: "stretch" ignores the shape, "pad" keeps all of it on white, "crop" keeps its middle
    square; "auto" pads a picture that has transparency, as it shows an object on nothing, and
    stretches others.

    Raises Unreadable.
    """
    if fit not in FITS:
        raise ValueError(f"fit must be one of {', '.join(FITS)}, not {fit!r}")
    image = read_image(path, side=side, max_pixels=max_pixels)
    width, height = image.size
    if fit == "pad" or (fit == "auto" and image.info["transparent"]):
        scale = side / max(width, height)
        w, h = max(1, round(width * scale)), max(1, round(height * scale))
        square = Image.new("RGB", (side, side), "white")
        square.paste(
            image.resize((w, h), Image.Resampling.BICUBIC), ((side - w) // 2, (side - h) // 2)
        )
        return np.array(square)
    box = None
    if fit == "crop":
        edge = min(width, height)
        left, top = (width - edge) / 2, (height - edge) / 2
        box = (left, top, left + edge, top + edge)
    return np.array(image.resize((side, side), Image.Resampling.BICUBIC, box=box))


def picture_size(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return (width, height) of a picture when upright, from its header alone.

    Raises Unreadable; a picture with a good header may still fail to decode.
    """
    try:
        with _regular(path) as file:
            image = _open(file, max_pixels)
            width, height = image.size
            turned = image.format != "TIFF" and _orientation(image) >= 5  # TIFF does so by itself
    except Exception as error:
        raise Unreadable(_reason(error, path)) from error
    return (height, width) if turned else (width, height)


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_header = threading.Lock()


@contextmanager
def _strict(max_pixels: int) -> Iterator[None]:
    """Make Pillow refuse what it only warns of, too many pixels, and ignore its other warnings.

    Limit and filters belong to the whole process, so only one thread reads a header at a time.
    """
    with _header, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
        usual, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = usual


@contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file of a bearable size, without waiting for anything."""
    fd = os.open(path, OPEN)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Unreadable("not a regular file")
        if info.st_size > MAX_BYTES:
            raise Unreadable("file too large")
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(fd)


def _open(file: BinaryIO, max_pixels: int) -> Image.Image:
    with _strict(max_pixels):
        image = Image.open(file, formats=FORMATS)
    if image.width * image.height * COPIES.get(image.format or "", 1) > max_pixels:
        raise Unreadable(TOO_MANY)
    return image


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 0 if there is none; rubbish in the EXIF data is no error."""
    with _strict(MAX_PIXELS):
        try:
            # The base class' own: PNG's would decode the picture to look behind it.
            value = Image.Image.getexif(image).get(ExifTags.Base.Orientation)
        except Exception:
            return 0
    return value if isinstance(value, int) and value in TURNS else 0


def _to_rgb(image: Image.Image, factor: int) -> Image.Image:
    """Convert to 8-bit RGB on white and shrink by a whole factor, in bands of rows.

    Bands keep a picture of the largest size allowed within 400 MB: only the decoded picture is
    ever whole, not its copies.
    """
    clear = False
    if image.mode == "RGB" and not image.has_transparency_data:
        picture = image.reduce(factor) if factor > 1 else image.copy()
    else:
        scale = _range(image)
        picture = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
        for top, band in _bands(image, factor):
            flat, alpha = _flat(band, scale)
            clear = clear or alpha
            picture.paste(flat.reduce(factor) if factor > 1 else flat, (0, top // factor))
    picture.info = {"transparent": clear}
    return picture


def _bands(image: Image.Image, factor: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """Yield bands of about `BAND` pixels with their first row, which is a multiple of factor."""
    rows = factor * max(1, BAND // (image.width * factor))
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _range(image: Image.Image) -> tuple[float, float]:
    """Return the pixel values that become black and white."""
    if image.mode.startswith("I;16"):
        return 0, 65535
    if image.mode not in ("I", "F"):
        return 0, 255
    low, high = np.inf, -np.inf
    for _, band in _bands(image):
        values = np.asarray(band)
        values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, values.min()), max(high, values.max())
    if low > high:
        raise Unreadable("pixel type")
    for top in (1, 255, 65535):
        if low >= 0 and high <= top:
            return 0, top
    return float(low), float(high) if high > low else float(low) + 1


def _flat(band: Image.Image, scale: tuple[float, float]) -> tuple[Image.Image, bool]:
    """Return a band as RGB on white, and whether a pixel of it was not opaque."""
    if band.mode == "LAB":
        raise Unreadable("pixel type")
    if band.mode[0] in "IF":
        low, high = scale
        values = (np.asarray(band).astype(np.float64) - low) * 255 / (high - low)
        values = np.nan_to_num(values, nan=0, posinf=255, neginf=0).clip(0, 255).round()
        return Image.fromarray(values.astype(np.uint8)).convert("RGB"), False
    if not band.has_transparency_data:
        return band.convert("RGB"), False
    band = band.convert("RGBA")
    alpha = band.getchannel("A")
    white = Image.new("RGB", band.size, "white")
    white.paste(band, mask=alpha)
    return white, bool(np.asarray(alpha).min() < 255)


def _reason(error: Exception, path: Path) -> str:
    """Put what went wrong into one of `REASONS`."""
    if isinstance(error, Unreadable):
        return error.reason
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "vanished"
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return TOO_MANY
    if isinstance(error, OSError) and error.errno == errno.ENXIO:
        return "not a regular file"
    kind = sniff(head_of(path))
    if kind not in FORMATS:
        return kind or "not an image"
    return "truncated" if "truncated" in str(error) or _is_cut(path, kind) else "damaged"


def _is_cut(path: Path, kind: str) -> bool:
    """Tell whether a file ends before its format says it does, where that is easily seen."""
    try:
        with path.open("rb") as file:
            head, size = file.read(12), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64))
            tail = file.read(64)
    except OSError:
        return False
    if kind == "WEBP":
        return size < int.from_bytes(head[4:8], "little") + 8
    if kind == "BMP":
        return size < int.from_bytes(head[2:6], "little")
    return kind in END and END[kind] not in tail
