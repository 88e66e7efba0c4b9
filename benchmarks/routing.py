"""Time a training step of small networks: float32, bf16, and bf16 with routed convolutions.

    python benchmarks/routing.py                      # every case, about five minutes
    python benchmarks/routing.py resnet8:32:256       # encoder:side:batch, ...

A step is two forward passes, one backward pass and fused Adam, on one thread. The paths run in
turn in one process; the figures are medians of CPU seconds, so that other work on the machine
weighs on all alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from deepclust.nets import routing
from deepclust.nets.encoders import build

CASES = ("resnet8:32:256", "resnet18-small:32:64", "resnet18:32:256", "resnet18:96:64")
PATHS = ("float32 NCHW", "float32 routed", "bf16", "bf16 routed")
ROUNDS = 5


def step(path: str, name: str, side: int, batch: int) -> Callable[[], None]:
    """Return a function that takes one training step along `path`."""
    encoder = build(name, image_size=side).train()
    views = [torch.rand(batch, 3, side, side) for _ in range(2)]
    if path != "float32 NCHW":
        encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        views = [view.contiguous(memory_format=torch.channels_last) for view in views]
    if path.startswith("bf16"):
        encoder.precision = torch.bfloat16
    if path.endswith("routed"):
        routing.route(encoder)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-4, fused=True)

    def take() -> None:
        optimizer.zero_grad(set_to_none=True)
        a, b = (encoder(view).float() for view in views)
        (a - b).square().mean().backward()
        optimizer.step()

    return take


def main() -> None:
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        name, side, batch = case.split(":")
        steps = {path: step(path, name, int(side), int(batch)) for path in PATHS}
        spent: dict[str, list[float]] = {path: [] for path in PATHS}
        for turn in range(ROUNDS + 1):
            for path, take in steps.items():
                began = time.process_time()
                take()
                if turn:
                    spent[path].append(time.process_time() - began)
        usual = median(spent["float32 NCHW"])
        for path in PATHS:
            one = median(spent[path])
            views = 2 * int(batch) / one
            print(f"{case:22} {path:15} {one:7.3f} s {views:7.0f} views/s {usual / one:5.2f}x")


if __name__ == "__main__":
    main()
