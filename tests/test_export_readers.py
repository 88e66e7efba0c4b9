"""Every hand-over format read back by the tool that it is for, where that tool is installed.

The schema of each is checked in test_export.py whether or not it is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepclust.run import Run
from deepclust.steps.export import export
from tests.test_export import LABEL, NAMES, make_run, named

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages
WORD = "cats & <dogs>"


def need(module: str) -> Any:
    return pytest.importorskip(
        module, reason=f"{module} is not installed: its format is checked by its schema only"
    )


@pytest.fixture
def run(workdir: Path) -> Run:
    made = make_run(Path("runs/flowers"), workdir / "photos", NAMES, LABEL)
    named(made, c0=WORD)
    return made


def test_hugging_face_datasets_read_imagefolder(run, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = need("datasets")
    done = export(run.path, to="imagefolder")
    found = datasets.load_dataset("imagefolder", data_dir=str(done.path), cache_dir="cache")
    table = found["train"]
    assert table["source"][:] == NAMES
    assert table["cluster"][:] == LABEL
    assert table["label"][:] == [WORD] * 3 + ["cluster-1"] * 2 + ["outliers"]
    assert table[3]["image"].size == (9, 7)


def test_torchvision_reads_the_parts_of_yolo_as_ultralytics_does(run):
    folder = need("torchvision.datasets").ImageFolder
    done = export(run.path, to="yolo")
    found = folder(str(done.path / "train"))
    assert found.classes == ["cats & _dogs_", "cluster-1"]
    assert len(found) == 2


def test_label_studio_takes_its_view_tasks_and_predictions(run):
    interface = need("label_studio_sdk.label_interface").LabelInterface
    done = export(run.path, to="labelstudio")
    view = interface((done.path / "labelling.xml").read_text())
    view.validate()
    tasks = json.loads((done.path / "tasks.json").read_text())
    assert all(view.validate_task({"data": task["data"]}) for task in tasks)
    told = [prediction for task in tasks for prediction in task["predictions"]]
    assert len(told) == 5
    assert all(view.validate_prediction(prediction) for prediction in told)


def test_datumaro_reads_the_tags_for_cvat(run, workdir):
    datumaro = need("datumaro")
    done = export(run.path, to="cvat")
    shutil.copytree(workdir / "photos", done.path / "images")
    found = datumaro.Dataset.import_from(str(done.path), "cvat")
    words = [label.name for label in found.categories()[datumaro.AnnotationType.label].items]
    assert words == [WORD, "cluster-1"]
    tags = {item.id: [tag.label for tag in item.annotations] for item in found}
    assert tags == {
        name.rpartition(".")[0]: [] if label < 0 else [label] for name, label in zip(NAMES, LABEL)
    }


def test_pycocotools_finds_pictures_by_cluster(run):
    coco = need("pycocotools.coco").COCO
    found = coco(str(export(run.path, to="coco").path / "annotations.json"))
    assert found.loadCats([1])[0]["name"] == WORD
    names = [image["file_name"] for image in found.loadImgs(found.getImgIds(catIds=[2]))]
    assert names == ["b/=2.png", "c/Sea.png"]
    masks = [found.annToMask(box) for box in found.loadAnns(found.getAnnIds())]
    assert [int(mask.sum()) for mask in masks] == [9 * 7] * 5


def test_fiftyone_reads_its_dataset(run, monkeypatch):
    monkeypatch.setenv("FIFTYONE_DISABLE_SERVICES", "1")  # no database
    monkeypatch.setenv("FIFTYONE_DO_NOT_TRACK", "1")
    reader = need("fiftyone.utils.data").FiftyOneImageClassificationDatasetImporter
    done = export(run.path, to="fiftyone")
    with reader(dataset_dir=str(done.path)) as importer:
        found = {Path(path).name: label and label.label for path, _, label in importer}
    assert found["000003-=2.png"] == "cluster-1"
    assert list(found.values()) == [WORD] * 3 + ["cluster-1"] * 2 + [None]


def test_tensorboard_serves_the_projector(run):
    plugin = need("tensorboard.plugins.projector.projector_plugin").ProjectorPlugin
    from tensorboard.plugins.base_plugin import TBContext  # pyright: ignore
    from werkzeug.test import Client  # pyright: ignore

    done = export(run.path, to="tensorboard")
    apps = plugin(TBContext(logdir=str(done.path))).get_plugin_apps()

    def ask(what: str) -> bytes:
        return Client(apps[f"/{what}"]).get(f"/{what}?run=.&name=deepclust").data

    assert np.array_equal(np.frombuffer(ask("tensor"), "f4").reshape(6, 4), run.embeddings())
    assert ask("metadata").decode().splitlines()[1] == f"a/1.png\t{WORD}"
