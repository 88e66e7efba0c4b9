"""What deepclust is measured against: the published training steps of CC and PCL, on a CPU.

The published code is used where an environment variable says where it lies:

    PUBLISHED_CC    a checkout of Contrastive-Clustering, with its folder `modules`
    PUBLISHED_PCL   a checkout of PCL, with its folder `pcl`

Otherwise the same pipeline is written down here in the plainest way: the same transforms of
torchvision on PIL pictures, the same network, loss and optimiser, float32, no tricks. `which` says
what was taken. PCL's code wants CUDA and several processes; here its calls to `.cuda()` do
nothing, and its group of processes is this one.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms as T


def which(variable: str) -> str:
    return "published" if os.environ.get(variable) else "restated"


def _published(variable: str, module: str) -> Any:
    folder = str(Path(os.environ[variable]).resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return import_module(module)


# --- Contrastive Clustering ---------------------------------------------------------------------


def cc_views(side: int, strength: float, blur: bool) -> Callable:
    """Return CC's transform: a PIL picture to two tensors (3, side, side)."""
    if os.environ.get("PUBLISHED_CC"):
        return _published("PUBLISHED_CC", "modules.transform").Transforms(
            size=side, s=strength, blur=blur
        )
    s = strength
    steps: list[Any] = [
        T.RandomResizedCrop(side),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)], p=0.8),
        T.RandomGrayscale(p=0.2),
    ]
    steps += [T.RandomApply([T.GaussianBlur(23, (0.1, 2.0))], p=0.5)] if blur else []
    one = T.Compose([*steps, T.ToTensor()])
    return lambda picture: (one(picture), one(picture))


def loader(folder: Path, views: Callable, batch: int) -> DataLoader:
    pictures = torchvision.datasets.ImageFolder(str(folder), transform=views)
    return DataLoader(pictures, batch_size=batch, shuffle=True, drop_last=True)


def endless(batches: DataLoader) -> Iterator:
    while True:
        yield from batches


class PlainCC(nn.Module):
    """ResNet with an instance head and a cluster head."""

    rep_dim = 512

    def __init__(self, name: str, clusters: int) -> None:
        super().__init__()
        self.resnet = getattr(torchvision.models, name)()
        self.resnet.fc = nn.Identity()
        d = self.rep_dim
        self.instance = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 128))
        self.cluster = nn.Sequential(
            nn.Linear(d, d), nn.ReLU(), nn.Linear(d, clusters), nn.Softmax(dim=1)
        )

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        h = self.resnet(a), self.resnet(b)
        z = [F.normalize(self.instance(one), dim=1) for one in h]
        return (*z, *(self.cluster(one) for one in h))


def _contrast(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    z = F.normalize(torch.cat([a, b]), dim=1)
    logits = z @ z.T / temperature
    logits.fill_diagonal_(-torch.inf)
    n = len(a)
    return F.cross_entropy(logits, (torch.arange(2 * n) + n) % (2 * n))


def _plain_cluster_loss(a: Tensor, b: Tensor) -> Tensor:
    def entropy(p: Tensor) -> Tensor:
        mean = p.mean(dim=0)
        return (mean * mean.log()).sum()

    return _contrast(a.T, b.T, 1.0) + entropy(a) + entropy(b)


def cc_step(
    folder: Path, name: str, side: int, batch: int, clusters: int, strength: float, blur: bool
) -> Callable[[], None]:
    """Return a function that loads a batch from files and takes one step of CC."""
    batches = endless(loader(folder, cc_views(side, strength, blur), batch))
    instance: Callable = lambda a, b: _contrast(a, b, 0.5)  # noqa: E731
    cluster: Callable = _plain_cluster_loss
    net: nn.Module
    if os.environ.get("PUBLISHED_CC"):
        losses = _published("PUBLISHED_CC", "modules.contrastive_loss")
        resnet = _published("PUBLISHED_CC", "modules.resnet").get_resnet(
            {"resnet18": "ResNet18", "resnet34": "ResNet34"}[name]
        )
        net = _published("PUBLISHED_CC", "modules.network").Network(resnet, 128, clusters)
        instance = losses.InstanceLoss(batch, 0.5, torch.device("cpu"))
        cluster = losses.ClusterLoss(clusters, 1.0, torch.device("cpu"))
    else:
        net = PlainCC(name, clusters)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)

    def take() -> None:
        (a, b), _ = next(batches)
        optimizer.zero_grad()
        za, zb, pa, pb = net(a, b)
        loss = instance(za, zb) + cluster(pa, pb)
        loss.backward()
        optimizer.step()
        loss.item()

    return take


# --- Prototypical Contrastive Learning ----------------------------------------------------------


class PlainPCL(nn.Module):
    """MoCo with prototypes; shuffling between devices left out, as there is one."""

    def __init__(self, net: Callable, dim: int, r: int, m: float, t: float, mlp: bool) -> None:
        super().__init__()
        self.q, self.k = net(num_classes=dim), net(num_classes=dim)
        for one in (self.q, self.k):
            width = one.fc.in_features
            one.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), one.fc)
        self.k.load_state_dict(self.q.state_dict())
        self.k.requires_grad_(False)
        self.r, self.m, self.t, self.at = r, m, t, 0
        self.register_buffer("queue", F.normalize(torch.randn(dim, r), dim=0))

    def forward(self, im_q: Tensor, im_k: Tensor, cluster_result: dict, index: Tensor) -> tuple:
        with torch.no_grad():
            for slow, fast in zip(self.k.parameters(), self.q.parameters(), strict=True):
                slow.data = slow.data * self.m + fast.data * (1 - self.m)
            k = F.normalize(self.k(im_k), dim=1)
        q = F.normalize(self.q(im_q), dim=1)
        own = (q * k).sum(dim=1, keepdim=True)
        logits = torch.cat([own, q @ self.queue.clone().detach()], dim=1) / self.t
        self.queue[:, self.at : self.at + len(k)] = k.T
        self.at = (self.at + len(k)) % self.r
        found, target = [], torch.arange(len(q))
        for label, prototypes, density in zip(*cluster_result.values(), strict=True):
            mine = label[index]
            others = sorted(set(range(int(label.max()) + 1)) - set(mine.tolist()))
            chosen = torch.cat([mine, torch.tensor(random.sample(others, self.r))])
            found.append(q @ prototypes[chosen].T / density[chosen])
        return logits, torch.zeros(len(q), dtype=torch.long), found, [target] * len(found)


def _published_pcl() -> Any:
    """Return PCL's builder, made to run without CUDA and in one process."""
    builder = _published("PUBLISHED_PCL", "pcl.builder")
    torch.Tensor.cuda = lambda self, *_a, **_k: self  # type: ignore[method-assign]
    # It draws from a set, which Python refuses from 3.11 on.
    builder.sample = lambda population, k: random.sample(sorted(population), k)
    if not torch.distributed.is_initialized():
        store = torch.distributed.FileStore(tempfile.mktemp(), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return builder.MoCo


def pcl_step(
    folder: Path, name: str, side: int, batch: int, sizes: list[int], queue: int
) -> Callable[[], None]:
    """Return a function that loads a batch from files and takes one step of PCL with prototypes."""
    published = bool(os.environ.get("PUBLISHED_PCL"))
    if published:
        _published("PUBLISHED_PCL", "pcl.builder")
        blur = _published("PUBLISHED_PCL", "pcl.loader").GaussianBlur([0.1, 2.0])
    else:
        blur = T.GaussianBlur(23, (0.1, 2.0))
    one = T.Compose(
        [
            T.RandomResizedCrop(side, scale=(0.2, 1.0)),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.RandomApply([blur], p=0.5),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    batches = endless(loader(folder, lambda picture: (one(picture), one(picture)), batch))
    make = _published_pcl() if published else PlainPCL
    net = make(getattr(torchvision.models, name), 128, queue, 0.999, 0.2, True)
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], 0.03, momentum=0.9, weight_decay=1e-4
    )
    images = 2 * max(sizes)
    clusters = {
        "im2cluster": [torch.arange(images) % k for k in sizes],
        "centroids": [F.normalize(torch.randn(k, 128), dim=1) for k in sizes],
        "density": [torch.full((k,), 0.2) for k in sizes],
    }

    def take() -> None:
        (a, b), _ = next(batches)
        index = torch.randint(images, (len(a),))
        output, target, found, targets = net(im_q=a, im_k=b, cluster_result=clusters, index=index)
        loss = F.cross_entropy(output, target)
        loss = loss + sum(map(F.cross_entropy, found, targets)) / len(sizes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return take
