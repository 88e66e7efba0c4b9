"""`cluster`: give every picture of a run, or of a folder never seen, to a cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepclust import files
from deepclust.errors import DataError, UsageError
from deepclust.progress import SILENT, Progress
from deepclust.run import Run, seal_clusters
from deepclust.steps.pretrain import HERE, Machine

if TYPE_CHECKING:
    import numpy as np

    from deepclust.algorithms import Clusters
    from deepclust.algorithms.choose_k import KChoice

GIANT = 0.5  # share of all pictures from which on the largest cluster is worth a word
COLLAPSE = 0.95


@dataclass(frozen=True)
class Clustered:
    """A finished clustering.

    sizes: (k,) pictures in each cluster, falling. outliers: pictures in none. samples: three
    names of each cluster, the surest first. warnings: collapse and imbalance in words.
    titles: names that a person gave to clusters, by number.
    page: report.html, or None where it could not be made.
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
    titles: dict[int, str] = field(default_factory=dict)
    page: Path | None = None


def cluster(
    run: Path | str | None = None,
    *,
    k: int | str | None = None,
    algorithm: str = "auto",
    seed: int = 0,
    name: str | None = None,
    edits: Path | None = None,
    outliers: str | None = None,
    levels: bool = False,
    fresh: bool = False,
    encoder: str | None = None,
    weights: str | None = None,
    sets: Sequence[str] = (),
    machine: Machine = HERE,
    progress: Progress = SILENT,
) -> Clustered:
    """Cluster a run, or a folder of pictures with the packaged encoder.

    run: a run or a folder of images; the newest run if left out.
    k: how many clusters; "auto" or a range such as "5-60" for a guess; if left out, the number
    that the run was trained with, or a guess. algorithm: a name in
    `deepclust.algorithms.ALGORITHMS`, "head" for the method's own cluster head, or auto.
    edits: a file of fix-ups (`deepclust.edits`); the result is written beside the clustering, as
    <name>-edited, and k and the algorithm are those of the clustering that was edited. A run that
    keeps edits from an earlier time applies them again.
    name: of the folder under clusters/; <algorithm>-<k> if left out.
    outliers: leave the least reliable pictures out as -1: "auto", or how many, such as "5%".
    levels: write coarser and finer clusterings too, to levels.csv and merges.csv.
    fresh: number the clusters anew, even if the folder was clustered before, and leave edits out.
    encoder, weights: of a folder never seen; the packaged ones if left out.
    sets: settings of the embedding of a folder never seen, such as "views.cached=0".
    Raises a DeepclustError for what a person can mend.
    """
    wanted = read_k(k)
    _check_name(algorithm)
    apart = read_share(outliers)
    if name is not None and (Path(name).name != name or name.startswith(".")):
        raise UsageError(f"--name {name}: must be a plain name of a folder")
    given = {"encoder": encoder, "weights": weights, "sets": sets}
    opened = _open(run, wanted, seed, given, machine, progress)
    with opened.locked():
        ask = Ask(wanted, algorithm, seed, name, edits, apart, levels, fresh)
        return _cluster(opened, ask, machine, progress)


@dataclass(frozen=True)
class Ask:
    """What was asked of `cluster`, read and checked."""

    k: int | range | None
    algorithm: str
    seed: int
    name: str | None
    edits: Path | None
    outliers: float | str | None
    levels: bool
    fresh: bool


def read_k(k: int | str | None) -> int | range | None:
    """Read what was asked for: a number, "auto" (an empty range), "5-60", or None.

    Raises UsageError.
    """
    if k is None or (isinstance(k, int) and not isinstance(k, bool) and k >= 2):
        return k
    if k == "auto":
        return range(0)
    low, dash, high = str(k).partition("-")
    if dash and low.isdecimal() and high.isdecimal() and 2 <= int(low) < int(high):
        return range(int(low), int(high) + 1)
    if not dash and low.isdecimal() and int(low) >= 2:
        return int(low)
    raise UsageError(f"--k {k}: must be a whole number of at least 2, a range like 5-60, or auto")


def read_share(text: str | None) -> float | str | None:
    """Read how many outliers are wanted: "auto", "5%", or None. Raises UsageError."""
    if text is None or text == "auto":
        return text
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not percent or rest or not 0 < share < 0.5:
        raise UsageError(f"--outliers {text}: must be auto, or a share such as 5% below 50%")
    return share


def _check_name(algorithm: str) -> None:
    from deepclust.algorithms import ALGORITHMS
    from deepclust.errors import nearest

    known = ["auto", "head", *ALGORITHMS]
    if algorithm not in known:
        raise UsageError(f"unknown algorithm {algorithm!r}", hint=nearest(algorithm, known))


def _open(
    place: Path | str | None, k: int | range | None, seed: int, given: dict[str, Any],
    machine: Machine, progress: Progress,
) -> Run:  # fmt: skip
    path = None if place is None else Path(place).expanduser()
    if path is None or (path / "run.json").exists():
        run = Run.newest() if path is None else Run.open(path)
        if any(given.values()):
            raise UsageError(
                f"{run.path} has its embedding: how to make one is for a folder never seen",
                hint="leave --encoder, --weights, --fast, --views and --set out, or name a folder",
            )
        if path is None:
            progress.say(f"run: {run.path}")
        return run
    if not path.exists():
        raise UsageError(
            f"no run and no folder of images at {path}",
            hint="deepclust pretrain IMAGES makes a run",
        )
    from deepclust.steps.embed import embed

    least = k if isinstance(k, int) else None
    return embed(path, k=least, seed=seed, machine=machine, progress=progress, **given)


def _cluster(run: Run, ask: Ask, machine: Machine, progress: Progress) -> Clustered:
    import numpy as np

    from deepclust import algorithms, heads
    from deepclust.algorithms.reliability import judged
    from deepclust.device import pick, use_threads
    from deepclust.report import contents, page
    from deepclust.report.curves import SCORES
    from deepclust.report.picture import choice_png
    from deepclust.steps import fixups, grown

    k, algorithm, seed = ask.k, ask.algorithm, ask.seed
    given = ask.edits or fixups.kept(run, ask.fresh, progress)
    plan, titles = None if given is None else fixups.plan(run, given), {}
    if plan is not None and k is None and algorithm == "auto":
        algorithm, k = plan.base.get("algorithm", "auto"), plan.base.get("k_asked")
    use_threads(machine.threads)
    began = time.monotonic()
    names, soft = run.names, run.probabilities()
    x = np.ascontiguousarray(run.embeddings(), dtype=np.float32)
    own_k = None if soft is None else soft.shape[1]
    choice: KChoice | None = None
    asked = k if isinstance(k, int) else None
    if algorithm not in algorithms.OWN_K and asked is None:
        asked = own_k if k is None else None
        if asked is None:
            choice = _guess(run, k if isinstance(k, range) else None, seed, progress)
            asked = choice.k
    chosen = _choose(run, algorithm, asked, own_k)
    if asked is not None and asked >= len(names):
        raise DataError(f"--k {asked} needs more than {asked} images, the run has {len(names)}")
    if chosen == "head":
        if soft is None:
            assert asked is not None
            soft = heads.train(
                run, asked, seed=seed, device=pick(machine.device), workers=machine.workers,
                progress=progress,
            )  # fmt: skip
        p = np.asarray(soft)
        found = algorithms.assemble(x, p.argmax(axis=1), p.max(axis=1))
    else:
        with progress.stage(f"cluster with {chosen}"):
            found = None
            if chosen == "kmeans" and asked is not None and not ask.fresh:
                found = grown.go_on(
                    run, ask.name or f"kmeans-{asked}", x, asked, seed, progress
                )  # fmt: skip
            if found is None:
                found = algorithms.run(chosen, x, asked, seed=seed, progress=progress)
    with progress.stage("judge"):
        found = judged(x, found, seed=seed, space=run.whitened(), apart=ask.outliers)
    own = chosen == "head" and own_k is not None
    label = run.info["settings"]["method"] if own else chosen
    folder = run.path / "clusters" / (ask.name or f"{label}-{asked if asked else found.k}")
    warnings = _warnings(found, asked)
    for line in warnings:
        progress.warn(line)
    details: dict[str, Any] = {
        "algorithm": chosen, "seed": seed, "k_asked": asked, "k_found": found.k,
        "sizes": np.bincount(found.label[found.label >= 0], minlength=found.k),
        "outliers": int((found.label < 0).sum()), "warnings": warnings,
        "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip
    if choice is not None:
        details["advice"] = choice.advice
    write(folder, names, found, details)
    if choice is not None:
        table = zip(choice.ks, choice.silhouette, choice.modularity, choice.stability)
        files.write_csv(folder / "k.csv", ["k", *SCORES], table)
        rows = contents.candidates(folder)
        files.write_bytes(folder / "k.png", choice_png(rows, choice.k, choice.advice))
    if ask.levels:
        _write_levels(folder, names, x, found, seed)
    if plan is not None:
        edited = fixups.write(run, plan, found, folder, details, seed=seed, progress=progress)
        folder, found, titles = edited.path, edited.found, edited.titles
    run.update(clustered=folder.name)
    shown = page.write(run, folder, progress=progress)
    done = _result(run, folder, chosen, names, found, warnings)
    return replace(done, titles=titles, page=shown)


def _guess(run: Run, among: range | None, seed: int, progress: Progress) -> KChoice:
    """Guess k, and say how sure the guess is."""
    import numpy as np

    from deepclust.algorithms.choose_k import choose, grid

    x = np.ascontiguousarray(run.embeddings(), dtype=np.float32)
    space = run.whitened()
    ks = grid(len(x), among[-1] if among else 40)
    if among:
        ks = sorted({among[0], among[-1], *(k for k in ks if k in among)})
    choice = choose(x, ks, seed=seed, space=space, progress=progress)
    progress.say(choice.advice)
    return choice


def _choose(run: Run, algorithm: str, k: int | None, own_k: int | None) -> str:
    """Return the algorithm to use. Raises UsageError where k or the head is missing."""
    if algorithm == "head" and run.info["settings"]["method"] == "none":
        raise UsageError(
            f"{run.path} has no trained network", hint="deepclust pretrain IMAGES makes one"
        )
    if algorithm == "head" and own_k is not None and k != own_k:
        raise UsageError(
            f"--k {k}: the cluster head of {run.path} has {own_k}",
            hint="--algorithm kmeans takes any k",
        )
    if algorithm == "auto":
        # On features of a frozen encoder k-means measured better than the head.
        frozen = run.info["settings"].get("frozen", False)
        return "head" if k == own_k and not frozen else "kmeans"
    return algorithm


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


def write(
    folder: Path, names: list[str], found: Clusters, details: dict[str, Any],
    titles: dict[int, str] | None = None,
) -> None:  # fmt: skip
    """Write assignments.csv and centers.npy, and clusters.json last: it marks the end.

    titles: names that a person gave to clusters.
    """
    files.make_folder(folder)
    for old in ("clusters.json", "report.json"):
        (folder / old).unlink(missing_ok=True)
    rows = (
        (files.path_cell(name), int(label), f"{confidence:.6f}")
        for name, label, confidence in zip(names, found.label, found.confidence)
    )
    header = ["file_name", "cluster", "confidence"]
    if found.reliability is not None and found.nearest is not None:
        header = [*header, "reliability", "nearest"]
        more = zip(found.reliability, found.nearest)
        rows = ((*row, f"{trust:.6f}", int(near)) for row, (trust, near) in zip(rows, more))
    if titles:
        header = [*header, "name"]
        rows = ((*row, files.text_cell(titles.get(row[1], ""))) for row in rows)
        details = {**details, "names": {str(key): titles[key] for key in sorted(titles)}}
    files.write_csv(folder / "assignments.csv", header, rows)
    files.write_array(folder / "centers.npy", found.centers)
    seal_clusters(folder, details)


def _write_levels(
    folder: Path, names: list[str], x: np.ndarray, found: Clusters, seed: int
) -> None:
    """Write levels.csv, a column a level, coarse to fine, and merges.csv."""
    from deepclust.algorithms.levels import levels

    tree = levels(x, found, seed=seed)
    files.write_csv(
        folder / "levels.csv", ["file_name", *(f"k{k}" for k in tree.labels)],
        (
            (files.path_cell(name), *map(int, row))
            for name, row in zip(names, zip(*tree.labels.values()))
        ),
    )  # fmt: skip
    rows = (
        (found.k + i, a, b, f"{rise:.6f}", size) for i, (a, b, rise, size) in enumerate(tree.merges)
    )
    files.write_csv(folder / "merges.csv", ["made", "a", "b", "rise", "images"], rows)


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
