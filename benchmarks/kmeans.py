"""Speed of k-means: ours against faiss and scikit-learn, to the same inertia.

    python benchmarks/kmeans.py                       # n 100,000, d 128 and 512, k 1,000
    python benchmarks/kmeans.py --n 20000 --d 128 --k 200 --rounds 5

All three start from the same centres, on all rows, with one thread and in one process, in turn.
faiss runs a fixed number of rounds; the other two get as many at most. Figures are CPU seconds
of the process, median over the rounds, and the ratio to ours is the median of the ratios within
a round, so that a busy machine moves both sides. Inertia is counted over all rows in float64, and
a last column says by how much each differs from ours.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import faiss
import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from deepclust.algorithms.kmeans import fit


def embedding(n: int, d: int, k: int, noise: float) -> np.ndarray:
    """Draw n unit rows (n, d) float32 around k directions, as an encoder might leave them."""
    rng = np.random.default_rng(0)
    corners = rng.normal(size=(k, d)).astype(np.float32)
    x = corners[rng.integers(k, size=n)] + noise * rng.normal(size=(n, d)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def ours(x: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
    return fit(x, len(start), seed=0, start=start, iterations=iterations)[0]


def by_faiss(x: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
    kmeans = faiss.Kmeans(
        x.shape[1],
        len(start),
        niter=iterations,
        min_points_per_centroid=1,
        max_points_per_centroid=len(x),
    )
    kmeans.train(x, init_centroids=start)
    kmeans.index.search(x, 1)  # the labels, which the other two return as well
    return kmeans.centroids


def by_sklearn(x: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
    model = KMeans(len(start), init=start, n_init=1, max_iter=iterations, algorithm="lloyd")
    return model.fit(x).cluster_centers_


def inertia(x: np.ndarray, centers: np.ndarray) -> float:
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(np.ascontiguousarray(centers, np.float32))
    return float(index.search(x, 1)[0].sum(dtype=np.float64))


CONTESTANTS: dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    "deepclust": ours,
    "faiss": by_faiss,
    "scikit-learn": by_sklearn,
}


def compare(
    n: int, d: int, k: int, turns: int, iterations: int = 20, noise: float = 1.5
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Run all three in turn from one start; return their CPU seconds and inertias by name."""
    faiss.omp_set_num_threads(1)
    threadpool_limits(1)
    x = embedding(n, d, k, noise)
    start = x[np.random.default_rng(1).choice(n, k, replace=False)]
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    found: dict[str, float] = {}
    for _ in range(turns):
        for name, run in CONTESTANTS.items():
            began = time.process_time()
            centers = run(x, start, iterations)
            seconds[name].append(time.process_time() - began)
            found[name] = found.get(name) or inertia(x, centers)
    return seconds, found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--d", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--k", type=int, default=1_000)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--noise", type=float, default=1.5, help="spread beside a corner's 1")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # scikit-learn warns of centres it did not settle
    print(f"{'n':>8} {'d':>5} {'k':>6}  {'':14}{'CPU s':>8} {'ratio':>7} {'inertia':>9}")
    for d in args.d:
        seconds, found = compare(args.n, d, args.k, args.rounds, args.iterations, args.noise)
        for name in CONTESTANTS:
            ratio = statistics.median(
                theirs / own
                for theirs, own in zip(seconds[name], seconds["deepclust"], strict=True)
            )
            off = found[name] / found["deepclust"] - 1
            print(
                f"{args.n:>8} {d:>5} {args.k:>6}  {name:14}"
                f"{statistics.median(seconds[name]):>8.2f} {ratio:>6.1f}x {off:>+9.3%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
