"""Labels from tables as people make them, from folders, and clusters from other programs."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepclust import files
from deepclust.data.labels import folder_labels, read_assignments, read_labels
from deepclust.errors import DataError, UsageError

NAMES = ["a/p0.png", "b/p1.png", "a/p2.png", "b/p3.png"]
WORDS = ["dog", "cat", "cat", "dog"]


@pytest.fixture
def table(tmp_path):
    """Writes a labels file from text or bytes."""

    def write(content, name="labels.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(names=NAMES, words=WORDS, header="path,label", mark=","):
    lines = [header, *(f"{n}{mark}{w}" for n, w in zip(names, words, strict=True))]
    return "\n".join(line for line in lines if line) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        rows(),
        rows().rstrip("\n"),
        "\ufeff" + rows().replace("\n", "\r\n"),
        rows().replace("\n", "\r"),
        rows().replace(",", ";"),
        rows().replace(",", "\t"),
        rows().encode("utf-16"),
        rows().encode("utf-16-be").join([b"\xfe\xff", b""]),
        rows([n.replace("/", "\\") for n in NAMES]),
        rows([f"./{n}" for n in NAMES]),
        rows([f"/photos/{n}" for n in NAMES]),
        rows([n[:-4] for n in NAMES]),
        rows([n[2:] for n in NAMES]),
        rows([n[2:4] for n in NAMES]),
        rows(header=None),
        rows(header="Image_ID,CLASS"),
        rows(header="id,breed"),
        rows(header="photo,Category"),
        rows().replace("\n", ",,\n"),
        rows().replace("\n", "\n\n"),
        "label,n,file\n" + "".join(f'{w},1,"{n}"\n' for n, w in zip(NAMES, WORDS, strict=True)),
        rows(words=[f"  {w} " for w in WORDS]),
    ],
    ids=[
        "plain", "no end", "BOM and CRLF", "lone CR", "semicolons", "tabs", "UTF-16", "UTF-16 BE",
        "backslashes", "dot slash", "absolute", "no extension", "base names", "base stems",
        "no header", "capitals", "label by place", "name by place", "empty columns",
        "empty rows", "swapped", "spaces",
    ],
)  # fmt: skip
def test_every_usual_form_of_a_table_is_read(table, content):
    found = read_labels(table(content), NAMES, root=Path("/photos"))
    assert found.label == WORDS
    assert found.classes == ["cat", "dog"]
    assert found.code.tolist() == [1, 0, 0, 1]
    assert (found.labelled, found.unlabelled, found.unmatched, found.warnings) == (4, 0, 0, [])


def test_the_columns_taken_are_told_and_can_be_chosen(table):
    path = table("file,label,kind\na/p0.png,x,7\n")
    assert read_labels(path, NAMES).columns == ("file", "label")
    found = read_labels(path, NAMES, label_column="Kind")
    assert (found.columns, found.label[0]) == (("file", "kind"), "7")
    with pytest.raises(UsageError, match="--label-column") as caught:
        read_labels(path, NAMES, label_column="knd")
    assert "did you mean kind?" in caught.value.hint


def test_numbers_and_missing_value_words_are_names(table):
    words = ["1", "01", "NA", "nan"]
    assert read_labels(table(rows(words=words)), NAMES).label == words
    assert read_labels(table(rows(words=["10", "2", "1", "b"])), NAMES).classes == [
        "b", "1", "2", "10",
    ]  # fmt: skip


def test_quoted_commas_and_newlines_belong_to_the_label(table):
    content = 'path,label\na/p0.png,"dog, ""small""\nand old"\n'
    assert read_labels(table(content), NAMES).label[0] == 'dog, "small"\nand old'


def test_pictures_without_a_label_are_counted(table):
    found = read_labels(table("path,label\na/p0.png,x\nb/p1.png,\na/p2.png,y\n"), NAMES)
    assert found.label == ["x", None, "y", None]
    assert found.code.tolist() == [0, -1, 1, -1]
    assert found.unlabelled == 2
    assert any("2 of 4 pictures have no label" in line for line in found.warnings)


@pytest.mark.parametrize("stray", ["a/none.png", "../../../etc/passwd", "/etc/passwd", ".."])
def test_rows_without_a_picture_are_counted_and_never_opened(table, stray):
    found = read_labels(table(rows() + f"{stray},x\n"), NAMES)
    assert found.unmatched == 1
    assert found.label == WORDS
    assert any(stray in line for line in found.warnings)


def test_the_same_row_twice_is_a_warning_and_two_labels_an_error(table):
    found = read_labels(table(rows() + "./a/p0.png,dog\n"), NAMES)
    assert found.label == WORDS
    assert any("a/p0.png" in line for line in found.warnings)
    with pytest.raises(DataError, match="rows 2 and 6"):
        read_labels(table(rows() + "./a/p0.png,bird\n"), NAMES)


def test_a_short_name_that_fits_two_pictures_is_refused(table):
    with pytest.raises(DataError, match=r"row 2: 'x\.png' fits more than one"):
        read_labels(table("path,label\nx.png,dog\n"), ["a/x.png", "b/x.png"])
    with pytest.raises(DataError, match="'x' fits more than one"):
        read_labels(table("path,label\nx,dog\n"), ["x.png", "x.jpg"])
    # The full name of one of them is no doubt.
    assert read_labels(table("path,label\nx.png,dog\n"), ["x.png", "b/x.png"]).label[0] == "dog"


@pytest.mark.parametrize(
    ("cell", "guess"),
    [
        ("train/a/p0.png", "folders in front"),
        ("a/p0.jpg", "extensions differ"),
        ("A/P0.png", "capitals"),
        ("q.png", "another folder"),
    ],
)
def test_no_match_shows_both_sides_and_guesses_why(table, cell, guess):
    with pytest.raises(DataError) as caught:
        read_labels(table(f"path,label\n{cell},dog\n"), NAMES)
    assert f"{cell!r}" in caught.value.message
    assert "'a/p0.png'" in caught.value.message
    assert guess in caught.value.hint
    assert caught.value.exit_code == 3


def test_lost_leading_zeros_are_guessed(table):
    with pytest.raises(DataError) as caught:
        read_labels(table("id,label\n7,dog\n"), ["007.png"])
    assert "leading zeros" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"path\na/p0.png\n", "line 1: one column"),
        (b"path,label\na/p0.png,dog\nb/p1.png\n", "line 3: 1 columns"),
        (b"path,label\na/p0.png,dog,x\n", "line 2: 3 columns"),
        (b"path,label\na/p0.png,d\0g\n", "line 2: a NUL"),
        (b"path,label\na/p0.png,dog\nb/p1.png,caf\xe9\n", "line 3: byte 0xE9 is not UTF-8"),
        (b"path,label\na/p0.png," + b"x" * 140_000, "line 2: field larger"),
        (b'path,label\na/p0.png,"dog\n', "line 2: unexpected end"),
        (b"\xff\xd8\xff\xe0", "line 1: byte 0xFF"),
        (b"who,what,when\na,b,c\n", "no column of names"),
        (b"path,what,when\na/p0.png,b,c\n", "no column of labels"),
        (b"path,label\na/p0.png,\n", "every label is empty"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(table, content, words):
    with pytest.raises(DataError, match=words) as caught:
        read_labels(table(content), NAMES)
    assert len(caught.value.message) < 300 + len(str(table(b"").parent))


def test_a_missing_file_is_wrong_use_and_a_folder_wrong_input(tmp_path):
    with pytest.raises(UsageError):
        read_labels(tmp_path / "none.csv", NAMES)
    with pytest.raises(DataError) as caught:
        read_labels(tmp_path, NAMES)
    assert "--labels folders" in caught.value.hint


def test_the_home_folder_is_understood(table, monkeypatch):
    monkeypatch.setenv("HOME", str(table(rows()).parent))
    assert read_labels(Path("~/labels.csv"), NAMES).label == WORDS


@pytest.mark.parametrize(("words", "says"), [(["x"] * 4, "one class"), (list("abcd"), "its own")])
def test_labels_that_say_nothing_are_warned_of(table, words, says):
    warnings = read_labels(table(rows(words=words)), NAMES).warnings
    assert any(says.split()[-1] in line and "nothing" in line for line in warnings)


def test_both_unicode_forms_are_two_files_and_one_alone_matches_either(table):
    composed, split = "caf\u00e9.png", "cafe\u0301.png"
    both = table(f"path,label\n{composed},x\n{split},y\n")
    assert read_labels(both, [composed, split]).label == ["x", "y"]
    one = table(f"path,label\n{split},x\nb.png,y\n")
    assert read_labels(one, [composed, "b.png"]).label == ["x", "y"]


def test_names_that_are_not_utf8_match_as_we_write_them(tmp_path):
    names = ["caf\udce9.png", "b.png"]
    files.write_csv(tmp_path / "l.csv", ["file_name", "label"], [[names[0], "x"], ["b.png", "y"]])
    assert read_labels(tmp_path / "l.csv", names).label == ["x", "y"]


name = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1, max_size=8
).filter(lambda text: text not in (".", ".."))
path = st.lists(name, min_size=1, max_size=3).map("/".join)
label = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(path, label, min_size=1, max_size=6))
def test_names_and_labels_survive_our_own_csv(tmp_path, known):
    words = {n: text.strip() for n, text in known.items()}
    # A mark before a formula is what our writer adds, so such a label cannot be told apart.
    words = {n: text for n, text in words.items() if not text.startswith("'")}
    if not any(words.values()):
        return
    table = tmp_path / "labels.csv"
    cells = [[files.path_cell(n), files.text_cell(text)] for n, text in words.items()]
    files.write_csv(table, ["file_name", "label"], cells)
    assert read_labels(table, list(words)).label == [text or None for text in words.values()]


def test_folders_are_labels(tmp_path):
    assert folder_labels(["cat/1.png", "dog/x/2.png", "3.png"]).label == ["cat", "dog", None]
    # A folder that holds everything says nothing: the next one does.
    assert folder_labels(["all/cat/1.png", "all/dog/2.png"]).label == ["cat", "dog"]
    assert folder_labels(["cat/1.png", "cat/2.png"]).classes == ["cat"]
    with pytest.raises(DataError, match="sub-folder"):
        folder_labels(["1.png", "2.png"])


def test_our_own_assignments_come_back(tmp_path):
    path = tmp_path / "assignments.csv"
    names = ["=a.png", "b,c.png", "d\re.png"]
    cells = [[files.path_cell(n), c, p] for n, c, p in zip(names, [1, -1, 0], [0.5, 0, 1])]
    files.write_csv(path, ["file_name", "cluster", "confidence"], cells)
    found = read_assignments(path)
    assert found.names == names
    assert found.cluster.tolist() == [1, -1, 0]
    assert found.cluster.dtype == np.int64
    assert found.confidence.tolist() == [0.5, 0, 1]
    assert found.words == {}


@pytest.mark.parametrize(
    ("ids", "cluster", "words"),
    [
        (["3", "-1", "10"], [3, -1, 10], {}),
        (["3.0", "-1.0", ""], [3, -1, -1], {}),
        (["x", "noise", "b"], [1, -1, 0], {0: "b", 1: "x"}),
        (["1", "01", "Outlier"], [1, 0, -1], {0: "01", 1: "1"}),
        (["-2", "-3", "0"], [-1, -1, 0], {}),
    ],
)
def test_clusters_of_other_programs_may_be_numbers_or_words(tmp_path, ids, cluster, words):
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["Image", "Pred"], *zip(["a", "b", "c"], ids)])
    found = read_assignments(tmp_path / "a.csv")
    assert found.cluster.tolist() == cluster
    assert found.words == words
    assert found.confidence is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("file,cluster\n", "no row"),
        ("a.png,1\nb.png,2\n", "no column of names"),
        ("file,cluster\na.png,1\na.png,2\n", "rows 2 and 3"),
        ("file,cluster,confidence\na.png,1,high\n", "row 2: 'high'"),
        ("confidence,file,cluster\n0.5,a.png,\n1.x,b.png,2\n", "row 3: '1.x'"),
    ],
)
def test_assignments_that_say_nothing_are_refused(table, content, says):
    with pytest.raises(DataError, match=says):
        read_assignments(table(content))
