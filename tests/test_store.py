from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from deepclust.data import decode
from deepclust.data.decode import decode_all
from deepclust.data.images import find_images
from deepclust.data.reader import REASONS
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
    got, said = decoded(tmp_path / "in", 2)
    assert got == ["a.png", "b.png"]
    assert "no other can be started" in said[0]


def decoded(root: Path, workers: int) -> tuple[list[str], list[str]]:
    """Return the pictures that were read, and what was said."""
    said: list[str] = []
    files = find_images(root).files
    pairs = decode_all(
        files, 8, fit="auto", max_pixels=10**6, workers=workers, warn=said.append
    )  # fmt: skip
    return [file.name for file, square in pairs if isinstance(square, np.ndarray)], said


def test_more_workers_than_cores_are_lowered_with_a_word(tmp_path, monkeypatch):
    put(tmp_path / "in", "a.png")
    asked = []

    def in_order(pool, batches, *words):
        asked.append(words[-1])
        return [(batch, ["damaged"]) for batch in batches]

    monkeypatch.setattr(decode, "_cores", lambda: 4)
    monkeypatch.setattr(decode, "_in_order", in_order)
    assert decoded(tmp_path / "in", 4) == ([], [])
    _, said = decoded(tmp_path / "in", 9)
    assert asked == [4, 4]
    assert said == ["9 workers were asked for, 4 read pictures: as many as cores"]


def test_a_worker_that_is_killed_from_outside_costs_no_picture(tmp_path, monkeypatch):
    names = [f"{i:03d}.png" for i in range(80)]
    put(tmp_path / "in", *names)
    real, pools = decode._pool, []

    def pool(workers: int):
        pools.append(real(workers))
        return pools[-1]

    monkeypatch.setattr(decode, "_pool", pool)
    monkeypatch.setattr(decode, "AHEAD", 1)
    files = find_images(tmp_path / "in").files
    pairs = iter(decode_all(files, 8, fit="auto", max_pixels=10**6, workers=1))
    got = [next(pairs)]
    (worker,) = pools[0]._processes
    os.kill(worker, signal.SIGKILL)
    got += pairs
    assert [file.name for file, square in got if isinstance(square, np.ndarray)] == names


def dying(paths: Iterable[Path], *words: object) -> decode.Decoded:
    """Decode as usual, but for a picture that takes its process with it."""
    paths = list(paths)
    if any(path.name == "deadly.png" for path in paths):
        os.kill(os.getpid(), signal.SIGSEGV)
    return decode._decode(paths, *words)  # type: ignore[arg-type]


def test_a_picture_that_kills_its_decoder_is_skipped_and_the_others_are_read(tmp_path, monkeypatch):
    put(tmp_path / "in", "a.png", "b.png", "deadly.png", "e.png")
    monkeypatch.setattr(decode, "_decode", dying)
    used, skipped = load(tmp_path / "in", 1)
    assert (list(used), skipped) == (["a.png", "b.png", "e.png"], {"deadly.png": "decoder crashed"})
    assert set(skipped.values()) <= set(REASONS)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="sees processes in /proc")
def test_workers_end_with_a_parent_that_is_killed():
    code = (
        "import os, sys, time\nfrom deepclust.data import decode\n"
        "if __name__ == '__main__':\n"
        "    print(decode._pool(1).submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait(timeout=10)
    parent.stdout.close()
    status, end = Path(f"/proc/{worker}/stat"), time.monotonic() + 10
    while time.monotonic() < end and status.exists() and status.read_text().split()[2] != "Z":
        time.sleep(0.05)
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_a_picture_that_changes_while_it_is_read_is_told(tmp_path, monkeypatch, capsys):
    from deepclust.screen import Screen

    put(tmp_path / "in", "a.png", "b.png", "c.png")
    real = decode.read_square

    def busy(path, *words, **options):
        if path.name == "a.png":
            path.with_name("b.png").unlink()
            with path.with_name("c.png").open("ab") as file:
                file.write(b"more")
        return real(path, *words, **options)

    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(decode, "read_square", busy)
    rows, skipped = load_pixels(
        find_images(tmp_path / "in"), 16, workers=0, progress=Screen(0)
    )  # fmt: skip
    assert [file.name for file in rows.files] == ["a.png", "c.png"]
    assert [(one.name, one.reason) for one in skipped] == [("b.png", "vanished")]
    assert "2 files were changed or removed" in capsys.readouterr().err


def test_a_picture_of_too_many_pixels_names_the_setting(tmp_path, monkeypatch, capsys):
    from deepclust.screen import Screen

    monkeypatch.setenv("DEEPCLUST_CACHE_DIR", str(tmp_path / "cache"))
    put(tmp_path / "in", "a.png")
    (tmp_path / "in" / "b.webp").write_bytes(hostile.promised("WEBP", 10_000, 8_000))
    load_pixels(find_images(tmp_path / "in"), 16, workers=0, progress=Screen(1))
    assert "--set data.max_pixels=N" in capsys.readouterr().err


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
