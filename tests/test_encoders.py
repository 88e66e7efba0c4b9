"""Encoders by name: shapes, seeds, weights from everywhere, and none from the network."""

from __future__ import annotations

import socket

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from deepclust import weights
from deepclust.errors import CheckpointError, DataError, UsageError
from deepclust.nets.encoders import ENCODERS, auto, build
from deepclust.run import Run
from tests.shapes import planted

NO_NETWORK = "no network in tests"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_args: object, **_more: object) -> None:
        raise OSError(NO_NETWORK)

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def pictures(n: int = 2, side: int = 32) -> torch.Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_returns_rows_of_its_width(name):
    encoder = build(name).eval()
    with torch.no_grad():
        features = encoder(pictures())
        taps = encoder.taps(pictures())
    assert features.shape == (2, encoder.width)
    assert features.dtype == torch.float32
    assert torch.equal(taps["head"], features)
    assert all(layer.ndim == 2 and len(layer) == 2 for layer in taps.values())


def test_resnet8_is_as_small_as_it_says():
    # Convolutions: stem 3·32·9; stage c→d: 9cd + 9dd + cd, for 32→64→128→256: 1,205,088.
    # Batch norm: 2·(32 + 3·(64 + 128 + 256)) = 2,752.
    encoder = build("resnet8")
    assert sum(p.numel() for p in encoder.parameters()) == 1_205_088 + 2_752
    assert encoder.width == 256


def test_our_networks_take_the_weights_of_torchvision():
    models = pytest.importorskip("torchvision.models")
    for name in ("resnet18", "resnet50"):
        theirs = models.get_model(name, weights=None).eval()
        ours = build(name).eval()
        ours.net.load_state_dict({n: t for n, t in theirs.state_dict().items() if n[:3] != "fc."})
        theirs.fc = nn.Identity()
        with torch.no_grad():
            assert torch.allclose(ours(pictures()), theirs(ours.normalise(pictures())), atol=1e-5)


@pytest.mark.parametrize("side", [32, 45, 64])
def test_lite0_equals_timms(side):
    timm = pytest.importorskip("timm")
    ours = build("lite0", weights="packaged").eval()
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    theirs.load_state_dict(ours.net.state_dict())
    images = pictures(side=side)
    with torch.no_grad():
        assert torch.allclose(ours(images), theirs((images * 255 - 127) / 128), atol=1e-4)


def test_the_packaged_taps_are_the_three_layers_of_the_recipe():
    encoder = build("lite0", weights="packaged").eval()
    assert "ImageNet" in encoder.origin
    assert encoder.licence == "Apache-2.0"
    with torch.no_grad():
        taps = encoder.taps(pictures(side=128))
    assert {name: layer.shape[1] for name, layer in taps.items()} == {
        "head": 1280,
        "grid": 1280,
        "s5": 192,
    }


def drawn(shape: str, shift: int) -> torch.Tensor:
    """A dark disc or stripes on a light ground, moved by `shift` pixels."""
    y, x = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    inside = ((x - 48 - shift) ** 2 + (y - 48) ** 2 < 24**2) if shape == "disc" else (
        (x + shift) % 16 < 8
    )  # fmt: skip
    colour = torch.tensor([0.7, 0.2, 0.1] if shape == "disc" else [0.1, 0.3, 0.6])
    return torch.where(inside, colour[:, None, None], torch.tensor(0.95))


def test_packaged_features_of_like_pictures_are_closer_than_of_unlike_ones():
    encoder = build("lite0", weights="packaged").eval()
    images = torch.stack([drawn("disc", 0), drawn("disc", 6), drawn("bars", 0), drawn("bars", 3)])
    with torch.no_grad():
        z = F.normalize(encoder(images), dim=1)
    like = z @ z.T
    assert min(like[0, 1], like[2, 3]) > like[:2, 2:].max() + 0.1


def test_the_same_seed_gives_the_same_weights_and_leaves_the_world_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (build("resnet8", seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["net.conv1.weight"], c["net.conv1.weight"])


def test_convolutions_start_with_kaimings_spread():
    # Fan-out of layer3's last convolution: 256 outputs · 3 · 3, so the spread is √(2 / 2304).
    weight = build("resnet8").state_dict()["net.layer3.0.conv2.weight"]
    assert weight.std().item() == pytest.approx((2 / 2304) ** 0.5, rel=0.01)


def test_a_vit_takes_another_picture_size():
    encoder = build("vit_tiny_patch16_224", image_size=32).eval()
    assert encoder.image_size == 32
    assert encoder.mean.flatten().tolist() == pytest.approx([0.5] * 3)
    with torch.no_grad():
        taps = encoder.taps(pictures())
    assert {name: layer.shape for name, layer in taps.items()} == {
        "head": (2, 192),
        "patches": (2, 192),
    }
    with pytest.raises(UsageError, match="multiple of 16"):
        build("vit_tiny_patch16_224", image_size=40)


def test_a_vit_of_ours_is_read_at_the_size_it_was_made_at(tmp_path):
    trained = build("vit_tiny_patch16_224", image_size=32, seed=1)
    state = {f"encoder.{name}": tensor for name, tensor in trained.state_dict().items()}
    weights.save(tmp_path / "m.safetensors", state, {"image_size": 32})
    encoder = build("vit_tiny_patch16_224", weights=str(tmp_path / "m.safetensors"), image_size=48)
    with torch.no_grad():
        assert encoder(pictures(side=48)).shape == (2, 192)


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(UsageError, match="unknown encoder 'resnet81'") as caught:
        build("resnet81")
    assert "resnet18" in (caught.value.hint or "")
    for name in ("hf-hub:someone/something", "resnet18d.nosuchtag", ""):
        with pytest.raises(UsageError):
            build(name)


@pytest.mark.parametrize(
    ("name", "kind"), [("resnet18", "packaged"), ("lite0", "hub"), ("resnet18-small", "hub")]
)
def test_weights_that_an_encoder_does_not_have_are_a_wrong_use(name, kind):
    with pytest.raises(UsageError, match=name):
        build(name, weights=kind)


def test_a_failed_download_says_at_once_how_to_do_without(monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    # The hub's own client would try for most of a minute.
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: pytest.fail("tried again"))
    with pytest.raises(DataError, match="cannot download the weights of resnet18") as caught:
        build("resnet18", weights="hub")
    assert "another machine" in (caught.value.hint or "")


def test_a_file_of_ours_fills_the_encoder_and_its_normalisation(tmp_path):
    trained = build("resnet8", seed=1)
    trained.mean.fill_(0.25)
    path = tmp_path / "model.safetensors"
    state = {f"encoder.{name}": tensor for name, tensor in trained.state_dict().items()}
    weights.save(path, {**state, "head.weight": torch.ones(2)}, {"origin": "this folder"})
    encoder = build("resnet8", weights=str(path))
    assert encoder.origin == "this folder"
    assert all(torch.equal(t, encoder.state_dict()[n]) for n, t in trained.state_dict().items())


@pytest.mark.parametrize("prefix", ["", "module.encoder_q.", "backbone."])
def test_a_classifier_of_a_foreign_checkpoint_is_left_out(tmp_path, prefix):
    trained = build("resnet8", seed=1).net.state_dict()
    state = {f"{prefix}{name}": tensor for name, tensor in trained.items()}
    extra = {f"{prefix}fc.weight": torch.ones(10, 256), f"{prefix}fc.bias": torch.ones(10)}
    torch.save({"state_dict": {**state, **extra}, "epoch": 3}, tmp_path / "full.pth")
    encoder = build("resnet8", weights=str(tmp_path / "full.pth"))
    assert all(torch.equal(tensor, encoder.net.state_dict()[n]) for n, tensor in trained.items())
    assert encoder.origin == "weights from full.pth"


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    torch.save(build("resnet18-small").net.state_dict(), tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        build("resnet8", weights=str(tmp_path / "other.pt"))
    assert "conv1.weight is float32 64×3×3×3 instead of float32 32×3×3×3" in caught.value.message
    assert "extra" in caught.value.message


def test_a_word_that_is_no_file_lists_what_weights_can_be(tmp_path):
    with pytest.raises(CheckpointError, match="no weights at") as caught:
        build("resnet8", weights="imagenet")
    assert "packaged" in (caught.value.hint or "")


def test_small_pictures_train_a_small_net_and_others_take_the_packaged_one():
    assert auto(28, grey=True) == auto(40, grey=True) == ("resnet8", "none")
    assert auto(41, grey=True) == auto(512, grey=False) == ("lite0", "packaged")
    assert auto(32, grey=False) == ("lite0", "packaged")


def test_a_vit_from_a_file_clusters_a_folder_in_its_own_size(cli, workdir):
    timm = pytest.importorskip("timm")
    images = planted(workdir, (4, 4, 4, 4))
    torch.manual_seed(0)
    net = timm.create_model("vit_small_patch14_dinov2", num_classes=0)
    save_file(net.state_dict(), workdir / "dino.safetensors")
    words = ("cluster", images, "--k", 2, "--fast", "--encoder", "vit_small_patch14_dinov2")
    quick = ("--threads", 1, "--workers", 0)
    refused = cli(*words, *quick)
    assert refused.exit_code == 2
    assert "needs weights" in refused.stderr
    done = cli(
        *words, "--weights", workdir / "dino.safetensors", "--set", "encoder.image_size=98", *quick
    )
    assert done.exit_code == 0, done.stderr
    run = Run.open(workdir / "runs" / "images")
    assert run.embeddings().shape[0] == 16
    assert run.info["encoder"]["name"] == "vit_small_patch14_dinov2"
    assert "dino.safetensors" in run.info["encoder"]["origin"]
    assert "at 98 px" in done.stderr
    assert "dino.safetensors" in done.stderr


def test_how_to_embed_is_not_for_a_run_that_has_its_embedding(cli, workdir):
    images = planted(workdir, (3, 3, 3, 3))
    quick = ("--threads", 1, "--workers", 0)
    assert cli("cluster", images, "--k", 2, "--fast", *quick).exit_code == 0
    done = cli("cluster", workdir / "runs" / "images", "--k", 2, "--fast", *quick)
    assert done.exit_code == 2
    assert "has its embedding" in done.stderr
