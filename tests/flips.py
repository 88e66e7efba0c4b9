"""Single bits of the files of a run, turned over: each has to be refused or without effect.

The short form is in `test_rows.py`. By hand, on a run with clusters: `python -m tests.flips RUN`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepclust import files, weights
from deepclust.errors import CheckpointError
from deepclust.models import load_model
from deepclust.report import contents
from deepclust.run import Run


def everything(path: Path) -> list[Any]:
    """Return all that commands read of a run and its newest clustering.

    Raises CheckpointError for what is refused; a list that is left out of a page is refused too.
    """
    run = Run.open(path)
    folder = run.clustering()
    for name in ("metrics.jsonl", "skipped.csv", "duplicates.csv"):
        if not run.intact(name):
            raise CheckpointError(name)
    for entry in run.info["checkpoints"]:
        if files.sha256(path / entry["file"]) != entry["sha256"]:
            raise CheckpointError(entry["file"])
        weights.load(path / entry["file"])
    soft = run.probabilities()
    model = load_model(run).state_dict()
    return [
        {key: value for key, value in run.info.items() if key != "files"}, run.names,
        np.array(run.embeddings()).tobytes(), None if soft is None else np.array(soft).tobytes(),
        torch.cat([t.flatten().double() for t in model.values()]).numpy().tobytes(),
        contents.history(run), contents.skipped(run), folder.name,
        (folder / "assignments.csv").read_bytes(), (folder / "centers.npy").read_bytes(),
        (path / "config.toml").read_bytes(),
    ]  # fmt: skip


def kept(run: Path) -> list[Path]:
    """Return the files that commands read again: no reports, no lock."""
    ends = (".json", ".csv", ".toml", ".jsonl", ".npy", ".safetensors")
    found = (p for p in run.rglob("*") if p.suffix in ends and not p.name.startswith("report"))
    return sorted(p for p in found if p.name != "confusion.csv")


def flip(run: Path, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Turn `count` bits over, one after another, in every file in turn; yield file and outcome."""
    before, chance, among = everything(run), np.random.default_rng(seed), kept(run)
    for number in range(count):
        path = among[number % len(among)]
        data = path.read_bytes()
        bit = int(chance.integers(len(data) * 8))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            outcome = "without effect" if everything(run) == before else f"SEEN at bit {bit}"
        except CheckpointError:
            outcome = "refused"
        path.write_bytes(data)
        yield path.name, outcome
    assert everything(run) == before


def main() -> None:
    """Print what came of each kind of file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    began, ends = time.monotonic(), Counter[str]()
    for name, outcome in flip(asked.run, asked.flips, asked.seed):
        ends[outcome] += 1
        if outcome.startswith("SEEN"):
            print(f"{name}: {outcome}")
    print(
        f"{asked.flips} flips over {len(kept(asked.run))} files: "
        + ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items()))
        + f"; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
