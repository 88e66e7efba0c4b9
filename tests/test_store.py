from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from deepclust.data import decode
from deepclust.data.decode import decode_all
from deepclust.data.images import find_images
from deepclust.data.store import RowStore, load_pixels
from deepclust.errors import OutputError
from tests import hostile


def put(root: Path, *names: str) -> None:
    root.mkdir(exist_ok=True)
    for seed, name in enumerate(names):
        (root / name).write_bytes(hostile.encode(hostile.scene(24, 24, seed), "PNG"))


def load(root: Path, workers: int = 0) -> tuple[dict[str, bytes], dict[str, str]]:
    rows, skipped = load_pixels(find_images(root), 16, workers=workers)
    used = {file.name: rows[slice(i, i + 1)].tobytes() for i, file in enumerate(rows.files)}
    return used, {one.name: one.reason for one in skipped}


def test_rows_are_the_same_for_any_number_of_workers(tmp_path, monkeypatch):
    hostile.write(tmp_path / "in")
    found = []
    for workers in (0, 2):
        monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / f"cache{workers}"))
        found.append(load(tmp_path / "in", workers))
    assert found[0] == found[1]
    outcomes = {name: case.outcome for name, case in hostile.pictures().items()}
    assert set(found[0][0]) == {name for name, outcome in outcomes.items() if outcome == "read"}
    refused = {name: o for name, o in outcomes.items() if o not in ("read", "ignored")}
    assert found[0][1] == refused


def test_without_shared_memory_pictures_are_decoded_in_this_process(tmp_path, monkeypatch):
    put(tmp_path / "in", "a.png", "b.png")

    def no_pool(workers: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decode, "_pool", no_pool)
    files = find_images(tmp_path / "in").files
    got = list(decode_all(files, 8, fit="auto", max_pixels=10**6, workers=2))
    assert [file.name for file, _ in got] == ["a.png", "b.png"]
    assert all(isinstance(square, np.ndarray) for _, square in got)


def test_a_picture_that_could_not_be_opened_for_a_while_is_tried_again(tmp_path, monkeypatch):
    put(tmp_path / "in", "a.png", "b.png")
    real = decode.read_square

    def closed(path, *words, **options):
        if path.name == "b.png":
            raise decode.Unreadable("no permission")
        return real(path, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "read_square", closed)
        assert load(tmp_path / "in")[1] == {"b.png": "no permission"}
    used, skipped = load(tmp_path / "in")
    assert (list(used), skipped) == (["a.png", "b.png"], {})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"count": "x", "entries": {}}', "[" * 10**5])
def test_a_damaged_cache_is_made_anew(tmp_path, monkeypatch, text):
    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "cache"))
    put(tmp_path / "in", "a.png", "b.png")
    before = load(tmp_path / "in")
    (manifest,) = (tmp_path / "cache").rglob("manifest.json")
    manifest.write_text(text)
    assert load(tmp_path / "in") == before


def test_rows_that_a_dying_process_left_are_written_over(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "cache"))
    put(tmp_path / "in", "a.png")
    before, _ = load(tmp_path / "in")
    (rows,) = (tmp_path / "cache").rglob("rows")
    with rows.open("ab") as file:
        file.write(b"half a row")
    put(tmp_path / "in", "a.png", "b.png")
    after, _ = load(tmp_path / "in")
    assert list(after) == ["a.png", "b.png"]
    assert rows.stat().st_size % (16 * 16 * 3) == 0
    assert after["a.png"] == before["a.png"]


def test_a_full_disk_is_told_and_the_rows_before_it_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "cache"))
    put(tmp_path / "in", "a.png")
    before, _ = load(tmp_path / "in")
    put(tmp_path / "in", "a.png", "b.png")
    real = os.fsync

    def full(fd):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="no space left"):
            load(tmp_path / "in")
    assert os.fsync is real
    assert load(tmp_path / "in")[0]["a.png"] == before["a.png"]


def test_what_does_not_fit_on_the_disk_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "cache"))
    opened = RowStore.opened("pixels", ["x"], (10**6, 10**6), "u1")
    with opened as store, pytest.raises(OutputError, match="GB"):
        store.check_space(10**6)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "file" / "cache"))
    put(tmp_path / "in", "a.png")
    with pytest.raises(OutputError, match="cache"):
        load(tmp_path / "in")
