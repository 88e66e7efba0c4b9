"""The assignments as a table: CSV, JSON and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepclust import files
from deepclust.exporters import Item, Job, need


def _columns(job: Job) -> list[str]:
    return ["file_name", "cluster", "confidence", *job.columns]


def csv(job: Job) -> list[Item]:
    """clusters.csv: file_name,cluster,confidence and whatever else the assignments hold."""
    rows = (
        [files.path_cell(r.name), r.cluster, _text(r.confidence), *_texts(r.more.values())]
        for r in job.rows
    )
    return [Item("clusters.csv", lambda path: files.write_csv(path, _columns(job), rows))]


def _text(confidence: float | None) -> str:
    return "" if confidence is None else f"{confidence:.6f}"


def _texts(cells: Any) -> list[str]:
    """Numbers stay as they are; other text must not become a formula."""
    return [cell if _is_number(cell) else files.text_cell(cell) for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def records(job: Job) -> list[dict[str, Any]]:
    """Return a dict a picture: file_name, cluster, confidence, and whatever else there is."""
    return [
        {"file_name": r.name, "cluster": r.cluster, "confidence": r.confidence, **r.more}
        for r in job.rows
    ]


def json(job: Job) -> list[Item]:
    """clusters.json: a list with one object a picture."""
    return [Item("clusters.json", lambda path: files.write_json(path, records(job)))]


def parquet(job: Job) -> list[Item]:
    """clusters.parquet: text, int64, float32, and text for whatever else there is."""
    need("pyarrow", "parquet")

    def make(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows, columns = job.rows, _columns(job)
        arrays = [
            pa.array([r.name for r in rows], pa.string()),
            pa.array([r.cluster for r in rows], pa.int64()),
            pa.array([r.confidence for r in rows], pa.float32()),
            *(pa.array([r.more[name] for r in rows], pa.string()) for name in job.columns),
        ]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(arrays, columns), buffer)
        files.write_bytes(path, memoryview(buffer.getvalue()))

    return [Item("clusters.parquet", make)]
