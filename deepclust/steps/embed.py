"""Embed a folder that was never trained on with the packaged encoder: the one-minute path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepclust import files
from deepclust.errors import UsageError
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
    encoder: str | None = None,
    weights: str | None = None,
    sets: Sequence[str] = (),
    machine: Machine = HERE,
    progress: Progress = SILENT,
) -> Run:
    """Make a run whose embedding is the whitened features of a frozen encoder. No training.

    k: only checked against the number of pictures, before the work.
    encoder, weights: the packaged ones if left out; weights are a file, or hub.
    Raises a DeepclustError.
    """
    from deepclust import frozen, plan
    from deepclust.algorithms.whitening import smooth
    from deepclust.config import read_assignment, settings, to_toml
    from deepclust.device import pick, use_threads
    from deepclust.methods import DEFAULT
    from deepclust.methods import find as find_method

    device, threads = pick(machine.device), use_threads(machine.threads)
    if encoder not in (None, "lite0") and weights is None:
        raise UsageError(
            f"--encoder {encoder} needs weights: untrained, it sees nothing",
            hint="give --weights FILE, or --weights hub to download what its authors published",
        )
    chosen_encoder = {"name": encoder or "lite0", "weights": weights or "packaged", "train": "none"}
    base: dict[str, Any] = {
        "method": {"name": DEFAULT}, "seed": seed, "encoder": chosen_encoder,
    }  # fmt: skip
    cls = find_method(DEFAULT)
    layers = [base, *map(read_assignment, sets)]
    place = out or Run.free_path(images)
    listing = intake.find(images, settings(cls.Config, layers), place, k)
    run = Run.create(place, source=str(images.resolve()))
    with run.locked():
        seen = plan.survey(listing)
        chosen, said = plan.settle(cls, layers, seen, len(listing.files))
        said += plan.advice(seen)
        files.write_text(run.path / "config.toml", to_toml(chosen))
        for line in [f"run: {run.path}", *said]:
            progress.say(line)
        rows, skipped = intake.decode(listing, chosen, machine.workers, progress)
        intake.record(run, listing, rows, skipped, k, False, progress)
        made, space = frozen.embed(run, chosen, rows, device, machine.workers, progress)
        whitened = space.whitened()
        files.write_array(run.path / "whitened.npy", whitened)
        files.write_array(run.path / "embeddings.npy", smooth(whitened))
        run.update(
            status="embedded",
            files=run.seal(
                "whitened.npy", "embeddings.npy", "images.csv", "skipped.csv", "duplicates.csv"
            ),
            machine=machine_facts(device, threads), choices=said,
            settings={"method": "none", "k": None, "seed": seed},
            encoder={"name": made.name, "origin": made.origin, "licence": made.licence},
        )  # fmt: skip
    return run
