"""Rows on disk, one a picture, so that nothing is decoded or embedded twice.

A `RowStore` is a file of rows of one shape, and a manifest that says which row belongs to which
picture: a row is found again by name, size and modification time, so an unchanged folder costs
nothing and an added picture only itself. Rows are only ever appended; the manifest is written
after them, so rows that a dying process left behind are overwritten by the next one.

Stores are a cache: they live in the user's cache folder (DEEPCLUST_CACHE_DIR overrides it) and
may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepclust import files
from deepclust.data.decode import decode_all
from deepclust.data.images import ImageFile, Listing, Skipped
from deepclust.data.reader import MAX_PIXELS, TOO_MANY
from deepclust.errors import OutputError
from deepclust.progress import SILENT, Progress

VERSION = 1  # of what a row means: raised when the reader changes
COMMIT_EVERY = 4096  # rows between two manifests
# Reasons that a file can lose without a new size or time: it is tried again.
PASSING = ("no permission", "not enough memory", "missing", "vanished", "decoder crashed")


def cache_folder() -> Path:
    """Return where stores live."""
    asked = os.environ.get("DEEPCLUST_CACHE_DIR")
    if asked:
        return Path(asked).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("deepclust", appauthor=False))


class RowStore:
    """Rows of one shape and dtype, keyed by picture. Open it with `opened`, which locks it."""

    def __init__(self, folder: Path, shape: Sequence[int], dtype: str) -> None:
        self.folder = folder
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.bytes_a_row = int(np.prod(self.shape)) * self.dtype.itemsize
        self.entries: dict[str, list] = {}  # name -> [size, mtime_ns, row, or why there is none]
        self.count = 0

    @staticmethod
    @contextlib.contextmanager
    def opened(kind: str, key: Iterable[object], shape: Sequence[int], dtype: str) -> Iterator:
        """Open the store of `kind` for what `key` describes, waiting for other processes."""
        store = RowStore._named(kind, key, shape, dtype)
        files.make_folder(store.folder)
        with _exclusive(store.folder / ".lock"):
            store._load()
            yield store

    @staticmethod
    def as_it_is(kind: str, key: Iterable[object], shape: Sequence[int], dtype: str) -> RowStore:
        """Return the store to read from, without waiting: rows that are listed never change."""
        store = RowStore._named(kind, key, shape, dtype)
        store._load()
        return store

    @staticmethod
    def _named(kind: str, key: Iterable[object], shape: Sequence[int], dtype: str) -> RowStore:
        text = "\x1f".join(str(part) for part in (VERSION, *key, *shape, dtype))
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        return RowStore(cache_folder() / kind / name, shape, dtype)

    def _load(self) -> None:
        try:
            manifest = files.read_json(self.folder / "manifest.json")
            size = (self.folder / "rows").stat().st_size
            entries, count = manifest["entries"], int(manifest["count"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return  # a cache that cannot be read is made anew
        if size >= count * self.bytes_a_row:
            self.entries, self.count = entries, count

    def known(self, file: ImageFile) -> int | str | None:
        """Return the row of a picture, why it has none, or None if it was never seen like this."""
        entry = self.entries.get(file.name)
        return entry[2] if entry and entry[:2] == [file.size, file.mtime_ns] else None

    def append(self, rows: Iterable[tuple[ImageFile, np.ndarray | str]]) -> None:
        """Add rows, or reasons why a picture has none. Raises OutputError if the disk is full."""
        path = self.folder / "rows"
        try:
            with open(path, "r+b" if path.exists() else "w+b") as file:
                file.truncate(self.count * self.bytes_a_row)
                file.seek(self.count * self.bytes_a_row)
                since = 0
                for picture, row in rows:
                    value: int | str = row if isinstance(row, str) else self.count
                    if not isinstance(row, str):
                        file.write(np.ascontiguousarray(row, self.dtype).data)
                        self.count += 1
                    self.entries[picture.name] = [picture.size, picture.mtime_ns, value]
                    since += 1
                    if since == COMMIT_EVERY:
                        file.flush()
                        os.fsync(file.fileno())
                        self._commit()
                        since = 0
                file.flush()
                os.fsync(file.fileno())
            self._commit()
        except OSError as error:
            raise files.output_error(path, error) from error

    def _commit(self) -> None:
        lasting = {name: e for name, e in self.entries.items() if e[2] not in PASSING}
        manifest = {"count": self.count, "entries": lasting}
        text = json.dumps(manifest, ensure_ascii=True, separators=(",", ":"))
        files.write_bytes(self.folder / "manifest.json", text.encode())

    def array(self) -> np.ndarray:
        """Return all rows (count, *shape), mapped from the disk."""
        if self.count == 0:
            return np.zeros((0, *self.shape), self.dtype)
        shape = (self.count, *self.shape)
        return np.memmap(self.folder / "rows", self.dtype, mode="r", shape=shape)

    def check_space(self, rows: int) -> None:
        """Raise OutputError if `rows` more would not fit on the disk."""
        need, free = rows * self.bytes_a_row, shutil.disk_usage(self.folder).free
        if need > free:
            raise OutputError(
                f"{self.folder} needs {need / 1e9:.1f} GB and has {free / 1e9:.1f} GB",
                hint="make room, set DEEPCLUST_CACHE_DIR, or lower --set encoder.image_size=",
            )


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        file = open(path, "ab")  # noqa: SIM115
    except OSError as error:
        raise files.output_error(path, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Rows:
    """The rows of N pictures: a gather from a store, mapped from the disk.

    files: the N pictures. row: (N,) int64 into `array`.
    """

    files: list[ImageFile]
    row: np.ndarray
    array: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        return self.array[self.row[index]]


def store_side(image_size: int) -> int:
    """Return the side at which pictures are kept: a little room for crops of larger pictures."""
    return image_size if image_size <= 64 else round(image_size * 1.15)


def load_pixels(
    listing: Listing,
    side: int,
    *,
    fit: str = "auto",
    max_pixels: int = MAX_PIXELS,
    workers: int = 2,
    progress: Progress = SILENT,
) -> tuple[Rows, list[Skipped]]:
    """Decode every picture of `listing` once; return squares (side, side, 3) uint8 and the skipped.

    workers: processes that decode; 0 decodes in this one.
    """
    with RowStore.opened(*_pixels(listing.root, side, fit, max_pixels)) as store:
        new = [file for file in listing.files if store.known(file) is None]
        if new:
            store.check_space(len(new))
            with progress.stage("read", total=len(new), unit="images") as stage:
                decoded = decode_all(
                    new, side, fit=fit, max_pixels=max_pixels, workers=workers, warn=progress.warn
                )
                store.append(_counted(decoded, stage))
            if changed := sum(map(_changed, new)):
                progress.warn(f"{changed} files were changed or removed while they were read")
        used, rows, skipped = [], [], list(listing.skipped)
        for file in listing.files:
            row = store.known(file)
            if isinstance(row, int):
                used.append(file)
                rows.append(row)
            else:
                skipped.append(Skipped(file.name, row or "vanished"))
        if count := sum(one.reason == TOO_MANY for one in skipped):
            progress.say(
                f"{count} pictures have too many pixels: --set data.max_pixels=N allows more than "
                f"{max_pixels}, where a pixel of WebP counts as four and one of AVIF as three"
            )
        return Rows(used, np.array(rows, dtype=np.int64), store.array()), skipped


def stored_pixels(root: Path, side: int, *, fit: str, max_pixels: int) -> RowStore:
    """Return what `load_pixels` has decoded of a folder so far; may hold nothing."""
    return RowStore.as_it_is(*_pixels(root, side, fit, max_pixels))


def _pixels(root: Path, side: int, fit: str, max_pixels: int) -> tuple:
    return "pixels", (root.resolve(), side, fit, max_pixels), (side, side, 3), "u1"


def _changed(file: ImageFile) -> bool:
    try:
        info = file.path.stat()
    except OSError:
        return True
    return (info.st_size, info.st_mtime_ns) != (file.size, file.mtime_ns)


def _counted(pairs: Iterable, stage: object) -> Iterator:
    for pair in pairs:
        yield pair
        stage.advance()  # type: ignore[attr-defined]
