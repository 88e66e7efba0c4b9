"""Contrastive Clustering: rows of the soft assignments are pictures, columns are clusters."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from deepclust.config import Section
from deepclust.losses import balance, cluster_bounds, cluster_contrast, nt_xent, nt_xent_ceiling
from deepclust.methods.base import Batch, Facts, Method
from deepclust.nets.parts import mlp


class Config(Section):
    """CC's own settings."""

    feature_dim: int = Field(128, gt=0, description="Width of the instance head's output.")
    hidden: int | None = Field(None, gt=0, description="Width inside the heads; the encoder's own.")
    instance_temperature: float = Field(0.5, gt=0, description="τ between pictures.")
    cluster_temperature: float = Field(1.0, gt=0, description="τ between clusters.")
    entropy_weight: float = Field(
        1.0, ge=0, description="Pull towards equal clusters; lower it for uneven folders."
    )


class CC(Method):
    """Contrastive Clustering, Li et al. 2021, arXiv:2009.09687.

    Both heads learn at every step. Without a number of clusters only the instance head exists.
    The views pass through the network one after the other, as in the published code, so that
    BatchNorm normalises each by itself.

    Differs: the recipe. The published one, Adam at 3e-4 for 1,000 epochs, is for days on a GPU;
    ours is for tens of epochs, at 1e-3 with a cosine down to nothing.

    The embedding is the encoder's output: both heads shape it, while the instance head's output
    has given up what the augmentations change. The clusters are the cluster head's.
    """

    Config: ClassVar[type[Section]] = Config
    feature_recipe: ClassVar[dict[str, Any]] = {**Method.feature_recipe, "lr": 3e-4}
    feature_options: ClassVar[dict[str, Any]] = {"instance_temperature": 0.2}
    config: Config

    def __init__(self, encoder: nn.Module, facts: Facts, config: Config) -> None:
        super().__init__(encoder, facts, config)
        self.instance = mlp(facts.width, config.feature_dim, config.hidden)
        self.cluster = mlp(facts.width, facts.clusters, config.hidden) if facts.clusters else None

    def losses(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        a, b = (self.encoder(view).float() for view in batch.views)
        instance = nt_xent(self.instance(a), self.instance(b), self.config.instance_temperature)
        if self.cluster is None:
            return {"instance": instance}
        pa, pb = self.cluster(a).softmax(dim=1), self.cluster(b).softmax(dim=1)
        return {
            "instance": instance,
            "cluster": cluster_contrast(pa, pb, self.config.cluster_temperature),
            "balance": self.config.entropy_weight * (balance(pa) + balance(pb)),
        }

    def assign(self, images: Tensor) -> Tensor | None:
        if self.cluster is None:
            return None
        return self.cluster(self.encoder(images).float()).softmax(dim=1)

    def readouts(self, losses: dict[str, float], images: int) -> dict[str, float]:
        """instance_gap, cluster_gap: nats below total collapse. cluster_left: nats above the best.

        cluster_left near 0 says that assignments are sure and even, not that they are right.
        """
        gaps = {"instance_gap": nt_xent_ceiling(images) - losses["instance"]}
        if self.facts.clusters:
            best, collapse = cluster_bounds(self.facts.clusters, self.config.cluster_temperature)
            gaps["cluster_gap"] = collapse - losses["cluster"]
            gaps["cluster_left"] = losses["cluster"] - best
        return gaps

    def advice(self, batch: int) -> str | None:
        k = self.facts.clusters or 0
        if batch >= 5 * k:
            return None
        verdict = "too few to tell clusters apart" if batch < 2 * k else "few"
        return f"{batch / k:.1f} pictures a cluster in a batch of {batch}: {verdict}, take {5 * k}"
