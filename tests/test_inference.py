import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepclust.nets.encoders import Encoder, build
from deepclust.nets.inference import ACTIVATIONS, _Packed, fold_batchnorm, pack, prepared

CPU = torch.device("cpu")


def pictures(n=2, side=32):
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))


def is_packed(net):
    return [isinstance(vars(m).get("_conv_forward"), _Packed) for m in convolutions(net)]


def convolutions(net):
    return [module for module in net.modules() if isinstance(module, nn.Conv2d)]


def trained(name):
    """An encoder whose batch norms have statistics other than 0 and 1."""
    encoder = build(name, image_size=32).train()
    with torch.no_grad():
        for _ in range(3):
            encoder(pictures(4))
    return encoder.eval()


@pytest.mark.parametrize("name", ["resnet8", "lite0"])
def test_batch_norm_folds_exactly(name):
    encoder = trained(name)
    with torch.no_grad():
        folded = fold_batchnorm(encoder)
        before, after = encoder(pictures()), folded(pictures())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())
    assert torch.allclose(before, after, rtol=1e-4, atol=1e-5 * before.abs().max().item())


def test_batch_norm_that_carries_an_activation_folds_too():
    encoder = build("mobilenetv3_small_050", image_size=32).eval()
    folded = fold_batchnorm(encoder)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    with torch.no_grad():
        before, after = encoder(pictures()), folded(pictures())
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-5 * before.abs().max().item())


@pytest.mark.parametrize("name", ["resnet8", "resnet18-small", "lite0", "mobilenetv3_small_050"])
def test_packed_convolutions_give_the_same_features(name):
    encoder = trained(name)
    net = prepared(encoder, CPU)
    net.precision = None
    assert all(is_packed(net))
    assert not any(is_packed(encoder))
    with torch.no_grad():
        for images in (pictures(), pictures(5), pictures(1, 48)):  # packed for the first of them
            before, after = encoder.taps(images), net.taps(images)
            for layer, features in before.items():
                scale = features.abs().max().item()
                assert torch.allclose(features, after[layer], rtol=1e-3, atol=1e-5 * scale), layer


def test_activations_move_into_the_convolutions():
    net = prepared(build("lite0", image_size=32), CPU)
    assert not any(type(module) in ACTIVATIONS for module in net.modules())


def test_packed_convolutions_follow_autocast():
    folded = fold_batchnorm(trained("resnet8"))
    packed = pack(folded)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before, after = folded.net(pictures()), packed.net(pictures())
    assert after.dtype == torch.bfloat16
    assert torch.allclose(before, after, rtol=0.05, atol=0.02 * before.abs().max().item())


class Twice(nn.Module):
    """A convolution whose output is used as it is and without its negative part."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3), nn.ReLU()

    def forward(self, x):
        y = self.conv(x)
        return F.adaptive_avg_pool2d(self.act(y) + 2 * y, 1).flatten(1)


def test_a_network_that_would_change_is_left_as_it_is():
    encoder = Encoder(Twice(), name="twice", width=4, image_size=16).eval()
    assert pack(encoder) is encoder
    with torch.no_grad():
        features = prepared(encoder, CPU)(pictures())
        assert torch.allclose(features, encoder(pictures()), atol=1e-6)
