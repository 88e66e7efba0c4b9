from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepclust.algorithms import kmeans
from deepclust.errors import DataError, TrainingError, UsageError


def blobs(n: int, k: int, d: int = 8, spread: float = 0.1, seed: int = 0):
    """Draw n rows around k far corners: rows (n, d) float32 and the corner of each (n,)."""
    rng = np.random.default_rng(seed)
    corners = rng.normal(size=(k, d)) * 4
    own = np.arange(n) % k
    return (corners[own] + spread * rng.normal(size=(n, d))).astype(np.float32), own


def same_groups(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two labellings cut the rows alike, whatever they call the groups."""
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    return len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


# --- k-means ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["tiled", "faiss"])
def test_kmeans_finds_planted_groups(engine):
    x, own = blobs(120, 6)
    found = kmeans.cluster(x, 6, seed=0, engine=engine)
    assert same_groups(found.label, own)
    assert found.centers.shape == (6, 8)
    # Groups are 8 units apart and 0.3 wide, so every row is far from a border.
    assert found.confidence.min() > 0.8


def test_kmeans_of_four_points_on_a_line():
    # {0, 1} and {10, 12}: means 0.5 and 11, inertia 2 · ¼ + 2 · 1 = 2.5.
    x = np.array([[0.0], [1.0], [10.0], [12.0]], np.float32)
    centers, label, distance = kmeans.fit(x, 2, seed=0, restarts=3)
    assert sorted(centers[:, 0].tolist()) == [0.5, 11.0]
    assert distance.tolist() == [0.25, 0.25, 1.0, 1.0]
    assert same_groups(label, np.array([0, 0, 1, 1]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(2, 9), scale=st.floats(1e-3, 1e3))
def test_inertia_never_rises(seed, k, scale):
    rng = np.random.default_rng(seed)
    x = (scale * (rng.normal(size=(60, 4)) + 5)).astype(np.float32)
    start = x[rng.choice(60, k, replace=False)]
    inertia = [
        kmeans.fit(x, k, seed=0, start=start, iterations=i)[2].sum(dtype=np.float64)
        for i in range(8)
    ]
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(inertia))


def test_labels_are_the_nearest_of_the_centers_returned():
    x, _ = blobs(300, 5, spread=2.0)
    centers, label, distance = kmeans.fit(x, 7, seed=3)
    all_distances = np.square(x[:, None].astype(np.float64) - centers[None]).sum(axis=2)
    np.testing.assert_allclose(distance, all_distances.min(axis=1), rtol=1e-4)
    assert (label == all_distances.argmin(axis=1)).all()


def test_bfloat16_rounds_end_at_the_inertia_of_float32(monkeypatch):
    x, _ = blobs(3_000, 40, spread=1.5)
    start = x[:80]
    exact = kmeans.fit(x, 80, seed=0, start=start)
    monkeypatch.setattr(kmeans, "ROUGH_FROM", 0)
    monkeypatch.setattr(kmeans, "_has_bf16", lambda x: True)
    rough = kmeans.fit(x, 80, seed=0, start=start)
    assert rough[2].sum() == pytest.approx(exact[2].sum(), rel=0.02)
    nearest = np.square(x[:, None] - rough[0][None]).sum(axis=2).argmin(axis=1)
    assert (rough[1] == nearest).all()


def test_empty_clusters_take_the_farthest_rows():
    x, own = blobs(80, 4)
    nowhere = np.full((4, 8), 1e3, np.float32) + np.arange(4, dtype=np.float32)[:, None]
    _, label, _ = kmeans.fit(x, 4, seed=0, start=nowhere)
    assert same_groups(label, own)


def test_kmeans_repeats_itself_for_a_seed():
    x, _ = blobs(200, 5, spread=3.0)
    a, b = kmeans.cluster(x, 8, seed=7), kmeans.cluster(x, 8, seed=7)
    assert (a.label == b.label).all()
    assert (a.centers == b.centers).all()


def test_spherical_kmeans_ignores_the_length_of_rows():
    x, own = blobs(120, 4)
    scaled = x * np.random.default_rng(0).uniform(0.1, 10, size=(120, 1)).astype(np.float32)
    found = kmeans.cluster(scaled, 4, seed=0, spherical=True)
    assert same_groups(found.label, own)
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1, atol=1e-5)


def test_restarts_of_many_rows_compete_on_a_sample(monkeypatch):
    monkeypatch.setattr(kmeans, "CONTEST", 100)
    x, own = blobs(1_000, 3)
    assert same_groups(kmeans.cluster(x, 3, seed=0).label, own)


def test_few_distinct_rows_give_few_clusters_and_a_warning(warnings_said):
    x = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    found = kmeans.cluster(x, 4, seed=0, progress=warnings_said)
    assert found.k == 3
    assert found.confidence.tolist() == [1] * 15
    assert warnings_said.lines == ["only 3 distinct embeddings for 4 clusters"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_kmeans_refuses_values_that_are_not_usable(value):
    x, _ = blobs(20, 2)
    x[3, 1] = value
    with pytest.raises(TrainingError, match="not finite"):
        kmeans.fit(x, 2, seed=0)


def test_kmeans_names_both_numbers_when_there_are_too_few_images():
    with pytest.raises(DataError, match="5 images cannot make 5 clusters"):
        kmeans.fit(np.eye(5, dtype=np.float32), 5, seed=0)


@pytest.mark.parametrize("k", [None, 1, 0, -1, 2.5])
def test_kmeans_refuses_a_k_that_is_no_number_of_clusters(k):
    with pytest.raises(UsageError):
        kmeans.cluster(np.eye(5, dtype=np.float32), k, seed=0)


@pytest.fixture
def warnings_said():
    from deepclust.progress import Progress

    class Said(Progress):
        def __init__(self):
            self.lines = []

        def warn(self, text):
            self.lines.append(text)

    return Said()
