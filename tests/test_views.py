"""Views: the quick form against the papers' order of steps, and the form for a GPU, on the CPU."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from deepclust.config import PRESETS, Views
from deepclust.data import device_views, exact, views
from deepclust.data.images import find_images
from deepclust.data.loaders import Buffers, Pixels
from deepclust.data.store import load_pixels
from deepclust.device import stream
from tests.shapes import planted

ALL = {"rotation": 30.0, "shear": 0.2, "flip_vertical": True, "tint": 0.1, "blur": 0.5}


def squares(n: int, side: int) -> np.ndarray:
    """Draw smooth pictures (n, side, side, 3) uint8 with colours well inside the range."""
    noise = np.random.default_rng(0).integers(0, 255, (n, side, side, 3), dtype=np.uint8)
    smooth = [cv2.GaussianBlur(one, (0, 0), 2).astype(np.float32) for one in noise]
    spread = [(one - one.mean()) * 60 / one.std() + 128 for one in smooth]
    return np.clip(spread, 0, 255).astype(np.uint8)


def recipe(**values) -> Views:
    return Views(**{**PRESETS["cc"], **values})


@pytest.mark.parametrize("values", [{}, ALL, PRESETS["cc-strong"], PRESETS["letters"]])
def test_quick_and_exact_views_agree_in_mean_and_covariance(values):
    pictures, chosen = squares(400, 24), recipe(**values)
    drawn = views.draw(chosen, 400, stream(0, "views"))
    index = np.arange(400)
    a = views.apply(pictures, drawn, index, 16).reshape(400, -1, 3) / 255
    b = exact.apply(pictures, drawn, index, 16).reshape(400, -1, 3) / 255
    # Of the colours of a view: their mean, their covariance and the correlation of both forms.
    assert np.abs(a.mean(axis=(0, 1)) - b.mean(axis=(0, 1))).max() < 0.02
    flat = [np.cov(one.reshape(-1, 3).T) for one in (a, b)]
    assert np.linalg.norm(flat[0] - flat[1]) < 0.2 * np.linalg.norm(flat[1])
    alike = [np.corrcoef(x.ravel(), y.ravel())[0, 1] for x, y in zip(a, b)]
    assert np.median(alike) > 0.93


def test_without_colour_and_blur_quick_and_exact_views_are_the_same_picture():
    pictures = squares(30, 24)
    for values in ({}, {"rotation": 40.0, "shear": 0.3, "flip_vertical": True}):
        drawn = views.draw(recipe(jitter=0, grey=0, **values), 30, stream(0, "views"))
        a = views.apply(pictures, drawn, np.arange(30), 24).astype(int)
        b = exact.apply(pictures, drawn, np.arange(30), 24).astype(int)
        assert np.abs(a - b).mean() < 3  # of 255 levels: OpenCV and PIL round otherwise


@pytest.mark.parametrize("values", [{}, ALL, PRESETS["cc-strong"]])
def test_views_of_a_device_are_those_of_opencv(values):
    pictures, index = squares(40, 32), np.arange(40)[::-1].copy()
    drawn = views.draw(recipe(**{**values, "crop_min": 0.3}), 40, stream(0, "views"))
    a = views.to_tensor(views.apply(pictures, drawn, index, 32))
    b = device_views.apply(torch.from_numpy(pictures), drawn, index, 32)
    assert a.shape == b.shape
    assert b.is_contiguous(memory_format=torch.channels_last)
    difference = (a - b).abs().mean(dim=(1, 2, 3))
    # A crop of whole pixels against one of fractions moves a view by half a pixel at most.
    assert difference.median() < 0.03
    assert difference.max() < 0.08


def test_two_boxes_blur_as_the_gaussian_of_their_width():
    spot = np.zeros((65, 65, 3), np.uint8)
    spot[32, 32] = 255
    for sigma in (0.8, 1.2, 1.6, 2.0):
        blurred = cv2.merge([spot[..., 0].copy() for _ in range(3)])
        views._blur(blurred, sigma)
        mass = blurred[..., 0].astype(float).sum(axis=0)
        place = np.arange(65) - 32
        found = np.sqrt((mass * place**2).sum() / mass.sum())
        assert found == pytest.approx(sigma, abs=0.25)


def test_a_view_depends_on_its_own_parameters_alone():
    pictures = squares(6, 24)
    drawn = views.draw(recipe(**ALL), 6, stream(0, "views"))
    together = views.apply(pictures, drawn, np.arange(6), 16)
    for i in range(6):
        alone = views.apply(pictures[i : i + 1], drawn, np.array([i]), 16)
        assert (alone[0] == together[i]).all()


def test_exact_views_are_a_setting(tmp_path):
    rows, _ = load_pixels(find_images(planted(tmp_path, (2, 2, 1, 1))), 16, workers=0)
    order = [np.arange(6)]
    made = {}
    for form in (False, True):
        source = Pixels(rows, recipe(exact=form), 16, seed=0, workers=0)
        (batch,) = source.batches(0, order, 2)
        made[form] = batch[0][0]
    assert made[False].shape == made[True].shape
    assert not torch.equal(made[False], made[True])


def test_batches_that_are_kept_are_not_written_over(tmp_path):
    rows, _ = load_pixels(find_images(planted(tmp_path, (3, 3, 3, 3))), 16, workers=0)
    order = [np.arange(at, at + 3) for at in (0, 3, 6, 9)]
    kept = {}
    for workers in (0, 1, 3):
        source = Pixels(rows, recipe(), 16, seed=0, workers=workers)
        kept[workers] = [views for views, _ in source.batches(0, order, 2)]
    for a, b, c in zip(*kept.values()):
        for x, y, z in zip(a, b, c):
            assert torch.equal(x, y)
            assert torch.equal(x, z)
    assert not torch.equal(kept[0][0][0], kept[0][1][0])


def test_memory_is_used_again_once_its_tensor_is_gone():
    pool = Buffers()
    first = torch.from_numpy(pool.take((2, 3), "<f4")).permute(1, 0)
    second = pool.take((2, 3), "<f4")
    assert second.ctypes.data != first.data_ptr()
    place = first.data_ptr()
    del first
    assert pool.take((2, 3), "<f4").ctypes.data == place
