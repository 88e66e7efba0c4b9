"""`export`: every format, and what may happen to files that are there already."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from deepclust import config, files, weights
from deepclust.algorithms import Clusters
from deepclust.errors import DataError, OutputError, UsageError
from deepclust.exporters import EXPORTERS, Job
from deepclust.exporters.names import Names, clean
from deepclust.methods.cc import CC
from deepclust.nets import encoders
from deepclust.run import Run
from deepclust.steps.cluster import write
from deepclust.steps.export import export

NAMES = ["a/1.png", "a/2.png", "b/1.png", "b/=2.png", "c/Sea.png", "c/sea.png"]
LABEL = [0, 0, 0, 1, 1, -1]


def draw(path: Path, colour: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 7), (colour, 255 - colour, 90)).save(path)


def make_run(path: Path, images: Path, names: list[str], label: list[int]) -> Run:
    """A finished run with the clustering `kmeans-2`; the pictures are drawn, one colour each."""
    for i, name in enumerate(names):
        draw(images / name, 20 * i)
    run = Run.create(path)
    files.write_csv(path / "images.csv", ["file_name"], ([files.path_cell(n)] for n in names))
    x = np.eye(len(names), 4, dtype=np.float32)
    files.write_array(path / "embeddings.npy", x)
    found = Clusters(np.array(label), np.full(len(names), 0.75, np.float32), x[:2])
    details = {"algorithm": "kmeans", "k_found": 2, "seed": 0}
    write(path / "clusters" / "kmeans-2", names, found, details)
    counts = {"root": str(images), "used": len(names), "skipped": 0}
    run.update(status="done", images=counts, settings={"method": "none", "seed": 0})
    return run


@pytest.fixture
def run(workdir: Path) -> Run:
    return make_run(Path("runs/flowers"), workdir / "photos", NAMES, LABEL)


def tree(root: Path) -> set[str]:
    return {
        str(p.relative_to(root)) for p in root.rglob("*") if p.is_symlink() or not p.is_dir()
    } - {"manifest.csv"}


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_csv_is_the_assignments_in_the_order_of_the_run(run):
    done = export(to="csv")
    assert done.path == Path("exports/flowers-kmeans-2-csv")
    assert done.files == 1
    table = rows(done.path / "clusters.csv")
    assert table[0] == ["file_name", "cluster", "confidence"]
    assert table[1] == ["a/1.png", "0", "0.750000"]
    assert [row[1] for row in table[1:]] == ["0", "0", "0", "1", "1", "-1"]


def test_csv_goes_to_a_file_that_is_named(run, workdir):
    done = export(to="csv", out=workdir / "new" / "mine.csv")
    assert done.path == workdir / "new" / "mine.csv"
    assert done.manifest is None
    assert len(rows(done.path)) == 7
    with pytest.raises(OutputError, match="there already"):
        export(to="csv", out=done.path)
    done.path.write_text("old")
    assert export(to="csv", out=done.path, overwrite=True).files == 1
    assert len(rows(done.path)) == 7


def test_json_is_a_list_of_objects(run):
    done = export(run.path, to="json")
    found = json.loads((done.path / "clusters.json").read_text())
    assert found[3] == {"file_name": "b/=2.png", "cluster": 1, "confidence": 0.75}


def test_parquet_has_typed_columns(run):
    parquet = pytest.importorskip("pyarrow.parquet")
    done = export(run.path, to="parquet")
    table = parquet.read_table(done.path / "clusters.parquet")
    assert [str(field.type) for field in table.schema] == ["string", "int64", "float"]
    assert table.column("file_name").to_pylist() == NAMES
    assert table.column("cluster").to_pylist() == LABEL


def test_a_missing_extra_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs pyarrow") as caught:
        export(run.path, to="parquet")
    assert "deepclust[parquet]" in (caught.value.hint or "")


def test_folders_hold_copies_and_equal_names_stay_apart(run, workdir):
    done = export(to="folders")
    assert done.path == Path("exports/flowers-kmeans-2-folders")
    assert done.files == 6
    assert tree(done.path) == {
        "cluster-0/1.png",
        "cluster-0/2.png",
        "cluster-0/1-2.png",
        "cluster-1/=2.png",
        "cluster-1/Sea.png",
        "outliers/sea.png",
    }
    for written, kind, size, picture, _ in rows(done.path / "manifest.csv")[1:]:
        source = workdir / "photos" / files.name_of(picture)
        assert kind == "copy"
        assert (done.path / written).read_bytes() == source.read_bytes()
        assert not (done.path / written).is_symlink()
        assert int(size) == source.stat().st_size
    assert sorted(p.name for p in (workdir / "photos").rglob("*.png")) == sorted(
        Path(name).name for name in NAMES
    )


def test_links_point_to_the_pictures_and_copy_nothing(run, workdir):
    done = export(run.path, to="folders", link=True)
    path = done.path / "cluster-0" / "1-2.png"
    assert path.is_symlink()
    assert path.readlink() == workdir / "photos" / "b" / "1.png"


def test_links_make_no_sense_without_pictures(run):
    with pytest.raises(UsageError, match="--link"):
        export(run.path, to="csv", link=True)


def test_names_that_differ_by_case_only_are_numbered(workdir):
    run = make_run(Path("runs/r"), workdir / "p", ["c/Sea.png", "d/sea.png", "e/SEA.PNG"], [0] * 3)
    done = export(run.path, to="folders")
    assert tree(done.path) == {f"cluster-0/{n}" for n in ("Sea.png", "sea-2.png", "SEA-3.PNG")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b/cat.jpg", "cat.jpg"),
        ("back\\slash.png", "back_slash.png"),
        ("CON", "_CON"),
        ("nul.png", "_nul.png"),
        ("dots. .", "dots"),
        (".hidden.png", "_hidden.png"),
        ("..", "_"),
        ("a\x1b[2J\nb.png", "a_[2J_b.png"),
        ("photo\u202egpj.exe", "photo_gpj.exe"),
        ('<script>"a|b?*.png', "_script__a_b__.png"),
        ("写真.png", "写真.png"),
        ("byte\\xff.png", "byte_xff.png"),
    ],
)
def test_a_name_is_made_fit_for_every_system(name, expected):
    assert clean(name) == expected


def test_long_names_are_cut_with_a_hash_and_keep_their_extension():
    names = Names()
    given = [names.give(f"{n}/{'é' * 200}{n}.png") for n in range(3)]
    assert all(len(name.encode()) <= 255 and name.endswith(".png") for name in given)
    assert len(set(given)) == 3
    assert clean("x" * 251 + ".png") == "x" * 251 + ".png"
    same = Names()
    assert len({same.give("y" * 255) for _ in range(3)}) == 3


def test_composed_and_decomposed_accents_are_one_name_to_some_systems():
    names = Names()
    assert names.give("a/caf\u00e9.png") == "caf\u00e9.png"
    assert names.give("b/cafe\u0301.png") == "cafe\u0301-2.png"


def test_imagefolder_lists_its_pictures_for_the_loader(run):
    done = export(run.path, to="imagefolder")
    table = rows(done.path / "metadata.csv")
    assert table[0] == ["file_name", "cluster", "label", "confidence", "source"]
    assert all((done.path / row[0]).is_file() for row in table[1:])
    assert table[3] == ["cluster-0/1-2.png", "0", "cluster-0", "0.750000", "b/1.png"]


def test_embeddings_come_with_the_names_of_their_rows(run):
    done = export(run.path, to="embeddings")
    assert np.array_equal(np.load(done.path / "embeddings.npy"), run.embeddings())
    assert rows(done.path / "names.csv")[4] == ["3", "b/=2.png", "1"]


def test_labelstudio_tasks_carry_clusters_as_predictions(run):
    done = export(run.path, to="labelstudio")
    tasks = json.loads((done.path / "tasks.json").read_text())
    assert tasks[3]["data"]["image"] == "/data/local-files/?d=b/%3D2.png"
    (prediction,) = tasks[3]["predictions"]
    assert prediction["score"] == 0.75
    (result,) = prediction["result"]
    assert result["value"] == {"choices": ["cluster-1"]}
    view = ElementTree.parse(done.path / "labelling.xml").getroot()
    names = {element.get("name") for element in view.iter()}
    assert {result["from_name"], result["to_name"]} <= names
    assert [c.get("value") for c in view.iter("Choice")] == ["cluster-0", "cluster-1"]
    assert tasks[5]["predictions"] == []


def test_cvat_tags_every_picture_that_has_a_cluster(run):
    done = export(run.path, to="cvat")
    root = ElementTree.parse(done.path / "annotations.xml").getroot()
    images = root.findall("image")
    assert [image.get("name") for image in images] == NAMES
    assert (images[0].get("width"), images[0].get("height")) == ("9", "7")
    assert [tag.get("label") for tag in root.iter("tag")] == ["cluster-0"] * 3 + ["cluster-1"] * 2


def test_names_cannot_break_out_of_xml(workdir):
    odd = ['a"<b>&.png', "tab\there.png"]
    run = make_run(Path("runs/odd"), workdir / "p", odd, [0, 0])
    done = export(run.path, to="cvat")
    root = ElementTree.parse(done.path / "annotations.xml").getroot()
    assert [i.get("name") for i in root.findall("image")] == [odd[0], "tab?here.png"]


def test_coco_boxes_the_whole_picture(run):
    done = export(run.path, to="coco", out="coco.json")
    table = json.loads(done.path.read_text())
    assert [c["name"] for c in table["categories"]] == ["cluster-0", "cluster-1"]
    assert len(table["images"]) == 6
    assert len(table["annotations"]) == 5
    assert table["annotations"][4]["bbox"] == [0, 0, 9, 7]
    assert table["annotations"][4]["category_id"] == 2


def test_fiftyone_labels_go_by_the_stem_of_the_copy(run):
    done = export(run.path, to="fiftyone")
    table = json.loads((done.path / "labels.json").read_text())
    stems = {path.stem for path in (done.path / "data").iterdir()}
    assert table["labels"].keys() == stems
    assert table["classes"] == ["cluster-0", "cluster-1"]
    assert [table["labels"][stem] for stem in sorted(stems)] == [0, 0, 0, 1, 1, None]


def in_parts(root: Path) -> dict[str, int]:
    found = (path.relative_to(root).parent.as_posix() for path in root.glob("*/*/*"))
    return dict(sorted(Counter(found).items()))


def test_yolo_holds_out_one_picture_of_each_small_cluster(run):
    done = export(run.path, to="yolo")
    assert in_parts(done.path) == {
        "test/cluster-0": 1, "train/cluster-0": 1, "train/cluster-1": 1, "val/cluster-0": 1,
        "val/cluster-1": 1,
    }  # fmt: skip


def test_yolo_holds_out_a_tenth_twice(workdir):
    names = [f"{i:02}.png" for i in range(40)]
    run = make_run(Path("runs/many"), workdir / "p", names, [0] * 30 + [1] * 10)
    assert in_parts(export(run.path, to="yolo").path) == {
        "test/cluster-0": 3, "test/cluster-1": 1, "train/cluster-0": 24, "train/cluster-1": 8,
        "val/cluster-0": 3, "val/cluster-1": 1,
    }  # fmt: skip


def test_yolo_never_tears_repeated_pictures_apart(workdir):
    # Four groups of ten; some repeat across clusters, which does not free them.
    names = [f"{i:02}.png" for i in range(40)]
    run = make_run(Path("runs/many"), workdir / "p", names, [0] * 25 + [1] * 15)
    repeats = [[names[i], names[i % 4], "near"] for i in range(4, 40)]
    files.write_csv(run.path / "duplicates.csv", ["file_name", "duplicate_of", "kind"], repeats)
    done = export(run.path, to="yolo")
    part = {}
    for path in done.path.glob("*/*/*"):
        part.setdefault(int(path.stem.partition("-")[0]) % 4, set()).add(path.parts[-3])
    assert all(len(parts) == 1 for parts in part.values())
    assert {next(iter(parts)) for parts in part.values()} == {"train", "val", "test"}


def named(run: Run, **names: str) -> Path:
    """Give names to clusters of the run, as an edited clustering has them."""
    folder = run.path / "clusters" / "kmeans-2"
    details = {"algorithm": "kmeans", "k_found": 2, "seed": 0}
    found = Clusters(np.array(LABEL), np.full(6, 0.75, np.float32), np.eye(2, 4, dtype=np.float32))
    write(folder, NAMES, found, details, {int(key[1:]): name for key, name in names.items()})
    return folder


def test_every_format_calls_a_cluster_what_a_person_called_it(run):
    named(run, c0='cats & "<dogs>"/\\')
    word = 'cats & "<dogs>"/\\'
    trees = {to: tree(export(run.path, to=to).path) for to in ("folders", "yolo", "sheets")}
    assert "cats & __dogs____/1.png" in trees["folders"]
    assert "train/cats & __dogs____" in {name.rpartition("/")[0] for name in trees["yolo"]}
    assert "cats & __dogs____.png" in trees["sheets"]
    table = rows(export(run.path, to="imagefolder").path / "metadata.csv")
    assert table[1][:3] == ["cats & __dogs____/1.png", "0", word]
    assert rows(export(run.path, to="csv").path / "clusters.csv")[1][-1] == word
    view = ElementTree.parse(export(run.path, to="labelstudio").path / "labelling.xml")
    assert [choice.get("value") for choice in view.iter("Choice")] == [word, "cluster-1"]
    cvat = ElementTree.parse(export(run.path, to="cvat").path / "annotations.xml")
    assert [name.text for name in cvat.iter("name")] == [word, "cluster-1"]
    assert next(cvat.iter("tag")).get("label") == word
    coco = json.loads((export(run.path, to="coco").path / "annotations.json").read_text())
    assert coco["categories"][0]["name"] == word
    sets = json.loads((export(run.path, to="fiftyone").path / "labels.json").read_text())
    assert sets["classes"] == [word, "cluster-1"]
    words = (export(run.path, to="tensorboard").path / "metadata.tsv").read_text()
    assert f"a/1.png\t{word}" in words


def test_names_that_clash_are_numbered(run):
    folder = named(run, c0="cluster-1", c1="Cluster-1")
    job = Job(run, folder)
    assert [job.label(c) for c in (0, 1, -1)] == ["cluster-1", "Cluster-1", "outliers"]
    assert [job.folder(c) for c in (0, 1, -1)] == ["cluster-1", "Cluster-1-2", "outliers"]
    job = Job(run, named(run, c1="cluster-0"))
    assert [job.label(c) for c in (0, 1)] == ["cluster-0", "cluster-0-2"]
    job = Job(run, named(run, c0="outliers\t", c1="../x"))
    assert [job.folder(c) for c in (0, 1, -1)] == ["outliers_", "_._x", "outliers"]


EDITS = """
[[edit]]
rename = 0
name = "cats"
[[edit]]
move = ["b/=2.png"]
to = 0
"""


def test_edits_are_applied_before_an_export_and_stay_in_the_run(run, cli):
    Path("mine.toml").write_text(EDITS)
    planned = cli("export", "--to", "folders", "--edits", "mine.toml", "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    assert "cats/=2.png" in planned.stdout
    assert [folder.name for folder in run.clusterings()] == ["kmeans-2"]
    assert not (run.path / "edits.toml").exists()
    ran = cli("export", "--to", "folders", "--edits", "mine.toml")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout == "6 files written: exports/flowers-kmeans-2-edited-folders\n"
    copies = tree(Path("exports/flowers-kmeans-2-edited-folders"))
    assert {name.partition("/")[0] for name in copies} == {"cats", "cluster-1", "outliers"}
    folder = run.path / "clusters" / "kmeans-2-edited"
    assert ">cats</button>" in (folder / "report.html").read_text()
    assert (run.path / "edits.toml").exists()
    again = cli("export", "--to", "csv", "--edits", run.path / "edits.toml")
    assert again.exit_code == 0, again.stderr
    table = rows(Path("exports/flowers-kmeans-2-edited-csv/clusters.csv"))
    assert [row[1] for row in table[1:]] == ["0", "0", "0", "0", "1", "-1"]


def test_tensorboard_has_a_line_a_picture_and_one_of_names(run):
    done = export(run.path, to="tensorboard")
    tensors = np.loadtxt(done.path / "tensors.tsv", delimiter="\t")
    assert np.allclose(tensors, run.embeddings())
    metadata = (done.path / "metadata.tsv").read_text().splitlines()
    assert metadata[0] == "name\tcluster"
    assert metadata[6] == "c/sea.png\toutliers"
    assert "tensors.tsv" in (done.path / "projector_config.pbtxt").read_text()


def test_a_faiss_index_finds_a_picture_by_itself(run):
    faiss = pytest.importorskip("faiss")
    done = export(run.path, to="faiss")
    index = faiss.deserialize_index(np.frombuffer((done.path / "index.faiss").read_bytes(), "u1"))
    score, row = index.search(np.eye(1, 4, 1, dtype=np.float32), 1)
    assert (row[0, 0], score[0, 0]) == (1, 1.0)


def test_sheets_show_each_cluster_and_carry_no_metadata(run, workdir):
    source = workdir / "photos" / "a" / "1.png"
    exif = Image.Exif()
    exif[271] = "SECRETCAM"
    Image.new("RGB", (9, 7), "red").save(source, exif=exif)
    done = export(run.path, to="sheets")
    assert tree(done.path) == {"cluster-0.png", "cluster-1.png", "outliers.png"}
    data = (done.path / "cluster-0.png").read_bytes()
    assert b"SECRETCAM" not in data
    with Image.open(done.path / "cluster-0.png") as sheet:
        assert not sheet.getexif()
        assert sheet.size == (10 * 100 + 4, 104)
        red, green, _ = sheet.getpixel((52, 52))
        assert red > 230
        assert green < 30


def test_embeddings_need_no_clusters_and_tables_do(run):
    for file in (run.path / "clusters" / "kmeans-2").iterdir():
        file.unlink()
    assert export(run.path, to="embeddings").path == Path("exports/flowers-embeddings")
    with pytest.raises(UsageError, match="no clusters yet"):
        export(run.path, to="csv")


def test_a_dry_run_lists_what_would_be_written_and_writes_nothing(run):
    done = export(run.path, to="folders", dry_run=True)
    assert done.files == 6
    assert "cluster-0/1-2.png" in done.planned
    assert not Path("exports").exists()


def test_an_unknown_format_is_answered_with_the_nearest(run):
    with pytest.raises(UsageError, match="unknown format 'folder'") as caught:
        export(run.path, to="folder")
    assert "did you mean folders?" in (caught.value.hint or "")


def test_every_format_of_the_table_can_be_imported():
    from importlib import import_module

    for place in EXPORTERS.values():
        module, _, function = place.partition(":")
        assert getattr(import_module(module), function).__doc__


def test_a_place_that_is_taken_is_refused(run, workdir):
    out = workdir / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="is not empty"):
        export(run.path, to="folders", out=out)
    assert tree(out) == {"notes.txt"}
    with pytest.raises(OutputError, match="is a file"):
        export(run.path, to="folders", out=out / "notes.txt")


def test_overwrite_replaces_what_an_earlier_export_wrote_and_nothing_else(run, workdir):
    out = workdir / "out"
    export(run.path, to="folders", out=out)
    (out / "cluster-1" / "mine.txt").write_text("mine")
    other = make_run(Path("runs/other"), workdir / "more", ["x.png", "y.png"], [0, 0])
    export(other.path, to="folders", out=out, overwrite=True)
    assert tree(out) == {"cluster-0/x.png", "cluster-0/y.png", "cluster-1/mine.txt"}
    assert not (out / "outliers").exists()


def test_overwrite_keeps_its_hands_off_files_it_did_not_write(run, workdir):
    out = workdir / "out"
    (out / "cluster-0").mkdir(parents=True)
    (out / "cluster-0" / "1.png").write_text("mine")
    with pytest.raises(OutputError, match="not as an export of ours wrote it"):
        export(run.path, to="folders", out=out, overwrite=True)
    assert tree(out) == {"cluster-0/1.png"}
    assert (out / "cluster-0" / "1.png").read_text() == "mine"


def test_overwrite_does_not_replace_a_copy_that_was_changed_since(run, workdir):
    out = workdir / "out"
    export(run.path, to="folders", out=out)
    (out / "cluster-0" / "1.png").write_text("my retouched picture")
    with pytest.raises(OutputError, match=r"1\.png is there already"):
        export(run.path, to="folders", out=out, overwrite=True)
    assert (out / "cluster-0" / "1.png").read_text() == "my retouched picture"


def test_links_in_the_place_are_not_followed(run, workdir):
    out, elsewhere = workdir / "out", workdir / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "cluster-0").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="links are not followed"):
        export(run.path, to="folders", out=out, overwrite=True)
    assert list(elsewhere.iterdir()) == []
    (out / "cluster-0").unlink()
    (out / "clusters.csv").symlink_to(elsewhere / "new.csv")
    with pytest.raises(OutputError, match="is there already"):
        export(run.path, to="csv", out=out, overwrite=True)
    assert list(elsewhere.iterdir()) == []


def test_a_forged_manifest_removes_nothing_outside(run, workdir):
    out = workdir / "out"
    victim = workdir / "victim.txt"
    victim.write_text("mine")
    out.mkdir()
    header = ["written", "kind", "bytes", "picture", "cluster"]
    forged = [["../victim.txt", "copy", "", "", ""], [str(victim), "copy", "", "", ""]]
    files.write_csv(out / "manifest.csv", header, forged)
    export(run.path, to="folders", out=out, overwrite=True)
    assert victim.read_text() == "mine"


def test_copies_do_not_go_where_the_pictures_are(run, workdir):
    with pytest.raises(UsageError, match="lies in the folder of pictures"):
        export(run.path, to="folders", out=workdir / "photos" / "sorted")
    assert export(run.path, to="csv", out=workdir / "photos" / "t.csv").files == 1


def test_pictures_that_are_gone_are_left_out_with_a_word(run, workdir):
    from deepclust.progress import Progress

    class Heard(Progress):
        said: list[str] = []  # noqa: RUF012

        def warn(self, text: str) -> None:
            self.said.append(text)

    (workdir / "photos" / "a" / "1.png").unlink()
    os.mkfifo(workdir / "photos" / "a" / "1.png")  # a pipe must not hang the export
    done = export(run.path, to="folders", progress=Heard())
    assert done.files == 5
    assert Heard.said == ["1 of 6 pictures are gone, such as a/1.png"]
    for name in NAMES:
        (workdir / "photos" / name).unlink()
    with pytest.raises(DataError, match="6 of 6 pictures are gone"):
        export(run.path, to="folders", out=workdir / "none")


def test_an_export_that_broke_off_can_be_repeated(run, workdir, monkeypatch):
    from deepclust.exporters import place

    copied = []

    def full(source: Path, path: Path) -> int:
        copied.append(path)
        if len(copied) == 4:
            raise OSError(28, "No space left on device")
        return copy(source, path)

    copy = place._copy
    monkeypatch.setattr(place, "_copy", full)
    with pytest.raises(OutputError, match="no space left"):
        export(run.path, to="folders", out=workdir / "out")
    assert export(run.path, to="folders", out=workdir / "out", overwrite=True).files == 6


def test_edited_assignments_are_matched_by_name_and_keep_their_columns(run):
    folder = run.path / "clusters" / "kmeans-2"
    table = [["b/1.png", "1", "0.5", "=evil()"], ["nowhere.png", "0", "1", ""],
             ["a/2.png", "-1", "", "12"]]  # fmt: skip
    header = ["file_name", "cluster", "confidence", "note"]
    files.write_csv(folder / "assignments.csv", header, table)
    job = Job(run, folder)
    assert [(r.name, r.cluster, r.confidence) for r in job.rows] == [
        ("a/2.png", -1, None),
        ("b/1.png", 1, 0.5),
    ]
    from deepclust.exporters.tables import csv as table_of

    table_of(job)[0].make(Path("t.csv"))
    assert rows(Path("t.csv")) == [
        header,
        ["a/2.png", "-1", "", "12"],
        ["b/1.png", "1", "0.500000", "'=evil()"],
    ]


@pytest.mark.parametrize("cells", [["a/1.png", "x", ""], ["a/1.png", "-2", ""], ["a/1.png"]])
def test_a_row_that_cannot_be_read_is_named_by_its_line(run, cells):
    folder = run.path / "clusters" / "kmeans-2"
    files.write_csv(folder / "assignments.csv", ["file_name", "cluster", "confidence"], [cells])
    with pytest.raises(DataError, match="line 2"):
        _ = Job(run, folder).rows


@pytest.fixture
def trained(run: Run) -> Run:
    """The run, as if CC had been trained on it with the smallest encoder at 16 pixels."""
    given = {
        "method": {"name": "cc"},
        "k": 2,
        "encoder": {"name": "resnet8", "weights": "none", "train": "all", "image_size": 16},
    }
    chosen = config.settings(CC.Config, [given])
    files.write_text(run.path / "config.toml", config.to_toml(chosen))
    from deepclust import models
    from deepclust.methods.base import Facts

    encoder = encoders.build("resnet8", image_size=16, seed=1)
    method = models._method(chosen, encoder, Facts(len(NAMES), 2, encoder.width))
    header = {
        "kind": "model", "method": "cc", "options": {}, "k": 2, "encoder": "resnet8",
        "image_size": 16, "width": encoder.width, "frozen": False, "images": len(NAMES),
    }  # fmt: skip
    weights.save(run.path / "model.safetensors", method.state_dict(), header)
    run.update(
        settings={"method": "cc", "k": 2, "seed": 0},
        encoder={"name": "resnet8", "origin": "from scratch", "licence": "your own"},
    )
    return run


def test_weights_come_with_a_card_and_names_that_others_know(trained):
    done = export(trained.path, to="weights")
    tensors, header = weights.load(done.path / "encoder.safetensors")
    assert {"conv1.weight", "layer1.0.conv1.weight"} <= tensors.keys()
    assert header["encoder"] == "resnet8"
    assert header["image_size"] == 16
    again = encoders.build("resnet8", weights=str(done.path / "encoder.safetensors"))
    stored, _ = weights.load(trained.path / "model.safetensors")
    assert torch.equal(again.net.state_dict()["conv1.weight"], stored["encoder.net.conv1.weight"])
    card = (done.path / "README.md").read_text()
    assert "| clusters | 2 by kmeans (kmeans-2) |" in card
    assert "licence: your own" in card
    source = (trained.path / "model.safetensors").read_bytes()
    assert (done.path / "model.safetensors").read_bytes() == source


def test_onnx_gives_what_torch_gives_for_any_number_of_pictures(trained, workdir):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from deepclust.models import load_model

    done = export(trained.path, to="onnx")
    about = json.loads((done.path / "model.json").read_text())
    assert about["checked"]["pictures"] == 6
    assert about["checked"]["max_abs_difference_to_torch"] < 1e-4
    session = runtime.InferenceSession(done.path / "model.onnx")
    method = load_model(trained)
    for n in (1, 3):
        images = torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(n))
        embedding, soft = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            assert np.allclose(embedding, method.embed(images).numpy(), atol=1e-5)
            assert np.allclose(soft, method.assign(images).numpy(), atol=1e-5)


def test_the_command_says_how_many_files_and_where(run, cli):
    result = cli("export", "--to", "folders")
    assert result.exit_code == 0
    assert result.stdout == "6 files written: exports/flowers-kmeans-2-folders\n"
    again = cli("export", "--to", "folders")
    assert again.exit_code == 5
    assert again.stdout == ""
    assert "--overwrite" in again.stderr
