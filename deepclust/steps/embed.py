"""Embed a folder that was never trained on with the packaged encoder: the one-minute path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepclust import files
from deepclust.progress import SILENT, Progress
from deepclust.run import Run
from deepclust.steps import intake
from deepclust.steps.pretrain import HERE, Machine, machine_facts


def embed(
    images: Path,
    *,
    k: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    sets: Sequence[str] = (),
    machine: Machine = HERE,
    progress: Progress = SILENT,
) -> Run:
    """Make a run whose embedding is the whitened features of a frozen encoder. No training.

    k: only checked against the number of pictures, before the work. Raises a DeepclustError.
    """
    from deepclust import frozen, plan
    from deepclust.algorithms.whitening import smooth
    from deepclust.config import read_assignment, settings, to_toml
    from deepclust.device import pick, use_threads
    from deepclust.methods import DEFAULT
    from deepclust.methods import find as find_method

    device, threads = pick(machine.device), use_threads(machine.threads)
    base: dict[str, Any] = {
        "method": {"name": DEFAULT}, "seed": seed,
        "encoder": {"name": "lite0", "weights": "packaged", "train": "none"},
    }  # fmt: skip
    cls = find_method(DEFAULT)
    layers = [base, *map(read_assignment, sets)]
    place = out or Run.free_path(images)
    listing = intake.find(images, settings(cls.Config, layers), place, k)
    run = Run.create(place, source=str(images.resolve()))
    with run.locked():
        chosen, said = plan.settle(cls, layers, plan.survey(listing), len(listing.files))
        files.write_text(run.path / "config.toml", to_toml(chosen))
        for line in [f"run: {run.path}", *said]:
            progress.say(line)
        rows, skipped = intake.decode(listing, chosen, machine.workers, progress)
        intake.record(run, listing, rows, skipped, k, False, progress)
        encoder, space = frozen.embed(run, chosen, rows, device, machine.workers, progress)
        whitened = space.whitened()
        files.write_array(run.path / "whitened.npy", whitened)
        files.write_array(run.path / "embeddings.npy", smooth(whitened))
        run.update(
            status="embedded", files=run.seal("whitened.npy", "embeddings.npy", "images.csv"),
            machine=machine_facts(device, threads), choices=said,
            settings={"method": "none", "k": None, "seed": seed},
            encoder={"name": encoder.name, "origin": encoder.origin, "licence": encoder.licence},
        )  # fmt: skip
    return run
