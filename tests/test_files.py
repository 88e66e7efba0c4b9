from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepclust import files
from deepclust.errors import OutputError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


class Faulty:
    """The system, whose n-th call of a kind that a write needs fails with `error`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int, error: int) -> None:
        self.left, self.error = n, error
        real_fdopen = os.fdopen
        for place, name in ((os, "open"), (os, "fsync"), (Path, "replace")):
            monkeypatch.setattr(place, name, self.counted(getattr(place, name)))

        def fdopen(fd, mode):
            file = real_fdopen(fd, mode)
            file_write = file.write
            return Halves(file, self.counted(file_write))

        monkeypatch.setattr(os, "fdopen", fdopen)

    def counted(self, call):
        def wrapped(*words, **options):
            self.left -= 1
            if self.left == 0:
                raise OSError(self.error, os.strerror(self.error))
            return call(*words, **options)

        return wrapped


class Halves:
    """A file whose second half of a write may fail."""

    def __init__(self, file, second) -> None:
        self.file, self.second = file, second

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.second(data[len(data) // 2 :])

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whatever_call_of_a_write_fails_the_file_is_the_old_or_the_new_one(tmp_path, error):
    path, old, new = tmp_path / "a.bin", b"o" * 1000, b"n" * 2000
    ends, n = [], 0
    while not ends or ends[-1] != "done":
        n += 1
        path.write_bytes(old)
        with pytest.MonkeyPatch.context() as patch:
            Faulty(patch, n, error)
            try:
                files.write_bytes(path, new)
                end = "done"
            except OutputError as caught:
                end = caught.message
        assert path.read_bytes() in (old, new)
        assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
        ends.append(end)
    # Open, second half, fsync, rename; then open and fsync of the folder.
    assert len(ends) == 7
    assert all(str(path) in end for end in ends[:-1])
    assert error != errno.ENOSPC or all("no space left" in end for end in ends[:-1])


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"old")
    (tmp_path / f".a{files.TEMPORARY}{os.getpid()}").symlink_to(victim)
    with pytest.raises(OutputError):
        files.write_bytes(tmp_path / "a", b"new")
    assert victim.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["n" * 255, "🐈" * 63, "ä" * 127])
def test_the_longest_names_can_be_written(tmp_path, name):
    files.write_bytes(tmp_path / name, b"x")
    assert (tmp_path / name).read_bytes() == b"x"


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*nowhere") as caught:
        files.write_bytes(tmp_path / "nowhere" / "a", b"")
    assert caught.value.exit_code == 5


# A name of ours never starts with "./": it is a path below the root.
@settings(deadline=None, max_examples=50)
@given(st.lists(TEXT.filter(lambda name: not name.startswith("./"))))
def test_names_come_back_from_a_table_as_they_were_and_no_cell_is_a_formula(
    tmp_path_factory, names
):
    path = tmp_path_factory.getbasetemp() / "names.csv"
    files.write_csv(path, ["file_name", "n"], [[files.path_cell(n), 1] for n in names])
    cells = [row["file_name"] for row in files.read_csv(path)]
    assert [files.name_of(cell) for cell in cells] == names
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)


def test_json_has_no_word_for_what_is_not_a_number(tmp_path):
    files.write_json(tmp_path / "a.json", {"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": None, "b": [None, 1.5]}


def test_every_changed_bit_of_a_sealed_table_is_noticed_or_means_nothing(tmp_path):
    path, table = tmp_path / "a.json", {"k": 3, "name": "ä", "x": [1.5, None], "y": {"z": True}}
    files.write_sealed(path, table)
    data = path.read_bytes()
    refused = 0
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert files.read_sealed(path) == table
        except ValueError:
            refused += 1
    assert refused > len(data) * 7


def test_a_table_nested_without_end_is_no_table(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError):
        files.read_sealed(tmp_path / "a.json")
