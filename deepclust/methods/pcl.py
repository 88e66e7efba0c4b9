"""Prototypical Contrastive Learning: pictures find their own view and their clusters' prototypes.

MoCo's instance contrast from the first epoch; after a warm-up each epoch starts with an E step
that clusters the embedding of all pictures at several sizes, and each step then also contrasts
a picture with the prototypes (the M step).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from deepclust.algorithms.kmeans import fit
from deepclust.config import Section
from deepclust.errors import DataError, UsageError
from deepclust.losses import absent, concentration, info_nce, proto_nce
from deepclust.methods.base import Batch, Facts, Method
from deepclust.metrics import contingency, nmi
from deepclust.nets.parts import Queue, follow, mlp, slow_copy

LARGE = 100_000  # pictures from which on keys are kept in a queue


class Config(Section):
    """PCL's own settings."""

    feature_dim: int = Field(128, gt=0, description="Width of the embedding.")
    head: Literal["mlp", "linear"] = Field("mlp", description="mlp: with a hidden layer.")
    temperature: float = Field(0.2, gt=0, description="τ between pictures; mean φ of prototypes.")
    momentum: float = Field(0.999, ge=0, lt=1, description="Of the slow copy, once it is reached.")
    queue: int | None = Field(
        None, ge=0, description="Most keys kept; 16384, or none below 100,000 pictures."
    )
    warmup: int = Field(10, ge=0, description="Epochs before the first prototypes.")
    clusters: list[int] | None = Field(
        None, min_length=1, description="Sizes of the clusterings; from k or the folder's size."
    )
    negatives: int | None = Field(
        None, gt=0, description="Most prototypes that a batch does not own, drawn anew; all."
    )
    alpha: float = Field(10.0, gt=0, description="Keeps φ of small clusters from growing.")
    prototypes: Literal["distinct", "repeated"] = Field(
        "distinct", description="repeated: the published denominator, bad for few clusters."
    )


class PCL(Method):
    """Prototypical Contrastive Learning, Li et al. 2021, arXiv:2005.04966.

    The embedding is the slow copy's projected output: it is what the E step clusters, so the
    clusters found afterwards are of the space that the prototypes shaped.

    The slow copy (MoCo's momentum encoder) follows the parameters after each step. Its BatchNorm
    buffers are its own, from its own passes in training, as in the published code.

    Differs: the queue holds half of the pictures at most. Published queues are a small part of
    the data; a queue as long as a folder would hold a picture's own key of the epoch before, as
    a negative, every second time. At N/2 it is one in eight (ages are the sum of two uniforms).
    Differs: folders of fewer than 100,000 pictures have no queue unless asked for. Its keys are
    older than the key to be found, and a network that moves fast leaves them all behind by moving
    every picture the same way: on 5,000 digits a queue of 2,500 ended with all on one point.
    Differs: the keys of a picture's batch mates are negatives too. In a folder the queue holds few
    batches, all older than the key that has to be found among them.
    Differs: after t steps the momentum is min(m, (1 + t) / (10 + t)), so that the slow copy
    averages about the last tenth of the steps. At the published 0.999 it would still be the
    initial network after the few hundred steps that a folder gives.
    Differs: the recipe. The published one, SGD at 0.03, is for 200 epochs of ImageNet.
    """

    Config: ClassVar[type[Section]] = Config
    preset: ClassVar[str] = "pcl"
    feature_recipe: ClassVar[dict[str, Any]] = {**Method.feature_recipe, "lr": 1e-4}
    config: Config
    prototypes: Tensor
    phi: Tensor
    label: Tensor
    ready: Tensor
    steps: Tensor

    def __init__(self, encoder: nn.Module, facts: Facts, config: Config) -> None:
        super().__init__(encoder, facts, config)
        self.head = (
            mlp(facts.width, config.feature_dim)
            if config.head == "mlp"
            else nn.Linear(facts.width, config.feature_dim)
        )
        self.slow_encoder = slow_copy(encoder)
        self.slow_head = slow_copy(self.head)
        asked = config.queue
        if asked is None:
            asked = 16_384 if facts.images >= LARGE else 0
        length = min(asked, facts.images // 2)
        self.queue = Queue(length, config.feature_dim)
        # The clusterings lie end to end, so that a checkpoint of any epoch has the same shapes.
        self.sizes = sizes(facts, config.clusters)
        self.register_buffer("prototypes", torch.zeros(sum(self.sizes), config.feature_dim))
        self.register_buffer("phi", torch.full((sum(self.sizes),), config.temperature))
        self.register_buffer("label", torch.zeros(len(self.sizes), facts.images, dtype=torch.long))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self._new_keys: Tensor | None = None

    def losses(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        query, key = batch.views
        q = F.normalize(self.head(self.encoder(query).float()), dim=1)
        with torch.no_grad():
            k = self.embed(key)
        self._new_keys = k
        terms = {"instance": info_nce(q, k, self.queue.held(), self.config.temperature, mates=True)}
        if self.ready:
            terms["prototype"] = self._prototype(q, batch.index, generator)
        return terms

    def _prototype(self, q: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean of `proto_nce` over the clusterings."""
        total = q.new_zeros(())
        for prototypes, phi, every in self._clusterings():
            label = every[index]
            negatives = None
            if self.config.negatives is not None:
                others = absent(label, len(prototypes))
                drawn = torch.randperm(len(others), generator=generator)[: self.config.negatives]
                negatives = others[drawn.to(others.device)]
            repeated = self.config.prototypes == "repeated"
            total = total + proto_nce(q, prototypes, label, phi, negatives, repeated=repeated)
        return total / len(self.sizes)

    def _clusterings(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return (prototypes (k, d), φ (k,), label (N,)) of each clustering, as views."""
        return list(zip(self.prototypes.split(self.sizes), self.phi.split(self.sizes), self.label))

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.slow_head(self.slow_encoder(images).float()), dim=1)

    @torch.no_grad()
    def on_epoch(
        self, epoch: int, embed_all: Callable[[], Tensor], generator: torch.Generator
    ) -> dict[str, float]:
        """The E step: cluster all pictures at each size, and set prototypes, φ and labels.

        Starts from the prototypes of the epoch before, after five random starts at first.
        """
        if epoch < self.config.warmup:
            return {}
        x = embed_all()
        alone, agreement = 0, []
        for prototypes, phi, label in self._clusterings():
            k = len(prototypes)
            seed = int(torch.randint(2**31, (), generator=generator))
            if self.ready:
                start = prototypes.cpu().numpy()
                found = fit(x.numpy(), k, seed=seed, iterations=10, start=start)
            else:
                found = fit(x.numpy(), k, seed=seed, restarts=5)
            centers, new, squared = (torch.from_numpy(part) for part in found)
            if self.ready:
                agreement.append(nmi(contingency(label.cpu().numpy(), found[1])) or 0.0)
            alone += int((new.bincount(minlength=k) <= 1).sum())
            distance = squared.double().clamp_min(0).sqrt()
            phi.copy_(concentration(distance, new, k, self.config.temperature, self.config.alpha))
            # Fewer distinct rows than k give fewer centres; a zero prototype attracts nobody.
            prototypes.zero_()[: len(centers)] = F.normalize(centers, dim=1)
            label.copy_(new)
        self.ready.fill_(True)
        figures = {
            "singletons": alone / sum(self.sizes),
            "phi_min": self.phi.min().item(),
            "phi_mean": self.phi.mean().item(),
            "phi_max": self.phi.max().item(),
        }
        if agreement:
            figures["agreement"] = sum(agreement) / len(agreement)
        return figures

    def after_step(self) -> None:
        # After the step and not before, because the loss still needs the old keys to go backward.
        slow = [*self.slow_encoder.parameters(), *self.slow_head.parameters()]
        fast = [*self.encoder.parameters(), *self.head.parameters()]
        steps = int(self.steps)
        follow(slow, fast, min(self.config.momentum, (1 + steps) / (10 + steps)))
        self.steps += 1
        if self._new_keys is not None:
            self.queue.push(self._new_keys)
            self._new_keys = None

    def readouts(self, losses: dict[str, float], images: int) -> dict[str, float]:
        """instance_gap: nats below total collapse, log(n + keys in the queue)."""
        return {"instance_gap": math.log(images + len(self.queue.held())) - losses["instance"]}


def sizes(facts: Facts, asked: list[int] | None) -> list[int]:
    """Return the sizes of the clusterings, ascending and distinct.

    As asked; or k, 2k and 4k for k clusters; or for N pictures N/100, N/50 and N/25, as the
    paper's are for ImageNet (N/51, N/26, N/13), from 4, 8 and 16 up. These last two rules stop
    at N/2, two pictures a prototype.

    Raises UsageError for a size that N pictures cannot fill, DataError for N < 3.
    """
    n = facts.images
    if n < 3:
        raise DataError(f"pcl needs at least 3 pictures and has {n}")
    if asked:
        wrong = [k for k in asked if not 2 <= k < n]
        if wrong:
            raise UsageError(
                f"pcl cannot make {wrong[0]} clusters of {n} pictures",
                hint="each of options.clusters must be at least 2 and below the number of pictures",
            )
        return sorted(set(asked))
    least = facts.clusters or max(4, round(n / 100))
    return sorted({max(2, min(k, n // 2)) for k in (least, 2 * least, 4 * least)})
