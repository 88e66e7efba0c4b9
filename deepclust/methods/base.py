"""What a method is: the contract between the training loop and one objective.

A method sees pictures as `Batch.views`, whatever they are: pixels that go through an encoder
that trains, or cached features of a frozen encoder that go through none. It returns its loss
terms by name; the loop in `training.py` adds them up, steps and logs.

To add a method: one file here, one line in `methods/__init__.py`, one test file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepclust.config import Section


@dataclass(frozen=True)
class Batch:
    """A batch as a method sees it.

    views: `Method.views` tensors, each (n, 3, H, W) float32 in [0, 1], or (n, d) float32 features.
    index: (n,) int64, row of each picture in images.csv.
    label: (n,) int64, -1 where unknown, or None where no labels were given.
    """

    views: list[Tensor]
    index: Tensor
    label: Tensor | None = None


@dataclass(frozen=True)
class Facts:
    """What a method is told about the data before it is built.

    images: N, the number of pictures. clusters: k, or None if not asked for.
    width: d, the number of columns that the encoder returns.
    """

    images: int
    clusters: int | None
    width: int


class Method(nn.Module, ABC):
    """Base of every method. `encoder` maps a view (n, …) to features (n, d).

    Everything that must survive a resume is a parameter or a buffer; random numbers come from
    the generator that the loop passes in, never from the global state.
    """

    Config: ClassVar[type[Section]] = Section
    views: ClassVar[int] = 2
    preset: ClassVar[str] = "cc"
    """The views of its paper, a name in `config.PRESETS`, used on pixels where none is given."""
    recipe: ClassVar[dict[str, Any]] = {
        "optimizer": "adam", "lr": 1e-3, "schedule": "cosine", "warmup_epochs": 1,
    }  # fmt: skip
    """Values of the `[train]` section used on pixels where none is given."""
    feature_recipe: ClassVar[dict[str, Any]] = {
        "optimizer": "adam", "lr": 1e-3, "schedule": "cosine",
    }  # fmt: skip
    """The same on features of a frozen encoder."""
    feature_options: ClassVar[dict[str, Any]] = {}
    """The method's own settings on features, where they are better than its defaults."""

    def __init__(self, encoder: nn.Module, facts: Facts, config: Section) -> None:
        super().__init__()
        self.encoder = encoder
        self.facts = facts
        self.config = config

    @abstractmethod
    def losses(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss terms by name, each a scalar in nats; their sum is minimised."""

    def embed(self, images: Tensor) -> Tensor:
        """Return the unit embedding (n, d) float32 to cluster. Called in eval mode."""
        return nn.functional.normalize(self.encoder(images).float(), dim=1)

    def assign(self, images: Tensor) -> Tensor | None:
        """Return soft assignments (n, k) whose rows sum to 1, or None if the method has no head."""
        return None

    def on_epoch(
        self, epoch: int, embed_all: Callable[[], Tensor], generator: torch.Generator
    ) -> dict[str, float]:
        """Run at the start of each epoch (from 0), such as an E step.

        embed_all: returns `embed` of all N pictures, unchanged, (N, d) float32 on the CPU.
        Returns figures for the log, by name.
        """
        return {}

    def after_step(self) -> None:
        """Run after each optimiser step, such as a momentum update."""

    def readouts(self, losses: dict[str, float], images: int) -> dict[str, float]:
        """Turn an epoch's mean losses into collapse read-outs; images: batch size n."""
        return {}

    def advice(self, batch: int) -> str | None:
        """Return a line of warning if batches of this many pictures are wrong for the method."""
        return None

    def trained(self) -> list[nn.Parameter]:
        """The parameters that the optimiser moves."""
        return [p for p in self.parameters() if p.requires_grad]
