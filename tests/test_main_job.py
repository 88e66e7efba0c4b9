"""The whole job through the command line, on pictures with a planted structure."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepclust.algorithms.kmeans import cluster
from deepclust.metrics import acc, contingency
from tests.shapes import planted

QUICK = ("--threads", 1, "--workers", 0)
SCRATCH = ("--encoder", "resnet8", *QUICK)
# Colour carries nothing here, so the views have to change it; the presets keep some of it.
VIEWS = (
    "--set", "views.crop_min=0.4", "--set", "views.tint=0.3", "--set", "views.hue=0.5",
)  # fmt: skip


def scores(run: Path, labels: Path, cli) -> dict:
    ran = cli("-q", "evaluate", run, "--labels", labels, "--no-baselines", "--json")
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout)["scores"]


def test_cc_from_scratch_finds_planted_shapes(cli, workdir):
    images = planted(workdir)
    ran = cli(
        "pretrain", images, "--method", "cc", "--k", 4, "--epochs", 30, "--out", "run", *SCRATCH,
        "--batch-size", 100, *VIEWS,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    assert cli("cluster", "run", *QUICK).exit_code == 0
    assert scores(Path("run"), workdir / "labels.csv", cli)["acc"] >= 0.95


def test_pcl_from_scratch_finds_planted_shapes_where_pixels_say_nothing(cli, workdir):
    images = planted(workdir)
    ran = cli(
        "pretrain", images, "--method", "pcl", "--k", 4, "--epochs", 40, "--out", "run", *SCRATCH,
        "--batch-size", 50, *VIEWS,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    assert cli("cluster", "run", "--k", 4, *QUICK).exit_code == 0
    assert scores(Path("run"), workdir / "labels.csv", cli)["acc"] >= 0.9
    pixels = np.stack([np.asarray(Image.open(p)) for p in sorted(images.iterdir())])
    names = cluster(pixels.reshape(400, -1).astype(np.float32) / 255, 4, seed=0).label
    with (workdir / "labels.csv").open(newline="") as file:
        truth = {row["file_name"]: row["label"] for row in csv.DictReader(file)}
    labels = np.unique([truth[name] for name in sorted(truth)], return_inverse=True)[1]
    assert acc(contingency(names, labels)) < 0.4


def test_the_method_is_the_one_that_measured_best(cli, workdir):
    images = planted(workdir, (6, 6, 6, 6))
    ran = cli("pretrain", images, "--epochs", 1, "--out", "a", *SCRATCH)
    assert "method: cc (the best measured in equal time)" in ran.stderr
    assert json.loads(Path("a/run.json").read_text())["settings"]["method"] == "cc"
    ran = cli("pretrain", images, "--method", "pcl", "--epochs", 1, "--out", "b", *SCRATCH)
    assert "method:" not in ran.stderr


def test_four_commands_leave_what_the_readme_says(cli, workdir):
    images = planted(workdir, (12, 10, 8, 6))
    ran = cli("pretrain", images, "--method", "cc", "--k", 4, "--epochs", 2, *SCRATCH)
    assert ran.exit_code == 0, ran.stderr
    assert "36 images, 2 epochs: runs/images" in ran.stdout
    assert "encoder: resnet8, from scratch" in ran.stderr

    ran = cli("cluster", "--k", 3, *QUICK)  # another k than the run's: k-means on the embedding
    assert ran.exit_code == 0, ran.stderr
    assert "36 images in 3 clusters: runs/images/clusters/kmeans-3/assignments.csv" in ran.stdout
    ran = cli("cluster", *QUICK)
    assert ran.exit_code == 0, ran.stderr

    folder = Path("runs/images/clusters/cc-4")
    with (folder / "assignments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file_name"] for row in rows] == sorted(p.name for p in images.iterdir())
    sizes = json.loads((folder / "clusters.json").read_text())["sizes"]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 36

    ran = cli("evaluate", "--labels", workdir / "labels.csv", "--no-baselines")
    assert ran.exit_code == 0, ran.stderr
    assert {"report.json", "report.md", "report.csv", "confusion.png"} <= {
        path.name for path in folder.iterdir()
    }
    ran = cli("export", "--to", "folders", "--out", "sorted")
    assert ran.exit_code == 0, ran.stderr
    assert len(list(Path("sorted").rglob("*.png"))) == 36
    assert len(list(images.iterdir())) == 36


def test_metrics_hold_each_term_and_the_distance_to_collapse(cli, workdir):
    images = planted(workdir, (6, 6, 6, 6))
    ran = cli("pretrain", images, "--method", "cc", "--k", 4, "--epochs", 2, *SCRATCH)
    assert ran.exit_code == 0, ran.stderr
    lines = [json.loads(x) for x in Path("runs/images/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    wanted = {
        "loss", "loss_instance", "loss_cluster", "loss_balance", "lr", "images_per_second",
        "instance_gap", "cluster_gap", "cluster_left", "effective_rank", "uniformity",
    }  # fmt: skip
    assert wanted <= set(lines[0])
    # NT-Xent of 24 pictures collapses at log(47); the gap and the loss say the same.
    gap = math.log(47) - lines[0]["loss_instance"]
    assert lines[0]["instance_gap"] == pytest.approx(gap, abs=1e-9)


def test_settings_of_a_run_can_be_given_back(cli, workdir):
    images = planted(workdir, (6, 6, 6, 6))
    ran = cli("pretrain", images, "--method", "cc", "--epochs", 1, "--set", "views.flip=false",
              "--set", "method.instance_temperature=0.3", "--out", "a", *SCRATCH)  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    assert cli("pretrain", images, "--config", "a/config.toml", "--out", "b", *QUICK).exit_code == 0
    assert Path("a/config.toml").read_bytes() == Path("b/config.toml").read_bytes()
    assert Path("a/embeddings.npy").read_bytes() == Path("b/embeddings.npy").read_bytes()


@pytest.mark.parametrize("method", ["cc", "pcl", "simclr"])
def test_ten_pictures_train_by_default(cli, workdir, method):
    images = planted(workdir, (3, 3, 2, 2))
    ran = cli("pretrain", images, "--method", method, "--epochs", 12, "--out", "run", *SCRATCH)
    assert ran.exit_code == 0, ran.stderr
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 12
    assert cli("cluster", "run", "--k", 2, *QUICK).exit_code == 0


def test_more_clusters_than_pictures_is_refused_with_both_numbers(cli, workdir):
    images = planted(workdir, (2, 2, 2, 2))
    ran = cli("cluster", images, "--k", 50, *QUICK)
    assert ran.exit_code == 3
    assert "50" in ran.stderr.splitlines()[-1]
    assert " 8" in ran.stderr.splitlines()[-1]
    assert "embed" not in ran.stderr


def test_a_folder_never_seen_is_clustered_by_the_packaged_encoder(cli, workdir):
    images = planted(workdir, (8, 8, 8, 8))
    ran = cli("cluster", images, "--k", 4, "--fast", *QUICK)
    assert ran.exit_code == 0, ran.stderr
    assert "lite0, weights: packaged" in ran.stderr
    assert "32 images in 4 clusters" in ran.stdout


def test_features_of_a_frozen_encoder_are_learnt_on(cli, workdir):
    images = planted(workdir, (8, 8, 8, 8))
    for method in ("cc", "pcl", "simclr"):
        ran = cli(
            "pretrain", images, "--method", method, "--encoder", "lite0", "--k", 4, "--epochs", 3,
            "--out", method, "--set", "views.cached=2", *QUICK,
        )  # fmt: skip
        assert ran.exit_code == 0, ran.stderr
        assert "frozen, on its features" in ran.stderr
        assert cli("cluster", method, *QUICK).exit_code == 0


def test_a_run_without_a_head_gets_one_on_its_finished_network(cli, workdir):
    images = planted(workdir, (8, 8, 8, 8))
    assert cli("pretrain", images, "--epochs", 2, "--out", "run", *SCRATCH).exit_code == 0
    before = Path("run/embeddings.npy").read_bytes()
    ran = cli("cluster", "run", "--k", 3, "--algorithm", "head", *QUICK)
    assert ran.exit_code == 0, ran.stderr
    assert Path("run/clusters/head-3/assignments.csv").exists()
    assert Path("run/embeddings.npy").read_bytes() == before
