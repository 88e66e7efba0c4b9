"""The only training loop, whatever the method and whatever its views are.

Every draw depends on (seed, epoch, step) and every state is in the checkpoint, so that a run
that was stopped anywhere goes on to the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepclust import checkpoint, files, losses, weights
from deepclust.checkpoint import Position
from deepclust.config import Train
from deepclust.data.loaders import Source
from deepclust.device import stream, torch_stream
from deepclust.errors import Stopped, TrainingError
from deepclust.methods.base import Batch, Method
from deepclust.progress import SILENT, Progress, Stage, duration
from deepclust.run import Run

SAMPLE = 256  # pictures on which the geometry of the embedding is watched
SAVE_SECONDS = 600  # between two checkpoints within an epoch
EPOCH_SECONDS = 1.0  # between two checkpoints at the end of epochs, which may take far less
FORECAST_SECONDS = 3.0  # of training, from which its whole time is told
LONG = 3600.0  # seconds from which cheaper settings are named
COLLAPSED = 0.02  # nats: an instance loss this close to log(2n − 1) has learnt nothing


def fit(
    run: Run,
    method: Method,
    source: Source,
    train: Train,
    *,
    seed: int,
    device: torch.device,
    resume: bool = False,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """Train `method` on `source` and leave checkpoints and metrics.jsonl in `run`.

    Batches are cut from a new order of all pictures each epoch; the last one is left out when it
    is smaller than half a batch, unless it is the only one.
    Returns the lines of metrics.jsonl. Raises TrainingError if the loss is no longer finite,
    Stopped after SIGINT or SIGTERM, with the last step saved.
    """
    method.to(device)
    optimizer = _optimizer(method, train)
    at = checkpoint.load(run, method, optimizer) if resume else Position()
    epochs = train.epochs or 1
    batches = _cut(len(source), train.batch_size)
    history, sums, figures = list(at.history), dict(at.sums), dict(at.figures)
    _write_metrics(run, history)
    total, done = epochs * len(batches), at.epoch * len(batches) + at.step
    saved = -math.inf
    with _signals() as stop, progress.stage("train", total=total, unit="steps") as stage:
        stage.skip(done)
        forecast = _Forecast(progress, total - done, epochs - at.epoch)
        for epoch in range(at.epoch, epochs):
            first = at.step if epoch == at.epoch else 0
            order = stream(seed, "order", epoch).permutation(len(source))
            chosen = [order[batch] for batch in batches]
            if first == 0:
                sums = {}
                draws = torch_stream(seed, "epoch", epoch)
                figures = method.on_epoch(epoch, lambda: embed_all(method, source, device), draws)
            began, within, seen = time.monotonic(), time.monotonic(), 0
            method.train()
            loaded = source.batches(epoch, chosen[first:], method.views)
            for step, (views, index) in enumerate(loaded, start=first):
                rate = _rate(train, epoch * len(batches) + step, len(batches), epochs)
                batch = Batch([_to(view, device) for view in views], index.to(device))
                terms = _step(method, optimizer, batch, rate, torch_stream(seed, epoch, step))
                for name, value in terms.items():
                    if not math.isfinite(value):
                        raise _diverged(run, name, value, epoch, step, rate)
                    sums[name] = sums.get(name, 0.0) + value * len(index)
                sums["images"] = sums.get("images", 0.0) + len(index)
                seen += len(index)
                now = time.monotonic()
                stage.advance()
                rated = f"{seen / max(now - began, 1e-9):.0f} images/s"
                stage.note(f"epoch {epoch + 1}/{epochs}, loss {terms['total']:.3f}, {rated}")
                forecast.step(now)
                if stop or now - within > SAVE_SECONDS:
                    here = Position(epoch, step + 1, sums, figures, tuple(history))
                    checkpoint.save(run, method, optimizer, here)
                    saved = within = time.monotonic()
                    if stop:
                        raise _stopped(run, stop[0])
            speed = seen / max(time.monotonic() - began, 1e-9)
            # A run that was stopped after its last step comes here without taking one.
            rate = _rate(train, (epoch + 1) * len(batches) - 1, len(batches), epochs)
            line = _line(epoch, sums, figures, method, train, rate)
            line |= geometry(method, source, device)
            history.append(line | {"images_per_second": round(speed, 1)})
            # A checkpoint takes longer than an epoch on features of a small folder. What a crash
            # can cost is a second, and the first and the last epoch are always kept.
            if stop or epoch + 1 == epochs or time.monotonic() - saved >= EPOCH_SECONDS:
                here = Position(epoch + 1, history=tuple(history))
                checkpoint.save(run, method, optimizer, here)
                _write_metrics(run, history)
                saved = time.monotonic()
            _tell(stage, line)
            if stop:
                raise _stopped(run, stop[0])
    return history


class _Forecast:
    """Tells how long training will take, once it has run for some seconds.

    The first step is not counted: it loads what the others find in place.
    """

    def __init__(self, progress: Progress, steps: int, epochs: int) -> None:
        self.progress = progress
        self.steps = steps
        self.epochs = epochs
        self.taken = 0
        self.began = 0.0
        self.told = False

    def step(self, now: float) -> None:
        """Count a step that ended at `now` (seconds)."""
        if self.taken == 0:
            self.began = now
        self.taken += 1
        spent = now - self.began
        if self.told or spent < FORECAST_SECONDS:
            return
        self.told = True
        whole = spent / (self.taken - 1) * self.steps
        if whole < 3 * FORECAST_SECONDS:
            return
        self.progress.say(f"training takes about {duration(whole)} on this machine")
        if whole > LONG:
            fitting = int(self.epochs * LONG / whole)
            shorter = f"--epochs {fitting} fits into an hour; " if fitting else ""
            self.progress.say(
                f"cheaper: {shorter}half the --image-size takes about a quarter of the time; "
                "--encoder lite0 learns on features of a trained network, in minutes"
            )


def _step(
    method: Method, optimizer: torch.optim.Optimizer, batch: Batch, rate: float,
    generator: torch.Generator,
) -> dict[str, float]:  # fmt: skip
    """Take one optimiser step, unless a term is not finite. Returns the terms and their sum."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    terms = method.losses(batch, generator)
    total = torch.stack([term.float() for term in terms.values()]).sum()
    values = {name: float(term.detach()) for name, term in terms.items()}
    values["total"] = float(total.detach())
    if math.isfinite(values["total"]):
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        method.after_step()
    return values


@torch.no_grad()
def embed_all(method: Method, source: Source, device: torch.device) -> Tensor:
    """Return `method.embed` of all pictures, unchanged by views, (N, d) float32 on the CPU."""
    was = method.training
    method.eval()
    parts = [method.embed(_to(batch, device)).float().cpu() for batch in source.clean()]
    method.train(was)
    return torch.cat(parts)


@torch.no_grad()
def infer(
    method: Method, source: Source, device: torch.device, progress: Progress = SILENT
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the embedding (N, d) float32 and, from a method with a head, (N, k) probabilities.

    Raises TrainingError if a number is not finite.
    """
    method.to(device).eval()
    embedded, assigned = [], []
    with progress.stage("embed", total=len(source), unit="images") as stage:
        for batch in source.clean():
            images = _to(batch, device)
            embedded.append(method.embed(images).float().cpu())
            soft = method.assign(images)
            if soft is not None:
                assigned.append(soft.float().cpu())
            stage.advance(len(batch))
    x = torch.cat(embedded).numpy()
    p = torch.cat(assigned).numpy() if assigned else None
    if not np.isfinite(x).all() or (p is not None and not np.isfinite(p).all()):
        raise TrainingError("the embedding holds NaN or infinite values", hint="lower train.lr")
    return x, p


@torch.no_grad()
def geometry(method: Method, source: Source, device: torch.device) -> dict[str, float]:
    """Return how the embedding of the first pictures is spread out: collapse read-outs.

    effective_rank counts the directions in use; uniformity is 0 when all is one point.
    """
    was = method.training
    method.eval()
    parts: list[Tensor] = []
    for batch in source.clean():
        parts.append(method.embed(_to(batch, device)).float().cpu())
        if sum(map(len, parts)) >= SAMPLE:
            break
    method.train(was)
    x = torch.cat(parts)[:SAMPLE]
    return {
        "effective_rank": round(float(losses.effective_rank(x)), 4),
        "uniformity": round(float(losses.uniform(x)), 4),
    }


def verdict(history: list[dict[str, Any]]) -> list[str]:
    """Say in words what the read-outs of the last epoch warn of; nothing where all is well."""
    if not history:
        return []
    last, words = history[-1], []
    gap = last.get("instance_gap")
    if gap is not None and gap < COLLAPSED:
        words.append(
            f"collapsed: the instance loss is within {max(gap, 0):.3f} nats of log(2n-1), where "
            "all images look alike; try a lower train.lr, train.warmup_epochs, or milder views"
        )
    rank = last.get("effective_rank")
    if rank is not None and rank < 2:
        words.append(f"collapsed: the embedding uses {rank:.1f} directions")
    return words


def write_model(run: Run, method: Method, header: dict[str, Any]) -> None:
    """Write the weights of the method, with all that is needed to use them again."""
    weights.save(run.path / "model.safetensors", method.state_dict(), {"kind": "model", **header})


def _optimizer(method: Method, train: Train) -> torch.optim.Optimizer:
    parameters = method.trained()
    common: dict[str, Any] = {"lr": train.lr, "weight_decay": train.weight_decay, "fused": True}
    if train.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=train.momentum, **common)
    kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, **common)


def _rate(train: Train, step: int, steps: int, epochs: int) -> float:
    """Return the learning rate of a step, counted from the start of training."""
    warm = train.warmup_epochs * steps
    if step < warm:
        return train.lr * (step + 1) / (warm + 1)
    way = (step - warm) / max(epochs * steps - warm, 1)
    if train.schedule == "cosine":
        return train.lr * 0.5 * (1 + math.cos(math.pi * way))
    if train.schedule == "steps":
        return train.lr * (0.1 if way >= 0.6 else 1.0) * (0.1 if way >= 0.8 else 1.0)
    return train.lr


def _cut(n: int, size: int) -> list[slice]:
    """Cut n pictures into batches; a last one under half a batch is left out."""
    cuts = [slice(at, min(at + size, n)) for at in range(0, n, size)]
    last = cuts[-1].stop - cuts[-1].start
    return cuts[:-1] if len(cuts) > 1 and last < max(2, size / 2) else cuts


def _to(view: Tensor, device: torch.device) -> Tensor:
    if view.ndim == 4:
        return view.to(device, non_blocking=True, memory_format=torch.channels_last)
    return view.to(device, non_blocking=True)


def _line(
    epoch: int, sums: dict[str, float], figures: dict[str, float], method: Method, train: Train,
    rate: float,
) -> dict[str, Any]:  # fmt: skip
    means = {name: value / sums["images"] for name, value in sums.items() if name != "images"}
    total = means.pop("total")
    n = int(min(train.batch_size, sums["images"]))
    named = {f"loss_{name}": value for name, value in means.items()}
    readouts = method.readouts(means, n)
    line = {"epoch": epoch + 1, "loss": total, **named, "lr": rate, **readouts, **figures}
    return {key: files.plain(value) for key, value in line.items()}


def _tell(stage: Stage, line: dict[str, Any]) -> None:
    parts = [f"epoch {line['epoch']}: loss {line['loss']:.3f}"]
    if "instance_gap" in line:
        parts.append(f"{line['instance_gap']:.2f} nats above collapse")
    parts.append(f"{line['effective_rank']:.0f} directions")
    stage.note(", ".join(parts))


def _write_metrics(run: Run, history: list[dict[str, Any]]) -> None:
    lines = [json.dumps(files.plain(line), allow_nan=False) for line in history]
    files.write_text(run.path / "metrics.jsonl", "".join(f"{line}\n" for line in lines))


def _diverged(
    run: Run, name: str, value: float, epoch: int, step: int, rate: float
) -> TrainingError:
    run.update(status="failed")
    return TrainingError(
        f"the {name} loss became {value} at epoch {epoch + 1}, step {step + 1} (lr {rate:g})",
        hint="lower the learning rate, such as --set train.lr=1e-4; the last checkpoint is kept",
    )


def _stopped(run: Run, signum: int) -> Stopped:
    run.update(status="stopped")
    return Stopped(
        f"stopped, {run.path} is saved",
        hint=f"deepclust pretrain --resume {run.path} goes on",
        signum=signum,
    )


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying; a second SIGINT ends at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(signum: int, frame: object) -> None:
        if received and signum == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(signum)

    names = [n for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
    before = {n: signal.signal(getattr(signal, n), note) for n in names}
    try:
        yield received
    finally:
        for n, handler in before.items():
            signal.signal(getattr(signal, n), handler)


def model_path(run: Run) -> Path:
    """Return where the weights of the method are."""
    return run.path / "model.safetensors"
