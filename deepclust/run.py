"""The run folder: plain files that every command after the first works on.

    run.json           what was done, with what, on which data, and how it ended
    config.toml        every setting in force
    images.csv         file_name: N rows, the order of everything below
    skipped.csv        file_name, reason
    metrics.jsonl      a line an epoch
    model.safetensors  the weights of the method
    checkpoint-*       to resume only
    embeddings.npy     (N, d) float32
    whitened.npy       (N, d) float32, the embedding before smoothing, of a frozen encoder
    probabilities.npy  (N, k) float32, where the method has a head of its own
    clusters/NAME/     assignments.csv, clusters.json, centers.npy, reports

Data is written before what points at it, and `run.json` last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from deepclust import __version__, files
from deepclust.errors import CheckpointError, OutputError, UsageError

FORMAT = "deepclust-run"
VERSION = 1
HOME = Path("runs")
OWN = (
    "run.json", "config.toml", "images.csv", "skipped.csv", "duplicates.csv", "metrics.jsonl",
    "model.safetensors", "embeddings.npy", "probabilities.npy", "whitened.npy",
    "features.safetensors",
    "edits.toml",
)  # fmt: skip


class Run:
    """A run folder that exists. Reading needs no lock; writing happens under `locked()`."""

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info

    @staticmethod
    def create(path: Path, *, overwrite: bool = False) -> Run:
        """Make a new run at `path`.

        Raises OutputError if there is something already, unless `overwrite`: then files of an
        earlier run are removed, and files that are not ours stay.
        """
        path = path.expanduser()
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file", hint="choose another --out")
        if path.is_dir() and any(path.iterdir()):
            if not (path / "run.json").exists():
                raise OutputError(f"{path} is not empty and not a run", hint="choose another --out")
            if not overwrite:
                raise OutputError(
                    f"{path} holds a run already",
                    hint="--resume continues it, --overwrite replaces it, --out names another",
                )
        files.make_folder(path)
        run = Run(path, {"format": FORMAT, "version": VERSION, "deepclust": __version__})
        with run.locked():
            run._clear()
            run.update(status="started", started=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        return run

    def _clear(self) -> None:
        for name in OWN:
            (self.path / name).unlink(missing_ok=True)
        for file in [*self.path.glob("checkpoint-*.safetensors"), *self._stale()]:
            file.unlink(missing_ok=True)
        shutil.rmtree(self.path / "clusters", ignore_errors=True)

    def _stale(self) -> list[Path]:
        return [p for p in self.path.glob(".*") if files.TEMPORARY in p.name]

    @staticmethod
    def open(path: Path) -> Run:
        """Open a run. Raises UsageError if there is none, CheckpointError if it is damaged."""
        path = path.expanduser()
        try:
            info = files.read_json(path / "run.json")
        except FileNotFoundError as error:
            raise UsageError(
                f"no run at {path}", hint="deepclust pretrain IMAGES makes one"
            ) from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path / 'run.json'} is damaged: {error}") from error
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise CheckpointError(f"{path / 'run.json'} is not a run of deepclust")
        if info.get("version", 0) > VERSION:
            raise CheckpointError(
                f"{path} was made by a newer version, deepclust {info.get('deepclust')}",
                hint="pip install --upgrade deepclust",
            )
        return Run(path, info)

    @staticmethod
    def newest(home: Path = HOME) -> Run:
        """Open the run under `home` that was written last. Raises UsageError if there is none."""
        runs = Run.all(home)
        if not runs:
            raise UsageError(
                f"no run under {home}/",
                hint="deepclust pretrain IMAGES makes one, or name a run or a folder of images",
            )
        return runs[0]

    @staticmethod
    def all(home: Path = HOME) -> list[Run]:
        """Return the runs under `home`, the one written last first."""
        found = sorted(
            home.glob("*/run.json"), key=lambda p: (p.stat().st_mtime_ns, str(p)), reverse=True
        )
        return [Run.open(path.parent) for path in found]

    @staticmethod
    def free_path(images: Path, home: Path = HOME) -> Path:
        """Return a path under `home` for a new run on `images`: flowers, flowers-2, …"""
        base = re.sub(r"[^\w.-]+", "-", images.resolve().name).strip("-.") or "run"
        numbers = (n for n in range(1, 1_000_000))
        paths = (home / (base if n == 1 else f"{base}-{n}") for n in numbers)
        return next(p for p in paths if not p.exists())

    def update(self, **fields: Any) -> None:
        """Set fields of run.json and write it."""
        self.info = {**self.info, **fields}
        files.write_json(self.path / "run.json", self.info)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for writing. Raises OutputError if another process does.

        The lock is the kernel's: it ends with the process, however that ends.
        """
        try:
            import fcntl
        except ImportError:  # Windows: no advisory lock that ends with the process
            yield
            return
        path = self.path / ".lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise files.output_error(path, error) from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise OutputError(
                    f"{self.path} is in use by process {holder}",
                    hint="wait for it, or name another --out",
                ) from error
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            for stale in self._stale():
                stale.unlink(missing_ok=True)
            yield
        finally:
            os.close(fd)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def names(self) -> list[str]:
        """The N file names, relative to `image_root`, in the order of every array of the run."""
        return [files.name_of(row["file_name"]) for row in self._table("images.csv")]

    @property
    def image_root(self) -> Path:
        return Path(self.info["images"]["root"])

    def _table(self, name: str) -> list[dict[str, str]]:
        try:
            return files.read_csv(self.path / name)
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read {self.path / name}: {error}") from error

    def embeddings(self) -> np.ndarray:
        """Return the embedding (N, d) float32, mapped from the disk.

        Raises UsageError if there is none yet, CheckpointError if it does not fit the run.
        """
        path = self.path / "embeddings.npy"
        if not path.exists():
            raise UsageError(
                f"{self.path} has no embedding yet", hint=f"deepclust pretrain --resume {self.path}"
            )
        return self._array(path)

    def whitened(self) -> np.ndarray | None:
        """Return the embedding (N, d) float32 before smoothing, of a run that has one."""
        path = self.path / "whitened.npy"
        return self._array(path) if path.exists() else None

    def probabilities(self) -> np.ndarray | None:
        """Return the soft assignments (N, k) float32 of the method's own head, if it has one."""
        path = self.path / "probabilities.npy"
        return self._array(path) if path.exists() else None

    def _array(self, path: Path) -> np.ndarray:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if len(array) != self.info["images"]["used"]:
            raise CheckpointError(f"{path} has {len(array)} rows, the run has other images")
        return array

    def clusterings(self) -> list[Path]:
        """Return the folders of all finished clusterings, the newest first."""
        done = list((self.path / "clusters").glob("*/clusters.json"))
        done.sort(key=lambda p: (p.stat().st_mtime_ns, str(p)), reverse=True)
        return [p.parent for p in done]

    def clustering(self, name: str | None = None) -> Path:
        """Return the folder of the clustering `name`, or of the newest. Raises UsageError."""
        found = self.clusterings()
        if not found:
            raise UsageError(
                f"{self.path} has no clusters yet", hint=f"deepclust cluster {self.path} --k K"
            )
        if name is None:
            return found[0]
        for path in found:
            if path.name == name:
                return path
        raise UsageError(
            f"{self.path} has no clustering {name}",
            hint="it has: " + ", ".join(path.name for path in found),
        )


def fingerprint(names: list[str], sizes: list[int]) -> str:
    """Return a digest of which pictures a run is about: names and sizes in bytes."""
    lines = "".join(f"{name}\0{size}\n" for name, size in zip(names, sizes))
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
