import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepclust import algorithms
from deepclust.algorithms import choose_k, consensus, kmeans, neighbours
from deepclust.errors import DataError, TrainingError, UsageError
from deepclust.progress import Progress


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


class Said(Progress):
    """Keeps what was said and warned."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    warn = say


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
    monkeypatch.setattr(kmeans, "LARGE", 0)
    monkeypatch.setattr(kmeans, "has_fast_bf16", lambda device: True)
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


def test_few_distinct_rows_give_few_clusters_and_a_warning():
    said = Said()
    x = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    found = kmeans.cluster(x, 4, seed=0, progress=said)
    assert found.k == 3
    assert found.confidence.tolist() == [1] * 15
    assert said.lines == ["only 3 distinct embeddings for 4 clusters"]


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


# --- every algorithm ----------------------------------------------------------------------------

TOLD_K = [name for name in algorithms.ALGORITHMS if name not in algorithms.OWN_K]


@pytest.mark.parametrize("name", TOLD_K)
def test_algorithms_find_planted_groups_of_uneven_size(name):
    x, own = blobs(150, 5, d=12)
    kept = np.random.default_rng(0).permutation(np.flatnonzero((own > 0) | (np.arange(150) < 100)))
    x, own = x[kept], own[kept]
    found = algorithms.run(name, x, 5, seed=0)
    assert same_groups(found.label, own)
    assert found.label.dtype == np.int64
    assert found.confidence.dtype == found.centers.dtype == np.float32
    assert found.centers.shape == (5, 12)
    assert 0 <= found.confidence.min() <= found.confidence.max() <= 1
    assert (np.diff(np.bincount(found.label)) <= 0).all()


@pytest.mark.parametrize("name", TOLD_K)
def test_algorithms_repeat_themselves_for_a_seed(name):
    x, _ = blobs(90, 3, spread=4.0)
    a, b = (algorithms.run(name, x, 4, seed=1) for _ in range(2))
    assert (a.label == b.label).all()
    assert (a.confidence == b.confidence).all()


@pytest.mark.parametrize("name", TOLD_K)
def test_algorithms_need_a_k_below_the_number_of_images(name):
    x, _ = blobs(12, 3)
    with pytest.raises(UsageError, match="number of clusters"):
        algorithms.run(name, x, None, seed=0)
    with pytest.raises(DataError, match="12 images cannot make 12 clusters"):
        algorithms.run(name, x, 12, seed=0)


@pytest.mark.parametrize("name", algorithms.OWN_K)
def test_algorithms_that_find_k_cannot_be_told_it(name):
    with pytest.raises(UsageError, match="finds the number of clusters itself"):
        algorithms.run(name, blobs(60, 3)[0], 3, seed=0)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_algorithms_refuse_a_nan(name):
    if name == "leiden":
        pytest.importorskip("sknetwork")
    x = blobs(60, 3)[0]
    x[7, 2] = np.nan
    with pytest.raises(TrainingError, match="not finite"):
        algorithms.run(name, x, None if name in algorithms.OWN_K else 3, seed=0)


def test_hdbscan_leaves_lonely_images_out():
    x, own = blobs(120, 3)
    lonely = np.full((2, 8), 50, np.float32) * np.array([[1], [-1]], np.float32)
    found = algorithms.run("hdbscan", np.vstack([x, lonely]), None, seed=0)
    assert same_groups(found.label[:120], own)
    assert found.label[120:].tolist() == [-1, -1]
    assert found.confidence[120:].tolist() == [0, 0]
    assert found.k == 3


def test_hdbscan_says_when_everything_is_noise():
    said = Said()
    x = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    found = algorithms.run("hdbscan", x, None, seed=0, progress=said)
    assert found.k == 0
    assert found.centers.shape == (0, 6)
    assert "every image is noise" in said.lines[0]


@pytest.mark.parametrize("name", ["hdbscan", "agglomerative"])
def test_images_beyond_the_sample_join_its_clusters(name, monkeypatch):
    monkeypatch.setattr(f"deepclust.algorithms.{name}.SAMPLE", 100)
    x, own = blobs(300, 3)
    said = Said()
    k = None if name == "hdbscan" else 3
    assert same_groups(algorithms.run(name, x, k, seed=0, progress=said).label, own)
    assert "100 of 300 images" in said.lines[0]


def test_leiden_finds_the_parts_of_a_graph():
    pytest.importorskip("sknetwork")
    x, own = blobs(120, 4)
    assert same_groups(algorithms.run("leiden", x, None, seed=0).label, own)


def test_leiden_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sknetwork.clustering", None)
    with pytest.raises(UsageError) as caught:
        algorithms.run("leiden", blobs(60, 3)[0], None, seed=0)
    assert caught.value.hint == "pip install 'deepclust[graph]'"


def test_spectral_finds_groups_by_their_sparse_eigenvectors():
    x, own = blobs(600, 4)
    assert same_groups(algorithms.run("spectral", x, 4, seed=0).label, own)


def test_votes_are_counted_after_matching_names():
    # The second run says the same as the first with names swapped; the third differs in row 2.
    runs = [np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), np.array([0, 0, 0, 1])]
    label, share = consensus.vote(runs, 2)
    assert label.tolist() == [0, 0, 1, 1]
    assert share.tolist() == pytest.approx([1, 1, 2 / 3, 1])


def test_unknown_algorithm_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        algorithms.run("kmean", blobs(9, 3)[0], 3, seed=0)
    assert "did you mean kmeans?" in caught.value.hint


# --- neighbours ---------------------------------------------------------------------------------


def test_neighbours_are_those_of_largest_cosine():
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    index, cosine = neighbours.knn(x, 4)
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    all_cosines = z @ z.T
    np.fill_diagonal(all_cosines, -2)
    assert (index == np.argsort(-all_cosines, axis=1)[:, :4]).all()
    np.testing.assert_allclose(cosine, -np.sort(-all_cosines, axis=1)[:, :4], atol=1e-6)


def test_a_row_is_not_its_own_neighbour_even_among_copies():
    index, _ = neighbours.knn(np.ones((6, 3), np.float32), 3)
    assert index.shape == (6, 3)
    assert not (index == np.arange(6)[:, None]).any()


def test_neighbours_are_cut_to_the_rows_there_are():
    assert neighbours.knn(np.eye(3, dtype=np.float32), 10)[0].shape == (3, 2)
    assert neighbours.knn(np.eye(3, dtype=np.float32), 10, exclude_self=False)[0].shape == (3, 3)


def test_neighbours_of_many_rows_agree_with_the_exact_ones(monkeypatch):
    x, _ = blobs(2_000, 20, spread=1.0)
    exact, _ = neighbours.knn(x, 5)
    monkeypatch.setattr(neighbours, "EXACT", 1_000)
    rough, _ = neighbours.knn(x, 5)
    assert (neighbours.knn(x, 5)[0] == rough).all()
    assert (exact == rough).mean() > 0.95


def test_modularity_of_two_pairs():
    # Two links, each inside its own group: share inside 1, ends ½ each, so 1 − 2 · ¼ = ½.
    # One group for all: 1 − 1 = 0. Groups across the links: 0 − ½ = −½.
    links = neighbours.graph(np.array([[1], [0], [3], [2]]))
    assert neighbours.modularity(links, np.array([0, 0, 1, 1])) == pytest.approx(0.5)
    assert neighbours.modularity(links, np.array([0, 0, 0, 0])) == pytest.approx(0.0)
    assert neighbours.modularity(links, np.array([0, 1, 0, 1])) == pytest.approx(-0.5)


# --- choosing k ---------------------------------------------------------------------------------


def test_k_of_clear_groups_is_found():
    x, _ = blobs(180, 6, d=12)
    choice = choose_k.choose(x, seed=0)
    assert choice.k == 6
    assert choice.clear
    assert choice.ks[:3] == (2, 3, 4)
    scores = (choice.silhouette, choice.modularity, choice.stability)
    assert {len(score) for score in scores} == {len(choice.ks)}
    assert choice.stability[choice.ks.index(6)] == pytest.approx(1)
    assert choice.advice == "k 6. This k is a guess: compare --k 3 and --k 12."


def test_no_clear_k_is_said_so():
    x = np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32)
    choice = choose_k.choose(x, [2, 4, 8, 16], seed=0)
    assert not choice.clear
    assert choice.advice.startswith("no clear k")
    assert "--k" in choice.advice


def test_the_guess_is_the_middle_of_three_choices():
    # Silhouette is best at 2, modularity times stability (.3, .35, .22, .48) at 16.
    # The chord from (log 2, .3) to (log 16, .6) is .3,
    # .4, .5, .6 at 2, 4, 8, 16, and .5 at 4 lies .1 above it, .55 at 8 only .05: the elbow is 4.
    choice = choose_k.verdict(
        [2, 4, 8, 16], [0.5, 0.4, 0.3, 0.2], [0.3, 0.5, 0.55, 0.6], [1.0, 0.7, 0.4, 0.8]
    )
    assert (choice.by_silhouette, choice.by_elbow, choice.by_stability) == (2, 4, 16)
    assert choice.k == 4
    assert "the rules disagree, from 2 to 16" in choice.advice


def test_candidates_grow_by_a_tenth_and_leave_five_images_a_cluster():
    assert choose_k.grid(1_000) == [
        *range(2, 13),
        13,
        14,
        15,
        16,
        18,
        20,
        22,
        24,
        26,
        29,
        32,
        35,
        38,
    ]
    assert choose_k.grid(30) == [2, 3, 4, 5, 6]


def test_guessing_k_needs_images_and_candidates():
    with pytest.raises(DataError, match="9 images are too few"):
        choose_k.choose(blobs(9, 3)[0], seed=0)
    with pytest.raises(UsageError, match="three candidates"):
        choose_k.choose(blobs(30, 3)[0], [2, 3, 30], seed=0)
