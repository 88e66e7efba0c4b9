"""Convolutions on small maps, computed in another way where the usual one is slow on a CPU.

On maps of a few pixels the CPU library behind torch reaches a small part of what the processor
can do, above all for the gradient of the weights. The same numbers, up to rounding, come from

    point   1 × 1: one matrix product over all pixels
    mosaic  3 × 3: the pictures of a batch side by side in one wide map, with columns of zeros
            between them where each would have had its own padding
    dense   3 × 3 on at most 2 × 2 pixels: one matrix product from all pixels to all pixels

Forward and backward of one layer, one thread of a CPU with AMX, over torch's own in bf16: point
1.1–3× (7× on 2 × 2), mosaic 1.1–3.6× from 256 channels and 1.1–1.7× on 128, dense 1.6–49×. In
float32 mosaic brings 1.1–2× on maps up to 4 × 4 and dense 4–10×. A whole bf16 step of ResNet-18
takes 4.5× less on 32 pixels and 1.4× less on 96; the nets with a small stem, which spend most of
it on larger maps, 1.15–1.3× less. `benchmarks/routing.py` measures the steps again.

Which form a layer takes depends on nothing but its shape and dtype, never on a clock, so that
the same seed gives the same bits. The tests compare outputs and both gradients with torch's in
float64. Graphics cards are left alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RoutedConv2d(nn.Conv2d):
    """A convolution that takes the form its input asks for; tensors and their names as before."""

    def forward(self, input: Tensor) -> Tensor:
        found, dtype, stride = None, input.dtype, self.stride[0]
        # Where batch norm was folded in, which is for inference, there is a bias.
        if input.device.type == "cpu" and self.bias is None:
            if torch.is_autocast_enabled("cpu"):
                dtype = torch.get_autocast_dtype("cpu")
            found = form(self.weight, input.shape[2:], stride, dtype)
        if found is None:
            return super().forward(input)
        return FORMS[found](input.to(dtype), self.weight.to(dtype), stride)


def route(net: nn.Module) -> None:
    """Let every plain 1 × 1 and 3 × 3 convolution of `net` choose its form, in place."""
    for module in net.modules():
        if type(module) is nn.Conv2d and _fits(module):
            module.__class__ = RoutedConv2d


def _fits(conv: nn.Conv2d) -> bool:
    side, stride = conv.kernel_size[0], conv.stride[0]
    return (
        conv.kernel_size in ((1, 1), (3, 3))
        and conv.padding == (side // 2, side // 2)
        and conv.padding_mode == "zeros"
        and conv.stride == (stride, stride)
        and conv.dilation == (1, 1)
        and conv.groups == 1
    )


def form(weight: Tensor, size: tuple[int, ...], stride: int, dtype: torch.dtype) -> str | None:
    """Return the form that is quickest for inputs of `size` = (H, W), None for torch's own.

    weight: (out, in, 1, 1) or (out, in, 3, 3).
    """
    bf16 = dtype == torch.bfloat16
    outputs, side = len(weight), -(-max(size) // stride)
    if weight.shape[2] == 1:
        return "point" if bf16 and side <= 8 else None
    if max(size) <= 2:
        return "dense"
    largest = {128: 7, 256: 8} if bf16 else {256: 4}
    fits = any(side <= most for width, most in largest.items() if outputs >= width)
    return "mosaic" if fits else None


def point(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve x (n, in, h, w) with weight (out, in, 1, 1)."""
    pixels = x.permute(0, 2, 3, 1)[:, ::stride, ::stride].contiguous()
    return F.linear(pixels, weight.flatten(1)).permute(0, 3, 1, 2)


def mosaic(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve x (n, in, h, w) with weight (out, in, 3, 3), padded by 1."""
    n, _, _, w = x.shape
    # Wider rows bring no more, and a batch that is no multiple costs a copy.
    beside = min(16 if w <= 4 else 8, n)
    lacking = -n % beside
    # Neighbours share their column of zeros; each has to start at a multiple of the stride.
    slot = -(-(w + 1) // stride) * stride
    rows = x.permute(0, 2, 3, 1)
    if lacking:
        rows = F.pad(rows, (0, 0, 0, 0, 0, 0, 0, lacking))
    rows = rows.unflatten(0, (-1, beside)).transpose(1, 2)
    wide = F.pad(rows, (0, 0, 0, slot - w)).flatten(2, 3).permute(0, 3, 1, 2)
    y = F.conv2d(wide, weight, stride=stride, padding=1).permute(0, 2, 3, 1)
    y = y.unflatten(2, (beside, slot // stride))[:, :, :, : -(-w // stride)]
    y = y.transpose(1, 2).flatten(0, 1)
    return (y[:n] if lacking else y).permute(0, 3, 1, 2)


def dense(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve x (n, in, h, w) with weight (out, in, 3, 3), padded by 1."""
    n, _, h, w = x.shape
    outputs = len(weight)
    down, right = _taps(h, stride)[:, None, :, None], _taps(w, stride)[None, :, None, :]
    met = (down >= 0) & (down < 3) & (right >= 0) & (right < 3)  # (oh, ow, h, w)
    tap = torch.where(met, 3 * down + right, 9)
    taps = F.pad(weight.permute(0, 2, 3, 1).flatten(1, 2), (0, 0, 0, 1))  # the tenth is zero
    matrix = taps.index_select(1, tap.flatten()).reshape(-1, h * w * x.shape[1])
    y = F.linear(x.permute(0, 2, 3, 1).flatten(1), matrix)
    y = y.view(n, outputs, *tap.shape[:2])
    return y.contiguous(memory_format=torch.channels_last)


def _taps(side: int, stride: int) -> Tensor:
    """Which of three taps an output (rows) lays on an input (columns), if any."""
    return torch.arange(side) + 1 - torch.arange(0, side, stride)[:, None]


FORMS = {"point": point, "mosaic": mosaic, "dense": dense}
