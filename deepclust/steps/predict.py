"""`predict`: give pictures that arrived later to the clusters of a run, which stay as they are."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepclust import files
from deepclust.errors import OutputError
from deepclust.progress import SILENT, Progress
from deepclust.run import Run
from deepclust.steps.pretrain import HERE, Machine

if TYPE_CHECKING:
    import numpy as np

    from deepclust.algorithms.novelty import Novelty
    from deepclust.later import Assigned

COLUMNS = ("file_name", "cluster", "confidence", "novel", "nearest", "group")
POOL = "perhaps-new"


@dataclass(frozen=True)
class Predicted:
    """What became of new pictures.

    path: the table. sizes: pictures by cluster, as the table names it. novel: pictures in no
    cluster, "perhaps new". groups: names of each group among these, of this folder or earlier
    ones. words: groups and drift, to be shown.
    """

    run: Run
    path: Path
    images: int
    skipped: int
    sizes: dict[str, int]
    novel: int
    groups: list[list[str]]
    words: list[str]


def predict(
    run: Path | str,
    images: Path | str,
    *,
    clustering: str | None = None,
    out: Path | str | None = None,
    machine: Machine = HERE,
    progress: Progress = SILENT,
) -> Predicted:
    """Assign the pictures of a folder to the clusters of a run; those of the run are left out.

    clustering: a name under clusters/, the newest if left out.
    out: the CSV to write; clusters/NAME/predicted-<folder>.csv if left out. Its columns: cluster
    is -1 for a picture unlike any cluster, which is `novel` 1; nearest is the cluster it would
    have; group numbers those that resemble each other, 5 or more, counted with the novel
    pictures of earlier calls, which the run keeps as perhaps-new.csv.
    Raises a DeepclustError for what a person can mend.
    """
    import numpy as np

    from deepclust import later
    from deepclust.algorithms import novelty
    from deepclust.baselines import settings_of
    from deepclust.data.store import load_pixels, store_side
    from deepclust.device import pick, use_threads
    from deepclust.steps import intake

    opened, root = Run.open(Path(run)), Path(images).expanduser().resolve()
    folder = opened.clustering(clustering)
    path = Path(out).expanduser() if out else folder / f"predicted-{_word(root)}.csv"
    if out and path.exists():
        raise OutputError(f"{path} exists", hint="choose another --out")
    device = pick(machine.device)
    use_threads(machine.threads)
    with opened.locked():
        chosen, known = settings_of(opened), set(opened.names)
        listing = intake.find(root, chosen, opened.path)
        if root == opened.image_root:
            new = [file for file in listing.files if file.name not in known]
            progress.say(f"{len(new)} new images, {len(listing.files) - len(new)} known")
            listing = replace(listing, files=new)
        rows, skipped = load_pixels(
            listing, store_side(chosen.encoder.image_size or 128), fit=chosen.data.fit,
            max_pixels=chosen.data.max_pixels, workers=machine.workers, progress=progress,
        )  # fmt: skip
        for one in skipped[:5]:
            progress.say(f"skipped {one.name}: {one.reason}")
        if len(rows) == 0:
            files.write_csv(path, COLUMNS, [])
            return Predicted(opened, path, 0, len(skipped), {}, 0, [], ["no new images"])
        made = later.embed(opened, chosen, rows, root, device, machine.workers, progress)
        found = later.assign(opened, folder, made)
        names = [file.name for file in rows.files]
        pool_names, pool = _pool(opened, root, made.bare.shape[1])
        with progress.stage("look for new kinds"):
            judged = novelty.judge(np.concatenate([made.bare, pool]), made.old_bare)
        words = later.labels(opened, folder)[0].words
        cells = [words.get(int(label), str(label)) for label in found.label]
        _write(path, names, cells, found, judged)
        _keep(opened, root, names, made.bare, judged, pool_names, pool)
    novel = judged.novel[: len(names)]
    groups = _named(judged, [*names, *(f"{r}/{name}" for r, name in pool_names)], len(names))
    said = _said(len(names), novel, groups, judged)
    for line in said:
        progress.say(line)
    sizes = Counter(cell for cell, apart in zip(cells, novel) if not apart)
    return Predicted(
        opened, path, len(names), len(skipped), dict(sizes), int(novel.sum()), groups, said
    )


def _word(root: Path) -> str:
    return re.sub(r"[^\w.-]+", "-", root.name).strip("-.") or "new"


def _write(
    path: Path, names: list[str], cells: list[str], found: Assigned, judged: Novelty
) -> None:
    confidence = found.confidence
    rows = []
    for i, (name, cell) in enumerate(zip(names, cells)):
        novel, group = bool(judged.novel[i]), int(judged.group[i])
        rows.append(
            (files.path_cell(name), "-1" if novel else files.text_cell(cell),
             f"{confidence[i]:.6f}", int(novel), files.text_cell(cell), group if group >= 0 else "")
        )  # fmt: skip
    files.write_csv(path, COLUMNS, rows)


def _pool(run: Run, root: Path, width: int) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return the novel pictures of earlier calls on other folders: folder and name, (P, d)."""
    import numpy as np

    nothing = np.zeros((0, width), np.float32)
    try:
        table = files.read_csv(run.path / f"{POOL}.csv")
        rows = np.load(run.path / f"{POOL}.npy", allow_pickle=False)
    except (OSError, ValueError):
        return [], nothing
    if len(table) != len(rows) or rows.shape[1:] != (width,):
        return [], nothing  # cut off between the two: it fills again
    names = [(files.name_of(row["folder"]), files.name_of(row["file_name"])) for row in table]
    other = np.array([folder != str(root) for folder, _ in names], dtype=bool)
    return [name for name, keep in zip(names, other) if keep], rows[other]


def _keep(
    run: Run, root: Path, names: list[str], x: np.ndarray, judged: Novelty,
    pool_names: list[tuple[str, str]], pool: np.ndarray,
) -> None:  # fmt: skip
    import numpy as np

    apart = np.flatnonzero(judged.novel[: len(names)])
    kept = [*pool_names, *((str(root), names[i]) for i in apart)]
    if not kept and not (run.path / f"{POOL}.csv").exists():
        return
    files.write_array(run.path / f"{POOL}.npy", np.concatenate([pool, x[apart]]))
    table = [(files.path_cell(folder), files.path_cell(name)) for folder, name in kept]
    files.write_csv(run.path / f"{POOL}.csv", ["folder", "file_name"], table)


def _named(judged: Novelty, names: list[str], new: int) -> list[list[str]]:
    """Return the names in each group that has a picture of this folder."""
    members = [
        [i for i, of in enumerate(judged.group) if of == group]
        for group in range(judged.group.max(initial=-1) + 1)
    ]
    return [[names[i] for i in group] for group in members if group[0] < new]


def _said(images: int, novel: np.ndarray, groups: list[list[str]], judged: Novelty) -> list[str]:
    said = []
    if novel.any():
        said.append(f"{novel.sum()} of {images} new images are unlike any cluster: perhaps new")
    for group in groups:
        said.append(
            f"{len(group)} of these resemble each other, such as {', '.join(group[:3])}: perhaps "
            "a new cluster; `deepclust cluster` on old and new pictures together would show it"
        )
    figures = f"cosine to the nearest old images {judged.closeness:.2f}, theirs {judged.usual:.2f}"
    if judged.drift:
        said.append(
            f"drift: the new images are farther off than the old from each other, {figures}"
        )
    else:
        said.append(f"no drift: {figures}")
    return said
