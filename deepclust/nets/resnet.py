"""Residual networks: ResNet-18/34/50 with the ImageNet stem or a small one, and ResNet-8.

Deep Residual Learning, He et al. 2015, arXiv:1512.03385. Tensors have the names that torchvision
and timm give them, so that their weights fit.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from deepclust.nets.encoders import Encoder, fit_net, kaiming, quarters

# Blocks a stage, widths of the stages, width of the stem, and whether blocks are bottlenecks.
SHAPES = {
    "resnet8": ((1, 1, 1), (64, 128, 256), 32, False),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512), 64, False),
    "resnet34": ((3, 4, 6, 3), (64, 128, 256, 512), 64, False),
    "resnet50": ((3, 4, 6, 3), (64, 128, 256, 512), 64, True),
}


def _conv(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)


class Block(nn.Module):
    """Two 3 × 3 convolutions, or a bottleneck of 1 × 1, 3 × 3 and 1 × 1, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        self.conv1 = _conv(inputs, width, 1) if bottleneck else _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride if bottleneck else 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1) if bottleneck else None
        self.bn3 = nn.BatchNorm2d(outputs) if bottleneck else None
        self.act = nn.ReLU()
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.conv3 is not None and self.bn3 is not None:
            y = self.bn3(self.conv3(self.act(y)))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A stem, stages `layer1`, `layer2`, …, and the mean over the last map."""

    def __init__(self, shape: str, small: bool) -> None:
        super().__init__()
        blocks, widths, stem, bottleneck = SHAPES[shape]
        self.small = small
        self.conv1 = _conv(3, stem, 3) if small else _conv(3, stem, 7, 2)
        self.bn1 = nn.BatchNorm2d(stem)
        self.act = nn.ReLU()
        self.stages = [f"layer{i}" for i in range(1, len(blocks) + 1)]
        outputs = [stem, *(4 * w if bottleneck else w for w in widths)]
        # ResNet-8 has no stage at full resolution; the others keep it, as published.
        strides = [2 if shape == "resnet8" else 1] + [2] * (len(blocks) - 1)
        for name, count, width, stride, (inputs, output) in zip(
            self.stages, blocks, widths, strides, pairwise(outputs)
        ):
            first = Block(inputs, width, stride, bottleneck)
            rest = (Block(output, width, 1, bottleneck) for _ in range(count - 1))
            setattr(self, name, nn.Sequential(first, *rest))
        self.width = outputs[-1]

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the output (n, c, h, w) of every stage."""
        x = self.act(self.bn1(self.conv1(x)))
        if not self.small:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        maps = []
        for name in self.stages:
            x = getattr(self, name)(x)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(x)[-1].mean(dim=(2, 3))


def layers(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """head: the last stage averaged; grid: over its quarters; middle: the stage before averaged."""
    assert isinstance(net, ResNet)
    *_, before, last = net.maps(x)
    return {
        "head": last.mean(dim=(2, 3)),
        "grid": quarters(last),
        "middle": before.mean(dim=(2, 3)),
    }


def make(name: str) -> Encoder:
    """Make `resnet8`, or `resnetN` or `resnetN-small`, with random weights."""
    shape = name.removesuffix("-small")
    small = shape != name or shape == "resnet8"
    net = ResNet(shape, small)
    kaiming(net)
    return Encoder(net, name=name, width=net.width, image_size=32 if small else 128, layers=layers)


def hub(encoder: Encoder) -> None:
    """Fill the encoder with timm's ImageNet weights of the same network (a download)."""
    from deepclust.nets.timm_models import download

    tensors, path = download(encoder)
    fit_net(encoder, tensors, path=path)
