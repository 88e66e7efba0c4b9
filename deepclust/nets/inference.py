"""An encoder for embedding only: batch norm folded away, and convolutions in one call each.

On a CPU torch brings the weights of a convolution into the order its kernels want in every call,
and writes each map twice where an activation follows. oneDNN, the library behind torch, does
neither where it is asked for a convolution with packed weights and the activation inside; torch
has these calls for its own compiler. EfficientNet-Lite0 at 128 pixels takes 2 times less in
float32 by them, beyond what folding saves (`benchmarks/run.py`, row 5). The tests compare both with
the network as it was; a network that does not come out the same is left as it was.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from deepclust.device import has_fast_bf16, torch_stream
from deepclust.nets.encoders import Encoder

ACTIVATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.ReLU: ("relu", []),
    nn.ReLU6: ("hardtanh", [0.0, 6.0]),
}


def prepared(encoder: Encoder, device: torch.device) -> Encoder:
    """Return a copy of `encoder` that embeds on `device` as fast as it can."""
    net = fold_batchnorm(encoder).to(device)
    if device.type == "cpu":
        net = pack(net)
    net.precision = torch.bfloat16 if has_fast_bf16(device) else None
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def fold_batchnorm(encoder: Encoder) -> Encoder:
    """Return a copy for inference in which batch norm is part of the convolution before it.

    Which convolution feeds which batch norm is seen in one pass of a random picture; a second
    pass checks the result, and a network that cannot be folded exactly comes back as it was.
    """
    plain = copy.deepcopy(encoder).eval()
    folded = copy.deepcopy(plain)
    picture = _picture(encoder)
    with torch.no_grad():
        for norm, convs in _fed(folded, picture, nn.BatchNorm2d).items():
            if convs[0] is not None:
                _fold(folded, convs[0], norm)
        before, after = plain(picture), folded(picture)
    return folded if _close(before, after) else plain


def pack(encoder: Encoder) -> Encoder:
    """Return a copy whose convolutions keep packed weights and take in the ReLU that follows.

    Without oneDNN in torch, or where the copy does not give the same features, `encoder` itself.
    """
    if not hasattr(torch.ops.mkldnn, "_convolution_pointwise"):
        return encoder
    packed, picture = copy.deepcopy(encoder), _picture(encoder)
    with torch.no_grad():
        inside: dict[str, tuple[str, list[float]]] = {}
        for name, makers in _fed(packed, picture, *ACTIVATIONS).items():
            activation = ACTIVATIONS.get(type(packed.get_submodule(name)))
            if activation is None:  # a kind of its own that derives from one of these
                continue
            convs = [conv for conv in makers if conv is not None]
            inside.update(dict.fromkeys(convs, activation))
            if len(convs) == len(makers):  # else it has other work, and twice is like once
                _replace(packed, name, nn.Identity())
        for name, module in list(packed.named_modules()):
            if isinstance(module, nn.Conv2d) and _packable(module):
                vars(module)["_conv_forward"] = _Packed(module, *inside.get(name, ("none", [])))
            elif name in inside:
                return encoder
        before, after = encoder(picture), packed(picture)
    return packed if _close(before, after) else encoder


class _Packed:
    """What takes the place of a convolution's own product."""

    def __init__(self, conv: nn.Conv2d, activation: str, bounds: list[float]) -> None:
        self.padding, self.stride = list(conv.padding), list(conv.stride)
        self.dilation, self.groups = list(conv.dilation), conv.groups
        self.activation, self.bounds = activation, bounds
        self.held: dict[torch.dtype, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        x = x.to(dtype)
        if dtype not in self.held:
            ready = torch.ops.mkldnn._reorder_convolution_weight(
                weight.detach().to(dtype), self.padding, self.stride, self.dilation, self.groups,
                list(x.shape),
            )  # fmt: skip
            self.held[dtype] = ready, None if bias is None else bias.detach().to(dtype)
        ready, bias = self.held[dtype]
        return torch.ops.mkldnn._convolution_pointwise(
            x, ready, bias, self.padding, self.stride, self.dilation, self.groups,
            self.activation, self.bounds, "",
        )  # fmt: skip


def _packable(conv: nn.Conv2d) -> bool:
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _picture(encoder: Encoder) -> Tensor:
    side = encoder.image_size
    return torch.rand(1, 3, side, side, generator=torch_stream(0, "fold")).to(encoder.mean)


def _close(before: Tensor, after: Tensor) -> bool:
    return torch.allclose(before, after, rtol=1e-3, atol=1e-4 * float(before.abs().max()))


def _fed(net: nn.Module, picture: Tensor, *kinds: type[nn.Module]) -> dict[str, list[str | None]]:
    """Name each module of these kinds that a picture passes, and what fed it each time.

    That is the convolution whose output it took, or None if it took anything else.
    """
    made: list[tuple[str, Tensor]] = []  # holds the outputs, so that no two share an address
    fed: dict[str, list[str | None]] = {}

    def watch(name: str, module: nn.Module) -> RemovableHandle | None:
        def convolved(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            made.append((name, output))

        def taken(_module: nn.Module, inputs: Any) -> None:
            own = (conv for conv, output in made if output is inputs[0])
            fed.setdefault(name, []).append(next(own, None))

        if isinstance(module, nn.Conv2d):
            return module.register_forward_hook(convolved)
        if isinstance(module, kinds) and getattr(module, "track_running_stats", True):
            return module.register_forward_pre_hook(taken)
        return None

    hooks = [watch(name, module) for name, module in net.named_modules()]
    net(picture)
    for hook in filter(None, hooks):
        hook.remove()
    return fed


def _fold(net: nn.Module, conv: str, norm: str) -> None:
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    old_conv, old_norm = net.get_submodule(conv), net.get_submodule(norm)
    assert isinstance(old_conv, nn.Conv2d)
    assert isinstance(old_norm, nn.BatchNorm2d)
    # timm's batch norm may carry the activation that follows it.
    act = getattr(old_norm, "act", None)
    for name, module in (
        (conv, fuse_conv_bn_eval(old_conv, old_norm)),
        (norm, act if isinstance(act, nn.Module) else nn.Identity()),
    ):
        _replace(net, name, module)


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, module)
