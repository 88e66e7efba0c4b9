"""Exports that hold the pictures themselves, sorted into one folder a cluster.

Pictures are copied, or linked to when asked; the run's own are never moved or changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from deepclust import files
from deepclust.data.images import locate
from deepclust.exporters import Item, Job, Row
from deepclust.exporters.names import Names


def placed(
    job: Job, folder: Callable[[int], str], rows: Sequence[Row] | None = None, above: str = ""
) -> list[Item]:
    """Return an item for each picture: in the folder of its cluster, under a clean name.

    folder: maps the number of a cluster to the name of a folder. rows: all of the job if left
    out. above: put in front of the folder, with its `/`.
    """
    root = job.run.image_root
    names: dict[str, Names] = defaultdict(Names)
    items = []
    for row in job.rows if rows is None else rows:
        place = above + folder(row.cluster)
        items.append(
            Item(
                f"{place}/{names[place].give(row.name)}",
                source=locate(root, row.name),
                link=job.link,
                picture=row.name,
                cluster=row.cluster,
            )
        )
    return items


def folders(job: Job) -> list[Item]:
    """One folder a cluster: cluster-0/, cluster-1/, …, outliers/, or what a person called it."""
    return placed(job, job.folder)


def imagefolder(job: Job) -> list[Item]:
    """What the `imagefolder` loader of Hugging Face datasets reads: pictures and metadata.csv.

    Columns: file_name relative to the export, cluster, label (the cluster in a word), confidence,
    source (the name in the run).
    """
    pictures = placed(job, job.folder)
    rows = (
        [
            files.path_cell(item.name),
            row.cluster,
            files.text_cell(job.label(row.cluster)),
            "" if row.confidence is None else f"{row.confidence:.6f}",
            files.path_cell(row.name),
        ]
        for item, row in zip(pictures, job.rows)
    )
    header = ["file_name", "cluster", "label", "confidence", "source"]
    table = Item("metadata.csv", lambda path: files.write_csv(path, header, rows))
    return [table, *pictures]
