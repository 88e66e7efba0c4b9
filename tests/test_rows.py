from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from deepclust.data.images import locate
from deepclust.files import name_of
from tests import hostile
from tests.faults import draw
from tests.rows import BEGUN, QUICK, REFUSED, STORY, Row, world


def check(ran, row: Row) -> None:
    assert ran.exit_code == row.code, ran.stderr
    assert row.says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not any(ord(c) < 32 and c != "\n" for c in ran.stderr)
    if row.code:
        last = [line for line in ran.stderr.splitlines() if not line.startswith("hint: ")][-1]
        assert last.startswith("error: ")
        assert len(last) <= 310


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.what)
def test_what_cannot_be_is_refused_before_any_work(cli, workdir, row):
    world(workdir)
    before = sorted(workdir.rglob("*"))
    check(cli(*row.command.split()), row)
    assert sorted(workdir.rglob("*")) == before
    assert (workdir / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("row", BEGUN, ids=lambda row: row.what)
def test_what_begins_ends_with_a_word(cli, workdir, row):
    world(workdir)
    check(cli(*row.command.split()), row)
    assert not (workdir / "PWNED").exists()
    info = json.loads((workdir / "new" / "run.json").read_text())
    counts = info["images"]
    assert counts["found"] == counts["used"] + counts["skipped"] + counts["ignored"]
    if row.says == "collapsed":
        assert "collapsed" in info["warnings"][0]
    if "mixed" in row.command:
        with (workdir / "new" / "skipped.csv").open(newline="") as file:
            assert dict(list(csv.reader(file))[1:]) == {
                "cut.jpg": "truncated", "empty.jpg": "not an image", "text.png": "not an image",
            }  # fmt: skip


def test_a_run_and_what_is_done_to_it(cli, workdir):
    world(workdir)
    for row in STORY:
        check(cli(*row.command.split()), row)


def test_every_hostile_name_comes_back_from_the_tables(cli, workdir):
    good = hostile.tree(workdir / "tree")
    ran = cli("pretrain", "tree", "--out", "tree/run", "--k", 3, *QUICK.split())
    assert ran.exit_code == 0, ran.stderr
    assert not any(ord(c) < 32 and c != "\n" for c in ran.stderr)
    assert cli("cluster", "tree/run", "--threads", 1).exit_code == 0
    for table in ("images.csv", "clusters/cc-3/assignments.csv"):
        with (workdir / "tree" / "run" / table).open(newline="", encoding="utf-8") as file:
            cells = [row["file_name"] for row in csv.DictReader(file)]
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
        paths = [locate(Path("tree"), name_of(cell)).relative_to("tree") for cell in cells]
        assert sorted(map(os.fsencode, paths)) == sorted(good)
    with (workdir / "tree" / "run" / "skipped.csv").open(newline="", encoding="utf-8") as file:
        assert {r["file_name"]: r["reason"] for r in csv.DictReader(file)} == hostile.SKIPPED
    assert not (workdir / "PWNED").exists()


def test_links_out_of_the_folder_are_read_when_asked(cli, workdir):
    draw(workdir / "in", 4)
    draw(workdir / "outside", 2)
    (workdir / "in" / "link.png").symlink_to(workdir / "outside" / "000.png")
    (workdir / "in" / "more").symlink_to(workdir / "outside")
    ran = cli("pretrain", "in", "--out", "a", "--k", 2, *QUICK.split())
    assert "4 images, 1 skipped" in ran.stderr
    assert "--follow-links follows them" in ran.stderr
    ran = cli("pretrain", "in", "--out", "b", "--k", 2, "--follow-links", *QUICK.split())
    assert "7 images" in ran.stderr


@pytest.mark.parametrize("method", ["cc", "pcl"])
def test_ten_pictures_are_enough_for_the_defaults(cli, workdir, method):
    draw(workdir / "in", 10)
    ran = cli(
        "pretrain", "in", "--out", "run", "--method", method, "--k", 3, "--epochs", 1,
        "--threads", 1, "--workers", 0,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    (line,) = (workdir / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] > 0


def test_a_loss_that_is_no_number_ends_the_run_with_the_last_checkpoint_kept(
    cli, workdir, monkeypatch
):
    from deepclust.methods.cc import CC

    draw(workdir / "in", 8)
    calls, real = [], CC.losses

    def losses(self, *words):
        calls.append(1)
        terms = real(self, *words)
        return {n: t * float("nan") for n, t in terms.items()} if len(calls) == 4 else terms

    monkeypatch.setattr(CC, "losses", losses)
    ran = cli("pretrain", "in", "--out", "run", "--k", 2, "--method", "cc", *QUICK.split(),
              "--epochs", 3)  # fmt: skip
    assert ran.exit_code == 6, ran.stderr
    assert "became nan at epoch 2, step 2" in ran.stderr
    info = json.loads((workdir / "run" / "run.json").read_text())
    assert info["status"] == "failed"
    assert [c["file"] for c in info["checkpoints"]] == ["checkpoint-00001-000000.safetensors"]
    assert not (workdir / "run" / "embeddings.npy").exists()
    monkeypatch.setattr(CC, "losses", real)
    words = [*QUICK.split(), "--epochs", 3, "--resume"]
    ran = cli("pretrain", "in", "--out", "run", "--k", 2, "--method", "cc", *words)
    assert ran.exit_code == 0, ran.stderr
