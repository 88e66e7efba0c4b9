"""The nearest centres, against the plain distances in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepclust.algorithms import kmeans
from deepclust.algorithms.assign import Rough, nearest, squared_distance


def drawn(n: int, d: int, k: int, seed: int = 0, scale: float = 1.0):
    """Draw rows (n, d), centres (k, d), and all squared distances (n, k) in float64."""
    rng = np.random.default_rng(seed)
    x, c = rng.normal(size=(n, d)) * scale, rng.normal(size=(k, d)) * scale
    x, c = x.astype(np.float32), c.astype(np.float32)
    squared = np.square(x[:, None].astype(np.float64) - c[None]).sum(axis=2)
    return torch.from_numpy(x), torch.from_numpy(c), squared


@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 2), (300, 8, 5), (700, 33, 130), (2_100, 4, 300)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_nearest_centre_has_the_least_distance(n, d, k, scale):
    x, c, squared = drawn(n, d, k, scale=scale)
    for label in (nearest(x, c), Rough(x).exact(c)):
        chosen = squared[np.arange(n), label.numpy()]
        # Float32 may take either of two that it cannot tell apart.
        np.testing.assert_allclose(chosen, squared.min(axis=1), rtol=1e-4)
        distance = squared_distance(x, c, label).numpy()
        np.testing.assert_allclose(distance, chosen, rtol=1e-4)


def test_bfloat16_is_wrong_where_the_exact_form_is_right():
    x, c, squared = drawn(2_000, 16, 200)
    true = squared.argmin(axis=1)
    rough = Rough(x)
    assert 0.9 < (rough.nearest(c).numpy() == true).mean() < 1
    assert (rough.exact(c).numpy() == true).all()


def test_rows_without_a_positive_score_find_their_centre_too():
    # Rows at the origin score −½|c|² everywhere: the shortest centre is the nearest.
    x = torch.zeros(5, 3)
    c = torch.tensor([[3.0, 0, 0], [0, 1.0, 0], [0, 0, 2.0]])
    for label in (nearest(x, c), Rough(x).nearest(c), Rough(x).exact(c)):
        assert label.tolist() == [1] * 5


def test_equal_centres_are_told_apart_by_their_order():
    x, c, _ = drawn(50, 4, 3)
    twice = torch.cat([c, c])
    assert torch.equal(nearest(x, twice), nearest(x, c))
    assert torch.equal(Rough(x).exact(twice), nearest(x, c))


def test_seeds_are_rows_and_far_ones_are_drawn_first():
    # Nine rows on one spot and one far away: whatever is drawn first, the other spot is second.
    x = torch.zeros(10, 2)
    x[7] = 100
    for seed in range(5):
        found = kmeans._plus_plus(x, 2, np.random.default_rng(seed))
        assert sorted(found[:, 0].tolist()) == [0, 100]


def test_seeds_of_a_sample_without_enough_distinct_rows_are_still_k():
    x = torch.ones(20, 3)
    assert kmeans._plus_plus(x, 4, np.random.default_rng(0)).shape == (4, 3)
