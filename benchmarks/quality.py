"""How well each way of clustering a folder does on labelled sets, against plain k-means.

    python benchmarks/quality.py DATA [--sets digits hands] [--limit 2000] [--learnt] [--guess]

DATA holds one folder a set, each with pictures and labels.csv (file_name,label). Labels are read
to score, never to choose. At most `--limit` pictures a set, drawn with seed 0. Features and views
are made once a set, as `deepclust cluster FOLDER` makes them; the seeds are those of the
clustering and, with `--learnt`, of CC, PCL and SimCLR on the features. `--guess` tries `--k auto`
on each set and on seeded subsets of its classes. Prints Markdown: percent, mean ± standard
deviation over the seeds; gains are over k-means on the plain features.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from deepclust import algorithms, baselines, frozen
from deepclust.algorithms.choose_k import choose
from deepclust.algorithms.kmeans import cluster as kmeans
from deepclust.algorithms.whitening import by_views, fit_recipe, smooth
from deepclust.device import use_threads
from deepclust.metrics import contingency
from deepclust.metrics import scores as score
from deepclust.progress import SILENT
from deepclust.run import Run
from deepclust.steps.embed import embed
from deepclust.steps.pretrain import Machine, pretrain

ON_TOP = (
    "spherical",
    "spectral",
    "agglomerative",
    "consensus",
    "scan",
    "temi",
    "leiden",
    "hdbscan",
)
SUBSETS = (3, 5, 7, 9)
BASE = "k-means on plain features"
ALONE = Machine(threads=1, workers=0)  # one thread, so that CPU seconds can be compared
Scores = tuple[float, float, float]
Rows = dict[str, list[Scores]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--learnt", action="store_true", help="CC, PCL and SimCLR too")
    parser.add_argument("--guess", action="store_true", help="the number of clusters too")
    chosen = parser.parse_args()
    use_threads(1)
    sets = chosen.sets or sorted(path.parent.name for path in chosen.data.glob("*/labels.csv"))
    found: dict[str, Rows] = {}
    seconds: dict[str, list[float]] = {}
    guesses: list[tuple[str, int, int, float]] = []
    with tempfile.TemporaryDirectory() as place:
        for name in sets:
            folder = Path(place) / name
            label = subset(chosen.data / name, folder, chosen.limit)
            began = time.process_time()
            run = embed(folder, out=Path(place) / f"{name}-run", machine=ALONE)
            spent = time.process_time() - began
            y = np.array([label[picture] for picture in run.names])
            seconds.setdefault("features and views", []).append(1000 * spent / len(y))
            found[name] = {}
            for title, make in ways(run, len(np.unique(y)), chosen.learnt, folder):
                for seed in chosen.seeds:
                    began = time.process_time()
                    z = make(seed)
                    seconds.setdefault(title, []).append(
                        1000 * (time.process_time() - began) / len(y)
                    )
                    found[name].setdefault(title, []).append(scores(y, z))
                print(name, title, *_mean(found[name][title]), file=sys.stderr, flush=True)
            if chosen.guess:
                guesses += guess(name, run, y)
    table(found, seconds, sets)
    if guesses:
        report(guesses)


def subset(source: Path, folder: Path, limit: int) -> dict[str, str]:
    """Copy at most `limit` pictures of a set to a folder; return their labels by name."""
    with (source / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = [(row["file_name"], row["label"]) for row in csv.DictReader(file)]
    draw = np.random.default_rng(0).permutation(len(rows))[:limit]
    kept = dict(rows[i] for i in np.sort(draw))
    for name in kept:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, folder / name)
    return kept


def ways(
    run: Run, k: int, learnt: bool, folder: Path
) -> Iterator[tuple[str, Callable[[int], np.ndarray]]]:
    """Name every way to cluster a run: a function of the seed that returns labels (N,)."""
    z = np.asarray(run.embeddings(), np.float32)
    whitened = np.asarray(run.whitened(), np.float32)
    rows, layers = baselines.features(run)
    taps = frozen.taps(rows, layers)
    plain = frozen.plain(rows, layers)
    pixels = baselines.squares(run, 32, SILENT)[:].reshape(len(z), -1).astype(np.float32) / 255

    def by(x: np.ndarray) -> Callable[[int], np.ndarray]:
        return lambda seed: kmeans(x, k, seed=seed).label

    yield "k-means on pixels", by(pixels)
    yield BASE, by(plain)
    yield "default", by(z)
    yield "default without smoothing", by(whitened)
    yield "default, whitened by views alone", by(smooth(by_views(taps).transform(taps)))
    head = {"head": taps["head"]}
    yield "default on the last layer alone", by(smooth(fit_recipe(head).transform(head)))
    views = np.concatenate([taps["head"][0][:, None], taps["head"][1]], axis=1).astype(np.float32)
    mean = views / np.linalg.norm(views, axis=2, keepdims=True)
    yield "mean of the views, smoothed", by(smooth(_unit(mean.mean(axis=1))))
    yield "plain features, smoothed", by(smooth(plain))
    yield "--fast: whitened by neighbours", by(fast(run))
    for name in ON_TOP:
        own = name in algorithms.OWN_K
        yield (
            f"default, {name}" + (" (its own k)" if own else ""),
            lambda seed, name=name, own=own: (
                algorithms.run(name, z, None if own else k, seed=seed).label
            ),
        )
    for method in ("cc", "pcl", "simclr") if learnt else ():

        def train(seed: int, method: str = method) -> np.ndarray:
            out = run.path.with_name(f"{run.path.name}-{method}-{seed}")
            done = pretrain(
                folder, method=method, k=k, encoder="lite0", seed=seed, out=out,
                machine=ALONE,
            ).run  # fmt: skip
            return kmeans(np.asarray(done.embeddings(), np.float32), k, seed=seed).label

        yield f"{method} on features, k-means", train


def fast(run: Run) -> np.ndarray:
    """Return the embedding that `--fast` makes: no views, whitened by the nearest neighbours."""
    place = run.path.with_name(f"{run.path.name}-fast")
    made = embed(run.image_root, out=place, sets=["views.cached=0"], machine=ALONE)
    return np.asarray(made.embeddings(), np.float32)


def guess(name: str, run: Run, y: np.ndarray) -> list[tuple[str, int, int, float]]:
    """Guess k on a set and on two seeded subsets of its classes: name, k, guess, ARI kept."""
    z = np.asarray(run.embeddings(), np.float32)
    space = np.asarray(run.whitened(), np.float32)
    classes = np.unique(y)
    draw = np.random.default_rng(sum(map(ord, name)))
    cases = [(name, np.arange(len(y)))]
    fits = [size for size in SUBSETS if size < len(classes)]
    for size in draw.choice(fits, min(2, len(fits)), replace=False) if fits else []:
        kept = draw.choice(classes, size, replace=False)
        cases.append((f"{name}, {size} classes", np.flatnonzero(np.isin(y, kept))))
    made = []
    for title, rows in cases:
        choice = choose(z[rows], seed=0, space=space[rows])
        aris = {k: scores(y[rows], kmeans(z[rows], k, seed=0).label)[2] for k in choice.ks}
        kept_ari = aris[choice.k] / max(aris.values())
        made.append((title, len(np.unique(y[rows])), choice.k, kept_ari))
        print(*made[-1], choice.advice, file=sys.stderr, flush=True)
    return made


def scores(y: np.ndarray, label: np.ndarray) -> Scores:
    """Return ACC, NMI and ARI in percent."""
    made = score(contingency(label, np.unique(y, return_inverse=True)[1]))
    acc, nmi, ari = (100 * float(made[name] or 0) for name in ("acc", "nmi", "ari"))
    return acc, nmi, ari


def table(found: dict[str, Rows], seconds: dict[str, list[float]], sets: list[str]) -> None:
    """Print ACC by way and set, and the mean gains in ACC and NMI."""
    titles = list(dict.fromkeys(title for rows in found.values() for title in rows))
    columns = ["way, ACC", *sets, "mean", "gain ACC", "gain NMI", "gain ARI", "s/1000"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * (len(sets) + 6) + "|")
    for title in titles:
        cells = [spread([v[0] for v in found[s][title]]) for s in sets]
        means = np.array([_mean(found[s][title]) for s in sets])
        gains = (means - np.array([_mean(found[s][BASE]) for s in sets])).mean(axis=0)
        cells += [f"{means[:, 0].mean():.1f}", *(f"{gain:+.1f}" for gain in gains)]
        cells.append(f"{np.mean(seconds[title]):.1f}")
        print(f"| {title} | " + " | ".join(cells) + " |")
    print(f"\nfeatures and views: {np.mean(seconds['features and views']):.1f} CPU s per 1,000\n")


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def report(guesses: list[tuple[str, int, int, float]]) -> None:
    """Print what `--k auto` said."""
    print("| set | classes | guess | ARI kept |\n|---|---|---|---|")
    for name, k, found, kept in guesses:
        print(f"| {name} | {k} | {found} | {kept:.2f} |")
    error = np.array([abs(np.log2(found / k)) for _, k, found, _ in guesses])
    close = sum(abs(found - k) <= 0.25 * k for _, k, found, _ in guesses)
    print(
        f"\nmean |log2(k / classes)| {error.mean():.2f}, within 25 % in {close} of {len(guesses)}, "
        f"ARI kept {np.mean([kept for *_, kept in guesses]):.2f}"
    )


def _mean(values: list[Scores]) -> np.ndarray:
    return np.mean(values, axis=0)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


if __name__ == "__main__":
    main()
