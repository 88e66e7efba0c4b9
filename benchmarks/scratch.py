"""Training from scratch on small pictures, against k-means on pixels and on ImageNet features.

    python benchmarks/scratch.py DATA --sets digits glyphs --methods cc pcl --epochs 30

DATA holds one folder a set, each with class folders and labels.csv (file_name,label). Every run
is the command line's own: `deepclust pretrain` with the options shown, then `cluster` and
`evaluate`. One thread a run; CPU seconds are of the training process. Prints a table as Markdown:
percent, mean ± standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SCORES = ("acc", "nmi", "ari")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["digits", "glyphs"])
    parser.add_argument("--methods", nargs="+", default=["cc", "pcl"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="for pretrain")
    chosen = parser.parse_args()
    print(f"{chosen.epochs} epochs, seeds {chosen.seeds}, options {' '.join(chosen.options)}\n")
    print("| set | clustering | ACC | NMI | ARI | CPU min |\n|---|---|---|---|---|---|")
    for name in chosen.sets:
        rows: dict[str, list[dict[str, float]]] = {}
        for seed in chosen.seeds:
            for method in chosen.methods:
                found = one(chosen.data / name, method, seed, chosen.epochs, chosen.options)
                for clustering, scores in found.items():
                    rows.setdefault(clustering, []).append(scores)
                    print(name, seed, clustering, scores, file=sys.stderr, flush=True)
        for clustering, scores in rows.items():
            cells = [spread([100 * s[key] for s in scores]) for key in SCORES]
            minutes = np.mean([s["minutes"] for s in scores])
            print(f"| {name} | {clustering} | {' | '.join(cells)} | {minutes:.1f} |", flush=True)


def one(
    data: Path, method: str, seed: int, epochs: int, options: list[str]
) -> dict[str, dict[str, float]]:
    """Train once; return the scores of its clusterings and of the baselines, by name."""
    with (data / "labels.csv").open(newline="", encoding="utf-8") as file:
        k = len({row["label"] for row in csv.DictReader(file)})
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        deepclust(
            "pretrain", data, "--method", method, "--k", k, "--seed", seed, "--epochs", epochs,
            "--out", run, "--threads", 1, *options,
        )  # fmt: skip
        minutes = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before) / 60
        found: dict[str, dict[str, float]] = {}
        algorithms = ["head", "kmeans"] if method == "cc" else ["kmeans"]
        for algorithm in algorithms:
            deepclust("cluster", run, "--k", k, "--algorithm", algorithm, "--threads", 1)
            last = algorithm == algorithms[-1] and method == "cc"
            compare = "--baselines" if last else "--no-baselines"
            text = deepclust(
                "evaluate", run, "--labels", data / "labels.csv", compare, "--seed", seed, "--json"
            )
            report = json.loads(text)
            found[f"{method}, {algorithm}"] = {**pick(report["scores"]), "minutes": minutes}
            for name, scores in (report.get("baselines") or {}).items():
                found[name] = {**pick(scores), "minutes": 0.0}
        return found


def deepclust(*words: object) -> str:
    """Run a command; return its standard output."""
    command = [sys.executable, "-m", "deepclust", "--quiet", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def pick(scores: dict) -> dict[str, float]:
    return {key: scores[key] for key in SCORES}


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.1f}"


if __name__ == "__main__":
    main()
