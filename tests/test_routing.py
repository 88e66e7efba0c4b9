"""Routed convolutions: the same numbers as torch's own, in every form and for every shape."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from deepclust.nets import routing
from deepclust.nets.encoders import build
from deepclust.nets.routing import RoutedConv2d, form, route

# Form, batch, input and output channels, height, width, stride.
SHAPES = [
    ("point", 3, 5, 7, 4, 4, 1),
    ("point", 3, 5, 7, 6, 5, 2),
    ("mosaic", 1, 3, 4, 4, 4, 1),
    ("mosaic", 16, 3, 4, 4, 4, 1),
    ("mosaic", 19, 3, 4, 3, 3, 1),
    ("mosaic", 8, 3, 4, 8, 8, 2),
    ("mosaic", 9, 3, 4, 5, 7, 2),
    ("mosaic", 10, 3, 4, 7, 6, 1),
    ("dense", 3, 5, 4, 1, 1, 1),
    ("dense", 3, 5, 4, 2, 2, 1),
    ("dense", 3, 5, 4, 2, 2, 2),
    ("dense", 3, 5, 4, 1, 2, 1),
    ("dense", 3, 5, 4, 3, 4, 2),
]


def inputs(name, n, channels, outputs, h, w, stride, dtype):
    """A picture batch in channels_last, a weight, and a gradient of the output."""
    stream = torch.Generator().manual_seed(0)
    k = 1 if name == "point" else 3
    x = torch.randn(n, channels, h, w, generator=stream, dtype=torch.float64)
    weight = torch.randn(outputs, channels, k, k, generator=stream, dtype=torch.float64)
    size = (n, outputs, -(-h // stride), -(-w // stride))
    up = torch.randn(size, generator=stream, dtype=torch.float64)
    last = torch.channels_last
    x, weight, up = (t.to(dtype).contiguous(memory_format=last) for t in (x, weight, up))
    return x.requires_grad_(), weight.requires_grad_(), up


def all_of(y, x, weight, up):
    """The output and the gradients of input and weight."""
    return y, *torch.autograd.grad(y, (x, weight), up)


@pytest.mark.parametrize(("name", "n", "channels", "outputs", "h", "w", "stride"), SHAPES)
def test_every_form_is_the_convolution_in_float64(name, n, channels, outputs, h, w, stride):
    x, weight, up = inputs(name, n, channels, outputs, h, w, stride, torch.float64)
    usual = F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)
    y = routing.FORMS[name](x, weight, stride)
    for ours, theirs in zip(all_of(y, x, weight, up), all_of(usual, x, weight, up)):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "channels", "side", "stride"),
    [("point", 64, 8, 2), ("mosaic", 128, 4, 1), ("mosaic", 64, 8, 2), ("dense", 64, 2, 1)],
)
def test_bf16_forms_lose_no_more_than_a_rounding(name, channels, side, stride):
    # Sums are in float32 and the result is rounded once, by at most 2⁻⁹ of itself.
    x, weight, up = inputs(name, 32, channels, 128, side, side, stride, torch.bfloat16)
    y = routing.FORMS[name](x, weight, stride)
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    exact = F.conv2d(*wide, stride=stride, padding=weight.shape[2] // 2)
    for ours, theirs in zip(all_of(y, x, weight, up), all_of(exact, *wide, up.double())):
        assert (ours.double() - theirs).norm() < 2**-8 * theirs.norm()


def test_the_form_depends_on_shape_and_dtype_alone():
    def choice(outputs, kernel, side, stride=1, dtype=torch.bfloat16):
        return form(torch.empty(outputs, 64, kernel, kernel), (side, side), stride, dtype)

    assert choice(64, 3, 16) is None
    assert choice(256, 3, 4) == "mosaic"
    assert choice(256, 3, 8, stride=2) == "mosaic"
    assert choice(512, 3, 2) == "dense"
    assert choice(256, 1, 8, stride=2) == "point"
    assert choice(64, 1, 32, stride=2) is None
    assert choice(256, 3, 8, dtype=torch.float32) is None
    assert choice(256, 3, 4, dtype=torch.float32) == "mosaic"


def test_routing_keeps_the_tensors_and_leaves_what_does_not_fit():
    net = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 5, padding=2),
        nn.Conv2d(4, 4, 1, stride=2),
    )
    before = copy.deepcopy(net.state_dict())
    route(net)
    assert [type(m) is RoutedConv2d for m in net] == [True, False, False, False, False, True]
    assert_close(dict(net.state_dict()), dict(before), rtol=0, atol=0)


def test_a_convolution_with_a_bias_stays_as_it_was():
    conv = nn.Conv2d(2, 2, 3, padding=1)
    x = torch.rand(2, 2, 2, 2)
    usual = conv(x)
    route(conv)
    assert type(conv) is RoutedConv2d
    assert torch.equal(conv(x), usual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_a_routed_encoder_learns_what_the_plain_one_does(dtype):
    plain = build("resnet18", image_size=32).to(memory_format=torch.channels_last)
    plain.precision = dtype
    routed = copy.deepcopy(plain)
    route(routed)
    stream = torch.Generator().manual_seed(0)
    images = torch.rand(8, 3, 32, 32, generator=stream)
    for encoder in (plain, routed):
        encoder.eval()(images).float().square().sum().backward()
    close = 0.05 if dtype else 1e-4
    for usual, ours in zip(plain.parameters(), routed.parameters()):
        assert usual.grad is not None
        assert ours.grad is not None
        assert ours.grad.dtype == torch.float32
        assert (ours.grad - usual.grad).norm() <= close * usual.grad.norm()


def test_a_routed_encoder_gives_the_same_bits_twice():
    encoder = build("resnet8", image_size=32)
    encoder.precision = torch.bfloat16
    route(encoder)
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    grads = []
    for _ in range(2):
        encoder.zero_grad()
        encoder(images).float().square().sum().backward()
        grads.append([p.grad.clone() for p in encoder.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))
