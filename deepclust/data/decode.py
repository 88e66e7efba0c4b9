"""Decode many pictures in worker processes, so that a decoder that dies takes no run with it.

Results come back in order, whatever the number of workers. When a worker dies, the pictures of
its batch are decoded again one by one, and the one that kills its process again is skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

import numpy as np

from deepclust.data.images import ImageFile
from deepclust.data.reader import Unreadable, read_square

BATCH = 32
AHEAD = 8  # batches in flight for each worker
FEW = 2  # workers that are no harm on any machine
Decoded = list[np.ndarray | str]


def decode_all(
    files: Sequence[ImageFile],
    side: int,
    *,
    fit: str,
    max_pixels: int,
    workers: int,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[ImageFile, np.ndarray | str]]:
    """Yield each picture with its square (side, side, 3) uint8, or with the reason it has none.

    workers: processes; no more are started than the machine has cores, or two.
    warn: is told in words when there are fewer than asked for.
    """
    most = max(_cores(), FEW)
    if workers > most:
        warn(f"{workers} workers were asked for, {most} read pictures: as many as cores")
        workers = most
    batches = [list(files[at : at + BATCH]) for at in range(0, len(files), BATCH)]
    start = 0
    while start < len(batches):
        try:
            pool = _pool(min(workers, len(batches) - start)) if workers else None
        except OSError as error:  # no shared memory for the queues between processes
            warn(f"pictures are read in this process: no other can be started, {error}")
            pool = None
        if pool is None:
            for file in files[start * BATCH :]:
                yield file, _decode([file.path], side, fit, max_pixels)[0]
            return
        try:
            for batch, result in _in_order(pool, batches[start:], side, fit, max_pixels, workers):
                yield from zip(batch, result)
                start += 1
        except BrokenProcessPool:
            pool.shutdown(wait=False, cancel_futures=True)
            yield from zip(batches[start], _one_by_one(batches[start], side, fit, max_pixels))
            start += 1
        else:
            pool.shutdown()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_order(
    pool: ProcessPoolExecutor, batches: Sequence, side: int, fit: str, max_pixels: int, workers: int
) -> Iterator[tuple[list[ImageFile], Decoded]]:
    def submit(batch: list[ImageFile]) -> tuple[list[ImageFile], Future]:
        paths = [file.path for file in batch]
        return batch, pool.submit(_decode, paths, side, fit, max_pixels)

    rest = iter(batches)
    waiting = [submit(batch) for batch in islice(rest, AHEAD * workers)]
    while waiting:
        batch, future = waiting.pop(0)
        yield batch, future.result()
        waiting += [submit(batch) for batch in islice(rest, 1)]


def _one_by_one(
    batch: list[ImageFile], side: int, fit: str, max_pixels: int
) -> Iterator[np.ndarray | str]:
    """Decode in another process that has one picture at a time, so that a crash is that one's."""
    pool = _pool(1)
    try:
        for file in batch:
            try:
                yield pool.submit(_decode, [file.path], side, fit, max_pixels).result()[0]
            except BrokenProcessPool:
                yield "decoder crashed"
                pool.shutdown(wait=False)
                pool = _pool(1)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    # spawn: a fork of a process that runs threads may hang.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_start, initargs=(os.getpid(),))


def _start(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _decode(paths: Iterable[Path], side: int, fit: str, max_pixels: int) -> Decoded:
    squares: Decoded = []
    for path in paths:
        try:
            squares.append(read_square(path, side, fit=fit, max_pixels=max_pixels))
        except Unreadable as error:
            squares.append(error.reason)
    return squares
