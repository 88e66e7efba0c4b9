"""What the page costs: its size, the time to build it, and the time until a person can use it.

    python benchmarks/page.py                        # 300, 10,000 and 100,000 pictures
    python benchmarks/page.py --count 10000 --keep DIR

The first 2,000 pictures are drawn (512 × 384, JPEG) and the rest are links to them, with an
embedding around planted centres, so that only the page is measured. Build: wall and CPU seconds of
`page.write`; with `--stored` the pictures have been decoded before, as they are after `cluster`.
In Chromium without a window, from the start of the navigation: the page's own script has run, and
the first frame is done and the page free to answer; and from a click on a cluster to the frame in
which its pictures stand. Medians of `--rounds` fresh browsers; without one the columns say so.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pictures import draw

from deepclust import files
from deepclust.data.images import find_images
from deepclust.data.store import load_pixels, store_side
from deepclust.report import page
from deepclust.run import Run

DRAWN = 2000  # pictures that are really drawn
WIDTH, D, K = 512, 256, 20
IMAGE_SIZE, MAX_PIXELS = 224, 89_478_485  # what the encoder of `cluster ./images` takes
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip
CLICKED = """
const done = arguments[0], began = performance.now();
document.querySelector(".card .open").click();
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
"""
LOADED = """
const done = arguments[0];
requestAnimationFrame(() => setTimeout(() => done({
  ready: performance.getEntriesByName("ready")[0]?.startTime ?? null,
  idle: performance.now(),
}), 0));
"""


def a_run(folder: Path, images: Path, count: int) -> tuple[Run, Path]:
    """Write a run with `count` pictures, an embedding and one clustering."""
    found = sorted(path.name for path in (images / "all").iterdir())
    names = [f"all/{name}" for name in found[:count]]
    rng = np.random.default_rng(0)
    corners = rng.normal(size=(K, D))
    label = np.sort(rng.choice(K, size=count, p=np.arange(K, 0, -1) / (K * (K + 1) / 2)))
    label = rng.permutation(label)
    x = (corners[label] + 0.9 * rng.normal(size=(count, D))).astype(np.float32)
    run = Run.create(folder / f"run-{count}")
    config = f"[data]\nmax_pixels = {MAX_PIXELS}\n[encoder]\nimage_size = {IMAGE_SIZE}\n"
    files.write_text(run.path / "config.toml", config)
    files.write_csv(run.path / "images.csv", ["file_name"], ([name] for name in names))
    files.write_array(run.path / "embeddings.npy", x)
    run.update(
        images={"root": str(images.resolve()), "used": count, "skipped": 0},
        settings={"method": "none", "k": None, "seed": 0},
    )
    place = run.path / "clusters" / f"kmeans-{K}"
    files.make_folder(place)
    rows = ((n, int(c), f"{s:.6f}") for n, c, s in zip(names, label, rng.random(count)))
    files.write_csv(place / "assignments.csv", ["file_name", "cluster", "confidence"], rows)
    files.write_json(place / "clusters.json", {"algorithm": "kmeans", "seed": 0, "k_found": K})
    return Run.open(run.path), place


def pictures(folder: Path, count: int) -> Path:
    """Draw the pictures, or as many as are drawn at all; the rest are hard links to them."""
    place = folder / f"pictures-{count}"
    if not (place / "all").is_dir():
        draw(place, min(count, DRAWN), WIDTH, WIDTH * 3 // 4)
        drawn = sorted((place / "all").iterdir())
        for i in range(len(drawn), count):
            os.link(drawn[i % len(drawn)], place / "all" / f"{i:06d}.jpg")
    return place


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window, or None where there is none."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        program = None
    if not (program and driver):
        yield None
        return
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        opened = webdriver.Chrome(options=options, service=Service(driver))
        opened.set_script_timeout(120)
        try:
            yield opened
        finally:
            opened.quit()


def used(path: Path, rounds: int) -> dict[str, float] | None:
    """Open the page in fresh browsers; return medians in seconds, or None without a browser."""
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        with chromium() as browser:
            if browser is None:
                return None
            browser.get("data:text/html,<title>warm</title>")
            browser.get(path.resolve().as_uri())
            times = browser.execute_async_script(LOADED)
            times["click"] = browser.execute_async_script(CLICKED)
            for key, value in times.items():
                seen.setdefault(key, []).append((value or 0) / 1000)
    return {key: statistics.median(values) for key, values in seen.items()}


def cpu() -> float:
    return sum(
        u.ru_utime + u.ru_stime
        for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, nargs="+", default=[300, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3, help="browsers opened for each page")
    parser.add_argument("--stored", action="store_true", help="pictures were decoded before")
    parser.add_argument("--keep", type=Path, help="folder for pictures and pages; else thrown away")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DEEPCLUST_CACHE_DIR"] = f"{scratch}/cache"
        folder = asked.keep or Path(scratch)
        print("| pictures | MB | build s | CPU s | script ran s | usable s | click s |")
        print("|---|---|---|---|---|---|---|")
        for count in asked.count:
            images = pictures(folder, count)
            shutil.rmtree(folder / f"run-{count}", ignore_errors=True)
            run, place = a_run(folder, images, count)
            if asked.stored:
                load_pixels(find_images(images), store_side(IMAGE_SIZE), max_pixels=MAX_PIXELS)
            began, before = time.monotonic(), cpu()
            path = page.write(run, place)
            wall, spent = time.monotonic() - began, cpu() - before
            assert path is not None
            times = used(path, asked.rounds)
            tail = (
                "no browser | |"
                if times is None
                else " | ".join(f"{times[key]:.2f}" for key in ("ready", "idle", "click")) + " |"
            )
            size = path.stat().st_size / 1e6
            print(f"| {count:,} | {size:.1f} | {wall:.1f} | {spent:.1f} | {tail}", flush=True)


if __name__ == "__main__":
    main()
