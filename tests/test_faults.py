"""Runs that die at planned moments, in children of one process; `faults.py` has the long form."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load as loads

from deepclust import files
from deepclust.errors import TrainingError
from tests.faults import (
    BALLAST,
    SMALL,
    Server,
    command,
    draw,
    halved,
    reference,
    results,
    trial,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as one:
        yield one


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory) -> tuple[Path, dict[str, bytes], list[str]]:
    home = tmp_path_factory.mktemp("whole")
    images = draw(home / "images", 10)
    return images, *reference(server, home, images, "cc")


# Numbers of events of their kind; half of the kills are aimed at a write.
KILLS = [
    ("open run.json", 0), ("half", 0), ("rename", 0), ("open config.toml", 0), ("decode", 4),
    ("step", 1), ("step", 4), ("open checkpoint-00001-000000.safetensors", 0), ("half", 9),
    ("open embeddings.npy", 0), ("infer", 0), ("rename", -1),
]  # fmt: skip


def read_all(run: Path) -> int:
    """Read what is there of a run while it is written; return the number of whole files.

    Raises whatever half a file raises. A file may go between two looks.
    """
    whole = 0
    for path in sorted(p for p in run.rglob("*.*") if files.TEMPORARY not in p.name):
        if path.is_dir() or path.name == ".lock":
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        if path.suffix == ".json":
            table = json.loads(data)
            assert table.pop(files.DIGEST, None) in (None, files._seal(table))
        if path.suffix == ".npy":
            np.load(io.BytesIO(data), allow_pickle=False)
        if path.suffix == ".safetensors":
            loads(data)
        if path.suffix in (".csv", ".toml", ".jsonl"):
            assert data[-1:] in (b"", b"\n"), path
        whole += 1
    return whole


def number(events: list[str], name: str, count: int) -> int:
    """Return the number of the count-th event of that name."""
    return [i for i, event in enumerate(events) if event == name][count]


@pytest.mark.parametrize(("name", "count"), KILLS)
def test_a_run_that_is_killed_resumes_to_the_same_bits(server, undisturbed, tmp_path, name, count):
    images, whole, events = undisturbed
    at = number(events, name, count)
    assert trial(server, tmp_path, images, "cc", whole, at=at, action="kill") == []


@pytest.mark.parametrize(
    ("action", "name", "count"),
    [("term", "step", 1), ("hup", "step", 2), ("int", "step", 4), ("int int", "step", 0),
     ("term", "decode", 2), ("int", "infer", 0)],
)  # fmt: skip
def test_a_run_that_is_told_to_stop_resumes_to_the_same_bits(
    server, undisturbed, tmp_path, action, name, count
):
    images, whole, events = undisturbed
    at = number(events, name, count)
    assert trial(server, tmp_path, images, "cc", whole, at=at, action=action) == []


@pytest.mark.parametrize("name", ["half", "rename", "open metrics.jsonl", "open embeddings.npy"])
def test_a_full_disk_costs_nothing_that_was_there(server, undisturbed, tmp_path, name):
    images, whole, events = undisturbed
    at = number(events, name, -1)
    assert trial(server, tmp_path, images, "cc", whole, at=at, action="full") == []


@pytest.mark.parametrize("megabytes", [1, 8])
def test_a_limit_of_the_file_size_is_a_full_disk(server, undisturbed, tmp_path, megabytes):
    images, whole, _ = undisturbed
    run, cache = tmp_path / "run", tmp_path / "cache"
    words = command(images, run, "cc")
    code, err, _ = server.run(*words, cache=cache, megabytes=megabytes)
    assert code == 5, err
    assert f"no space left to write {run}" in err
    assert not list(run.glob(".*.tmp-*"))
    assert server.run(*words, "--resume", cache=cache)[0] == 0
    server.run("cluster", run, "--k", 3, "--threads", 1, cache=cache)
    assert results(run) == whole


@pytest.mark.parametrize("workers", [1, 4])
def test_the_same_seed_gives_the_same_bits_for_any_number_of_workers(
    server, undisturbed, tmp_path, workers
):
    images, whole, _ = undisturbed
    words = command(images, tmp_path / "run", "cc", "--workers", workers)
    code, err, _ = server.run(*words, cache=tmp_path / "cache")
    assert code == 0, err
    server.run("cluster", tmp_path / "run", "--k", 3, "--threads", 1, cache=tmp_path / "cache")
    assert results(tmp_path / "run") == whole


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 96 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    words = [mount or "mount", "-t", "tmpfs", "-o", "size=96m", "none", str(place)]
    if not mount or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_a_disk_that_fills_while_a_run_goes_on_costs_nothing_that_was_there(
    server, undisturbed, tmp_path, disk, share
):
    images, whole, events = undisturbed
    run, cache = disk / "run", tmp_path / "cache"
    older = disk / "older.npy"
    older.write_bytes(bytes(range(256)) * 4000)
    words, at = command(images, run, "cc"), int(len(events) * share)
    code, err, _ = server.run(*words, cache=cache, at=at, action="fill", away=str(disk))
    assert (code, "no space" in err) == (5, True), err
    assert str(run) in err
    assert shutil.disk_usage(disk).free < 1 << 20
    assert older.read_bytes() == bytes(range(256)) * 4000
    assert halved(run) == []
    assert not list(run.glob(".*.tmp-*"))
    (disk / BALLAST).unlink()
    code, err, _ = server.run(*words, "--resume", cache=cache)
    assert code == 0, err
    server.run("cluster", run, "--k", 3, "--threads", 1, cache=cache)
    assert results(run) == whole


def test_a_run_is_not_begun_where_its_checkpoints_have_no_room(server, undisturbed, tmp_path, disk):
    images, _, _ = undisturbed
    (disk / BALLAST).write_bytes(bytes(90 << 20))
    run, cache = disk / "run", tmp_path / "cache"
    code, err, events = server.run(*command(images, run, "cc"), cache=cache)
    assert (code, "no space for" in err) == (5, True), err
    assert "step" not in events


def test_readers_see_whole_files_while_a_run_is_written(server, undisturbed, tmp_path):
    images, _, _ = undisturbed
    run, cache, ended = tmp_path / "run", tmp_path / "cache", []

    def work() -> None:
        ended.append(server.run(*command(images, run, "cc", "--epochs", 4), cache=cache)[0])
        for seed in range(3):
            words = ("cluster", run, "--k", 3, "--threads", 1, "--algorithm", "kmeans")
            ended.append(server.run(*words, "--seed", seed, "--name", "x", cache=cache)[0])

    thread, whole = threading.Thread(target=work), 0
    thread.start()
    try:
        while thread.is_alive():
            whole += read_all(run) if run.exists() else 0
    finally:
        thread.join()
    assert ended == [0, 0, 0, 0]
    assert whole > 100


@pytest.fixture(scope="module")
def frozen(server, tmp_path_factory) -> tuple[Path, dict[str, bytes], list[str]]:
    home = tmp_path_factory.mktemp("frozen")
    images = draw(home / "images", 10)
    return images, *reference(server, home, images, "frozen")


@pytest.mark.parametrize(
    ("action", "name", "count"),
    [("kill", "step", 4), ("kill", "half", -4), ("term", "step", 2), ("kill", "decode", 4)],
)
def test_a_run_on_a_frozen_encoder_resumes_to_the_same_bits(
    server, frozen, tmp_path, action, name, count
):
    images, whole, events = frozen
    assert "whitened.npy" in whole
    at = number(events, name, count)
    assert trial(server, tmp_path, images, "frozen", whole, at=at, action=action) == []


def test_a_pipe_that_nobody_reads_is_no_error(server, undisturbed, tmp_path):
    images, _, _ = undisturbed
    words = command(images, tmp_path / "run", "cc")
    code, err, _ = server.run(*words, cache=tmp_path / "cache", closed=True)
    assert (code, "error" in err) == (0, False), err


def test_pcl_resumes_in_the_middle_of_an_epoch(server, tmp_path):
    images = draw(tmp_path / "images", 10)
    whole, events = reference(server, tmp_path / "whole", images, "pcl")
    at = number(events, "step", 4)
    assert trial(server, tmp_path, images, "pcl", whole, at=at, action="term") == []


def test_a_folder_that_goes_away_ends_the_run(server, undisturbed, tmp_path):
    images, _, events = undisturbed
    run = tmp_path / "run"
    at = number(events, "step", 1)
    code, err, _ = server.run(
        *command(images, run, "cc"), cache=tmp_path / "cache", at=at, action="away", away=str(run)
    )
    assert code == 5, err
    assert f"cannot write {run}" in err


def test_an_embedding_that_is_no_number_never_reaches_the_clustering(cli, workdir, monkeypatch):
    from deepclust.methods.cc import CC

    draw(workdir / "in", 8)
    real = CC.embed
    monkeypatch.setattr(CC, "embed", lambda self, x: real(self, x) * float("nan"))
    monkeypatch.setattr("deepclust.training.geometry", lambda *_: {"effective_rank": 9.0})
    ran = cli("pretrain", "in", "--out", "run", "--method", "cc", "--k", 2, "--epochs", 1, *SMALL)
    assert ran.exit_code == TrainingError.exit_code, ran.stderr
    assert "NaN" in ran.stderr
    assert not (workdir / "run" / "embeddings.npy").exists()
    assert cli("cluster", "run", "--threads", 1).exit_code == 2


def test_no_space_on_standard_output_is_no_bug(cli, monkeypatch):
    from deepclust import screen

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(screen, "error", screen.error)
    monkeypatch.setattr("deepclust.run.Run.newest", full)
    ran = cli("evaluate")
    assert (ran.exit_code, ran.stderr.startswith("error: no space left")) == (5, True)
