"""`export`: hand the clusters, the embedding or the model over to other tools."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from deepclust import files
from deepclust.errors import OutputError, UsageError, nearest
from deepclust.progress import SILENT, Progress
from deepclust.run import Run

if TYPE_CHECKING:
    from deepclust.exporters import Item

HOME = Path("exports")


@dataclass(frozen=True)
class Exported:
    """A finished export. files: how many were written, without the manifest that lists them.

    planned: of a dry run, the names that would be written; nothing was.
    """

    to: str
    path: Path
    files: int
    manifest: Path | None
    planned: list[str] = field(default_factory=list)


def export(
    run: Path | str | None = None,
    *,
    to: str = "folders",
    out: Path | str | None = None,
    clustering: str | None = None,
    edits: Path | None = None,
    link: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Exported:
    """Write a run, or a clustering of it, in another format.

    run: the newest if left out. to: a name in `deepclust.exporters.EXPORTERS`.
    out: a folder, or for a format of one file, such as csv, also that file, named with its
        ending; exports/<run>-<clustering>-<to> if left out.
    clustering: its name in the run; the newest if left out.
    edits: a file of fix-ups (`deepclust.edits`) to apply first; the result stays in the run, as
        <clustering>-edited.
    link: links to pictures in place of copies. overwrite: replace what an earlier export wrote.
    Raises a DeepclustError for what a person can mend.
    """
    from deepclust.exporters import EXPORTERS

    if to not in EXPORTERS:
        raise UsageError(f"unknown format {to!r}", hint=nearest(to, list(EXPORTERS)))
    if run is None:
        opened = Run.newest()
        progress.say(f"run: {opened.path}")
    else:
        opened = Run.open(Path(run))
    with ExitStack() as stack:
        clusters = _clusters(opened, to, clustering, edits, dry_run, progress, stack)
        return _export(opened, clusters, to, out, link, overwrite, dry_run, progress)


def _clusters(
    run: Run, to: str, clustering: str | None, edits: Path | None, dry_run: bool,
    progress: Progress, stack: ExitStack,
) -> Path | None:  # fmt: skip
    """Return the folder of the clustering to export, with the edits in it."""
    from deepclust.exporters import WITHOUT_CLUSTERS

    if edits is None:
        wanted = to not in WITHOUT_CLUSTERS or clustering is not None or run.clusterings()
        return run.clustering(clustering) if wanted else None
    from deepclust.report import page
    from deepclust.steps import fixups

    if dry_run:
        trial = Path(stack.enter_context(TemporaryDirectory()))
        return fixups.standing(run, edits, clustering, progress, trial).path
    with run.locked():
        folder = fixups.standing(run, edits, clustering, progress).path
        run.update(clustered=folder.name)
        page.write(run, folder, progress=progress)
    return folder


def _export(
    opened: Run, clusters: Path | None, to: str, out: Path | str | None, link: bool,
    overwrite: bool, dry_run: bool, progress: Progress,
) -> Exported:  # fmt: skip
    from deepclust.exporters import EXPORTERS, Job
    from deepclust.exporters.place import MANIFEST, Place

    parts = [opened.name, *([clusters.name] if clusters else []), to]
    root = Path(out).expanduser() if out is not None else HOME / "-".join(parts)
    module, _, function = EXPORTERS[to].partition(":")
    items = getattr(import_module(module), function)(Job(opened, clusters, link, progress))
    if link and not any(item.link for item in items):
        raise UsageError(f"--link: {to} holds no pictures to link to")
    _check_apart(root, opened, items)
    if len(items) == 1 and root.suffix and root.suffix == Path(items[0].name).suffix:
        return _single(to, root, items[0], overwrite, dry_run)
    place = Place(root, overwrite=overwrite)
    place.check(items)
    if dry_run:
        return Exported(to, root, len(items), None, [item.name for item in items])
    count = place.write(items, progress)
    return Exported(to, root, count, root / MANIFEST)


def _single(to: str, path: Path, item: Item, overwrite: bool, dry_run: bool) -> Exported:
    """Write a format of one file straight to the file that was named."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OutputError(f"{path} is no ordinary file", hint="choose another --out")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} is there already", hint="--overwrite replaces it")
    if dry_run:
        return Exported(to, path, 1, None, [str(path)])
    files.make_folder(path.parent)
    assert item.make is not None
    item.make(path)
    return Exported(to, path, 1, None)


def _check_apart(root: Path, run: Run, items: list[Item]) -> None:
    """Copies must not lie where the pictures are: the next scan would count them again."""
    pictures = run.image_root.resolve()
    if any(item.source for item in items) and (
        root.resolve() == pictures or pictures in root.resolve().parents
    ):
        raise UsageError(
            f"{root} lies in the folder of pictures {run.image_root}",
            hint="choose an --out elsewhere, or the copies count as new pictures next time",
        )
