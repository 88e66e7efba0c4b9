from __future__ import annotations

import os
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from deepclust.data import reader
from deepclust.data.reader import (
    FITS,
    REASONS,
    Unreadable,
    picture_size,
    read_image,
    read_square,
)
from tests import hostile

CASES = hostile.pictures()
READABLE = [name for name, case in CASES.items() if case.outcome == "read"]
REFUSED = [name for name, case in CASES.items() if case.outcome not in ("read", "ignored")]


def put(folder: Path, data: bytes, name: str = "x") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def saved(folder: Path, picture: np.ndarray | Image.Image, kind: str = "PNG", **options) -> Path:
    return put(folder, hostile.encode(picture, kind, **options))


def reason(path: Path, **options) -> str:
    with pytest.raises(Unreadable) as caught:
        read_image(path, **options)
    return caught.value.reason


@pytest.mark.parametrize("name", READABLE)
def test_what_can_be_read_is_rgb_of_the_right_size_and_colour(tmp_path, name):
    case = CASES[name]
    path = put(tmp_path, case.data, name)
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", case.size)
    assert picture_size(path) == case.size
    assert set(image.info) == {"transparent"}
    if case.mean:
        assert np.asarray(image).reshape(-1, 3).mean(axis=0) == pytest.approx(case.mean, abs=4)
    for fit in FITS:
        square = read_square(path, 8, fit=fit)
        assert square.shape == (8, 8, 3)
        assert square.dtype == np.uint8
        assert square.flags.writeable


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_gets_its_reason(tmp_path, name):
    case = CASES[name]
    assert reason(put(tmp_path, case.data, name)) == case.outcome
    assert case.outcome in REASONS


def test_a_foreign_format_starts_no_program(tmp_path, monkeypatch):
    gs = put(tmp_path, f"#!/bin/sh\ntouch {tmp_path}/PWNED\n".encode(), "gs")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reason(put(tmp_path, CASES["postscript.jpg"].data, "a.jpg")) == "format not allowed"
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        # What EXIF says of the first row and the first column of the pixels as stored.
        (1, lambda a: a),  # top, left
        (2, lambda a: a[:, ::-1]),  # top, right
        (3, lambda a: a[::-1, ::-1]),  # bottom, right
        (4, lambda a: a[::-1]),  # bottom, left
        (5, lambda a: a.transpose(1, 0, 2)),  # left, top
        (6, lambda a: a.transpose(1, 0, 2)[:, ::-1]),  # right, top
        (7, lambda a: a.transpose(1, 0, 2)[::-1, ::-1]),  # right, bottom
        (8, lambda a: a.transpose(1, 0, 2)[::-1]),  # left, bottom
        (0, lambda a: a),
        (99, lambda a: a),
    ],
)
def test_a_picture_is_turned_upright(tmp_path, kind, orientation, upright):
    a = hostile.scene()
    path = put(tmp_path, hostile.turned(a, orientation, kind))
    expected = upright(a)
    image = read_image(path)
    assert picture_size(path) == image.size == (expected.shape[1], expected.shape[0])
    assert np.abs(np.asarray(image).astype(int) - expected).mean() < 3


def test_sixteen_bit_grey_keeps_its_tones(tmp_path):
    # 65535 · i/255 becomes i.
    ramp = (np.arange(256, dtype=np.uint16) * 257)[None]
    assert (np.asarray(read_image(saved(tmp_path, ramp)))[0, :, 0] == np.arange(256)).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # 0.5 · 255 = 127.5, to even
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([0.0, 25700.0, 65535.0], [0, 100, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([1e6, 2e6, 3e6], [0, 128, 255]),
        ([0.0, np.nan, 1.0], [0, 0, 255]),
        ([0.5, np.inf, -np.inf], [128, 255, 0]),
        ([7e9, 7e9, 7e9], [0, 0, 0]),
    ],
)
def test_float_pixels_are_scaled_by_the_range_they_lie_in(tmp_path, values, expected):
    path = saved(tmp_path, np.array([values], np.float32), "TIFF")
    assert np.asarray(read_image(path))[0, :, 0].tolist() == expected


def test_pixels_without_a_number_are_no_picture(tmp_path):
    assert reason(saved(tmp_path, np.full((2, 2), np.nan, np.float32), "TIFF")) == "pixel type"


def test_colours_that_cannot_be_converted_are_no_picture(tmp_path):
    assert reason(saved(tmp_path, Image.new("LAB", (4, 4)), "TIFF")) == "pixel type"


def test_whole_numbers_of_32_bits_are_scaled_too(tmp_path):
    path = saved(tmp_path, np.array([[-50, 50, 150]], np.int32), "TIFF")
    assert np.asarray(read_image(path))[0, :, 0].tolist() == [0, 128, 255]


def test_only_a_picture_that_shows_something_through_is_transparent(tmp_path):
    a = hostile.scene()
    for alpha, expected in ((255, False), (254, True)):
        full = np.dstack([a, np.full(a.shape[:2], 255, np.uint8)])
        full[3, 3, 3] = alpha
        assert read_image(saved(tmp_path, full)).info["transparent"] is expected
    assert read_image(saved(tmp_path, Image.fromarray(full), "PNG")).mode == "RGB"


def test_auto_pads_what_is_transparent_and_stretches_the_rest(tmp_path):
    # A black bar of 16 × 8 in a square of 8: padded it is 8 × 4 with two white rows on each side.
    bar = np.zeros((8, 16, 4), np.uint8)
    bar[..., 3] = 255
    opaque = saved(tmp_path, bar)
    assert (read_square(opaque, 8) == 0).all()
    padded = read_square(opaque, 8, fit="pad")
    assert padded[:, 0, 0].tolist() == [255, 255, 0, 0, 0, 0, 255, 255]
    bar[0, 0, 3] = 0
    square = read_square(saved(tmp_path, bar), 8)
    assert square[:, 4, 0].tolist() == [255, 255, 0, 0, 0, 0, 255, 255]


def test_crop_keeps_the_middle(tmp_path):
    bar = np.zeros((4, 12, 3), np.uint8)
    bar[:, 4:8] = 200
    assert (read_square(saved(tmp_path, bar), 4, fit="crop") == 200).all()


def test_an_unknown_fit_is_a_mistake_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="fit must be one of"):
        read_square(saved(tmp_path, hostile.scene()), 8, fit="squeeze")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_large_picture_is_shrunk_while_it_is_read(tmp_path, kind):
    path = saved(tmp_path, hostile.scene(800, 400), kind)
    image = read_image(path, side=20)
    # 400 // (2 · 20) = 10; JPEG can do 8 at once, and 50 // 40 leaves it there.
    assert image.size == {"PNG": (80, 40), "JPEG": (100, 50)}[kind]
    small = read_image(path).resize((20, 20), Image.Resampling.BICUBIC)
    difference = np.abs(read_square(path, 20).astype(int) - np.asarray(small))
    assert difference.mean() < 2
    assert read_image(path, side=300).size == (800, 400)


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "F", "I;16"])
def test_bands_of_rows_make_the_same_picture(tmp_path, monkeypatch, mode):
    a = hostile.scene(60, 50)
    grey = a[..., 0]
    picture = {
        "RGBA": Image.fromarray(np.dstack([a, grey])),
        "L": Image.fromarray(grey),
        "P": Image.fromarray(a).quantize(32),
        "F": Image.fromarray(grey.astype(np.float32) * 3),
        "I;16": Image.fromarray(grey.astype(np.uint16) * 256),
    }[mode]
    path = saved(tmp_path, picture, "TIFF" if mode == "F" else "PNG")
    whole = [np.asarray(read_image(path, side=side)) for side in (None, 8)]
    monkeypatch.setattr(reader, "BAND", 200)
    banded = [np.asarray(read_image(path, side=side)) for side in (None, 8)]
    assert all((x == y).all() for x, y in zip(whole, banded))
    assert whole[1].shape == (17, 20, 3)  # 50 // 16 = 3 and 50 / 3 rounded up


def test_no_metadata_survives(tmp_path):
    exif = Image.Exif()
    exif[315] = "Mallory"
    exif.get_ifd(0x8825)[1] = "N"
    options = {"exif": exif, "icc_profile": b"Mallory", "comment": b"Mallory"}
    path = saved(tmp_path, hostile.scene(), "JPEG", **options)
    image = read_image(path)
    assert b"Mallory" in path.read_bytes()
    for kind in ("JPEG", "PNG", "WEBP"):
        again = hostile.encode(image, kind)
        assert b"Mallory" not in again
        assert b"Exif" not in again


def test_the_pixel_limit_is_a_matter_of_choice(tmp_path, monkeypatch):
    path = saved(tmp_path, np.zeros((10, 10, 3), np.uint8))
    assert reason(path, max_pixels=99) == "too many pixels"
    with pytest.raises(Unreadable, match="too many pixels"):
        picture_size(path, max_pixels=99)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert read_image(path, max_pixels=100).size == (10, 10)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_a_huge_file_is_not_opened(tmp_path, monkeypatch):
    path = saved(tmp_path, hostile.scene())
    monkeypatch.setattr(reader, "MAX_BYTES", path.stat().st_size)
    read_image(path)
    monkeypatch.setattr(reader, "MAX_BYTES", path.stat().st_size - 1)
    assert reason(path) == "file too large"


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", tmp_path, Path("/dev/zero")):
            assert reason(path) == "not a regular file"


def test_a_file_that_went_away_has_vanished(tmp_path):
    assert reason(tmp_path / "gone.png") == "vanished"
    put(tmp_path, b"", "file")
    assert reason(tmp_path / "file" / "gone.png") == "vanished"


@pytest.mark.parametrize(
    ("error", "expected"),
    [(PermissionError, "no permission"), (MemoryError, "not enough memory")],
)
def test_what_the_machine_refuses_is_named(tmp_path, monkeypatch, error, expected):
    def refuse(*_):
        raise error

    path = saved(tmp_path, hostile.scene())
    monkeypatch.setattr(os, "open", refuse)
    assert reason(path) == expected


def test_readers_side_by_side_leave_no_filter_and_no_limit_behind(tmp_path):
    cases = hostile.write(tmp_path)
    names = [name for name in cases if name not in ("thin.png",)] * 3
    before, limit = list(warnings.filters), Image.MAX_IMAGE_PIXELS

    def outcome(name: str) -> str:
        try:
            read_square(tmp_path / name, 8)
        except Unreadable as error:
            return error.reason
        return "read"

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(outcome, names))
    wanted = [cases[name].outcome for name in names]
    assert [f for f, w in zip(found, wanted) if w != "ignored"] == [
        w for w in wanted if w != "ignored"
    ]
    assert (warnings.filters, Image.MAX_IMAGE_PIXELS) == (before, limit)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(READABLE),
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
)
def test_damage_gives_a_picture_or_a_reason(tmp_path, name, cut, changes):
    data = bytearray(CASES[name].data)
    for place, value in changes:
        data[int(place * len(data))] = value
    # Half of the files keep their end.
    path = put(tmp_path, bytes(data[: int(len(data) * min(1, 0.5 + cut))]))
    try:
        # A damaged header may ask for a large picture: legal, and slow.
        square = read_square(path, 8, max_pixels=10**6)
    except Unreadable as error:
        outcome = error.reason
    else:
        outcome = square.shape
    assert outcome in (*REASONS, (8, 8, 3))
