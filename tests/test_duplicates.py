"""Pictures that repeat others."""

from __future__ import annotations

import cv2
import numpy as np

from deepclust.algorithms import duplicates
from tests.shapes import planted


def drawn(n: int, side: int = 64) -> np.ndarray:
    """Draw n pictures that differ: smooth random colours."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (n, 5, 5, 3)).astype(np.uint8)
    return np.stack([cv2.resize(one, (side, side), interpolation=cv2.INTER_CUBIC) for one in small])


def test_a_copy_names_the_first_and_is_the_same():
    squares = drawn(30)
    found = duplicates.find(np.concatenate([squares, squares[[7]]]))
    assert found.of.tolist() == [-1] * 30 + [7]
    assert found.same[30]


def test_a_smaller_and_a_coarser_copy_are_near():
    squares = drawn(30)
    small = cv2.resize(cv2.resize(squares[3], (40, 40), interpolation=cv2.INTER_AREA), (64, 64))
    coarse = cv2.imdecode(cv2.imencode(".jpg", squares[4], [cv2.IMWRITE_JPEG_QUALITY, 50])[1], 1)
    found = duplicates.find(np.concatenate([squares, small[None], coarse[None]]))
    assert found.of[30:].tolist() == [3, 4]
    assert not found.same.any()


def test_flat_pictures_of_one_colour_repeat_each_other_and_no_others():
    flat = np.full((4, 64, 64, 3), 200, np.uint8)
    flat[2:] = 90
    found = duplicates.find(np.concatenate([drawn(20), flat]))
    assert found.of[20:].tolist() == [-1, 20, -1, 22]


def test_one_picture_repeats_none():
    assert duplicates.find(drawn(1)).count == 0


def test_a_run_lists_the_pictures_that_repeat_others(cli, workdir):
    images = planted(workdir, (6, 6, 6, 6))
    (images / "z-copy.png").write_bytes((images / "0004.png").read_bytes())
    done = cli("cluster", images, "--k", 2, "--fast", "--threads", 1, "--workers", 0)
    assert done.exit_code == 0
    text = (workdir / "runs" / "images" / "duplicates.csv").read_text()
    assert text.splitlines() == ["file_name,duplicate_of,kind", "z-copy.png,0004.png,same"]
    assert "1 picture repeats another" in done.stderr
