"""Clusters as labels to start from, in the formats of annotation tools and trainers.

A cluster becomes a class called as a person named it, else `cluster-3`; an outlier has no label
where the format allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from deepclust import files
from deepclust.data.images import locate
from deepclust.data.reader import Unreadable, picture_size
from deepclust.device import stream
from deepclust.errors import DataError
from deepclust.exporters import OUTLIER, Item, Job, Row
from deepclust.exporters.names import clean
from deepclust.exporters.pictures import placed

HELD_OUT = 0.1  # share of pictures that YOLO validates on, and as many that it tests on


def classes(job: Job) -> list[str]:
    """Return the names of clusters 0..k-1, without outliers."""
    return [job.label(c) for c in range(max(row.cluster for row in job.rows) + 1)]


def labelstudio(job: Job) -> list[Item]:
    """Label Studio: tasks.json to import, clusters as predictions, and labelling.xml to paste.

    Pictures are found by its local storage, whose root must be the run's folder of pictures.
    """
    choices = "".join(f"    <Choice value={_attribute(name)}/>\n" for name in classes(job))
    view = (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="cluster" toName="image">\n{choices}  </Choices>\n</View>\n'
    )
    tasks = [
        {
            "data": {"image": f"/data/local-files/?d={quote(_raw(job, row))}", "name": row.name},
            "predictions": [] if row.cluster == OUTLIER else [_prediction(job, row)],
        }
        for row in job.rows
    ]
    return [
        Item("tasks.json", lambda path: files.write_json(path, tasks)),
        Item("labelling.xml", lambda path: files.write_text(path, view)),
    ]


def _raw(job: Job, row: Row) -> bytes:
    """The picture's path below the root, in the bytes of the file system."""
    root = job.run.image_root
    return locate(root, row.name).relative_to(root).as_posix().encode("utf-8", "surrogateescape")


def _prediction(job: Job, row: Row) -> dict[str, Any]:
    choice = {
        "from_name": "cluster",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [job.label(row.cluster)]},
    }
    return {"model_version": job.run.name, "score": row.confidence, "result": [choice]}


def cvat(job: Job) -> list[Item]:
    """CVAT for images 1.1: annotations.xml, a tag for each picture, matched by its path."""

    def lines() -> Iterator[str]:
        yield '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n'
        yield f"  <meta>\n    <task>\n      <size>{len(job.rows)}</size>\n"
        yield "      <mode>annotation</mode>\n      <labels>\n"
        for name in classes(job):
            yield f"        <label><name>{escape(name)}</name><type>tag</type></label>\n"
        yield "      </labels>\n    </task>\n  </meta>\n"
        for row, (width, height) in sized(job):
            yield f'  <image id="{row.index}" name={_attribute(row.name)}'
            yield f' width="{width}" height="{height}">\n'
            if row.cluster != OUTLIER:
                yield f'    <tag label={_attribute(job.label(row.cluster))} source="auto"></tag>\n'
            yield "  </image>\n"
        yield "</annotations>\n"

    return [Item("annotations.xml", lambda path: files.write_text(path, "".join(lines())))]


def sized(job: Job) -> Iterator[tuple[Row, tuple[int, int]]]:
    """Yield rows with the width and height of their picture; those that are gone are left out."""
    gone = 0
    with job.progress.stage("measure", total=len(job.rows), unit="images") as stage:
        for row in job.rows:
            try:
                size = picture_size(locate(job.run.image_root, row.name))
            except Unreadable:
                gone += 1
            else:
                yield row, size
            stage.advance()
    if gone:
        job.progress.warn(f"{gone} pictures cannot be read any more and are left out")


def _attribute(text: str) -> str:
    """Quote for XML, which has no way to say a control character."""
    return quoteattr("".join(c if c.isprintable() else "?" for c in text))


def coco(job: Job) -> list[Item]:
    """COCO: annotations.json, a box around all of each picture, since COCO has no plain classes."""

    def table() -> dict[str, Any]:
        images, boxes = [], []
        for row, (width, height) in sized(job):
            number = row.index + 1
            images.append({"id": number, "file_name": row.name, "width": width, "height": height})
            if row.cluster != OUTLIER:
                boxes.append(
                    {
                        "id": len(boxes) + 1,
                        "image_id": number,
                        "category_id": row.cluster + 1,
                        "bbox": [0, 0, width, height],
                        "segmentation": [[0, 0, width, 0, width, height, 0, height]],
                        "area": width * height,
                        "iscrowd": 0,
                        "score": row.confidence,
                    }
                )
        categories = [
            {"id": c + 1, "name": name, "supercategory": "cluster"}
            for c, name in enumerate(classes(job))
        ]
        about = {"description": f"{job.run.name}, {job.details.get('algorithm')}, by deepclust"}
        return {"info": about, "images": images, "annotations": boxes, "categories": categories}

    return [Item("annotations.json", lambda path: files.write_json(path, table()))]


def fiftyone(job: Job) -> list[Item]:
    """FiftyOne's image classification dataset: data/ with the pictures, and labels.json.

    Labels go by the stem of a picture's name, so every picture gets its number in front.
    """
    root, pictures, labels = job.run.image_root, [], {}
    for row in job.rows:
        name = clean(f"{row.index:06d}-{row.name.rpartition('/')[2]}")
        labels[name.rpartition(".")[0] or name] = None if row.cluster == OUTLIER else row.cluster
        pictures.append(
            Item(
                f"data/{name}",
                source=locate(root, row.name),
                link=job.link,
                picture=row.name,
                cluster=row.cluster,
            )
        )
    table = {"classes": classes(job), "labels": labels}
    return [Item("labels.json", lambda path: files.write_json(path, table)), *pictures]


def yolo(job: Job) -> list[Item]:
    """Classification in the layout of Ultralytics: train/, val/, test/ with a folder a cluster.

    Outliers are left out. A tenth of each cluster's pictures is in val/ and as many in test/; val
    gets one from two pictures on, test from three. Pictures that repeat each other, as
    duplicates.csv of the run lists them, are never in two of the three.
    """
    rows = [row for row in job.rows if row.cluster != OUTLIER]
    group = _repeats(job)
    members: dict[int, dict[str, int]] = {}  # cluster -> its groups and how many pictures in each
    home: dict[str, int] = {}  # a group belongs to the cluster of its first picture
    for row in rows:
        name = group.get(row.name, row.name)
        sizes = members.setdefault(home.setdefault(name, row.cluster), {})
        sizes[name] = sizes.get(name, 0) + 1
    part: dict[str, str] = {}
    for cluster, sizes in members.items():
        names = list(sizes)
        order = stream(0, "yolo", cluster).permutation(len(names))
        left = [names[i] for i in order]
        want = max(1, round(HELD_OUT * sum(sizes.values())))
        for place in ("val", "test"):
            held = 0
            while held < want and len(left) > 1:
                name = left.pop()
                part[name], held = place, held + sizes[name]
    items = []
    for place in ("train", "val", "test"):
        chosen = [r for r in rows if part.get(group.get(r.name, r.name), "train") == place]
        items += placed(job, job.folder, chosen, f"{place}/")
    return items


def _repeats(job: Job) -> dict[str, str]:
    """Return, for each picture that repeats another, the first of its kind."""
    try:
        rows = files.read_csv(job.run.path / "duplicates.csv")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {job.run.path / 'duplicates.csv'}: {error}") from error
    return {files.name_of(row["file_name"]): files.name_of(row["duplicate_of"]) for row in rows}
