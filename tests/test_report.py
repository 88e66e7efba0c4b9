"""What `evaluate` counts, says and writes, for a run and for a table from elsewhere."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

from deepclust import files
from deepclust.data.labels import folder_labels
from deepclust.errors import DataError, DeepclustError, Stopped, UsageError
from deepclust.report import cluster_rows, make, score_rows, write
from deepclust.report.picture import confusion_png
from deepclust.report.result import against
from deepclust.run import Run
from deepclust.steps.evaluate import evaluate

# Six pictures of two classes, three clusters, one outlier.
NAMES = ["cat/0.png", "cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png", "=odd.png"]
CLUSTER = [0, 0, 2, 2, -1, 2]


def label_csv(folder, extra=""):
    path = folder / "labels.csv"
    path.write_text("file,kind\n" + "".join(f"{n},{n[:3]}\n" for n in NAMES[:5]) + extra)
    return path


def assignment_csv(folder, cluster=CLUSTER, names=NAMES, header=("file_name", "cluster")):
    path = folder / "theirs.csv"
    cells = [[files.path_cell(n), c] for n, c in zip(names, cluster, strict=True)]
    files.write_csv(path, header, cells)
    return path


@pytest.fixture
def run(tmp_path):
    """A run with one clustering of the six pictures; the pictures themselves are gone."""
    run = Run.create(tmp_path / "run")
    files.write_csv(run.path / "images.csv", ["file_name"], [[files.path_cell(n)] for n in NAMES])
    files.write_array(run.path / "embeddings.npy", np.eye(6, 4, dtype=np.float32) + 0.1)
    run.update(images={"root": str(tmp_path / "gone"), "used": 6})
    folder = run.path / "clusters" / "kmeans-3"
    folder.mkdir(parents=True)
    cells = [[files.path_cell(n), c, 0.5] for n, c in zip(NAMES, CLUSTER, strict=True)]
    files.write_csv(folder / "assignments.csv", ["file_name", "cluster", "confidence"], cells)
    files.write_json(folder / "clusters.json", {})
    return run


@pytest.fixture
def baseline(monkeypatch):
    """Replaces the baselines by given clusterings, or by an error."""
    import sys
    from types import ModuleType

    def set_to(value):
        module = ModuleType("deepclust.baselines")

        def baselines(run, k, *, seed, progress):
            if isinstance(value, Exception):
                raise value
            return {name: np.array(ids) for name, ids in value.items()}

        module.baselines = baselines
        monkeypatch.setitem(sys.modules, "deepclust.baselines", module)

    return set_to


def test_a_table_from_elsewhere_is_scored_without_a_run(tmp_path):
    report = evaluate(assignments=assignment_csv(tmp_path), labels=label_csv(tmp_path))
    # Matched: cluster 0 to cat (2) and cluster 2 to dog (1 of its 2); the outlier is wrong.
    assert report.scores["acc"] == pytest.approx(3 / 5)
    assert report.scores["purity"] == pytest.approx(3 / 5)
    assert report.covered["acc"] == pytest.approx(3 / 4)
    assert report.counts == {
        "pictures": 6, "clusters": 2, "outliers": 1, "classes": 2, "labelled": 5,
        "unlabelled": 1, "unmatched_rows": 0,
    }  # fmt: skip
    assert report.coverage == pytest.approx(5 / 6)
    assert report.contingency.tolist() == [[2, 0], [1, 1], [0, 1]]
    assert {path.name for path in report.paths} == {
        "theirs.report.json", "theirs.report.md", "theirs.report.csv",
        "theirs.report.confusion.png",
    }  # fmt: skip
    assert all(path.parent == tmp_path for path in report.paths)


def test_rows_are_joined_by_name_and_not_by_order(tmp_path):
    table = assignment_csv(tmp_path)
    first = evaluate(assignments=table, labels=label_csv(tmp_path)).scores
    turned = assignment_csv(tmp_path, CLUSTER[::-1], NAMES[::-1])
    assert evaluate(assignments=turned, labels=label_csv(tmp_path)).scores == first


def test_clusters_called_by_words_keep_their_words(tmp_path):
    words = ["blue", "blue", "red", "red", "noise", "red"]
    report = evaluate(assignments=assignment_csv(tmp_path, words), labels=label_csv(tmp_path))
    assert [row.name for row in report.clusters] == ["blue", "red"]
    assert report.scores["acc"] == pytest.approx(3 / 5)


def test_tables_of_clusters_and_classes_say_what_stands_for_what(tmp_path):
    report = evaluate(assignments=assignment_csv(tmp_path), labels=label_csv(tmp_path))
    zero, two = report.clusters
    assert (zero.name, zero.size, zero.majority, zero.purity) == ("cluster 0", 2, "cat", 1.0)
    assert (two.size, two.labelled, two.match, two.purity) == (3, 2, "dog", 0.5)
    cat, dog = report.classes
    assert (cat.cluster, cat.recall, cat.precision) == ("cluster 0", pytest.approx(2 / 3), 1.0)
    assert (dog.cluster, dog.recall, dog.precision, dog.f1) == ("cluster 2", 0.5, 0.5, 0.5)


def test_a_run_is_scored_in_place(run, tmp_path, baseline):
    baseline({"k-means on pixels": [0, 0, 0, 1, 1, 1], "k-means on plain features": [0] * 6})
    report = evaluate(run.path, labels=label_csv(tmp_path))
    folder = run.path / "clusters" / "kmeans-3"
    assert {p.name for p in report.paths} == {
        "report.json", "report.md", "report.csv", "confusion.png", "report.html",
    }  # fmt: skip
    assert all(path.parent == folder for path in report.paths)
    written = json.loads((folder / "report.json").read_text())
    assert written["scores"]["acc"] == pytest.approx(3 / 5)
    assert written["baselines"]["k-means on pixels"]["acc"] == 1.0
    assert written["contingency"]["counts"] == [[2, 0], [1, 1], [0, 1]]
    assert written == json.loads(json.dumps(report.to_json()))
    assert written["clusters"][0]["confidence"] == 0.5
    assert set(written["label_free"]) == {"silhouette", "davies_bouldin", "calinski_harabasz"}
    assert not [path for path in folder.iterdir() if files.TEMPORARY in path.name]


def test_folders_are_labels(run):
    report = evaluate(run.path, labels="folders", baselines=False)
    assert [row.name for row in report.classes] == ["cat", "dog"]
    assert report.baselines == {}


def test_the_three_surest_pictures_stand_for_a_cluster():
    sure = np.array([0.1, 0.9, 0.5, 0.7, 0.8, np.nan])
    report = make(np.array([0, 0, 0, 0, -1, 1]), None, title="t", confidence=sure, names=NAMES)
    assert [row.samples for row in report.clusters] == [
        ["cat/1.png", "dog/3.png", "cat/2.png"], ["=odd.png"],
    ]  # fmt: skip
    assert cluster_rows(report)[0] == ["cluster", "images", "confidence", "such as"]


def test_a_stop_is_no_reason_to_go_on_without_baselines(run, tmp_path, baseline):
    baseline(Stopped("stopped by a signal", signum=15))
    with pytest.raises(Stopped):
        evaluate(run.path, labels=label_csv(tmp_path))


def test_without_labels_there_are_the_scores_that_need_none(run):
    evaluate(run.path, labels="folders", baselines=False)
    report = evaluate(run.path)
    assert report.scores == {}
    assert report.table is report.contingency is None
    assert not (run.path / "clusters" / "kmeans-3" / "confusion.png").exists()
    assert "structure" in report.verdict[0]
    assert score_rows(report)[0][1] == "silhouette"


def test_pictures_that_are_gone_leave_a_warning_instead_of_baselines(run, tmp_path, baseline):
    baseline(DataError("6 pictures are gone"))
    report = evaluate(run.path, labels=label_csv(tmp_path))
    assert report.baselines == {}
    assert any("6 pictures are gone" in line for line in report.warnings)


def test_assignments_edited_by_hand_are_joined_by_name(run):
    path = run.path / "clusters" / "kmeans-3" / "assignments.csv"
    path.write_text("file_name;cluster\r\ndog/3.png;1\r\ncat/0.png;0\r\nnew.png;0\r\n")
    report = evaluate(run.path, labels="folders", baselines=False)
    assert report.counts["outliers"] == 4
    assert any("4 pictures of the run are not in" in line for line in report.warnings)
    assert any("1 rows of" in line for line in report.warnings)
    path.write_text("file_name,cluster\nx.png,1\n")
    with pytest.raises(DataError, match="names no picture"):
        evaluate(run.path)


def labelled(cluster, label):
    return make(
        np.array(cluster),
        folder_labels([f"class {t}/x.png" for t in label]),
        title="ours",
        baselines={"guessing": np.resize([0, 1], len(label))},
    )


def test_the_verdict_names_the_scores_in_which_the_two_are_level():
    ours = {"acc": 0.47, "nmi": 0.20, "ari": 0.16}
    theirs = {"acc": 0.43, "nmi": 0.23, "ari": 0.16}
    ends = {"acc": (0.44, 0.50), "nmi": (0.17, 0.23), "ari": (0.14, 0.19)}
    said = against("k-means", ours, theirs, ends)
    assert said.startswith("beats k-means in ACC, level in NMI and ARI: ACC 0.470 against 0.430")


def test_the_verdict_says_whether_baselines_are_beaten():
    label = np.repeat([0, 1], 50)
    good, bad = labelled(label, label), labelled(np.resize([0, 1], 100), label)
    assert good.verdict[0].startswith("beats guessing: ACC 1.000 against 0.500")
    assert bad.verdict[0].startswith("does not beat guessing")
    assert "no better than calling every picture 'class 0' (0.500)" in bad.verdict[1]
    worse = make(
        np.resize([0, 1], 100),
        folder_labels([f"class {t}/x.png" for t in label]),
        title="ours",
        baselines={"k-means on pixels": label},
    )
    assert worse.verdict[0].startswith("does not beat k-means on pixels: ACC 0.500 against 1.000")


@pytest.mark.parametrize(
    ("cluster", "label", "says"),
    [
        ([0, 0, 0], [0, 1, 1], "there is one cluster"),
        ([0, 1, 2], [0, 1, 1], "every picture is a cluster of its own"),
        ([0, 0, 1], [0, 0, 0], "one class"),
        ([0, 0, 1], [0, 1, 2], "a label of its own"),
        ([0, 1, -1], [0, 1, 1], "1 of 3 pictures are in no cluster"),
        ([0, 1, 2, 2], [0, 1, 1, 1], "3 clusters for 2 classes"),
        ([0, 1, 1, 1], [0, 1, 2, 2], "2 clusters for 3 classes"),
        ([0, 1, 1, 1], [0, 1, 0, 1], "only 4 pictures have a label"),
    ],
)
def test_scores_that_say_little_are_warned_of(cluster, label, says):
    assert any(says in line for line in labelled(cluster, label).warnings)


HOSTILE = ["=1+1", "<script>x</script>", "a|b\nc\x1b[31m", "../../up", "-5", "[x](javascript:1)"]


def test_names_never_become_markup_or_formulas(tmp_path):
    cluster = np.arange(12) // 2
    report = make(
        cluster,
        folder_labels([f"{HOSTILE[i]}/x.png".replace("../../", "") for i in cluster]),
        title="=evil",
        words=dict(enumerate(HOSTILE)),
        baselines={"@base": cluster},
    )
    write(report, tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\\[x\\](javascript" in page
    cells = list(csv.reader(io.StringIO((tmp_path / "report.csv").read_text())))
    assert not any(cell.startswith(files.FORMULA) for row in cells for cell in row[:1])
    raw = json.loads((tmp_path / "report.json").read_text())
    assert [row["name"] for row in raw["clusters"]] == HOSTILE


def test_what_is_undefined_is_null_in_json(tmp_path):
    report = labelled([0, 0], [0, 0])
    write(report, tmp_path)
    text = (tmp_path / "report.json").read_text()
    assert json.loads(text)["scores"]["nmi"] is None
    assert "NaN" not in text


def test_the_screen_has_each_interval_under_its_score():
    heading, ours, ends, base, one = score_rows(labelled([0, 0, 1, 1], [0, 0, 1, 1]))
    assert heading == ["", "ACC", "NMI", "AMI", "ARI", "purity"]
    assert ours == ["ours", "1.000", "1.000", "1.000", "1.000", "1.000"]
    assert ends[:3] == ["95 % interval", "1.00 to 1.00", "1.00 to 1.00"]
    assert base[:2] == ["guessing", "0.500"]
    assert one == ["all one class", "0.500", "", "", "", ""]


@pytest.mark.parametrize(
    ("k", "c", "noise"), [(2, 2, 0), (3, 9, 4), (80, 3, 0), (60, 70, 1), (0, 2, 5)]
)
def test_the_picture_is_drawn_for_any_number_of_clusters_and_classes(k, c, noise):
    cluster = np.array([*range(k), *range(k), *[-1] * noise])
    label = [f"class {i % c}/x.png" for i in range(len(cluster))]
    report = make(cluster, folder_labels(label), title="x" * 300)
    image = Image.open(io.BytesIO(confusion_png(report)))
    assert image.format == "PNG"
    assert max(image.size) < 2000


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        write(labelled([0, 1, 1, 0], [0, 1, 0, 0]), tmp_path / place)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_wrong_use_is_refused(tmp_path, run):
    table = assignment_csv(tmp_path)
    for wrong in (
        {"run": run.path, "assignments": table},
        {"assignments": table, "clustering": "kmeans-3"},
        {"assignments": table, "label_column": "kind"},
        {"assignments": tmp_path / "none.csv"},
        {"run": run.path, "clustering": "none"},
    ):
        with pytest.raises(UsageError):
            evaluate(**wrong)
    with pytest.raises(DeepclustError) as caught:
        evaluate(run.path, labels=tmp_path)
    assert caught.value.exit_code == 3


def test_the_command_shows_the_scores_and_the_files(cli, tmp_path):
    table, labels = assignment_csv(tmp_path), label_csv(tmp_path)
    ran = cli("evaluate", "--assignments", table, "--labels", labels)
    assert ran.exit_code == 0, ran.stderr
    assert "0.600" in ran.stdout
    assert "such as" in ran.stdout
    assert "cat/0.png, cat/1.png" in ran.stdout
    assert "cat 100%" in ran.stdout
    assert "theirs.report.json" in ran.stdout.replace("\n", "")
    assert "names from column 'file', labels from 'kind'" in ran.stderr
    ran = cli("evaluate", "--assignments", table, "--labels", labels, "--json")
    assert json.loads(ran.stdout)["scores"]["acc"] == pytest.approx(0.6)
