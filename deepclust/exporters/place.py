"""The folder that an export is written to, and what may happen to what is there already.

A file is only ever replaced or removed if an earlier export of ours wrote it: the manifest says
so. Links inside the folder are not followed, names cannot leave it, and a new file is made with
O_EXCL, so that nothing is written over by chance.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from deepclust import files
from deepclust.errors import DataError, OutputError
from deepclust.exporters import Item
from deepclust.progress import SILENT, Progress

MANIFEST = "manifest.csv"
HEADER = ["written", "kind", "bytes", "picture", "cluster"]
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a pipe in place of a picture must not hang


class Gone(Exception):
    """A picture of the run that is no longer there."""


class Place:
    """An export's folder. Raises OutputError where it is taken."""

    def __init__(self, root: Path, *, overwrite: bool) -> None:
        self.root = root
        self.overwrite = overwrite
        self.earlier = self._read_manifest()

    def check(self, items: Sequence[Item]) -> None:
        """Refuse, before anything is written, what would touch the files of others."""
        if (self.root.exists() or self.root.is_symlink()) and not self.root.is_dir():
            raise OutputError(f"{self.root} is a file", hint="choose another --out")
        if self.root.is_dir() and any(self.root.iterdir()) and not self.overwrite:
            raise OutputError(
                f"{self.root} is not empty",
                hint="--overwrite replaces an earlier export there, --out names another place",
            )
        for item in items:
            self._check_free(item.name)
        if self.earlier is None:
            self._check_free(MANIFEST)

    def _check_free(self, name: str) -> None:
        path = self._inside(name)
        if (path.exists() or path.is_symlink()) and not self._is_ours(name, path):
            raise OutputError(
                f"{path} is there already, and not as an export of ours wrote it",
                hint="move it away, or choose another --out",
            )

    def write(self, items: Sequence[Item], progress: Progress = SILENT) -> int:
        """Write all items and the manifest; remove what only the earlier export had.

        Pictures that are gone are left out with a warning. Returns the number of files without
        the manifest. Raises DataError if every picture is gone, OutputError where the writing
        fails: then what was written stays listed in the manifest.
        """
        files.make_folder(self.root)
        rows = [_manifest_row(item, "") for item in items]
        stale = self._clear({item.name for item in items})
        self._write_manifest(rows)
        done, gone = [], []
        with progress.stage("write", total=len(items), unit="files") as stage:
            for item in items:
                try:
                    done.append(_manifest_row(item, self._write(item)))
                except Gone:
                    gone.append(item)
                stage.advance()
        self._write_manifest(done)
        if stale:
            progress.warn(f"{stale} files of the earlier export were changed since and stay")
        if gone:
            pictures = sum(item.source is not None for item in items)
            words = f"{len(gone)} of {pictures} pictures are gone, such as {gone[0].picture}"
            if len(gone) == pictures:
                raise DataError(words, hint="the pictures of the run were moved or removed")
            progress.warn(words)
        return len(done)

    def _write(self, item: Item) -> int | str:
        path = self._inside(item.name)
        try:
            self._make_parents(path)
            if item.make is not None:
                item.make(path)
                return path.stat().st_size
            assert item.source is not None
            if not item.link:
                return _copy(item.source, path)
            if not item.source.is_file():
                raise Gone
            path.symlink_to(item.source.resolve())
            return ""
        except OSError as error:
            raise files.output_error(path, error) from error

    def _make_parents(self, path: Path) -> None:
        at = self.root
        for part in path.relative_to(self.root).parts[:-1]:
            at = at / part
            if at.is_symlink():
                raise OutputError(f"{at} is a link, and links are not followed")
            at.mkdir(exist_ok=True)

    def _inside(self, name: str) -> Path:
        """Return the path of `name`; it has no way out of the folder, and no link on its way."""
        parts = PurePosixPath(name).parts
        if not parts or any(part in ("..", "/", "") or "\\" in part for part in parts):
            raise OutputError(f"{name!r} would leave {self.root}")
        for count in range(1, len(parts)):
            if (link := self.root.joinpath(*parts[:count])).is_symlink():
                raise OutputError(
                    f"{link} is a link, and links are not followed", hint="move it away"
                )
        return self.root.joinpath(*parts)

    def _is_ours(self, name: str, path: Path) -> bool:
        """Tell whether the earlier export wrote the file that is there now."""
        if not self.overwrite or self.earlier is None or name not in self.earlier:
            return name == MANIFEST and self.earlier is not None and self.overwrite
        kind, size = self.earlier[name]
        info = path.lstat()
        if kind == "link":
            return stat.S_ISLNK(info.st_mode)
        return stat.S_ISREG(info.st_mode) and size in ("", str(info.st_size))

    def _clear(self, wanted: set[str]) -> int:
        """Remove what the earlier export wrote; return how many changed files were left."""
        stale = 0
        for name in self.earlier or ():
            try:
                path = self._inside(name)
            except OutputError:
                continue
            if not (path.exists() or path.is_symlink()):
                continue
            if self._is_ours(name, path):
                path.unlink()
                self._remove_empty(path.parent)
            elif name not in wanted:
                stale += 1
        return stale

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.root and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _write_manifest(self, rows: list[list[Any]]) -> None:
        files.write_csv(self.root / MANIFEST, HEADER, rows)

    def _read_manifest(self) -> dict[str, tuple[str, str]] | None:
        """Return what an earlier export wrote: name → kind and size; None if there was none."""
        path = self.root / MANIFEST
        if path.is_symlink() or not path.is_file():
            return None
        try:
            rows = files.read_csv(path)
        except (OSError, ValueError):
            return None
        if not rows or list(rows[0]) != HEADER:
            return None
        return {files.name_of(r["written"]): (r["kind"], r["bytes"] or "") for r in rows}


def _manifest_row(item: Item, size: int | str) -> list[Any]:
    kind = "file" if item.make is not None else "link" if item.link else "copy"
    cluster = "" if item.cluster is None else item.cluster
    return [files.path_cell(item.name), kind, size, files.path_cell(item.picture), cluster]


def _copy(source: Path, path: Path) -> int:
    """Copy a picture, with its time, to a path where nothing is. Returns its size in bytes."""
    try:
        reading = os.open(source, os.O_RDONLY | NONBLOCK)
    except OSError as error:
        raise Gone from error
    with os.fdopen(reading, "rb") as from_file:
        info = os.fstat(reading)
        if not stat.S_ISREG(info.st_mode):
            raise Gone
        writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666)
        try:
            with os.fdopen(writing, "wb") as to_file:
                shutil.copyfileobj(from_file, to_file, 1 << 20)
                size = to_file.tell()
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return size
