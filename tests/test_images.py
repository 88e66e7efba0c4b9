from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepclust.data import images
from deepclust.data.images import Listing, escape, find_images, locate
from deepclust.data.reader import REASONS, read_image, sniff
from deepclust.errors import DataError, UsageError
from tests import hostile

SAMPLE = Path(__file__).parent.parent / "sample_data"
DATA = hostile.encode(hostile.scene(8, 8), "PNG")


def put(root: Path, *names: str, data: bytes = DATA) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def names(listing: Listing) -> list[str]:
    return [file.name for file in listing.files]


def reasons(listing: Listing) -> dict[str, str]:
    return {file.name: file.reason for file in listing.skipped}


def test_every_file_is_found_skipped_or_ignored(tmp_path):
    cases = hostile.write(tmp_path)
    listing = find_images(tmp_path)
    unsupported = {"telephone.heic", "drawing.svg"}
    ignored = {name for name, case in cases.items() if case.outcome == "ignored"}
    assert set(reasons(listing)) == unsupported
    assert set(names(listing)) == set(cases) - ignored - unsupported
    assert len(cases) == len(listing.files) + len(listing.skipped) + listing.ignored
    assert all(file.size == len(cases[file.name].data) for file in listing.files)
    assert any("2 files are in a format that cannot be read" in note for note in listing.notes)


def test_hostile_names_links_and_special_files(tmp_path):
    good = hostile.tree(tmp_path)
    listing = find_images(tmp_path)
    found = [os.fsencode(locate(tmp_path, name).relative_to(tmp_path)) for name in names(listing)]
    assert sorted(found) == sorted(good)
    assert reasons(listing) == hostile.SKIPPED
    assert set(hostile.SKIPPED.values()) <= set(REASONS)
    assert names(listing) == sorted(set(names(listing)))
    for file in listing.files:
        file.name.encode("utf-8")
        assert locate(tmp_path, file.name) == file.path
        assert read_image(file.path).size == (24, 24)
    assert listing.notes == ["2 links were not followed: --follow-links follows them"]


def test_a_byte_that_is_not_utf8_is_shown_by_its_number():
    assert escape(os.fsdecode(b"caf\xe9 \xc3\xa9.png")) == "caf\\xe9 é.png"
    assert escape("back\\slash \\x4 \\xFF.png") == "back\\slash \\x4 \\xFF.png"
    assert escape("\\xe9.png") == "\\x5cxe9.png"


@given(st.lists(st.sampled_from([b"\\", b"x", b"x5c", b"e9", b"\xe9", b"\xc3\xa9", b"/a"])))
def test_names_are_utf8_and_no_two_paths_share_one(parts):
    path = os.fsdecode(b"a" + b"".join(parts))
    name = escape(path)
    name.encode("utf-8")
    # An inverse for all leaves no room for two paths with one name.
    assert locate(Path("root"), name) == Path("root") / path


@given(st.binary(max_size=40).filter(lambda b: b"\0" not in b))
def test_any_bytes_come_back_from_their_name(raw):
    assert locate(Path("root"), escape("a" + os.fsdecode(raw))) == Path(
        "root", "a" + os.fsdecode(raw)
    )


def test_all_levels_are_listed_in_the_order_of_their_names(tmp_path):
    put(tmp_path, "b.png", "a/z.png", "a/b/c.png", "a.png", "a-b.png", "B.png")
    listing = find_images(tmp_path)
    assert names(listing) == ["B.png", "a-b.png", "a.png", "a/b/c.png", "a/z.png", "b.png"]
    assert listing.files[3].path == tmp_path / "a/b/c.png"
    assert listing.files[0].mtime_ns == (tmp_path / "B.png").stat().st_mtime_ns


def test_hidden_things_and_leavings_of_systems_are_ignored(tmp_path):
    put(tmp_path, "a.png", ".b.png", ".git/c.png", "__MACOSX/d.png", "._a.png", "@eaDir/e.png")
    put(tmp_path, "Thumbs.db", "x/desktop.ini", "x/.DS_Store")
    listing = find_images(tmp_path)
    assert names(listing) == ["a.png"]
    assert listing.ignored == 8


def test_our_own_runs_are_never_clustered(tmp_path):
    put(tmp_path, "a.png", "runs/x/clusters/thumb.png", "other/b.png")
    put(tmp_path, "runs/x/run.json", data=b'{\n  "format": "deepclust-run",\n  "version": 1}')
    put(tmp_path, "other/run.json", data=b'{"format": "another"}')
    assert names(find_images(tmp_path)) == ["a.png", "other/b.png"]
    with pytest.raises(DataError, match="is a run of deepclust"):
        find_images(tmp_path / "runs" / "x")


def test_excluded_places_are_left_out(tmp_path, monkeypatch):
    put(tmp_path, "a.png", "out/b.png", "out/c/d.png", "outer/e.png", "f.png")
    exclude = [tmp_path / "out", tmp_path / "x" / ".." / "f.png", tmp_path / "not there"]
    listing = find_images(tmp_path, exclude=exclude)
    assert (names(listing), listing.ignored) == (["a.png", "outer/e.png"], 2)
    monkeypatch.chdir(tmp_path)
    assert names(find_images(".", exclude=["out"])) == ["a.png", "f.png", "outer/e.png"]


def test_links_are_followed_only_when_asked_and_each_folder_once(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(root, "z/a.png")
    put(outside, "b.png", "inner/c.png")
    (root / "a_link_to_z").symlink_to("z")
    (root / "first").symlink_to(outside)
    (root / "second").symlink_to(outside)
    (root / "loop").symlink_to(root)
    (root / "file.png").symlink_to(outside / "b.png")
    (root / "copy.png").symlink_to("z/a.png")
    listing = find_images(root)
    assert names(listing) == ["copy.png", "z/a.png"]
    assert reasons(listing) == {"file.png": "link leaves the folder"}
    assert (listing.ignored, listing.notes[-1][:28]) == (4, "5 links were not followed: -")
    listing = find_images(root, follow_links=True)
    assert names(listing) == ["copy.png", "file.png", "first/b.png", "first/inner/c.png", "z/a.png"]
    assert not listing.skipped
    assert not listing.notes


def test_a_root_that_is_a_link_is_walked(tmp_path):
    put(tmp_path, "real/a.png")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "b.png").symlink_to("a.png")
    assert names(find_images(tmp_path / "link")) == ["a.png", "b.png"]


def test_a_folder_that_cannot_be_opened_is_told(tmp_path, monkeypatch):
    put(tmp_path, "a.png", "closed/b.png")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = find_images(tmp_path)
    assert names(listing) == ["a.png"]
    assert listing.notes == ["cannot open folder closed/: Permission denied"]
    with pytest.raises(DataError, match="cannot open folder"):
        find_images(tmp_path / "closed")


def test_folders_without_end_have_one(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_DEPTH", 2)
    put(tmp_path, "1/2/a.png", "1/2/3/b.png")
    listing = find_images(tmp_path)
    assert names(listing) == ["1/2/a.png"]
    assert listing.notes == ["left out, more than 2 folders deep: 1/2/3/"]


def test_a_folder_that_is_not_there_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="does not exist") as caught:
        find_images(tmp_path / "nowhere")
    assert caught.value.exit_code == 2


def test_a_file_is_no_folder(tmp_path):
    put(tmp_path, "pictures.zip", data=b"PK\3\4")
    with pytest.raises(DataError, match="is not a folder") as caught:
        find_images(tmp_path / "pictures.zip")
    assert caught.value.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["pictures.zip"]


def test_no_picture_at_all_is_told_with_what_was_seen(tmp_path):
    with pytest.raises(DataError, match=r"holds 0 pictures$") as caught:
        find_images(tmp_path)
    assert ".jpeg, .jpg," in caught.value.hint
    put(tmp_path, "a.txt", "b.txt", "c.csv")
    with pytest.raises(DataError, match=r"holds 0 pictures, but 2 \.txt, 1 \.csv"):
        find_images(tmp_path)
    (tmp_path / "out.png").symlink_to("/etc/passwd")
    with pytest.raises(DataError) as caught:
        find_images(tmp_path)
    assert caught.value.hint.startswith("1 skipped, first out.png: link leaves the folder; ")
    assert "--follow-links" in caught.value.hint


def test_messages_stay_short_and_whole_whatever_the_names(tmp_path):
    put(tmp_path, *(f"{i}.{'x' * 200}" for i in range(5)), data=b"")
    put(tmp_path, "n" * 250 + ".heic")
    with pytest.raises(DataError) as caught:
        find_images(tmp_path)
    assert len(caught.value.message) - len(str(tmp_path)) < 100
    assert len(caught.value.hint) < 300


def test_the_tilde_is_home(tmp_path, monkeypatch):
    put(tmp_path, "photos/a.png", "photos/out/b.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names(find_images("~/photos", exclude=["~/photos/out"])) == ["a.png"]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "JPEG"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WEBP"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", "AVIF"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1heic", "format not supported"),
        (b"BM this is text, not a bitmap", None),
        (b"P5 3 2 255\n", "PPM"),
        (b"P5-the fifth paragraph", None),
        (b"", None),
    ],
)
def test_the_first_bytes_tell_the_kind(head, kind):
    assert sniff(head) == kind


def test_the_sample_pictures_can_all_be_read_and_have_labels():
    listing = find_images(SAMPLE / "images")
    assert (len(listing.files), listing.skipped, listing.ignored) == (475, [], 0)
    with (SAMPLE / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["file_name"] for row in rows) == names(listing)
    sizes = Counter(row["label"] for row in rows)
    assert len(sizes) == 10
    assert min(sizes.values()) >= 24
    assert max(sizes.values()) <= 60
    for file in listing.files:
        assert read_image(file.path).size[1] == 64
