"""A signal at the seam between two epochs, where a step ends an epoch."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from deepclust import training
from tests.shapes import planted

OPTIONS = (
    "--method", "cc", "--encoder", "resnet8", "--k", 2, "--epochs", 2, "--batch-size", 12,
    "--threads", 1, "--workers", 0,
)  # fmt: skip


@pytest.mark.parametrize("steps", [1, 2, 3, 4], ids=["inside 1", "end of 1", "inside 2", "end"])
def test_a_run_stopped_after_any_step_goes_on_to_the_same_result(cli, workdir, monkeypatch, steps):
    images = planted(workdir, (6, 6, 6, 6))  # two steps an epoch
    assert cli("pretrain", images, "--out", "whole", *OPTIONS).exit_code == 0
    received: list[int] = []
    done = 0
    real = training._step

    @contextmanager
    def signals():
        yield received

    def step(*words):
        nonlocal done
        done += 1
        if done == steps:
            received.append(15)
        return real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_signals", signals)
        patch.setattr(training, "_step", step)
        assert cli("pretrain", images, "--out", "cut", *OPTIONS).exit_code == 143
    ran = cli("pretrain", images, "--out", "cut", "--resume", *OPTIONS)
    assert ran.exit_code == 0, ran.stderr
    for name in ("embeddings.npy", "probabilities.npy", "model.safetensors"):
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes()
