"""The embedding for other tools: as an array, for TensorBoard's projector, as a faiss index."""

from __future__ import annotations

from pathlib import Path

from deepclust import files
from deepclust.exporters import Item, Job


def _names(job: Job) -> Item:
    """names.csv: which picture each row of the embedding is, and its cluster if there is one."""
    cluster = {row.name: row.cluster for row in job.rows} if job.clusters is not None else {}
    rows = [
        [i, files.path_cell(name), cluster.get(name, "")] for i, name in enumerate(job.run.names)
    ]
    header = ["row", "file_name", "cluster"]
    return Item("names.csv", lambda path: files.write_csv(path, header, rows))


def embeddings(job: Job) -> list[Item]:
    """embeddings.npy, (N, d) float32, and names.csv: which picture each row is, and its cluster."""
    x = job.run.embeddings()
    return [Item("embeddings.npy", lambda path: files.write_array(path, x)), _names(job)]


def tensorboard(job: Job) -> list[Item]:
    """TensorBoard's projector: the folder is its log folder.

    tensors.tsv, metadata.tsv (name and cluster) and projector_config.pbtxt.
    """
    x = job.run.embeddings()
    label = {row.name: job.label(row.cluster) for row in job.rows} if job.clusters else {}
    words = ["name\tcluster"]
    for name in job.run.names:
        shown = "".join(c if c.isprintable() else "?" for c in name)
        words.append(f"{shown}\t{label.get(name, '')}")
    setting = (
        "embeddings {\n"
        '  tensor_name: "deepclust"\n'
        '  tensor_path: "tensors.tsv"\n'
        '  metadata_path: "metadata.tsv"\n'
        "}\n"
    )

    def tensors(path: Path) -> None:
        lines = ("\t".join(f"{value:.6g}" for value in row) for row in x)
        files.write_text(path, "\n".join(lines) + "\n")

    return [
        Item("tensors.tsv", tensors),
        Item("metadata.tsv", lambda path: files.write_text(path, "\n".join(words) + "\n")),
        Item("projector_config.pbtxt", lambda path: files.write_text(path, setting)),
    ]


def faiss(job: Job) -> list[Item]:
    """index.faiss, an exact index by inner product of unit rows (cosine), and names.csv."""
    import faiss as library
    import numpy as np

    x = np.array(job.run.embeddings(), dtype=np.float32, order="C")
    library.normalize_L2(x)

    def make(path: Path) -> None:
        index = library.IndexFlatIP(x.shape[1])
        index.add(x)  # type: ignore[call-arg]
        files.write_bytes(path, library.serialize_index(index).tobytes())

    return [Item("index.faiss", make), _names(job)]
