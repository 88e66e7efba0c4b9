"""`cluster`: give every picture of a run, or of a folder never seen, to a cluster."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepclust import files
from deepclust.errors import DataError, UsageError
from deepclust.progress import SILENT, Progress
from deepclust.run import Run
from deepclust.steps.pretrain import HERE, Machine

if TYPE_CHECKING:
    import numpy as np

    from deepclust.algorithms import Clusters

GIANT = 0.5  # share of all pictures from which on the largest cluster is worth a word
COLLAPSE = 0.95


@dataclass(frozen=True)
class Clustered:
    """A finished clustering.

    sizes: (k,) pictures in each cluster, falling. outliers: pictures in none. samples: three
    names of each cluster, the surest first. warnings: collapse and imbalance in words.
    """

    run: Run
    path: Path
    algorithm: str
    images: int
    sizes: list[int]
    outliers: int
    confidence: list[float]
    samples: list[list[str]]
    warnings: list[str] = field(default_factory=list)


def cluster(
    run: Path | str | None = None,
    *,
    k: int | None = None,
    algorithm: str = "auto",
    seed: int = 0,
    name: str | None = None,
    machine: Machine = HERE,
    progress: Progress = SILENT,
) -> Clustered:
    """Cluster a run, or a folder of pictures with the packaged encoder.

    run: a run or a folder of images; the newest run if left out.
    k: how many clusters; the run's own if left out. algorithm: a name in
    `deepclust.algorithms.ALGORITHMS`, "head" for the method's own cluster head, or auto.
    name: of the folder under clusters/; <algorithm>-<k> if left out.
    Raises a DeepclustError for what a person can mend.
    """
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 2):
        raise UsageError(f"--k {k}: must be a whole number of at least 2")
    _check_name(algorithm)
    opened = _open(run, k, seed, machine, progress)
    with opened.locked():
        return _cluster(opened, k, algorithm, seed, name, machine, progress)


def _check_name(algorithm: str) -> None:
    from deepclust.algorithms import ALGORITHMS
    from deepclust.errors import nearest

    known = ["auto", "head", *ALGORITHMS]
    if algorithm not in known:
        raise UsageError(f"unknown algorithm {algorithm!r}", hint=nearest(algorithm, known))


def _open(
    place: Path | str | None, k: int | None, seed: int, machine: Machine, progress: Progress
) -> Run:
    if place is None:
        run = Run.newest()
        progress.say(f"run: {run.path}")
        return run
    path = Path(place).expanduser()
    if (path / "run.json").exists():
        return Run.open(path)
    if not path.exists():
        raise UsageError(
            f"no run and no folder of images at {path}",
            hint="deepclust pretrain IMAGES makes a run",
        )
    from deepclust.steps.embed import embed

    return embed(path, k=k, seed=seed, machine=machine, progress=progress)


def _cluster(
    run: Run, k: int | None, algorithm: str, seed: int, name: str | None, machine: Machine,
    progress: Progress,
) -> Clustered:  # fmt: skip
    import numpy as np

    from deepclust import algorithms
    from deepclust.device import use_threads

    use_threads(machine.threads)
    began = time.monotonic()
    names, soft = run.names, run.probabilities()
    own_k = None if soft is None else soft.shape[1]
    asked = k if k is not None else own_k
    chosen = _choose(run, algorithm, asked, own_k)
    if asked is not None and asked >= len(names):
        raise DataError(f"--k {asked} needs more than {asked} images, the run has {len(names)}")
    if chosen == "head":
        assert soft is not None
        found = _of_head(np.asarray(soft), np.asarray(run.embeddings()))
    else:
        x = np.ascontiguousarray(run.embeddings(), dtype=np.float32)
        with progress.stage(f"cluster with {chosen}"):
            found = algorithms.run(chosen, x, asked, seed=seed, progress=progress)
    label = run.info["settings"]["method"] if chosen == "head" else chosen
    folder = run.path / "clusters" / (name or f"{label}-{asked if asked else found.k}")
    warnings = _warnings(found, asked)
    for line in warnings:
        progress.warn(line)
    details: dict[str, Any] = {
        "algorithm": chosen, "seed": seed, "k_asked": asked, "k_found": found.k,
        "sizes": np.bincount(found.label[found.label >= 0], minlength=found.k),
        "outliers": int((found.label < 0).sum()), "warnings": warnings,
        "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip
    write(folder, names, found, details)
    run.update(clustered=folder.name)
    return _result(run, folder, chosen, names, found, warnings)


def _choose(run: Run, algorithm: str, k: int | None, own_k: int | None) -> str:
    """Return the algorithm to use. Raises UsageError where k or the head is missing."""
    if algorithm == "head" and own_k is None:
        raise UsageError(
            f"{run.path} has no cluster head", hint="deepclust pretrain IMAGES --method cc --k K"
        )
    if algorithm == "head" and k != own_k:
        raise UsageError(
            f"--k {k}: the cluster head of {run.path} has {own_k}",
            hint="--algorithm kmeans takes any k",
        )
    if algorithm in ("hdbscan", "leiden", "louvain"):
        return algorithm
    if k is None:
        raise UsageError(f"--k is needed: {run.path} was trained without", hint="such as --k 10")
    if algorithm == "auto":
        return "head" if k == own_k else "kmeans"
    return algorithm


def _of_head(soft: np.ndarray, x: np.ndarray) -> Clusters:
    """Turn soft assignments (N, k) into clusters; the confidence is the largest probability."""
    import numpy as np

    from deepclust.algorithms import Clusters, by_size

    label = by_size(soft.argmax(axis=1).astype(np.int64))
    k = int(label.max()) + 1
    sums = np.zeros((k, x.shape[1]), np.float32)
    np.add.at(sums, label, x)
    centers = sums / np.bincount(label, minlength=k)[:, None]
    return Clusters(label, soft.max(axis=1).astype(np.float32), centers)


def _warnings(found: Clusters, asked: int | None) -> list[str]:
    """Say in words what is odd about the sizes."""
    import numpy as np

    inside = found.label[found.label >= 0]
    n, words = len(found.label), []
    if asked is not None and found.k < asked:
        words.append(f"{found.k} of {asked} clusters are used: there are no more groups to find")
    if len(inside) == 0:
        return [*words, "every picture is an outlier"]
    share = np.bincount(inside).max() / n
    if share >= COLLAPSE and found.k > 1:
        words.append(f"collapsed: the largest cluster holds {share:.0%} of the pictures")
    elif share >= GIANT and found.k > 2:
        words.append(f"uneven: the largest cluster holds {share:.0%} of the pictures")
    if len(inside) < 0.7 * n:
        words.append(f"{1 - len(inside) / n:.0%} of the pictures are outliers")
    return words


def write(folder: Path, names: list[str], found: Clusters, details: dict[str, Any]) -> None:
    """Write assignments.csv and centers.npy, and clusters.json last: it marks the end."""
    files.make_folder(folder)
    for old in ("clusters.json", "report.json"):
        (folder / old).unlink(missing_ok=True)
    rows = (
        (files.path_cell(name), int(label), f"{confidence:.6f}")
        for name, label, confidence in zip(names, found.label, found.confidence)
    )
    files.write_csv(folder / "assignments.csv", ["file_name", "cluster", "confidence"], rows)
    files.write_array(folder / "centers.npy", found.centers)
    files.write_json(folder / "clusters.json", details)


def _result(
    run: Run, folder: Path, algorithm: str, names: list[str], found: Clusters, warnings: list[str]
) -> Clustered:
    import numpy as np

    sizes = Counter(found.label.tolist())
    order = np.argsort(-found.confidence, kind="stable")
    members = [order[found.label[order] == c] for c in range(found.k)]
    return Clustered(
        run, folder, algorithm, len(names),
        sizes=[sizes[c] for c in range(found.k)],
        outliers=sizes[-1],
        confidence=[float(found.confidence[m].mean()) for m in members],
        samples=[[names[i] for i in m[:3]] for m in members],
        warnings=warnings,
    )  # fmt: skip
