from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from deepclust import checkpoint, weights
from deepclust.checkpoint import Position
from deepclust.errors import CheckpointError
from deepclust.run import Run


def pair(kind: str = "adam") -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network as training has it, in channels_last, and its optimiser."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 3))
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if kind == "sgd":
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    return net, torch.optim.Adam(net.parameters(), lr=0.1, fused=True)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    images = torch.randn(5, 4, 9, 9, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    net(images).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_step_after_a_checkpoint_is_the_same_bits_as_without_one(tmp_path, kind):
    run = Run.create(tmp_path)
    net, optimizer = pair(kind)
    for number in range(2):
        step(net, optimizer, number)
    checkpoint.save(run, net, optimizer, Position(0, 2))
    step(net, optimizer, 2)
    again, other = pair(kind)
    assert checkpoint.load(run, again, other) == Position(0, 2)
    step(again, other, 2)
    for name, tensor in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_the_position_comes_back_in_the_order_it_had(tmp_path):
    run = Run.create(tmp_path)
    at = Position(3, 1, {"z": 1.5, "a": 0.1}, {"y": 2.0, "b": 3.0}, ({"z": 1, "a": None},))
    net, optimizer = pair()
    checkpoint.save(run, net, optimizer, at)
    found = checkpoint.load(run, *pair())
    assert found == at
    assert json.dumps([found.sums, found.figures, found.history]) == json.dumps(
        [at.sums, at.figures, at.history]
    )


def saved(path: Path) -> tuple[Run, list[Path]]:
    run = Run.create(path)
    net, optimizer = pair()
    for epoch in range(3):
        step(net, optimizer, epoch)
        checkpoint.save(run, net, optimizer, Position(epoch + 1))
    return run, [path / c["file"] for c in run.info["checkpoints"]]


def test_two_checkpoints_are_kept_and_the_older_stands_in_for_a_damaged_one(tmp_path):
    run, (newest, before) = saved(tmp_path)
    assert sorted(tmp_path.glob("checkpoint-*")) == [before, newest]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert checkpoint.load(run, *pair()).epoch == 2
    before.unlink()
    with pytest.raises(CheckpointError, match="damaged") as caught:
        checkpoint.load(run, *pair())
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("data", [b"", b"text", b"\xff\xd8\xff\xe0", b"\x80\x04cos\nsystem\n."])
def test_what_is_no_checkpoint_is_refused(tmp_path, data):
    run, paths = saved(tmp_path)
    for path in paths:
        path.write_bytes(data)
    with pytest.raises(CheckpointError):
        checkpoint.load(run, *pair())


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_refused(tmp_path):
    run, (newest, before) = saved(tmp_path)
    before.unlink()
    data = newest.read_bytes()
    for bit in torch.randint(len(data) * 8, (50,), generator=torch.Generator().manual_seed(0)):
        flipped = bytearray(data)
        flipped[int(bit) // 8] ^= 1 << int(bit) % 8
        newest.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            checkpoint.load(run, *pair())


def test_weights_that_are_no_numbers_are_refused_though_the_digest_is_right(tmp_path):
    run = Run.create(tmp_path)
    net, optimizer = pair()
    with torch.no_grad():
        net[0].weight[0] = float("nan")
    checkpoint.save(run, net, optimizer, Position(1))
    with pytest.raises(CheckpointError, match="NaN"):
        checkpoint.load(run, *pair())


def test_another_network_is_refused_with_the_first_names(tmp_path):
    run, _ = saved(tmp_path)
    net = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.load(run, net, torch.optim.Adam(net.parameters()))


def test_a_model_is_no_checkpoint(tmp_path):
    run, (newest, before) = saved(tmp_path)
    before.unlink()
    weights.save(newest, pair()[0].state_dict(), {"kind": "model"})
    run.update(checkpoints=[{"file": newest.name, "sha256": weights.digest(newest)}])
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        checkpoint.load(run, *pair())
