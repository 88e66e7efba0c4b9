"""`evaluate`: score a clustering against labels, against baselines, or by its shape alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepclust.errors import DataError, DeepclustError, Stopped, UsageError
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

if TYPE_CHECKING:
    import numpy as np

    from deepclust.data.labels import Assignments, Labels
    from deepclust.report import Report


@dataclass(frozen=True)
class LabelSource:
    """Where labels come from: a CSV file or "folders", and its columns where they are named."""

    place: Path | str | None = None
    name_column: str | None = None
    label_column: str | None = None


def evaluate(
    run: Path | str | None = None,
    *,
    labels: Path | str | None = None,
    assignments: Path | None = None,
    clustering: str | None = None,
    name_column: str | None = None,
    label_column: str | None = None,
    baselines: bool = True,
    bootstrap: int = 1000,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Report:
    """Score a clustering of a run, or any table of assignments, and write the report beside it.

    run: the newest run if left out. clustering: its name in the run; the newest if left out.
    labels: a CSV file, or "folders" for the names of the sub-folders; None: no labels, and only
        the scores that need none.
    assignments: a CSV of pictures and clusters from anywhere, in place of a run. Its report is
        called <its name>.report.json and so on.
    baselines: compare with k-means on pixels and plain features; they need labels and a run.
    bootstrap: rounds for the 95 % intervals.
    Raises a DeepclustError for what a person can mend.
    """
    source = LabelSource(labels, name_column, label_column)
    if labels is None and (name_column or label_column):
        raise UsageError("--name-column and --label-column need --labels")
    if assignments is not None:
        if run is not None or clustering is not None:
            raise UsageError("--assignments takes the place of a run: give one of the two")
        return _of_table(Path(assignments).expanduser(), source, bootstrap, seed, progress)
    if run is None:
        opened = Run.newest()
        progress.say(f"run: {opened.path}")
    else:
        opened = Run.open(Path(run))
    with opened.locked():
        return _of_run(opened, clustering, source, baselines, bootstrap, seed, progress)


def _of_table(
    path: Path, source: LabelSource, bootstrap: int, seed: int, progress: Progress
) -> Report:
    from deepclust.data.labels import read_assignments
    from deepclust.report import make

    found = read_assignments(path)
    report = make(
        found.cluster,
        _labels(source, found.names, None, progress),
        title=path.stem,
        source=_source(source, assignments=str(path)),
        words=found.words,
        confidence=found.confidence,
        names=found.names,
        rounds=bootstrap,
        seed=seed,
    )
    return _written(report, path.parent, f"{path.stem}.report", progress)


def _of_run(
    run: Run,
    clustering: str | None,
    source: LabelSource,
    baselines: bool,
    bootstrap: int,
    seed: int,
    progress: Progress,
) -> Report:
    from deepclust.data.labels import read_assignments
    from deepclust.report import make, page
    from deepclust.report.contents import given_names

    folder = run.clustering(clustering)
    names = run.names
    found, warnings = _in_order(read_assignments(folder / "assignments.csv"), names, folder)
    labels = _labels(source, names, run.image_root, progress)
    others: dict[str, np.ndarray] = {}
    if labels is not None and baselines:
        others, problem = _baselines(run, found, seed, progress)
        warnings += problem
    report = make(
        found.cluster,
        labels,
        title=folder.name,
        source=_source(source, run=str(run.path), clustering=folder.name),
        words=found.words | given_names(folder),
        confidence=found.confidence,
        names=names,
        embedding=run.embeddings(),
        baselines=others,
        warnings=warnings,
        rounds=bootstrap,
        seed=seed,
    )
    report = _written(report, folder, "report", progress)
    shown = page.write(run, folder, report=report, labels=labels, progress=progress)
    return replace(report, paths=[*report.paths, *([shown] if shown else [])])


def _in_order(found: Assignments, names: list[str], folder: Path) -> tuple[Assignments, list[str]]:
    """Join assignments, which may have been edited by hand, to the pictures of the run by name."""
    known, wanted = set(found.names), set(names)
    missing, strange = len(wanted - known), len(known - wanted)
    path = folder / "assignments.csv"
    if missing == len(names):
        raise DataError(
            f"{path} names no picture of the run", hint="deepclust cluster makes it anew"
        )
    warnings = []
    if missing:
        warnings.append(f"{missing:,} pictures of the run are not in {path} and so in no cluster")
    if strange:
        warnings.append(f"{strange:,} rows of {path} name no picture of the run")
    return found.of(names), warnings


def _labels(
    source: LabelSource, names: list[str], root: Path | None, progress: Progress
) -> Labels | None:
    from deepclust.data.labels import folder_labels, read_labels

    if source.place is None:
        return None
    if str(source.place) == "folders":
        return folder_labels(names)
    labels = read_labels(
        Path(source.place),
        names,
        root=root,
        name_column=source.name_column,
        label_column=source.label_column,
    )
    if labels.columns is None:
        progress.say(f"{source.place} has no header: its first row was read as a picture")
    else:
        progress.say("labels: names from column {!r}, labels from {!r}".format(*labels.columns))
    return labels


def _source(source: LabelSource, **places: str) -> dict[str, str]:
    return places if source.place is None else {**places, "labels": str(source.place)}


def _baselines(
    run: Run, found: Assignments, seed: int, progress: Progress
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the baselines with as many clusters, or a warning why there are none."""
    k = len(set(found.cluster.tolist()) - {-1})
    if k < 2:
        return {}, ["no baselines: they need at least two clusters"]
    from deepclust.baselines import baselines

    try:
        return baselines(run, k, seed=seed, progress=progress), []
    except Stopped:
        raise
    except DeepclustError as error:
        return {}, [f"no baselines: {error.message}"]


def _written(report: Report, folder: Path, stem: str, progress: Progress) -> Report:
    from deepclust.report import write

    for line in report.warnings:
        progress.warn(line)
    return replace(report, paths=write(report, folder, stem))
