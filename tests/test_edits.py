"""Fix-ups by a person: read, applied, and found again when the numbers have changed."""

from __future__ import annotations

import numpy as np
import pytest

from deepclust import edits, files
from deepclust.data.labels import Assignments
from deepclust.errors import DataError, UsageError
from tests.test_page import a_run, plain_names

NAMES = [f"p{i}.png" for i in range(12)]
LABEL = np.repeat([0, 1, 2], 4)
SURE = np.linspace(0.9, 0.5, 12).astype(np.float32)
X = np.repeat(np.eye(3), 4, axis=0) + 0.1 * np.eye(12, 3)
ALL = """
[[edit]]
merge = [1, 2]
[[edit]]
rename = 0
name = "cats"
[[edit]]
move = ["p4.png"]
to = 0
[[edit]]
drop = ["p11.png"]
"""


def read(tmp_path, text):
    (tmp_path / "edits.toml").write_text(text)
    _, found = edits.read(tmp_path / "edits.toml")
    return edits.anchor(found, Assignments(NAMES, LABEL, SURE, {}))


def apply(found, label=LABEL):
    return edits.apply(found, NAMES, label, SURE, X)


def test_merge_rename_move_and_drop(tmp_path):
    done = apply(read(tmp_path, ALL))
    assert done.label.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, -1]
    assert done.titles == {0: "cats"}
    assert (done.confidence[4], done.confidence[11]) == (1.0, 0.0)
    assert done.words == []
    assert LABEL.max() == 2  # what came in stays as it was


def test_edits_find_their_clusters_again_under_other_numbers(tmp_path):
    other = np.array([2, 1, 0])[LABEL]
    other[3] = 0  # and one picture went elsewhere
    done = apply(read(tmp_path, ALL), other)
    assert done.titles == {2: "cats"}
    assert done.label.tolist() == [2, 2, 2, 1, 2, 1, 1, 1, 1, 1, 1, -1]


def test_what_cannot_be_done_is_said_and_the_rest_is_done(tmp_path):
    found = read(tmp_path, ALL + '[[edit]]\nrename = 1\nname = "dogs"\n')
    scattered = np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 4, 4, 4])
    done = apply(found, scattered)
    assert done.label[4] == 0 or done.label[4] == scattered[4]
    assert any(line.startswith("not done: rename 0 to 'cats'") for line in done.words)
    assert done.label[11] == -1


def test_two_names_for_one_cluster_keep_the_first_and_say_so(tmp_path):
    text = '[[edit]]\nrename = 0\nname = "cats"\n[[edit]]\nrename = 1\nname = "dogs"\n'
    done = apply(read(tmp_path, text), np.repeat([0, 0, 1], 4))
    assert done.titles == {0: "cats"}
    assert done.words == [
        "not done: rename 1 to 'dogs': its pictures are now with those called 'cats'"
    ]


def test_a_later_name_of_the_same_cluster_counts(tmp_path):
    text = '[[edit]]\nrename = 0\nname = "cats"\n[[edit]]\nrename = 0\nname = "lions"\n'
    assert apply(read(tmp_path, text)).titles == {0: "lions"}


def test_a_move_to_a_name_makes_a_cluster_once(tmp_path):
    text = '[[edit]]\nmove = ["p0.png"]\nto = "odd"\n[[edit]]\nmove = ["p5.png"]\nto = "odd"\n'
    done = apply(read(tmp_path, text))
    assert done.label[[0, 5]].tolist() == [3, 3]
    assert done.titles == {3: "odd"}


def test_a_split_parts_what_lies_apart(tmp_path):
    x = X.copy()
    x[2:4] += 5
    done = edits.apply(read(tmp_path, "[[edit]]\nsplit = 0\n"), NAMES, LABEL, SURE, x)
    assert done.label[0] == done.label[1] != done.label[2] == done.label[3]
    assert len(set(done.label)) == 4


def test_a_file_comes_back_as_it_was_written(tmp_path):
    text = ALL + '[[edit]]\nsplit = 2\ninto = 3\n[[edit]]\nmove = ["a\\"b.png"]\nto = "new"\n'
    found = read(tmp_path, text)
    (tmp_path / "again.toml").write_text(edits.dump(found, "kmeans-3"))
    assert edits.read(tmp_path / "again.toml") == ("kmeans-3", found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[edit]]\nmerge = [1]\n", "edit 1: merge needs two clusters"),
        ("[[edit]]\nrename = 1\n", "edit 1: rename needs name"),
        ('[[edit]]\nrename = "x"\nname = "y"\n', "edit 1: 'x' is not the number of a cluster"),
        ("[[edit]]\nrename = 1\ndrop = []\n", "edit 1: has to hold exactly one of"),
        ('[[edit]]\ndrop = ["a"]\nto = 1\n', "edit 1: 'to' means nothing beside drop"),
        ("[[edit]]\nmerge = 3\n", "edit 1: merge must be a list"),
        ("edits = 1\n", "unknown key 'edits'"),
        ("edit = 1\n", "edits are tables"),
        ("[[edit]]\nmerge = [0, 9]\n", "there is no cluster 9"),
    ],
)
def test_an_edit_that_means_nothing_is_refused_by_its_number(tmp_path, text, words):
    with pytest.raises(DataError) as refused:
        read(tmp_path, text)
    assert words in refused.value.message


def test_a_file_that_is_missing_or_no_toml_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        edits.read(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="not TOML"):
        read(tmp_path, "[[edit")


FIXES = """
[[edit]]
merge = [0, 1]
[[edit]]
rename = 2
name = "cats"
[[edit]]
move = ["p000.png"]
to = 2
"""


def test_edits_outlast_a_run_with_another_seed(tmp_path, cli):
    run, base = a_run(tmp_path, plain_names(30))
    table = {row["file_name"]: row["cluster"] for row in files.read_csv(base / "assignments.csv")}
    (tmp_path / "edits.toml").write_text(FIXES)
    seen = []
    where = [run.path, "--k", 3, "--threads", 1, "--name", "kmeans-3"]
    for more in (["--edits", tmp_path / "edits.toml"], ["--seed", 5]):
        ran = cli("cluster", *where, *more)
        assert ran.exit_code == 0, ran.stderr
        rows = files.read_csv(base.with_name("kmeans-3-edited") / "assignments.csv")
        seen.append({row["file_name"]: row["name"] for row in rows})
        assert "not done" not in ran.stderr
        assert any(line.split()[:1] == ["cats"] for line in ran.stdout.splitlines())
    assert seen[0] == seen[1]
    cats = {name for name, cluster in table.items() if cluster == "2"} | {"p000.png"}
    assert {name for name, title in seen[0].items() if title == "cats"} == cats
    text = (base.with_name("kmeans-3-edited") / "report.html").read_text()
    assert ">cats</button>" in text


def test_what_no_cluster_holds_any_more_is_said_on_screen(tmp_path, cli):
    run, base = a_run(tmp_path, plain_names(30))
    (tmp_path / "edits.toml").write_text(FIXES)
    where = [run.path, "--threads", 1, "--name", "kmeans-3"]
    assert cli("cluster", *where, "--k", 3, "--edits", tmp_path / "edits.toml").exit_code == 0
    ran = cli("cluster", *where, "--k", 2, "--seed", 5)
    assert ran.exit_code == 0, ran.stderr
    assert "is applied again, --fresh leaves it out" in ran.stderr
    rows = files.read_csv(base.with_name("kmeans-3-edited") / "assignments.csv")
    named = {row["name"] for row in rows}
    assert "cats" in named or "not done: rename 2 to 'cats'" in ran.stderr
    ran = cli("cluster", *where, "--k", 3, "--fresh")
    assert "clusters/kmeans-3/assignments.csv" in ran.stdout.replace("\n", "")
    assert "edits" not in ran.stderr


def test_the_page_is_opened_when_asked_and_never_else(tmp_path, cli, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    run, base = a_run(tmp_path, plain_names(12))
    where = [run.path, "--k", 3, "--threads", 1, "--name", "kmeans-3"]
    assert cli("cluster", *where).exit_code == 0
    assert cli("evaluate", run.path).exit_code == 0
    assert opened == []
    assert cli("cluster", *where, "--open").exit_code == 0
    assert cli("evaluate", run.path, "--open").exit_code == 0
    assert opened == [(base / "report.html").resolve().as_uri()] * 2


def test_edits_of_an_edited_clustering_come_on_top(tmp_path, cli):
    run, base = a_run(tmp_path, plain_names(30))
    (tmp_path / "first.toml").write_text(FIXES)
    more = 'clustering = "kmeans-3-edited"\n[[edit]]\nrename = 0\nname = "rest"\n'
    (tmp_path / "second.toml").write_text(more)
    where = [run.path, "--k", 3, "--threads", 1, "--name", "kmeans-3"]
    for name in ("first.toml", "second.toml"):
        assert cli("cluster", *where, "--edits", tmp_path / name).exit_code == 0
    rows = files.read_csv(base.with_name("kmeans-3-edited") / "assignments.csv")
    assert sorted({row["name"] for row in rows}) == ["cats", "rest"]
