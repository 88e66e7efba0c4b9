"""Which pictures to doubt: strangers, and pictures whose cluster depends on the draw."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deepclust.algorithms import assemble
from deepclust.algorithms.kmeans import cluster
from deepclust.algorithms.levels import levels
from deepclust.algorithms.reliability import company, judged, outliers, stability
from tests.shapes import planted

QUICK = ("--threads", 1, "--workers", 0)


def groups(counts: list[int], spread: float = 0.15, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    axes = np.repeat(np.eye(16)[: len(counts)], counts, axis=0)
    x = axes + rng.normal(0, spread, axes.shape)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_a_small_kind_of_its_own_keeps_little_company():
    alone = company(groups([100, 100, 100, 8]), seed=0)
    assert alone[300:].max() < 0.25
    assert np.median(alone[:300]) > 0.75


def test_company_is_the_share_of_neighbourhoods_over_an_eighth():
    x = groups([10, 10, 10, 10])
    cosine = x @ x.T
    np.fill_diagonal(cosine, -2)
    bar = np.sort(cosine, axis=1)[:, -5]  # an eighth of 40
    expected = np.minimum(1, (cosine >= bar[:, None]).mean(axis=0) * 8)
    np.testing.assert_allclose(company(x, seed=0), expected, rtol=1e-6)


def test_clear_groups_are_stable_and_a_group_cut_in_two_is_not():
    x = groups([60, 60, 60])
    three = stability(x, np.repeat([0, 1, 2], 60), seed=0)
    np.testing.assert_array_equal(three, 1)
    four = stability(x, np.r_[np.repeat([0, 1], 60), np.repeat([2, 3], 30)], seed=0)
    assert four[120:].mean() < 0.8


def test_outliers_leave_their_cluster_and_keep_its_number_beside_it():
    x = groups([100, 80, 60, 6])
    found = judged(x, cluster(x, 3, seed=0), seed=0, apart=0.1)
    assert (found.label[240:] == -1).all()
    assert (found.label == -1).sum() == 25
    assert found.nearest is not None
    assert (found.nearest >= 0).all()
    inside = found.label >= 0
    np.testing.assert_array_equal(found.nearest[inside], found.label[inside])
    sizes = np.bincount(found.label[inside])
    assert (np.diff(sizes) <= 0).all()


def test_a_cluster_of_nothing_but_outliers_is_gone():
    x = groups([100, 80, 6])
    three = assemble(x, np.repeat([0, 1, 2], [100, 80, 6]), np.ones(186))
    found = judged(x, three, seed=0, apart=0.2)
    assert (found.label[180:] == -1).all()
    assert found.k == 2


def test_the_least_reliable_are_as_many_as_asked_for():
    trust = np.array([0.9, 0.1, 0.8, 0.2, 0.7, 1, 1, 1, 1, 1], np.float32)
    assert np.flatnonzero(outliers(trust, 0.2)).tolist() == [1, 3]
    assert np.flatnonzero(outliers(trust, None)).tolist() == [1]


@settings(max_examples=20, deadline=None)
@given(k=st.integers(2, 9), n=st.integers(30, 80), seed=st.integers(0, 99))
def test_every_level_lies_within_the_coarser_one(k, n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    found = cluster(x, k, seed=seed)
    tree = levels(x, found, seed=seed)
    sizes = list(tree.labels)
    assert sizes == sorted(sizes)
    assert found.k in sizes
    assert [size for *_, size in tree.merges][-1] == n
    for coarse, fine in zip(tree.labels.values(), list(tree.labels.values())[1:]):
        pairs = np.unique(np.stack([coarse, fine]), axis=1)
        assert len(pairs[0]) == fine.max() + 1  # a finer cluster has one parent


def test_the_nearest_clusters_merge_first():
    x = np.array([[0.0], [0.1], [10.0], [10.1], [13.0], [13.1]], np.float32)
    found = assemble(x, np.array([0, 0, 1, 1, 2, 2]), np.ones(6))
    (a, b, rise, size), last = levels(x, found, seed=0).merges
    assert (a, b, size) == (1, 2, 4)
    assert rise == pytest.approx(9)  # 2·2/4 · 3²
    assert last[:2] == (0, 3)


def test_twenty_noise_pictures_among_many_are_the_least_reliable(cli, workdir):
    images = planted(workdir, (35, 35, 35, 35))
    rng = np.random.default_rng(1)
    for i in range(6):
        noise = rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
        Image.fromarray(noise).save(images / f"noise-{i}.png")
    words = ("cluster", images, "--k", 4, "--views", 2, "--outliers", "10%", "--levels", *QUICK)
    assert cli(*words).exit_code == 0
    folder = workdir / "runs" / "images" / "clusters" / "kmeans-4"
    with (folder / "assignments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    out = [row for row in rows if row["cluster"] == "-1"]
    assert len(out) == 15
    assert sum(row["file_name"].startswith("noise") for row in out) == 6
    assert all(row["nearest"] in "0123" for row in out)
    header = (folder / "levels.csv").read_text().splitlines()[0]
    assert header.startswith("file_name,k2,k4,")
    assert (folder / "merges.csv").read_text().splitlines()[0] == "made,a,b,rise,images"


@pytest.mark.parametrize("share", ["5", "0%", "60%", "few", "nan%"])
def test_a_share_of_outliers_that_cannot_be_is_refused(cli, workdir, share):
    done = cli("cluster", planted(workdir, (3, 3, 3, 3)), "--k", 2, "--outliers", share)
    assert done.exit_code == 2
    assert f"--outliers {share}: must be auto, or a share" in done.stderr


def test_a_folder_that_has_grown_keeps_its_numbers(cli, workdir, monkeypatch):
    images = planted(workdir, (40, 30, 20, 10))
    assert cli("cluster", images, "--k", 4, "--fast", *QUICK).exit_code == 0
    for i, name in enumerate(sorted(images.iterdir())[:10]):
        picture = np.asarray(Image.open(name))[::-1, ::-1]
        Image.fromarray(picture).save(images / f"new-{i}.png")

    from deepclust.data import decode

    read: list[str] = []
    real = decode.decode_all

    def spy(files, *rest, **more):
        read.extend(file.name for file in files)
        return real(files, *rest, **more)

    monkeypatch.setattr("deepclust.data.store.decode_all", spy)
    done = cli("cluster", images, "--k", 4, "--fast", *QUICK)
    assert done.exit_code == 0
    assert len(read) == 10
    assert "clusters go on from" in done.stderr

    def table(run: str) -> dict[str, str]:
        path = workdir / "runs" / run / "clusters" / "kmeans-4" / "assignments.csv"
        with path.open(newline="") as file:
            return {row["file_name"]: row["cluster"] for row in csv.DictReader(file)}

    old, new = table("images"), table("images-2")
    assert np.mean([new[name] == cluster for name, cluster in old.items()]) > 0.9
    again = cli("cluster", images, "--k", 4, "--fast", "--fresh", *QUICK)
    assert "clusters go on from" not in again.stderr


def test_a_guess_at_k_is_drawn_and_explained_on_the_page(cli, workdir):
    images = planted(workdir, (10, 10, 10, 10))
    done = cli("cluster", images, "--k", "auto", "--fast", *QUICK)
    assert done.exit_code == 0, done.stderr
    (folder,) = (workdir / "runs" / "images" / "clusters").iterdir()
    with Image.open(folder / "k.png") as picture:
        assert picture.format == "PNG"
    assert (folder / "k.csv").read_text().startswith("k,silhouette,modularity,stability\n2,")
    page = (folder / "report.html").read_text()
    assert "How many clusters" in page
    assert "k 2 to 8, best at" in page
    assert "This k is a guess" in page
