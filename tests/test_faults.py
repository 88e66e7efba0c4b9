"""Runs that die at planned moments, in children of one process; `faults.py` has the long form."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepclust.errors import TrainingError
from tests.faults import SMALL, Server, command, draw, reference, results, trial

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
    [("term", "step", 1), ("int", "step", 4), ("int int", "step", 0), ("term", "decode", 2),
     ("int", "infer", 0)],
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


def test_the_same_seed_gives_the_same_bits_for_any_number_of_workers(server, undisturbed, tmp_path):
    images, whole, _ = undisturbed
    words = command(images, tmp_path / "run", "cc", "--workers", 2)
    code, err, _ = server.run(*words, cache=tmp_path / "cache")
    assert code == 0, err
    server.run("cluster", tmp_path / "run", "--k", 3, "--threads", 1, cache=tmp_path / "cache")
    assert results(tmp_path / "run") == whole


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
