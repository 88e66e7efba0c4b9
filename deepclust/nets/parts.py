"""The small parts that methods are built of: a head, a queue of keys, a slow copy."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def mlp(width: int, out: int, hidden: int | None = None) -> nn.Sequential:
    """Return a head (n, width) → (n, out): Linear, ReLU, Linear; hidden is `width` if left out."""
    hidden = hidden or width
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


class Adapter(nn.Module):
    """A trunk for features: x plus a learnt correction, which is zero at the start.

    So what a method learns on features begins at the features as they are. Shapes: (n, d) → (n, d).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.correction = mlp(width, width)
        last = self.correction[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.correction(x)


class Queue(nn.Module):
    """The last `length` keys, first in, first out; any length, any batch size.

    The queue of MoCo, He et al. 2020, arXiv:1911.05722, as a ring: nothing is moved or copied.
    Differs: MoCo's length has to be a multiple of the batch.
    Differs: MoCo's starts full of random keys. All pictures on one point, far from those, would
    be a good solution until real keys have replaced them, and a small folder does not recover.
    """

    keys: Tensor
    oldest: Tensor
    filled: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(length, width))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Replace the oldest keys by these, (n, width) unit rows, the last of them newest."""
        if len(self.keys) == 0:
            return
        keys = keys[-len(self.keys) :]
        places = (self.oldest + torch.arange(len(keys), device=keys.device)) % len(self.keys)
        self.keys[places] = keys.to(self.keys.dtype)
        self.oldest.copy_((self.oldest + len(keys)) % len(self.keys))
        self.filled.copy_((self.filled + len(keys)).clamp_max(len(self.keys)))

    def held(self) -> Tensor:
        """Return the keys that are there, (at most length, width), in no order."""
        return self.keys[: int(self.filled)]


def slow_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module that no optimiser moves; move it with `follow`."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(slow: Iterable[nn.Parameter], fast: Iterable[nn.Parameter], momentum: float) -> None:
    """Move each slow parameter to m · slow + (1 − m) · fast, in place.

    Buffers are left alone: the slow copy's BatchNorm keeps the statistics of its own passes.
    """
    # One call for all parameters: a third of the time of a loop.
    torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
        list(slow), list(fast), 1 - momentum
    )
