"""`pretrain`: learn a representation on a folder of pictures and leave it in a run."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepclust import __version__, files
from deepclust.errors import CheckpointError, UsageError
from deepclust.progress import SILENT, Progress
from deepclust.run import Run
from deepclust.steps import intake

if TYPE_CHECKING:
    import numpy as np
    import torch

    from deepclust.config import Settings
    from deepclust.data.store import Rows


@dataclass(frozen=True)
class Pretrained:
    """A finished run. warnings: collapse and the like, in words."""

    run: Run
    images: int
    skipped: int
    epochs: int
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Machine:
    """Where and how a run computes. threads None takes the machine's cores."""

    device: str = "auto"
    threads: int | None = None
    workers: int = 2


HERE = Machine()


def pretrain(
    images: Path | str | None = None,
    *,
    method: str | None = None,
    k: int | None = None,
    encoder: str | None = None,
    weights: str | None = None,
    image_size: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    out: Path | str | None = None,
    config: Path | str | None = None,
    sets: Sequence[str] = (),
    resume: bool = False,
    init_from: Path | str | None = None,
    overwrite: bool = False,
    strict: bool = False,
    machine: Machine = HERE,
    progress: Progress = SILENT,
) -> Pretrained:
    """Learn a representation on the pictures of a folder.

    images: the folder. out: the run to make; runs/<name of the folder> if left out.
    method … seed: settings that everyone sets; None takes the default, see `config.py`.
    sets: further settings, lines such as "views.flip=false".
    resume: go on with the run `out`, or with `images` where that is a run, or with the newest run
    on these images; a run that is not there is begun. Settings must be those it began with, but
    for more epochs. init_from: a run or a file that gives starting weights.
    strict: a skipped picture is an error.
    Raises a DeepclustError for what a person can mend.
    """
    from deepclust.config import read_assignment, read_file
    from deepclust.device import pick, use_threads

    device, threads = pick(machine.device), use_threads(machine.threads)
    given = _present(
        {
            "method": {"name": method}, "k": k, "seed": seed,
            "encoder": {"name": encoder, "weights": weights, "image_size": image_size},
            "train": {"epochs": epochs, "batch_size": batch_size},
        }
    )  # fmt: skip
    layers = [
        *([read_file(Path(config))] if config is not None else []),
        given,
        *map(read_assignment, sets),
    ]
    job = Job(layers, strict, device, threads, machine.workers, progress)
    if resume:
        found = _to_resume(images, out)
        if found is not None:
            named = images is not None and not (Path(images).expanduser() / "run.json").exists()
            return _resume(found, Path(images).expanduser() if images and named else None, job)
        progress.say("nothing to resume: a new run begins")
    if images is None:
        raise UsageError("name a folder of images", hint="deepclust pretrain ./images")
    return _begin(Path(images).expanduser(), out, init_from, overwrite, job)


@dataclass(frozen=True)
class Job:
    """What a person asked for. layers: settings, later ones first."""

    layers: list[dict[str, Any]]
    strict: bool
    device: torch.device
    threads: int
    workers: int
    progress: Progress


def _begin(
    images: Path, out: Path | str | None, init_from: Path | str | None, overwrite: bool, job: Job
) -> Pretrained:
    from deepclust import plan
    from deepclust.config import settings, to_toml
    from deepclust.methods import DEFAULT
    from deepclust.methods import find as find_method
    from deepclust.nets import encoders

    layers = [{"method": {"name": DEFAULT}}, *job.layers]
    cls = find_method([x["method"]["name"] for x in layers if "name" in x.get("method", {})][-1])
    asked = settings(cls.Config, layers)  # wrong options are refused before any work
    place = Path(out).expanduser() if out else Run.free_path(images)
    Run.check_place(place, overwrite=overwrite)
    start = None if init_from is None else Path(init_from).expanduser().resolve()
    if start is not None and not start.exists():
        raise UsageError(f"--init-from {init_from}: it does not exist")
    listing = intake.find(images, asked, place, asked.k)
    chosen, said = plan.settle(cls, layers, plan.survey(listing), len(listing.files))
    if chosen.encoder.name not in encoders.ENCODERS:
        encoders.build(chosen.encoder.name)  # raises for a name that nobody knows
    if not any("name" in layer.get("method", {}) for layer in job.layers):
        said = [f"method: {DEFAULT} (the best measured in equal time)", *said]
    # All that can be refused has been: an earlier run is replaced only now.
    run = Run.create(
        place, overwrite=overwrite, source=str(images.resolve()),
        init_from=None if start is None else str(start),
    )  # fmt: skip
    with run.locked():
        run.update(choices=said)
        files.write_text(run.path / "config.toml", to_toml(chosen))
        for line in [f"run: {run.path}", *said]:
            job.progress.say(line)
        rows, skipped = intake.decode(listing, chosen, job.workers, job.progress)
        intake.record(run, listing, rows, skipped, chosen.k, job.strict, job.progress)
        return _train(run, chosen, rows, len(skipped), False, job)


def _present(given: dict[str, Any]) -> dict[str, Any]:
    """Drop what was not given."""
    kept = {key: _present(v) if isinstance(v, dict) else v for key, v in given.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def machine_facts(device: torch.device, threads: int) -> dict[str, Any]:
    import numpy
    import torch

    return {
        "device": str(device), "threads": threads, "deepclust": __version__,
        "python": platform.python_version(), "torch": str(torch.__version__),
        "numpy": numpy.__version__, "system": platform.platform(),
    }  # fmt: skip


def _train(
    run: Run, chosen: Settings, rows: Rows, skipped: int, resume: bool, job: Job
) -> Pretrained:  # fmt: skip
    from deepclust import checkpoint, training
    from deepclust.algorithms.whitening import smooth
    from deepclust.models import build, initialise

    began = time.monotonic()
    run.update(
        status="training", machine=machine_facts(job.device, job.threads),
        settings={
            "method": chosen.method, "k": chosen.k, "seed": chosen.seed,
            "frozen": chosen.encoder.train == "none",
        },
    )  # fmt: skip
    model = build(run, chosen, rows, job.device, job.workers, job.progress)
    method = model.method
    checkpoint.check_room(run, method)
    start = run.info.get("init_from")
    if start is not None and not (resume and run.info.get("checkpoints")):
        initialise(method, Path(start), job.progress)
    advice = method.advice(model.train.batch_size)
    if advice:
        job.progress.warn(advice)
    history = training.fit(
        run, method, model.source, model.train, seed=chosen.seed, device=job.device,
        resume=resume, progress=job.progress,
    )  # fmt: skip
    embedded, soft = training.infer(method, model.source, job.device, job.progress)
    made = [
        "config.toml", "images.csv", "skipped.csv", "duplicates.csv", "metrics.jsonl",
        "embeddings.npy", "model.safetensors",
    ]  # fmt: skip
    if chosen.encoder.train == "none":
        files.write_array(run.path / "whitened.npy", embedded)
        embedded = smooth(embedded)
        made.append("whitened.npy")
    if model.space is not None:
        spaces = {
            "plain features": model.space.plain(), "whitened": smooth(model.space.whitened()),
            "learnt": embedded,
        }  # fmt: skip
        run.update(steadiness=_steadiness(spaces, chosen, job.progress))
    files.write_array(run.path / "embeddings.npy", embedded)
    if soft is not None:
        files.write_array(run.path / "probabilities.npy", soft)
    training.write_model(run, method, model.header)
    made += [] if soft is None else ["probabilities.npy"]
    warnings = training.verdict(history)
    for line in warnings:
        job.progress.warn(line)
    run.update(
        status="pretrained", warnings=warnings, epochs=len(history), encoder=model.origin,
        seconds=round(time.monotonic() - began, 1), files=run.seal(*made),
    )  # fmt: skip
    return Pretrained(run, len(rows), skipped, len(history), warnings)


def _steadiness(
    spaces: dict[str, np.ndarray], chosen: Settings, progress: Progress
) -> dict[str, float]:
    """Say, before and after, how many pictures k-means leaves in place when a fifth is left out."""
    from deepclust.algorithms.kmeans import fit
    from deepclust.algorithms.reliability import stability

    n = len(spaces["learnt"])
    k = chosen.k or min(10, n // 10)
    if k < 2 or n <= 2 * k:
        return {}
    found = {}
    with progress.stage("compare"):
        for name, x in spaces.items():
            label = fit(x, k, seed=chosen.seed, restarts=5)[1]
            found[name] = round(float(stability(x, label, seed=chosen.seed).mean()), 4)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found.items())
    progress.say(f"{k} clusters of k-means hold still for: {shares} of the pictures")
    return found


def _to_resume(images: Path | str | None, out: Path | str | None) -> Run | None:
    """Return the run to go on with, or None if there is none."""
    if out is not None:
        place = Path(out).expanduser()
        return Run.open(place) if (place / "run.json").exists() else None
    if images is None:
        return Run.newest()
    place = Path(images).expanduser()
    if (place / "run.json").exists():
        return Run.open(place)
    source = str(place.resolve())
    return next((run for run in Run.all() if run.info.get("source") == source), None)


def _resume(run: Run, images: Path | None, job: Job) -> Pretrained:
    """Go on with a run. images: where its pictures are now, None for where they were."""
    from deepclust.config import read_file, settings, to_toml
    from deepclust.methods import find as find_method

    source = images or Path(run.info["source"])
    if not (run.path / "config.toml").exists():
        return _begin(source, run.path, run.info.get("init_from"), True, job)
    before = read_file(run.path / "config.toml")
    cls = find_method(before["method"]["name"])
    old, new = settings(cls.Config, [before]), settings(cls.Config, [before, *job.layers])
    _same(old, new)
    info = run.info
    moved = images is not None and str(images.resolve()) != info.get("source")
    if info.get("status") == "pretrained" and new == old and not moved and run.whole():
        job.progress.say(f"{run.path} is complete")
        counts = info["images"]
        return Pretrained(
            run, counts["used"], counts["skipped"], info["epochs"], info.get("warnings", [])
        )
    began_with = info.get("machine", {}).get("threads", job.threads)
    if began_with != job.threads:
        job.progress.warn(
            f"the run began with {began_with} threads and goes on with {job.threads}: results "
            "will not be the same bits"
        )
    with run.locked():
        listing = intake.find(source, new, run.path)
        rows, skipped = intake.decode(listing, new, job.workers, job.progress)
        if "images" in run.info:
            _same_images(run, rows, listing.root)
        intake.record(run, listing, rows, skipped, new.k, job.strict, job.progress)
        if new != old:
            # The seal goes before what it is of, so that a crash in between leaves a run to open.
            sealed = run.info.get("files", {})
            run.update(files={name: sealed[name] for name in sealed if name != "config.toml"})
            files.write_text(run.path / "config.toml", to_toml(new))
        return _train(run, new, rows, len(skipped), True, job)


def _same_images(run: Run, rows: Rows, root: Path) -> None:
    """Refuse to go on with other pictures."""
    if intake.content(rows) != run.info["images"]["fingerprint"]:
        earlier, now = set(run.names), {file.name for file in rows.files}
        raise CheckpointError(
            f"{root} is not what the run began with: {len(now - earlier)} images "
            f"added, {len(earlier - now)} gone, or some changed",
            hint="pretrain a new run on it, with --init-from for its weights",
        )


def _same(old: Settings, new: Settings) -> None:
    """Refuse to go on with other settings. More epochs are fine."""
    a, b = old.model_dump(), new.model_dump()
    differ = []
    for section, value in a.items():
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        for key, was in pairs:
            now = b[section][key] if isinstance(value, dict) else b[section]
            name = f"{section}.{key}".rstrip(".")
            longer = name == "train.epochs" and (now or 0) >= (was or 0)
            if now != was and not longer:
                differ.append(f"{name}: {was} in the run, {now} now")
    if differ:
        raise CheckpointError("; ".join(differ), hint="leave these out, or begin a new run")
