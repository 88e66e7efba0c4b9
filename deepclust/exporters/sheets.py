"""A contact sheet a cluster: its pictures small and side by side, the surest first."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from deepclust import files
from deepclust.data.images import locate
from deepclust.data.reader import Unreadable, read_square
from deepclust.exporters import Item, Job, Row

SIDE, GAP, COLUMNS = 96, 4, 10  # pixels, pixels, pictures
MOST = 200  # pictures on a sheet


def sheets(job: Job) -> list[Item]:
    """cluster-0.png, …, outliers.png: at most 200 pictures each.

    Pictures are made anew from pixels, so that no EXIF, place or text of theirs goes along.
    """
    members: dict[int, list[Row]] = {}
    for row in sorted(job.rows, key=lambda row: -(row.confidence or 0)):
        members.setdefault(row.cluster, []).append(row)
    return [
        Item(
            f"{job.folder(cluster)}.png",
            lambda path, rows=rows: _sheet(job, rows[:MOST], path),
            cluster=cluster,
        )
        for cluster, rows in sorted(members.items())
    ]


def _sheet(job: Job, rows: list[Row], path: Path) -> None:
    step = SIDE + GAP
    height = -(-len(rows) // COLUMNS)
    sheet = np.full((height * step + GAP, COLUMNS * step + GAP, 3), 255, np.uint8)
    for i, row in enumerate(rows):
        y, x = (GAP + step * at for at in divmod(i, COLUMNS))
        try:
            square = read_square(locate(job.run.image_root, row.name), SIDE, fit="pad")
        except Unreadable:
            square = np.full((SIDE, SIDE, 3), 200, np.uint8)  # grey: the picture is gone
        sheet[y : y + SIDE, x : x + SIDE] = square
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "PNG")
    files.write_bytes(path, buffer.getbuffer())
