"""Rows of faults: what a machine does to a run, each put under one command in this process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import struct
import sys
import time
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

Usage = namedtuple("Usage", "total used free")
Fault = Callable[[], AbstractContextManager]
MKDIR = b"\x80\x02cos\nmkdir\nX\x05\x00\x00\x00PWNED\x85R."
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def instead(target: str, new: Any) -> Fault:
    return lambda: patch(target, new)


def raising(target: str, error: Exception) -> Fault:
    def fail(*_: object, **__: object) -> None:
        raise error

    return instead(target, fail)


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Give up root's right to read everything; a person has none, and needs nothing given up."""
    if os.geteuid() or sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    before = data[0]
    data[0] = before & ~OVERRIDES
    assert libc.capset(header, data) == 0
    try:
        yield
    finally:
        data[0] = before
        assert libc.capset(header, data) == 0


@contextlib.contextmanager
def closed(*names: str) -> Iterator[None]:
    """Take all permissions from files or folders."""
    before = [(Path(name), Path(name).stat().st_mode) for name in names]
    for path, _ in before:
        path.chmod(0)
    try:
        with without_root():
            yield
    finally:
        for path, mode in before:
            path.chmod(mode)


@contextlib.contextmanager
def flipped(name: str) -> Iterator[None]:
    """Turn one bit of a file over."""
    path = Path(name)
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])
    yield
    path.write_bytes(data)


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """Hold the lock of a run, as another process would."""
    from deepclust.run import Run

    with Run.open(Path(name)).locked():
        yield


@contextlib.contextmanager
def while_reading(act: Callable[[Path], None]) -> Iterator[None]:
    """Do something to the folder when its first picture is read."""
    from deepclust.data import decode

    real, done = decode.read_square, []

    def read(path: Path, *words: Any, **options: Any) -> Any:
        if not done:
            act(path.parent)
            done.append(path)
        return real(path, *words, **options)

    with patch.object(decode, "read_square", read):
        yield


def scaled(name: str, factor: float) -> Fault:
    """Multiply what a function of CC returns, from its second call on."""

    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        from deepclust.methods.cc import CC

        real, calls = getattr(CC, name), []

        def change(self: CC, *words: Any) -> Any:
            calls.append(1)
            made = real(self, *words)
            if len(calls) < 2:
                return made
            if isinstance(made, dict):
                return {key: term * factor for key, term in made.items()}
            return made * factor

        with patch.object(CC, name, change):
            yield

    return inside


def backwards() -> AbstractContextManager:
    """A clock that somebody turns back at every look."""
    now = [time.time()]

    def tick() -> float:
        now[0] -= 3600
        return now[0]

    return patch("time.time", tick)


def remove_last(folder: Path) -> None:
    sorted(folder.glob("*.png"))[-1].unlink()


def cut_last(folder: Path) -> None:
    last = sorted(folder.glob("*.png"))[-1]
    last.write_bytes(last.read_bytes()[:60])


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
NO_ROOM: Fault = instead("shutil.disk_usage", lambda _: Usage(10**9, 10**9 - 10**6, 10**6))
OFFLINE: Fault = raising("socket.create_connection", OSError(errno.ENETUNREACH, "no network"))
# fmt: off
FAULTS: dict[str, Fault] = {
    "7 a picture without permission": lambda: closed("seven/000.png"),
    "8 a sub-folder without permission": lambda: closed("seven/below"),
    "29 a picture goes while it runs": lambda: while_reading(remove_last),
    "30 a picture is cut while it runs": lambda: while_reading(cut_last),
    "96 offline": OFFLINE,
    "98 output without permission": lambda: closed("shut"),
    "99 hardly any room": NO_ROOM,
    "104 a loss of NaN": scaled("losses", float("nan")),
    "104 an infinite loss": scaled("losses", float("inf")),
    "105 an embedding of NaN": scaled("embed", float("nan")),
    "106 a huge embedding": scaled("embed", 1e20),
    "116 out of memory": raising("deepclust.training._step", MemoryError()),
    "117 no shared memory": raising("deepclust.data.decode._pool", NO_SPACE),
    "118 a bug while reading": raising("deepclust.data.decode.read_square", KeyError("x")),
    "119 two at once": lambda: held("run"),
    "123 a clock that goes back": backwards,
    "125 a flipped bit in the embedding": lambda: flipped("run/embeddings.npy"),
    "125 a flipped bit in a table": lambda: flipped("run/images.csv"),
    "125 a flipped bit in run.json": lambda: flipped("run/run.json"),
}
# fmt: on


def under(what: str) -> AbstractContextManager:
    """Return the fault that goes with a row; most have none."""
    return FAULTS.get(what, contextlib.nullcontext)()


def hostile_weights(folder: Path) -> None:
    """Write files of weights as strangers make them."""
    import torch
    from torch import nn

    from deepclust import weights

    folder.mkdir()
    torch.save({"w": torch.ones(1000)}, folder / "whole.pt")
    data = (folder / "whole.pt").read_bytes()
    torch.save(nn.Linear(2, 2), folder / "module.pt")
    with zipfile.ZipFile(folder / "zip.pt", "w") as archive:
        archive.writestr("archive/data.pkl", MKDIR)
        archive.writestr("archive/version", b"3\n")
    with zipfile.ZipFile(folder / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10**7)
    for name, content in (
        ("raw.pt", MKDIR), ("empty.pt", b""), ("text.pt", b"hello\n"), ("cut.pt", data[:2000]),
        ("picture.pt", b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(50)),
        ("header.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
    ):  # fmt: skip
        (folder / name).write_bytes(content)
    weights.save(folder / "other.safetensors", nn.Linear(3, 2).state_dict(), {"kind": "model"})
    nan = {"encoder.w": torch.tensor([float("nan")])}
    weights.save(folder / "nan.safetensors", nan, {"kind": "model"})


def newer(folder: Path) -> None:
    """Write a run of a version to come."""
    folder.mkdir()
    table = {"format": "deepclust-run", "version": 99, "deepclust": "9.0"}
    (folder / "run.json").write_text(json.dumps(table))
