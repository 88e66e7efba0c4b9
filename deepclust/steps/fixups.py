"""Edits of a person in a clustering: read before it is made, applied after, kept in the run.

Nothing but the clustering is changed: the one that was edited stays, and so do all pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepclust import files
from deepclust.progress import Progress
from deepclust.run import Run

if TYPE_CHECKING:
    import numpy as np

    from deepclust.algorithms import Clusters
    from deepclust.data.labels import Assignments
    from deepclust.edits import Edit

FILE = "edits.toml"
ENDING = "-edited"
SEAL = ("files", files.DIGEST)  # of clusters.json: the edited one gets its own


@dataclass(frozen=True)
class Plan:
    """Edits to apply. name: of the clustering that they were made on, None if there is none.

    base: its clusters.json, {} without one.
    """

    edits: list[Edit]
    name: str | None
    base: dict[str, Any]


@dataclass(frozen=True)
class Edited:
    """A clustering with the edits in it. titles: names of clusters by number."""

    path: Path
    found: Clusters
    titles: dict[int, str]


def plan(run: Run, path: Path) -> Plan:
    """Read an edits file and note which pictures its numbers mean, before they change.

    Edits made on an edited clustering come after the ones that the run keeps.
    Raises UsageError or DataError for a file that cannot be used.
    """
    from deepclust import edits
    from deepclust.data.labels import read_assignments

    name, new = edits.read(path)
    anchored = all(edit.like for edit in new if edit.clusters)
    known = {folder.name: folder for folder in run.clusterings()}
    if name is None:
        name = next((n for n in known if not n.endswith(ENDING)), None)
    if not anchored and known:
        folder = run.clustering(name)
        new = edits.anchor(new, read_assignments(folder / "assignments.csv"))
    earlier: list[Edit] = []
    kept = run.path / FILE
    if name is not None and name.endswith(ENDING) and kept.exists() and not _same(kept, path):
        _, earlier = edits.read(kept)
        name = name[: -len(ENDING)]
    if name is None or name not in known:
        return Plan([*earlier, *new], None, {})
    return Plan([*earlier, *new], name, files.read_json(known[name] / "clusters.json"))


def kept(run: Run, fresh: bool, progress: Progress) -> Path | None:
    """Return the edits that the run keeps from an earlier time, unless all is to be fresh."""
    path = run.path / FILE
    if fresh or not path.exists():
        return None
    progress.say(f"edits: {path} is applied again, --fresh leaves it out")
    return path


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.expanduser().resolve()


def standing(
    run: Run, path: Path, clustering: str | None, progress: Progress, trial: Path | None = None
) -> Edited:
    """Apply an edits file to a clustering as it stands: the one named, or that of the edits."""
    import numpy as np

    from deepclust.algorithms import Clusters
    from deepclust.algorithms.reliability import judged
    from deepclust.data.labels import read_assignments

    made = plan(run, path)
    asked = run.clustering(clustering or made.name)
    names = [folder.name for folder in run.clusterings()]
    bare = asked.name.removesuffix(ENDING)
    base = run.clustering(bare) if bare in names else asked
    table = read_assignments(base / "assignments.csv").of(run.names)
    label, sure = table.cluster, table.confidence
    confidence = np.zeros(len(label), np.float32) if sure is None else sure
    details = files.read_json(base / "clusters.json")
    seed = int(details.get("seed", 0))
    x = np.ascontiguousarray(run.embeddings(), dtype=np.float32)
    found = Clusters(label, confidence, _means(x, label))
    found = judged(x, found, seed=seed, space=run.whitened())
    return write(run, made, found, base, details, seed=seed, progress=progress, trial=trial)


def write(
    run: Run, plan: Plan, found: Clusters, base: Path, details: dict[str, Any], *, seed: int,
    progress: Progress, trial: Path | None = None,
) -> Edited:  # fmt: skip
    """Apply a plan to the clustering in `base` and write the result beside it, as <base>-edited.

    The run keeps the edits, so that they can be given again. What could not be done is said.
    trial: a folder to write to instead; the run stays as it is.
    """
    import numpy as np

    from deepclust import edits
    from deepclust.steps import cluster

    anchored = edits.anchor(plan.edits, _as_table(run.names, found))
    found, titles = _apply(run, anchored, found, seed, progress)
    sizes = np.bincount(found.label[found.label >= 0], minlength=found.k)
    details = {
        **{key: value for key, value in details.items() if key not in SEAL},
        "edited": base.name, "k_found": found.k, "sizes": sizes,
        "outliers": int((found.label < 0).sum()),
    }  # fmt: skip
    folder = (trial or base.parent) / (base.name + ENDING)
    if trial is None:
        files.write_text(run.path / FILE, edits.dump(anchored, base.name))
    cluster.write(folder, run.names, found, details, titles)
    return Edited(folder, found, titles)


def _apply(
    run: Run, anchored: list[Edit], found: Clusters, seed: int, progress: Progress
) -> tuple[Clusters, dict[int, str]]:
    """Return the clustering with the edits in it, numbered by size, and names of its clusters."""
    import numpy as np

    from deepclust import edits
    from deepclust.algorithms import by_size
    from deepclust.algorithms.reliability import nearest

    names, x = run.names, np.asarray(run.embeddings())
    done = edits.apply(anchored, names, found.label, found.confidence, x, seed=seed)
    for line in done.words:
        progress.warn(line)
    label = by_size(done.label)
    titles = {
        int(label[done.label == key][0]): title
        for key, title in done.titles.items()
        if (done.label == key).any()
    }
    confidence = done.confidence.astype(np.float32)
    changed = replace(found, label=label, confidence=confidence, centers=_means(x, label))
    return replace(changed, nearest=nearest(x, changed)), titles


def _means(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return the centres (k, d) float32 of a labelling (N,) in which every number occurs."""
    import numpy as np

    inside = label >= 0
    sizes = np.bincount(label[inside])
    centers = np.zeros((len(sizes), x.shape[1]), np.float32)
    np.add.at(centers, label[inside], x[inside])
    return centers / np.maximum(sizes, 1)[:, None]


def _as_table(names: list[str], found: Clusters) -> Assignments:
    from deepclust.data.labels import Assignments

    return Assignments(names, found.label, found.confidence, {})
