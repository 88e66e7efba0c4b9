"""What the loop says and saves on the way; that a resume is exact is in test_faults.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepclust import checkpoint, screen, training
from deepclust.progress import Progress, duration
from tests.shapes import planted


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def positions(monkeypatch) -> list[tuple[int, int]]:
    saved: list[tuple[int, int]] = []
    real = checkpoint.save

    def save(run, method, optimizer, at):
        saved.append((at.epoch, at.step))
        return real(run, method, optimizer, at)

    monkeypatch.setattr(checkpoint, "save", save)
    return saved


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, [1, 2, 3, 4]), (1e9, [1, 4])], ids=["long", "short"]
)
def test_short_epochs_are_saved_at_the_first_and_the_last(
    cli, workdir, monkeypatch, positions, seconds, expected
):
    monkeypatch.setattr(training, "EPOCH_SECONDS", seconds)
    images = planted(workdir, (2, 2, 2, 2))
    ran = cli(
        "pretrain", images, "--method", "simclr", "--epochs", 4, "--batch-size", 8, "--out", "run",
        "--encoder", "resnet8", "--threads", 1, "--workers", 0,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    assert positions == [(epoch, 0) for epoch in expected]
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 4


def test_the_time_of_training_is_told_after_some_seconds_and_once():
    said = Said()
    forecast = training._Forecast(said, steps=1_000, epochs=10)
    for second in range(10):  # the first step took longer and is not counted
        forecast.step(100.0 + second)
    assert said.lines == ["training takes about 16 min 40 s on this machine"]


def test_cheaper_settings_are_named_where_training_takes_hours():
    said = Said()
    forecast = training._Forecast(said, steps=36_000, epochs=100)
    for second in range(10):
        forecast.step(float(second))
    assert said.lines[0] == "training takes about 10 h 0 min on this machine"
    assert "--epochs 10 fits into an hour" in said.lines[1]


def test_short_training_says_nothing_of_its_time():
    said = Said()
    forecast = training._Forecast(said, steps=5, epochs=1)
    for second in range(5):
        forecast.step(float(second))
    assert said.lines == []


def test_a_line_of_progress_names_speed_and_time_left(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: clock[0])
    line = screen._Lines("train", 100, "images")
    line.skip(40)  # of an earlier command: not part of the speed
    clock[0] = 10.0
    line.advance(20)
    assert capsys.readouterr().err == "train: 60/100 images, 2 images/s, 20 s left\n"


@pytest.mark.parametrize(
    ("seconds", "words"), [(8.4, "8 s"), (200, "3 min 20 s"), (7_500, "2 h 5 min")]
)
def test_a_time_is_told_in_two_units_at_most(seconds, words):
    assert duration(seconds) == words
