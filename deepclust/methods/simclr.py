"""SimCLR: two views of a picture find each other among all others. The baseline of the rest."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from deepclust.config import Section
from deepclust.losses import nt_xent, nt_xent_ceiling
from deepclust.methods.base import Batch, Facts, Method
from deepclust.nets.parts import mlp


class Config(Section):
    """SimCLR's own settings."""

    feature_dim: int = Field(128, gt=0, description="Width of the head's output.")
    hidden: int | None = Field(None, gt=0, description="Width inside the head; the encoder's own.")
    temperature: float = Field(0.5, gt=0, description="τ between pictures.")


class SimCLR(Method):
    """SimCLR, Chen et al. 2020, arXiv:2002.05709, with the temperature of its CIFAR-10 runs.

    The embedding is the encoder's output, before the head, as in the paper. Both views go
    through the network as one batch, as in the published code.
    """

    Config: ClassVar[type[Section]] = Config
    recipe: ClassVar[dict[str, Any]] = {**Method.recipe, "weight_decay": 1e-6}
    feature_options: ClassVar[dict[str, Any]] = {"temperature": 0.2}
    config: Config

    def __init__(self, encoder: nn.Module, facts: Facts, config: Config) -> None:
        super().__init__(encoder, facts, config)
        self.head = mlp(facts.width, config.feature_dim, config.hidden)

    def losses(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        a, b = self.head(self.encoder(torch.cat(batch.views)).float()).chunk(2)
        return {"instance": nt_xent(a, b, self.config.temperature)}

    def readouts(self, losses: dict[str, float], images: int) -> dict[str, float]:
        """instance_gap: nats below total collapse, and the views' shared information at least."""
        return {"instance_gap": nt_xent_ceiling(images) - losses["instance"]}
