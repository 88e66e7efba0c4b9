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

Data is written before what points at it, and `run.json` last. It names each result with its
SHA-256, as `clusters.json` does beside it, so that a file that was changed or cut is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from deepclust import __version__, files
from deepclust.errors import CheckpointError, OutputError, UsageError

FORMAT = "deepclust-run"
VERSION = 1
HOME = Path("runs")
LOCK = ".lock"
OWN = (
    "run.json", "config.toml", "images.csv", "skipped.csv", "duplicates.csv", "metrics.jsonl",
    "model.safetensors", "embeddings.npy", "probabilities.npy", "whitened.npy",
    "features.safetensors", "perhaps-new.csv", "perhaps-new.npy",
    "edits.toml",
)  # fmt: skip
OF_CLUSTERS = (
    "assignments.csv", "centers.npy", "clusters.json", "k.csv", "k.png", "levels.csv", "merges.csv",
    "report.", "confusion.png", "predicted-",
)  # fmt: skip


class Run:
    """A run folder that exists. Reading needs no lock; writing happens under `locked()`."""

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info
        self._checked: set[str] = set()

    @staticmethod
    def create(path: Path, *, overwrite: bool = False, **fields: Any) -> Run:
        """Make a new run at `path`, with `fields` in its run.json.

        Raises OutputError if there is something already, unless `overwrite`: then files of an
        earlier run are removed, and files that are not ours stay.
        """
        path = path.expanduser()
        Run.check_place(path, overwrite=overwrite)
        files.make_folder(path)
        run = Run(path, {"format": FORMAT, "version": VERSION, "deepclust": __version__})
        with run._lock():
            # A run without settings is one that a resume begins anew, so they go first: whatever
            # happens here, what is left is the old run, a run to begin, or nothing.
            (path / "config.toml").unlink(missing_ok=True)
            run.update(status="started", started=time.strftime("%Y-%m-%dT%H:%M:%S%z"), **fields)
            run._clear()
        return run

    @staticmethod
    def check_place(path: Path, *, overwrite: bool = False) -> None:
        """Raise OutputError if `create` would."""
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file", hint="choose another --out")
        if path.is_dir() and not _bare(path):
            if not (path / "run.json").exists():
                raise OutputError(f"{path} is not empty and not a run", hint="choose another --out")
            if not overwrite:
                raise OutputError(
                    f"{path} holds a run already",
                    hint="--resume continues it, --overwrite replaces it, --out names another",
                )

    def _clear(self) -> None:
        """Remove what an earlier run left, and nothing else."""
        for name in OWN:
            if name != "run.json":
                (self.path / name).unlink(missing_ok=True)
        for file in [*self.path.glob("checkpoint-*.safetensors"), *_stale(self.path)]:
            file.unlink(missing_ok=True)
        home = self.path / "clusters"
        if home.is_symlink():
            return
        for folder in home.glob("*"):
            if not folder.is_symlink() and (folder / "clusters.json").is_file():
                ours = [f for f in folder.iterdir() if f.name.startswith(OF_CLUSTERS)]
                for file in [*ours, *_stale(folder)]:
                    file.unlink(missing_ok=True)
                _remove_empty(folder)
        _remove_empty(home)

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
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(path / "run.json", error) from error
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise CheckpointError(f"{path / 'run.json'} is not a run of deepclust")
        version = info.get("version")
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"{path} was made by a newer version, deepclust {info.get('deepclust')}",
                hint="pip install --upgrade deepclust",
            )
        run = Run(path, _sealed(path / "run.json"))
        with contextlib.suppress(FileNotFoundError):
            run._check(path / "config.toml")
        return run

    @staticmethod
    def newest(home: Path = HOME) -> Run:
        """Open the run under `home` that was written last. Raises UsageError if there is none."""
        found = _newest_first(home.glob("*/run.json"))
        if not found:
            raise UsageError(
                f"no run under {home}/",
                hint="deepclust pretrain IMAGES makes one, or name a run or a folder of images",
            )
        return Run.open(found[0].parent)

    @staticmethod
    def all(home: Path = HOME) -> list[Run]:
        """Return the runs under `home`, the one written last first; damaged ones are left out."""
        runs = []
        for path in _newest_first(home.glob("*/run.json")):
            with contextlib.suppress(CheckpointError, UsageError):
                runs.append(Run.open(path.parent))
        return runs

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
        files.write_sealed(self.path / "run.json", self.info)

    def seal(self, *names: str) -> dict[str, str]:
        """Return the field `files` of run.json with the SHA-256 of `names` as they are now."""
        try:
            made = {name: files.sha256(self.path / name) for name in names}
        except OSError as error:
            raise files.output_error(self.path, error) from error
        return {**self.info.get("files", {}), **made}

    def intact(self, name: str) -> bool:
        """Tell whether a result can be read and is as run.json names it, where it does."""
        try:
            self._check(self.path / name)
        except (OSError, CheckpointError):
            return False
        return True

    def whole(self) -> bool:
        """Tell whether every sealed file is still as it was written."""
        try:
            return all(
                files.sha256(self.path / name) == digest
                for name, digest in self.info.get("files", {}).items()
            )
        except OSError:
            return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for writing, as it is now. Raises OutputError if another process does.

        The lock is the kernel's: it ends with the process, however that ends.
        """
        with self._lock():
            # Whoever held it before may have gone on since we looked.
            self.info = Run.open(self.path).info
            yield

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # Windows: no advisory lock that ends with the process
            yield
            return
        path = self.path / LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise files.output_error(path, error) from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise OutputError(
                    f"{self.path} is in use by process {holder}",
                    hint="wait for it, or name another --out",
                ) from error
            except OSError as error:
                raise files.output_error(path, error) from error
            # The number is only for the message: a full disk is told by the first real write.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
            for stale in _stale(self.path):
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
        path = self.path / name
        try:
            self._check(path)
            return files.read_csv(path)
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from error

    def _check(self, path: Path) -> None:
        """Compare a result with its digest. Raises OSError or CheckpointError."""
        if path.name in self._checked:
            return
        expected = self.info.get("files", {}).get(path.name)
        if expected is not None and files.sha256(path) != expected:
            raise CheckpointError(
                f"{path} is damaged or was changed: its SHA-256 is not the one in run.json",
                hint=f"deepclust pretrain --resume {self.path} writes results anew"
                if path.suffix == ".npy" and self.info.get("checkpoints")
                else "make a new run; its settings can be given as --config",
            )
        self._checked.add(path.name)

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
            self._check(path)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(path, error) from error
        if len(array) != self.info["images"]["used"]:
            raise CheckpointError(f"{path} has {len(array)} rows, the run has other images")
        return array

    def clusterings(self) -> list[Path]:
        """Return the folders of all finished clusterings, the newest first."""
        done = (self.path / "clusters").glob("*/clusters.json")
        return [path.parent for path in _newest_first(done)]

    def clustering(self, name: str | None = None) -> Path:
        """Return the folder of the clustering `name`, or of the newest, once it is checked.

        Raises UsageError if there is none, CheckpointError if a file of it was changed.
        """
        found = self.clusterings()
        if not found:
            raise UsageError(
                f"{self.path} has no clusters yet", hint=f"deepclust cluster {self.path} --k K"
            )
        for path in found:
            if name in (None, path.name):
                _check_clusters(path)
                return path
        raise UsageError(
            f"{self.path} has no clustering {name}",
            hint="it has: " + ", ".join(path.name for path in found),
        )


def seal_clusters(folder: Path, details: dict[str, Any]) -> None:
    """Write clusters.json, with the SHA-256 of what is beside it. It marks the end."""
    made = {name: files.sha256(folder / name) for name in ("assignments.csv", "centers.npy")}
    files.write_sealed(folder / "clusters.json", {**details, "files": made})


def _check_clusters(folder: Path) -> None:
    path = folder / "clusters.json"
    try:
        if not {files.DIGEST, "files"} & set(files.read_json(path)):
            return  # not written by `cluster`, such as a table that was put here by hand
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(path, error) from error
    for name, expected in _sealed(path).get("files", {}).items():
        try:
            same = files.sha256(folder / name) == expected
        except OSError as error:
            raise _damaged(folder / name, error) from error
        if not same:
            raise CheckpointError(
                f"{folder / name} is damaged or was changed since deepclust wrote it",
                hint="cluster again, or score an edited copy with evaluate --assignments FILE",
            )


def _sealed(path: Path) -> dict[str, Any]:
    try:
        return files.read_sealed(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {error}")


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda p: (p.stat().st_mtime_ns, str(p)), reverse=True)


def _bare(folder: Path) -> bool:
    """Tell whether a folder holds nothing but what a run leaves that died at its first step."""
    return all(path.name == LOCK or files.TEMPORARY in path.name for path in folder.iterdir())


def _stale(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".*") if files.TEMPORARY in path.name]


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def fingerprint(names: list[str], sizes: list[int]) -> str:
    """Return a digest of which pictures a run is about: names and sizes in bytes."""
    lines = "".join(f"{name}\0{size}\n" for name, size in zip(names, sizes))
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
