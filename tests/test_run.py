from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deepclust import files
from deepclust.errors import CheckpointError, OutputError, UsageError
from deepclust.run import Run, seal_clusters


def finished(path: Path) -> Run:
    """A run with all the files that later commands read, and one clustering."""
    run = Run.create(path, source="images")
    files.write_text(path / "config.toml", "seed = 0\n")
    files.write_csv(path / "images.csv", ["file_name"], [["a.png"], ["b.png"]])
    for name, width in (("embeddings", 4), ("whitened", 3), ("probabilities", 2)):
        files.write_array(path / f"{name}.npy", np.eye(2, width, dtype=np.float32))
    made = ["config.toml", "images.csv", "embeddings.npy", "whitened.npy", "probabilities.npy"]
    run.update(status="pretrained", images={"used": 2, "root": "images"}, files=run.seal(*made))
    folder = path / "clusters" / "kmeans-2"
    folder.mkdir(parents=True)
    files.write_text(folder / "assignments.csv", "file_name,cluster,confidence\na.png,0,1.0\n")
    files.write_array(folder / "centers.npy", np.eye(2, dtype=np.float32))
    seal_clusters(folder, {"algorithm": "kmeans", "sizes": [1, 1]})
    return run


def everything(path: Path) -> list:
    """Read all that a command may read of a run."""
    run = Run.open(path)
    folder = run.clustering()
    return [
        {k: v for k, v in run.info.items() if k != "files"}, run.names,
        run.embeddings().tolist(), np.array(run.whitened()).tolist(),
        np.array(run.probabilities()).tolist(), folder.name,
        files.read_csv(folder / "assignments.csv"), np.load(folder / "centers.npy").tolist(),
        (path / "config.toml").read_text(),
    ]  # fmt: skip


def test_one_flipped_bit_in_any_file_of_a_run_is_refused_or_without_effect(tmp_path):
    path = tmp_path / "run"
    finished(path)
    whole, chance = everything(path), np.random.default_rng(0)
    refused = named = trials = 0
    read = [p for p in path.rglob("*") if p.is_file() and p.name != ".lock"]
    assert len(read) == 9
    for file in read:
        data = file.read_bytes()
        for bit in chance.integers(0, len(data) * 8, 1000 // len(read) + 1):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            trials += 1
            try:
                assert everything(path) == whole
            except CheckpointError as error:
                named += str(file) in error.message
                refused += 1
        file.write_bytes(data)
    assert trials > 1000
    assert named == refused > 900
    assert everything(path) == whole


@pytest.mark.parametrize(
    "name", ["run.json", "images.csv", "embeddings.npy", "clusters/kmeans-2/assignments.csv"]
)
@pytest.mark.parametrize("data", [b"", b"\0" * 50, b"{}", b"[[", b"\x93NUMPY\x01\x00", "cut"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, name, data):
    path = tmp_path / "run"
    finished(path)
    file = path / name
    file.write_bytes(file.read_bytes()[:-7] if data == "cut" else data)
    with pytest.raises(CheckpointError, match=file.name):
        everything(path)


def test_a_newer_run_is_told_from_a_damaged_one(tmp_path):
    run = finished(tmp_path / "run")
    run.update(version=99)
    with pytest.raises(CheckpointError, match="newer version"):
        Run.open(run.path)


def test_a_damaged_run_does_not_hide_the_others(tmp_path):
    finished(tmp_path / "a")
    finished(tmp_path / "b")
    (tmp_path / "b" / "run.json").write_text("{")
    assert [run.name for run in Run.all(tmp_path)] == ["a"]
    with pytest.raises(CheckpointError, match="damaged"):
        Run.newest(tmp_path)


def test_a_run_is_not_begun_over_another_or_in_a_strange_place(tmp_path):
    finished(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for name, words in (
        ("run", "holds a run already"), ("file", "is a file"), ("full", "not empty"),
        ("file/below", "cannot write"),
    ):  # fmt: skip
        with pytest.raises(OutputError, match=words):
            Run.create(tmp_path / name, overwrite=name != "run")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_overwriting_removes_what_is_ours_and_nothing_else(tmp_path):
    path = tmp_path / "run"
    finished(path)
    outside = tmp_path / "outside"
    outside.mkdir()
    files.write_text(outside / "clusters.json", "{}")
    mine = ["notes.txt", "clusters/mine.txt", "clusters/kmeans-2/mine.txt", "clusters/other/a.csv"]
    for name in mine:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    (path / "clusters" / "link").symlink_to(outside)
    run = Run.create(path, overwrite=True, source="elsewhere")
    left = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
    assert left == sorted([*mine, ".lock", "run.json"])
    assert (outside / "clusters.json").exists()
    assert Run.open(path).info["source"] == run.info["source"] == "elsewhere"


def test_a_place_where_a_run_died_at_its_first_step_can_be_used(tmp_path):
    (tmp_path / ".lock").write_text("1234")
    (tmp_path / ".run.json.tmp-1234").write_text("{")
    Run.create(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "run.json"]


def test_the_second_process_in_a_run_is_refused_with_the_number_of_the_first(tmp_path):
    run = finished(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from deepclust.run import Run\n"
        "from deepclust.errors import DeepclustError\n"
        "try:\n"
        "    with Run.open(Path(sys.argv[1])).locked(): print('mine')\n"
        "except DeepclustError as error: print(error.exit_code, error.message)\n"
    )

    def other() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, timeout=50
        )
        return done.stdout.strip()

    before = (run.path / "run.json").read_bytes()
    with run.locked():
        assert other() == f"5 {run.path} is in use by process {os.getpid()}"
        assert (run.path / "run.json").read_bytes() == before
    assert other() == "mine"


def test_a_run_is_locked_as_it_is_now(tmp_path):
    first = finished(tmp_path / "run")
    second = Run.open(first.path)
    with first.locked():
        first.update(clustered="kmeans-2")
    with second.locked():
        second.update(status="more")
    assert Run.open(first.path).info["clustered"] == "kmeans-2"


def test_leavings_of_a_dead_process_are_swept_under_the_lock(tmp_path):
    run = finished(tmp_path / "run")
    (run.path / ".embeddings.npy.tmp-99").write_bytes(b"half")
    with run.locked():
        assert not list(run.path.glob(".*.tmp-*"))


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    run = finished(tmp_path / "run")
    (run.path / ".lock").unlink()
    (tmp_path / "victim").write_text("old")
    (run.path / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OutputError), run.locked():
        pass
    assert (tmp_path / "victim").read_text() == "old"


def test_what_is_not_there_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="no run at"):
        Run.open(tmp_path)
    run = Run.create(tmp_path / "run")
    with pytest.raises(UsageError, match="no embedding yet"):
        run.embeddings()
    with pytest.raises(UsageError, match="no clusters yet"):
        run.clustering()


def test_the_digest_of_run_json_covers_the_whole_table(tmp_path):
    run = finished(tmp_path / "run")
    table = json.loads((run.path / "run.json").read_text())
    table["images"]["root"] = "/etc"
    (run.path / "run.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="does not match its digest"):
        Run.open(run.path)
