"""A command line that dies at a planned moment, to see that nothing is lost and a resume is exact.

A server process loads everything once and forks a child for each command; the child runs
`deepclust.cli.run` and, at its n-th event, is killed, signalled or told that the disk is full.
An event is a step, a decoded picture, or one of the four moments of a write: temporary file open,
half of it written, before fsync, before the rename.

The short form is `test_faults.py`. The long form, by hand: `python -m tests.faults --kills 200`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent
BALLAST = "ballast"
LIMIT = 60  # seconds for one command
SIGNALS = {
    "term": [signal.SIGTERM], "hup": [signal.SIGHUP], "int": [signal.SIGINT],
    "int int": [signal.SIGINT] * 2,
}  # fmt: skip
EXIT = {"kill": -9, "term": 143, "hup": 129, "int": 130, "int int": 130, "full": 5, "fill": 5}
SAME = (
    "embeddings.npy", "probabilities.npy", "whitened.npy", "images.csv", "skipped.csv",
    "config.toml",
)  # fmt: skip
LOADED = (
    "torch._dynamo", "sklearn.cluster", "scipy.optimize", "deepclust.algorithms.kmeans",
    "deepclust.cli", "deepclust.frozen", "deepclust.methods.cc", "deepclust.methods.pcl",
    "deepclust.models", "deepclust.plan", "deepclust.steps.cluster", "deepclust.steps.pretrain",
    "deepclust.training", "rich.table", "tomli_w", "safetensors.torch",
)  # fmt: skip
FROZEN = (
    "--method", "cc", "--encoder", "lite0", "--set", "encoder.train=none",
    "--set", "views.cached=2",
)  # fmt: skip
SMALL = ("--encoder", "resnet8", "--image-size", 32, "--threads", 1, "--workers", 0)


def draw(folder: Path, count: int, side: int = 16) -> Path:
    """Draw noisy pictures of three colours."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    for i in range(count):
        a = noise.integers(0, 120, (side, side, 3), dtype=np.uint8)
        a[..., i % 3] += 120
        Image.fromarray(a).save(folder / f"{i:03d}.png")
    return folder


class Server:
    """A process that runs commands in children of its own. Use it with `with`."""

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults", "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=LIMIT)
        self.process.stdout.close()

    def run(self, *words: object, cache: Path, **fault: Any) -> tuple[int, str, list[str]]:
        """Run a command line; return its exit code, standard error, and its events.

        fault: at (number of the event from 0) and action ("kill", "full", "away", which removes
        the folder `away`, "fill", which takes the last of the room beside `away`, or one of
        SIGNALS); megabytes: the most that a file may have; closed: nobody reads standard output.
        """
        assert self.process.stdin
        assert self.process.stdout
        job = {"argv": [str(w) for w in words], "cache": str(cache), **fault}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        code, err, events = json.loads(self.process.stdout.readline())
        return code, err, events


def serve() -> None:
    """Answer jobs from standard input until it ends."""
    import torch

    # What a child needs is loaded here once: it is most of its time.
    for name in LOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryDirectory() as place:
            out, err, log = (Path(place) / name for name in ("out", "err", "log"))
            pid = os.fork()
            if pid == 0:
                _child(job, out, err, log)
            code = _wait(pid)
            events = log.read_text().split("\n")[:-1] if log.exists() else []
            print(json.dumps([code, err.read_text(errors="replace"), events]), flush=True)


def _wait(pid: int) -> int:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -999


def _child(job: dict[str, Any], out: Path, err: Path, log: Path) -> None:
    code = 99
    try:
        os.environ["DEEPCLUST_CACHE_DIR"] = job["cache"]
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        if "closed" in job:
            ours, theirs = os.pipe()
            os.dup2(theirs, 1)
            os.close(ours)
            os.close(theirs)
        if "megabytes" in job:
            most = job["megabytes"] << 20
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        watch(log, job.get("at"), job.get("action", ""), job.get("away", ""))
        from deepclust import cli

        sys.argv = ["deepclust", *job["argv"]]
        try:
            cli.main()
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watch(log: Path, at: int | None, action: str, away: str) -> None:
    """Note every event in `log`, and act at number `at`."""
    from deepclust import files, training
    from deepclust.data import decode

    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    real_open, real_fsync, real_fdopen, count = os.open, os.fsync, os.fdopen, 0

    def event(name: str) -> None:
        nonlocal count
        os.write(record, f"{name}\n".encode())
        count += 1
        if count - 1 != at:
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if action == "away":
            shutil.rmtree(away)
        if action == "fill":
            fill(Path(away) / BALLAST)
        for one in SIGNALS.get(action, []):
            os.kill(os.getpid(), one)

    def before(name: str, call: Callable) -> Callable:
        def wrapped(*words: Any, **options: Any) -> Any:
            event(name)
            return call(*words, **options)

        return wrapped

    def opened(path: Any, *words: Any, **options: Any) -> int:
        if files.TEMPORARY in str(path):
            event(f"open {Path(path).name.split(files.TEMPORARY)[0][1:]}")
        return real_open(path, *words, **options)

    @contextlib.contextmanager
    def halves(fd: int, mode: str) -> Iterator[Any]:
        with real_fdopen(fd, mode) as file:
            yield _Halves(file, event)

    files.os = _Like(os, open=opened, fsync=before("fsync", real_fsync), fdopen=halves)  # type: ignore[attr-defined]
    files.Path = Path  # type: ignore[attr-defined]
    real_replace = Path.replace
    Path.replace = before("rename", real_replace)  # type: ignore[method-assign]
    training.EPOCH_SECONDS = 0.0  # else the number of an event would depend on the clock
    training._step = before("step", training._step)  # type: ignore[attr-defined]
    decode.read_square = before("decode", decode.read_square)  # type: ignore[attr-defined]
    training.infer = before("infer", training.infer)


def fill(path: Path) -> None:
    """Write until there is no room, byte by byte at the end."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


class _Like:
    """A module with some of its functions replaced."""

    def __init__(self, module: Any, **instead: Any) -> None:
        self.__dict__.update({**vars(module), **instead})


class _Halves:
    """A file that is seen between the two halves of each write."""

    def __init__(self, file: Any, event: Callable[[str], None]) -> None:
        self.file, self.event = file, event

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self.file.write(view[: len(view) // 2])
        self.file.flush()
        self.event("half")
        self.file.write(view[len(view) // 2 :])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def results(run: Path) -> dict[str, bytes]:
    """Return what has to be the same bits in two runs; of the metrics all but the speed."""
    made = {name: (run / name).read_bytes() for name in SAME if (run / name).exists()}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("images_per_second")
    made["metrics"] = json.dumps(lines).encode()
    made["model"] = _content(run / "model.safetensors")
    made |= {p.parent.name: p.read_bytes() for p in run.glob("clusters/*/assignments.csv")}
    return made


def _content(path: Path) -> bytes:
    """Return the tensors and the header of a file of weights: safetensors shuffles its metadata."""
    from deepclust import weights

    tensors, header = weights.load(path)
    named = [name.encode() + tensors[name].numpy().tobytes() for name in sorted(tensors)]
    return b"".join(named) + json.dumps(header, sort_keys=True).encode()


def halved(run: Path) -> list[str]:
    """Return what is not whole in a run that was killed: nothing, one hopes."""
    from deepclust import files, weights
    from deepclust.errors import DeepclustError
    from deepclust.run import Run

    if not (run / "run.json").exists():
        return []
    wrong = []
    try:
        opened = Run.open(run)
        for entry in opened.info.get("checkpoints", []):
            if files.sha256(run / entry["file"]) != entry["sha256"]:
                wrong.append(entry["file"])
    except DeepclustError as error:
        wrong.append(error.message)
    for path in run.glob("*.safetensors"):
        try:
            weights.load(path)
        except DeepclustError as error:
            wrong.append(error.message)
    for path in run.glob("*.npy"):
        try:
            np.load(path)
        except (OSError, ValueError, EOFError):
            wrong.append(path.name)
    return wrong


def command(images: Path, run: Path, method: str, *more: object) -> list[object]:
    """Return the command line of a small run; method "frozen" is CC on a frozen encoder."""
    special = FROZEN if method == "frozen" else ("--method", method)
    return [
        "pretrain", images, "--out", run, "--k", 3, "--epochs", 2, "--batch-size", 4, *SMALL,
        *special, *more,
    ]  # fmt: skip


def trial(
    server: Server, place: Path, images: Path, method: str, whole: dict[str, bytes], **fault: Any
) -> list[str]:
    """Break a run, resume it, and return what went wrong."""
    run, cache = place / "run", place / "cache"
    code, err, events = server.run(*command(images, run, method), cache=cache, **fault)
    wrong = [f"half: {name}" for name in halved(run)]
    # A signal that comes after the last step lets the run end as it would have.
    if code not in (EXIT[fault["action"]], 0) or (code == 0 and fault["action"] == "kill"):
        wrong.append(f"exit {code} after {fault['action']} at {events[-1:]}: {err[-300:]}")
    if "Traceback" in err:
        wrong.append(f"traceback: {err[-600:]}")
    code, err, _ = server.run(*command(images, run, method, "--resume"), cache=cache)
    if code != 0:
        return [*wrong, f"resume: exit {code}: {err[-300:]}"]
    server.run("cluster", run, "--k", 3, "--threads", 1, cache=cache)
    made = results(run)
    wrong += [f"differs: {name}" for name in whole if made.get(name) != whole[name]]
    return wrong + [f"left: {p.name}" for p in run.rglob(".*.tmp-*")]


def reference(
    server: Server, place: Path, images: Path, method: str
) -> tuple[dict[str, bytes], list[str]]:
    """Return the results and the events of a run that nothing disturbs."""
    run, cache = place / "run", place / "cache"
    code, err, events = server.run(*command(images, run, method), cache=cache)
    assert code == 0, err
    code, err, _ = server.run("cluster", run, "--k", 3, "--threads", 1, cache=cache)
    assert code == 0, err
    return results(run), events


def main() -> None:
    """Break many runs and print what came of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--method", default="cc")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.serve:
        return serve()
    chance, ends, bad = random.Random(asked.seed), Counter[str](), 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, Server() as server:
        home = Path(name)
        images = draw(home / "images", 10)
        whole, events = reference(server, home / "whole", images, asked.method)
        writes = [
            i for i, e in enumerate(events) if e.split()[0] in ("open", "half", "fsync", "rename")
        ]
        for number in range(asked.kills):
            at = chance.choice(writes if number % 2 else range(len(events)))
            place = home / str(number)
            wrong = trial(server, place, images, asked.method, whole, at=at, action="kill")
            ends[events[at].split()[0]] += 1
            if wrong:
                bad += 1
                print(f"kill {number} at event {at} ({events[at]}): {'; '.join(wrong)}", flush=True)
            subprocess.run(["rm", "-rf", str(place)], check=False)
    moments = ", ".join(f"{count} at {event}" for event, count in ends.items())
    print(
        f"{asked.kills} kills of {asked.method} ({moments}):"
        f" {asked.kills - bad} resumed to the same bits, {bad} did not; "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
