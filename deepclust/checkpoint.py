"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is one safetensors file, `checkpoint-EPOCH-STEP.safetensors`, with the method's
state, the optimiser's tensors and a header. It is written first, and then `run.json` names it
with its SHA-256; the one before is kept, so that one is always whole.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from deepclust import weights
from deepclust.errors import CheckpointError, OutputError
from deepclust.run import Run

VERSION = 1
KEEP = 2


@dataclass(frozen=True)
class Position:
    """Where training stands.

    epoch, step: the next ones to run, from 0. sums: loss terms summed over the steps of this
    epoch, with the pictures seen. figures: what `on_epoch` returned for it. history: the lines of
    metrics.jsonl of the finished epochs.
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()


def check_room(run: Run, method: nn.Module) -> None:
    """Raise OutputError if the disk has no room for three checkpoints: two kept, one being made."""
    size = sum(t.numel() * t.element_size() for t in method.state_dict().values())
    # The optimiser keeps up to two numbers for each weight; what an earlier try left is room too.
    there = sum(path.stat().st_size for path in run.path.glob("checkpoint-*.safetensors"))
    need, free = 3 * 3 * size - there, shutil.disk_usage(run.path).free
    if need > free:
        raise OutputError(
            f"no space for {run.path}: its checkpoints may take {need / 1e6:.1f} MB more, and "
            f"{free / 1e6:.1f} MB are free",
            hint="make room and run the same command again with --resume",
        )


def save(run: Run, method: nn.Module, optimizer: torch.optim.Optimizer, at: Position) -> None:
    """Write a checkpoint and let run.json name it. Raises OutputError, and then nothing is lost."""
    tensors = {f"method.{name}": tensor for name, tensor in method.state_dict().items()}
    plain: dict[str, dict[str, Any]] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{number}.{key}"] = value
            else:
                plain.setdefault(str(number), {})[key] = value
    # Pairs, because a header is sorted by key, and metrics.jsonl keeps the order it has.
    header = {
        "kind": "checkpoint", "version": VERSION, "epoch": at.epoch, "step": at.step,
        "sums": list(at.sums.items()), "figures": list(at.figures.items()),
        "history": [list(line.items()) for line in at.history], "plain": plain,
    }  # fmt: skip
    path = run.path / f"checkpoint-{at.epoch:05d}-{at.step:06d}.safetensors"
    weights.save(path, tensors, header)
    named = [{"file": path.name, "sha256": weights.digest(path)}]
    kept = [c for c in run.info.get("checkpoints", []) if c["file"] != path.name][: KEEP - 1]
    run.update(checkpoints=named + kept)
    keep = {c["file"] for c in run.info["checkpoints"]}
    for old in run.path.glob("checkpoint-*.safetensors"):
        if old.name not in keep:
            old.unlink(missing_ok=True)


def load(run: Run, method: nn.Module, optimizer: torch.optim.Optimizer) -> Position:
    """Put the newest whole checkpoint of `run` into `method` and `optimizer`.

    Returns where it stands; the start if the run has no checkpoint yet.
    Raises CheckpointError if it has some and none is whole.
    """
    problems = []
    for entry in run.info.get("checkpoints", []):
        path = run.path / entry["file"]
        try:
            if weights.digest(path) != entry["sha256"]:
                raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in run.json")
            tensors, header = weights.load(path)
            return _restore(path, tensors, header, method, optimizer)
        except CheckpointError as error:
            problems.append(error.message)
    if problems:
        raise CheckpointError(problems[0], hint="--overwrite starts this run anew")
    return Position()


def _restore(
    path: Any, tensors: dict[str, Tensor], header: dict[str, Any], method: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Position:  # fmt: skip
    if header.get("kind") != "checkpoint" or header.get("version", 0) > VERSION:
        raise CheckpointError(f"{path} is not a checkpoint that this version reads")
    own = {n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")}
    weights.fit(method, own, path=path)
    state: dict[int, dict[str, Any]] = {int(n): dict(v) for n, v in header["plain"].items()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            of = parameters[int(number)]
            if tensor.shape == of.shape:
                # The fused step walks parameter and state side by side in memory: a state in
                # another memory format would be applied to the wrong weights.
                tensor = torch.empty_like(of, dtype=tensor.dtype).copy_(tensor)
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return Position(
        header["epoch"], header["step"], dict(header["sums"]), dict(header["figures"]),
        tuple(map(dict, header["history"])),
    )  # fmt: skip
