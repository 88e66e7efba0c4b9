"""Pictures and folders as strangers make them, each with what has to become of it.

Everything is drawn here, a few pixels wide. `pictures()` are single files, `tree()` is a folder of
names, links and special files. A test that runs a command on either knows what to expect.
"""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (40, 24)


@dataclass(frozen=True)
class Case:
    """A file. outcome: "read", "ignored" or a reason; size and mean colour of the RGB picture."""

    data: bytes
    outcome: str
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None


def scene(width: int = SIZE[0], height: int = SIZE[1], seed: int = 0) -> np.ndarray:
    """A slope of colour with a block in one corner, which no flip or turn leaves in its place."""
    y, x = np.mgrid[:height, :width]
    a = np.stack([200 * x / width, 30 + 150 * y / height, 90 + 0 * x], axis=-1)
    a[: height // 3, : width // 2] = (230, 40 * (seed % 6), 60)
    return a.astype(np.uint8)


def encode(picture: Image.Image | np.ndarray, kind: str, **options: object) -> bytes:
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes, flip: int = 0) -> bytes:
    check = zlib.crc32(name + data) ^ flip
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def png(width: int, height: int, rows: bytes = b"", *, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG by hand: its header may promise what `rows` does not hold."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(rows)) if rows else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def promised(kind: str, width: int, height: int) -> bytes:
    """A small picture whose header says that it is a large one."""
    data = bytearray(encode(scene(), kind))
    if kind == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif kind == "AVIF":
        at = data.index(b"ispe") + 8
        data[at : at + 8] = struct.pack(">II", width, height)
    else:  # lossless WebP: 14 bits each after a byte of signature
        data = bytearray(encode(scene(), kind, lossless=True))
        at = data.index(b"VP8L") + 9
        bits = int.from_bytes(data[at : at + 4], "little") >> 28 << 28
        data[at : at + 4] = (bits | (width - 1) | (height - 1) << 14).to_bytes(4, "little")
    return bytes(data)


ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWIC"
    "wgIyYnKSopGR8tMC0oMCUoKSj/2wBDAQcHBwoIChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgo"
    "KCgoKCgoKCgoKCgoKCgoKCj/yQARCAAQABgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AMp5eLw9f2"
    "5Mc6zOe7eMkbYHkll+XRc3fABjtI8iu00ROJjBorU/fUfCqA5Dxog5vtmvrzIiiD+O262jIp4DS/cqrGR9Qr26CyOud9uI"
    "AGQmN/30de0Xq2FA/9k="
)


def turned(picture: np.ndarray, orientation: int, kind: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    options |= {"lossless": True} if kind == "WEBP" else {}
    return encode(picture, kind, exif=exif, **options)


def pictures() -> dict[str, Case]:
    """Return the single files by name."""
    a = scene()
    rgb, grey = Image.fromarray(a), np.asarray(Image.fromarray(a).convert("L"))
    mean = tuple(a.reshape(-1, 3).mean(axis=0))
    level = (grey.mean(),) * 3
    hole = np.zeros(grey.shape, np.uint8)
    hole[6:18, 10:30] = 255
    on_white = np.where(hole[..., None] > 0, a, 255).reshape(-1, 3).mean(axis=0)
    hidden = np.dstack([np.where(hole[..., None] > 0, a, (255, 0, 0)).astype(np.uint8), hole])
    half = Image.new("P", (16, 16), 1)
    half.putpalette([255, 0, 0, 0, 0, 255])
    half.paste(0, (0, 0, 8, 16))
    ramp = np.tile(np.linspace(0, 65535, 40).astype(np.uint16), (24, 1))
    frames = [Image.fromarray(scene(seed=s)) for s in range(3)]
    jpeg = encode(rgb, "JPEG", quality=95)
    noise = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    noisy_jpeg, noisy_png = encode(noise, "JPEG", quality=95), encode(noise, "PNG")
    noisy_webp = encode(noise, "WEBP", lossless=True)
    good_png = encode(rgb, "PNG")
    wide_rows = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in a)

    def read(data: bytes, mean: object = mean, size: tuple[int, int] = SIZE) -> Case:
        return Case(data, "read", size, None if mean is None else tuple(mean))  # type: ignore

    flipped = good_png[:29] + bytes([good_png[29] ^ 1]) + good_png[30:]  # checksum of IHDR
    dot = png(1, 1, b"\0\0", colour=0)
    looped = bytearray(encode(frames[0], "TIFF"))
    ifd = int.from_bytes(looped[4:8], "little")
    end = ifd + 2 + 12 * int.from_bytes(looped[ifd : ifd + 2], "little")
    looped[end : end + 4] = looped[4:8]  # the page after the first is the first
    moving = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    whole_rows = b"".join(b"\0" + row.tobytes() for row in a)
    odd_check = bytearray(png(*SIZE, whole_rows))
    odd_check[-13] ^= 1  # the last byte of the checksum of IDAT; IEND is 12 bytes
    packing = png(*SIZE, whole_rows).replace(b"\x08\x02\0\0\0", b"\x08\x02\x07\0\0")
    holes = (grey / 255).astype(np.float32)
    holes[0, 0] = np.nan
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 2**23, 9))
    return {
        "plain.jpg": read(jpeg),
        "plain.png": read(good_png),
        "plain.webp": read(encode(rgb, "WEBP", lossless=True)),
        "plain.avif": read(encode(rgb, "AVIF", quality=95)),
        "plain.bmp": read(encode(rgb, "BMP")),
        "plain.ppm": read(encode(rgb, "PPM")),
        "CAPITALS.JpEg": read(jpeg),
        "jpeg_inside.png": read(jpeg),
        "png_without_extension": read(good_png),
        "png_of_odd.extension": read(good_png),
        "grey.jpg": read(encode(grey, "JPEG", quality=95), level),
        "one_bit.png": read(encode(rgb.convert("1"), "PNG"), None),
        "palette.gif": read(encode(rgb.quantize(64), "GIF"), None),
        "cmyk.jpg": read(encode(rgb.convert("CMYK"), "JPEG", quality=95)),
        "progressive.jpg": read(encode(rgb, "JPEG", quality=95, progressive=True)),
        "hidden_red.png": read(encode(hidden, "PNG"), on_white),
        "clear_palette.png": read(
            encode(half, "PNG", transparency=0), (127.5, 127.5, 255), (16, 16)
        ),
        "colour_key.png": read(encode(rgb, "PNG", transparency=(0, 0, 0)), None),
        "sixteen_bit.png": read(encode(ramp, "PNG"), (127.5,) * 3),
        "sixteen_bit_rgb.png": read(png(*SIZE, wide_rows, depth=16)),
        "float.tiff": read(encode((grey / 255).astype(np.float32), "TIFF"), level),
        "turned.jpg": read(turned(a, 6), mean, SIZE[::-1]),
        "two_pages.tiff": read(encode(frames[0], "TIFF", save_all=True, append_images=frames[1:])),
        "moving.gif": read(encode(frames[0], "GIF", save_all=True, append_images=frames[1:])),
        "moving.png": read(encode(frames[0], "PNG", save_all=True, append_images=frames[1:])),
        "two_pictures.jpg": read(encode(frames[0], "MPO", save_all=True, append_images=frames[1:])),
        "one_pixel.png": read(encode(np.full((1, 1, 3), 9, np.uint8), "PNG"), (9,) * 3, (1, 1)),
        "thin.png": read(encode(np.full((3000, 1, 3), 9, np.uint8), "PNG"), (9,) * 3, (1, 3000)),
        "something_behind.jpg": read(jpeg + b"\0" * 99 + b"<?php evil() ?>"),
        "exif_rubbish.jpg": read(
            encode(rgb, "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff")
        ),
        "icc_rubbish.jpg": read(encode(rgb, "JPEG", quality=95, icc_profile=b"rubbish")),
        "arithmetic.jpg": read(ARITHMETIC, None, (24, 16)),
        "moving.webp": read(
            encode(frames[0], "WEBP", lossless=True, save_all=True, append_images=frames[1:])
        ),
        "cut_in_its_second_frame.gif": read(moving[: len(moving) * 3 // 5], None),
        "page_without_end.tiff": read(bytes(looped)),
        "float_with_holes.tiff": read(encode(holes, "TIFF"), None),
        "whole_numbers.tiff": read(encode(grey.astype(np.int32), "TIFF"), level),
        "zip_behind.jpg": read(jpeg + b"PK\3\4" + b"\0" * 26 + b"a" + b"PK\5\6" + b"\0" * 18),
        "odd_checksum.png": read(bytes(odd_check), None),
        "few_rows.png": Case(png(*SIZE, whole_rows[:500]), "truncated"),
        "odd_packing.png": Case(packing, "damaged"),
        "bomb_of_10_thousand_million.png": Case(png(100_000, 100_000), "too many pixels"),
        "wide.gif": Case(promised("GIF", 65535, 65535), "too many pixels"),
        "large.webp": Case(promised("WEBP", 10_000, 8_000), "too many pixels"),
        "large.avif": Case(promised("AVIF", 10_000, 8_000), "too many pixels"),
        "empty.jpg": Case(b"", "not an image"),
        "zeros.png": Case(b"\0" * 500, "not an image"),
        "page.png": Case(b"<!doctype html><title>404</title>", "not an image"),
        "cut_header.jpg": Case(noisy_jpeg[:200], "truncated"),
        "cut.jpg": Case(noisy_jpeg[: len(noisy_jpeg) * 2 // 3], "truncated"),
        "cut.png": Case(noisy_png[: len(noisy_png) // 2], "truncated"),
        "cut.webp": Case(noisy_webp[: len(noisy_webp) // 2], "truncated"),
        "cut.bmp": Case(encode(noise, "BMP")[:1000], "truncated"),
        "cut.tiff": Case(encode(noise, "TIFF")[:1000], "truncated"),
        "wrong_header.png": Case(flipped, "damaged"),
        "text_bomb.png": Case(dot[:33] + text + dot[33:], "damaged"),
        "bomb_of_900_million.png": Case(png(30000, 30000), "too many pixels"),
        "bomb_of_90_million.png": Case(png(9000, 10000), "too many pixels"),
        "postscript.jpg": Case(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", NOT_ALLOWED),
        "document.png": Case(b"%PDF-1.7\n", NOT_ALLOWED),
        "layers.jpg": Case(b"8BPS\0\1" + b"\0" * 60, NOT_ALLOWED),
        "stars.png": Case(b"SIMPLE  =                    T" + b" " * 50, NOT_ALLOWED),
        "pickle.png": Case(b"\x80\x04cos\nmkdir\nX\x05\0\0\0PWNED\x85R.", NOT_ALLOWED),
        "telephone.heic": Case(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", NOT_SUPPORTED),
        "telephone.jpg": Case(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", NOT_SUPPORTED),
        "drawing.svg": Case(b"<svg onload='alert(1)'/>", NOT_SUPPORTED),
        "picture_inside.txt": Case(jpeg, "ignored"),
        "half_loaded.jpg.part": Case(jpeg, "ignored"),
        "notes.md": Case(b"hello", "ignored"),
        "no_extension": Case(b"hello", "ignored"),
        ".hidden.jpg": Case(jpeg, "ignored"),
        "._plain.jpg": Case(b"\0\5\x16\7" + b"\0" * 78, "ignored"),
        "Thumbs.db": Case(b"\xd0\xcf\x11\xe0", "ignored"),
    }


NOT_ALLOWED, NOT_SUPPORTED = "format not allowed", "format not supported"


def write(folder: Path) -> dict[str, Case]:
    """Write `pictures()` into a folder and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = pictures()
    for name, case in cases.items():
        (folder / name).write_bytes(case.data)
    return cases


# fmt: off
NAMES = [
    "plain.png", "with space.png", "comma, semi;colon.png", "'single\".png",
    "<b onclick=alert(1)>.png", "=1+1.png", "=HYPERLINK(\"x\").png", "+cmd.png", "-rf.png",
    "--help.png", "@SUM(A1).png", "\ttab.png", "new\nline.png", "cr\r.png", "\x1b[31mred.png",
    "\x1b]0;title\x07.png", "🐈.png", "caf\u00e9.png", "cafe\u0301.png", "\u202egnp.exe.png",
    "%2e%2e%2fup.png", "&amp;.png", "#anchor.png", "what?.png", "{{7*7}}.png", "${HOME}.png",
    "$(touch PWNED).png", "`touch PWNED`.png", ";touch PWNED;.png", "CON.png", "Case.png",
    "case.png", "back\\slash.png", "\\xff.png", "\\x5cxff.png", "[red]markup[/red].png",
    "\u2028.png",
    "n" * 251 + ".png",
]
# fmt: on
RAW_NAMES = [b"\xff\xfe.png", b"latin-\xe9.png", b"\\\xff.png", b"\\x\xff.png"]


def tree(root: Path) -> list[bytes]:
    """Make a folder of hostile names, links and special files.

    Returns the paths below it, as bytes, of the pictures that can be used.
    """
    paths = [os.fsencode(name) for name in NAMES] + RAW_NAMES
    paths += [b"one/same.png", b"two/same.png", b"<i>/=x/\xff/deep.png", b"folder.png/inside.png"]
    paths += [b"/".join([b"d" * 60] * 20) + b"/far.png"]
    for seed, path in enumerate(paths):
        full = root / os.fsdecode(path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(encode(scene(24, 24, seed), "PNG"))
    (root / "empty").mkdir()
    (root / "__MACOSX").mkdir()
    (root / "__MACOSX" / "x.png").write_bytes(b"x")
    (root / "inside.png").symlink_to("one/same.png")
    (root / "one" / "loop").symlink_to("..")
    (root / "dangling.png").symlink_to("nowhere.png")
    (root / "self.png").symlink_to("self.png")
    (root / "zero.png").symlink_to("/dev/zero")
    (root / "hostname.png").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe.png")
    os.mkfifo(root / "pipe")
    return [*paths, b"inside.png"]


def plain_tree(root: Path) -> None:
    """Make a folder like `tree`, with the same pictures and links under plain names."""
    count = len(NAMES) + len(RAW_NAMES)
    paths = [f"p{i:03d}.png" for i in range(count)]
    paths += ["one/same.png", "two/same.png", "i/x/y/deep.png", "folder/inside.png", "d/far.png"]
    for seed, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(encode(scene(24, 24, seed), "PNG"))
    (root / "inside.png").symlink_to("one/same.png")
    for name in ("x1.png", "x2.png", "x3.png", "x4.png", "x5.png"):
        (root / name).symlink_to("nowhere.png")


SKIPPED = {
    "dangling.png": "missing",
    "self.png": "missing",
    "zero.png": "not a regular file",
    "hostname.png": "link leaves the folder",
    "pipe.png": "not a regular file",
}
