"""Pictures that arrive later: the same space, the same numbers, a pool for what is unlike all."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepclust import files, frozen, later
from deepclust.algorithms.novelty import judge
from deepclust.baselines import settings_of, squares
from deepclust.device import pick
from deepclust.run import Run
from tests.shapes import SHAPES, draw, planted

QUICK = ("--threads", 1, "--workers", 0)


def blobs(counts: list[int], seed: int) -> np.ndarray:
    """Unit rows around the axes of a space of 16 columns, counts[i] of them around axis i."""
    rng = np.random.default_rng(seed)
    x = np.repeat(np.eye(16)[: len(counts)], counts, axis=0) + rng.normal(0, 0.1, (sum(counts), 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def more(folder: Path, count: int, seed: int = 7) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for i in range(count):
        shape = SHAPES[i % len(SHAPES)]
        Image.fromarray(draw(shape, rng)).save(folder / f"new-{shape}-{i}.png")
    return folder


def test_pictures_like_the_old_ones_are_not_novel():
    old, new = blobs([100, 100, 100], 0), blobs([20, 20, 20], 1)
    found = judge(new, old)
    assert found.novel.mean() <= 0.1  # 2 % of the old ones would be far themselves
    assert (found.group == -1).all()
    assert not found.drift


def test_a_kind_never_seen_is_novel_and_one_group():
    old, new = blobs([100, 100, 100], 0), blobs([5, 5, 5, 12], 1)
    found = judge(new, old)
    assert found.novel[15:].all()
    assert (found.group[15:] == 0).all()
    assert (found.group[:15] == -1).all()


def test_four_pictures_are_no_group():
    found = judge(blobs([5, 5, 5, 4], 1), blobs([100, 100, 100], 0))
    assert found.novel[15:].all()
    assert (found.group == -1).all()


def test_pictures_from_elsewhere_are_drift():
    old = blobs([100, 100, 100], 0)
    moved = old[:60] + np.roll(old[:60], 7, axis=1)
    assert judge(moved / np.linalg.norm(moved, axis=1, keepdims=True), old).drift


@pytest.mark.parametrize("flag", ["--fast", "--views=2"])
def test_old_pictures_land_where_they_were(cli, workdir, flag):
    images = planted(workdir, (10, 10, 10, 10))
    assert cli("cluster", images, "--k", 4, flag, *QUICK).exit_code == 0
    run = Run.open(Path("runs/images"))
    rows = squares(run, 147, later.SILENT)
    again = later.embed(run, settings_of(run), rows, run.image_root, pick("cpu"), 0)
    assert again.bare == pytest.approx(np.asarray(run.whitened()), abs=1e-6)
    found = later.assign(run, run.clustering(), again)
    old = later.labels(run, run.clustering())[1]
    assert (found.label == old).mean() >= 0.9


def test_only_new_files_are_read_and_old_numbers_stay(cli, workdir, monkeypatch):
    images = planted(workdir, (10, 10, 10, 10))
    assert cli("cluster", images, "--k", 4, "--fast", *QUICK).exit_code == 0
    folder = Path("runs/images/clusters/kmeans-4")
    before = (folder / "assignments.csv").read_bytes()
    more(images, 4)
    read: list[str] = []
    from deepclust.data import decode

    real = decode.read_square
    monkeypatch.setattr(
        decode,
        "read_square",
        lambda path, *a, **k: (read.append(path.name), real(path, *a, **k))[1],
    )
    ran = cli("predict", "runs/images", images, "--json", *QUICK)
    assert ran.exit_code == 0, ran.stderr
    assert sorted(read) == sorted(path.name for path in images.glob("new-*"))
    done = json.loads(ran.stdout)
    assert done["images"] == 4
    rows = table(Path(done["path"]))
    assert {row["file_name"] for row in rows} == set(read)
    assert {row["nearest"] for row in rows} <= set("0123")
    assert (folder / "assignments.csv").read_bytes() == before
    ran = cli("predict", "runs/images", images, "--out", folder / "assignments.csv", *QUICK)
    assert ran.exit_code == 5


def test_noise_waits_in_a_pool_until_it_is_a_group(cli, workdir):
    images = planted(workdir, (15, 15, 15, 15))
    assert cli("cluster", images, "--k", 4, "--fast", *QUICK).exit_code == 0
    rng = np.random.default_rng(1)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        for i in range(4):
            noise = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(noise).save(f"{folder}/{i}.png")
    first = json.loads(cli("predict", "runs/images", "a", "--json", *QUICK).stdout)
    assert first["novel"] == 4
    assert first["groups"] == []
    assert [row["cluster"] for row in table(Path(first["path"]))] == ["-1"] * 4
    second = json.loads(cli("predict", "runs/images", "b", "--json", *QUICK).stdout)
    assert [len(group) for group in second["groups"]] == [8]
    assert any("perhaps a new cluster" in line for line in second["words"])
    assert len(files.read_csv(Path("runs/images/perhaps-new.csv"))) == 8


@pytest.mark.parametrize("encoder", ["lite0", "resnet8"])
def test_a_trained_run_takes_new_pictures_by_its_head(cli, workdir, encoder):
    images = planted(workdir, (8, 8, 8, 8))
    ran = cli(
        "pretrain", images, "--method", "cc", "--encoder", encoder, "--k", 4, "--epochs", 2,
        "--out", "run", "--set", "views.cached=2", *QUICK,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    assert cli("cluster", "run", "--algorithm", "head", *QUICK).exit_code == 0
    run = Run.open(Path("run"))
    side = 147 if encoder == "lite0" else 32
    rows = squares(run, side, later.SILENT)
    made = later.embed(run, settings_of(run), rows, run.image_root, pick("cpu"), 0)
    label = later.assign(run, run.clustering(), made).label
    assert (label == later.labels(run, run.clustering())[1]).mean() >= 0.95
    more(workdir / "new", 4)
    ran = cli("predict", "run", "new", *QUICK)
    assert ran.exit_code == 0, ran.stderr
    assert "4 new images" in ran.stdout


def test_the_whitening_of_another_encoder_is_refused(cli, workdir):
    images = planted(workdir, (6, 6, 6, 6))
    assert cli("cluster", images, "--k", 3, "--fast", *QUICK).exit_code == 0
    run = Run.open(Path("runs/images"))
    with pytest.raises(frozen.CheckpointError, match="not the whitening of this encoder"):
        frozen.Space.load(run.path / "features.safetensors", squares(run, 32, later.SILENT), {})
