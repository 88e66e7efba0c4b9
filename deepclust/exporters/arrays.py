"""The embedding as an array that any tool reads."""

from __future__ import annotations

from deepclust import files
from deepclust.exporters import Item, Job


def embeddings(job: Job) -> list[Item]:
    """embeddings.npy, (N, d) float32, and names.csv: which picture each row is, and its cluster."""
    x = job.run.embeddings()
    cluster = {row.name: row.cluster for row in job.rows} if job.clusters is not None else {}
    rows = (
        [i, files.path_cell(name), cluster.get(name, "")] for i, name in enumerate(job.run.names)
    )
    return [
        Item("embeddings.npy", lambda path: files.write_array(path, x)),
        Item(
            "names.csv", lambda path: files.write_csv(path, ["row", "file_name", "cluster"], rows)
        ),
    ]
