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
from tests.flips import flip, kept
from tests.rows import (
    BEGUN,
    ELSEWHERE,
    JOBS,
    MOMENTS,
    QUICK,
    REFUSED,
    STORY,
    WEIGHTS,
    Row,
    more,
    numbers,
    world,
)
from tests.rows_faults import hostile_weights, under
from tests.test_page import Elements


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
    with under(row.what):
        ran = cli(*row.command.split())
    check(ran, row)
    assert sorted(workdir.rglob("*")) == before
    assert (workdir / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("row", BEGUN, ids=lambda row: row.what)
def test_what_begins_ends_with_a_word(cli, workdir, row):
    world(workdir)
    with under(row.what):
        check(cli(*row.command.split()), row)
    if row.code == 1 or row.what.startswith("96"):
        return
    info = json.loads((workdir / "new" / "run.json").read_text())
    counts = info["images"]
    assert counts["found"] == counts["used"] + counts["skipped"] + counts["ignored"]
    assert not (workdir / "PWNED").exists()
    if row.says == "collapsed":
        assert "collapsed" in info["warnings"][0]
    if "mixed" in row.command:
        with (workdir / "new" / "skipped.csv").open(newline="") as file:
            assert dict(list(csv.reader(file))[1:]) == {
                "cut.jpg": "truncated", "empty.jpg": "not an image", "text.png": "not an image",
            }  # fmt: skip


def test_weights_of_strangers_are_refused_and_never_run(cli, workdir):
    world(workdir)
    hostile_weights(workdir / "weights")
    for number, row in enumerate(WEIGHTS):
        check(cli(*row.command.replace("--out new", f"--out new{number}").split()), row)
    assert not (workdir / "PWNED").exists()


def test_a_run_and_what_is_done_to_it(cli, workdir):
    world(workdir)
    more(workdir)
    for row in STORY:
        with under(row.what):
            check(cli(*row.command.split()), row)


def test_a_flipped_bit_in_any_file_of_a_real_run_is_refused_or_without_effect(cli, workdir):
    draw(workdir / "in", 8)
    ran = cli("pretrain", "in", "--out", "run", "--k", 2, *QUICK.split())
    assert ran.exit_code == 0, ran.stderr
    assert cli("cluster", "run", "--threads", 1).exit_code == 0
    assert {path.suffix for path in kept(Path("run"))} == {
        ".json", ".csv", ".toml", ".jsonl", ".npy", ".safetensors",
    }  # fmt: skip
    outcomes = list(flip(Path("run"), 60, seed=0))
    assert [pair for pair in outcomes if pair[1].startswith("SEEN")] == []
    assert sum(outcome == "refused" for _, outcome in outcomes) > 50


def cells(path: Path, column: str = "file_name") -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[column] for row in csv.DictReader(file)]


def test_odd_names_and_pictures_go_through_every_command(cli, workdir):
    world(workdir)
    more(workdir)
    good = hostile.tree(workdir / "again")
    for row in JOBS:
        check(cli(*row.command.split()), row)
    run = workdir / "tree" / "run"
    for table in (run / "images.csv", run / "clusters/cc-3/assignments.csv", workdir / "tree.csv"):
        found = cells(table)
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in found)
        paths = [locate(Path("tree"), name_of(cell)).relative_to("tree") for cell in found]
        assert sorted(map(os.fsencode, paths)) == sorted(good)
    text = (workdir / "tree.json").read_text(encoding="utf-8")
    assert all(json.dumps(name, ensure_ascii=False)[1:-1] in text for name in hostile.NAMES[:5])
    for name in ("run", "run2"):
        skipped = workdir / "tree" / name / "skipped.csv"
        assert dict(zip(cells(skipped), cells(skipped, "reason"))) == hostile.SKIPPED
    copies = [p for p in (workdir / "treated").rglob("*.png") if p.is_file()]
    assert len(copies) == len(good)
    cases, odd = hostile.pictures(), workdir / "odd"
    assert set(cells(odd / "images.csv")) == {n for n, c in cases.items() if c.outcome == "read"}
    found = dict(zip(cells(odd / "skipped.csv"), cells(odd / "skipped.csv", "reason")))
    refused = {n: c.outcome for n, c in cases.items() if c.outcome not in ("read", "ignored")}
    assert found == refused
    assert not (workdir / "PWNED").exists()


def test_a_page_of_odd_names_has_no_element_that_plain_names_have_not(cli, workdir):
    """The same pictures in the same order under plain and under odd names."""
    hostile.tree(workdir / "odd")
    pages, tables = [], []
    for root in ("odd", "plain"):
        if root == "plain":
            hostile.plain_tree(workdir / "plain")
        run = f"{root}-run"
        ran = cli("pretrain", root, "--out", run, "--k", 3, *QUICK.split())
        assert ran.exit_code == 0, ran.stderr
        assert cli("cluster", run, "--threads", 1).exit_code == 0
        assert cli("evaluate", run, "--labels", "folders", "--no-baselines").exit_code == 0
        folder = workdir / run / "clusters" / "cc-3"
        pages.append(Elements((folder / "report.html").read_text(encoding="utf-8")))
        tables.append(cells(folder / "assignments.csv"))
    odd, plain = pages
    assert odd.tags == plain.tags
    assert odd.attributes == plain.attributes
    assert len(tables[0]) == len(tables[1]) == len(hostile.NAMES) + 10


def test_every_row_of_the_table_has_a_case_and_every_named_test_is_there():
    rows = [*REFUSED, *BEGUN, *WEIGHTS, *STORY, *JOBS]
    titles = [*(row.what for row in rows), *(moment[0] for moment in MOMENTS), *ELSEWHERE]
    covered = {number for title in titles for number in numbers(title)}
    assert covered >= set(range(1, 141))
    for where in ELSEWHERE.values():
        file, _, name = where.partition("::")
        if name:
            assert f"def {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")


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
