"""The methods as the loop sees them: what they return, keep and change, one rule at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.testing import assert_close

from deepclust.errors import DataError, UsageError
from deepclust.losses import concentration, nt_xent_ceiling
from deepclust.methods import METHODS, find
from deepclust.methods.base import Batch, Facts, Method
from deepclust.methods.cc import CC
from deepclust.methods.pcl import PCL, sizes
from deepclust.methods.simclr import SimCLR
from deepclust.nets.parts import mlp


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def same_weights():
    # Methods draw their weights from torch's global stream, as all modules do; the loop seeds it.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def clouds(k: int = 4, each: int = 10, d: int = 8, spread: float = 0.1) -> Tensor:
    """k planted clusters on orthogonal axes, (k · each, d), one after the other."""
    noise = torch.randn(k * each, d, generator=stream(5))
    return torch.eye(d)[:k].repeat_interleave(each, dim=0) + spread * noise


def feature_batch(x: Tensor, index: Tensor, seed: int = 0) -> Batch:
    """Two views of feature rows: the rows with noise of their own."""
    g = stream(seed)
    views = [x[index] + 0.1 * torch.randn(len(index), x.shape[1], generator=g) for _ in range(2)]
    return Batch(views, index)


def build(name: str, n: int = 40, k: int | None = 4, d: int = 8, **options) -> Method:
    """A method on features, through a small encoder that learns."""
    method = find(name)
    return method(mlp(d, d), Facts(n, k, d), method.Config(**options))


def train(method: Method, x: Tensor, steps: int, batch: int = 20, lr: float = 3e-3) -> None:
    """Train as the loop does, in epochs of shuffled whole batches."""
    optimiser, g = torch.optim.Adam(method.trained(), lr=lr), stream(1)
    for epoch in range(math.ceil(steps * batch / len(x))):
        with torch.no_grad():
            method.on_epoch(epoch, lambda: method.embed(x), g)
        for index in torch.randperm(len(x), generator=g).split(batch):
            optimiser.zero_grad()
            sum(method.losses(feature_batch(x, index, epoch), g).values()).backward()
            optimiser.step()
            method.after_step()


# Every method


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_finite_scalars_in_float32_that_reach_the_encoder(name):
    method = build(name)
    terms = method.losses(feature_batch(clouds(), torch.arange(40)), stream())
    assert all(t.shape == () and t.dtype == torch.float32 and t.isfinite() for t in terms.values())
    sum(terms.values()).backward()
    assert all(p.grad is not None for p in method.encoder.parameters())
    assert not any(p.grad is None for p in method.trained())


@pytest.mark.parametrize("name", METHODS)
def test_pictures_and_features_go_through_the_same_method(name):
    picture_net = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    for encoder, shape in [(picture_net, (3, 8, 8)), (nn.Identity(), (6,))]:
        cls = find(name)
        method = cls(encoder, Facts(12, 3, 6), cls.Config())
        views = [torch.rand(12, *shape, generator=stream(i)) for i in range(2)]
        sum(method.losses(Batch(views, torch.arange(12)), stream()).values()).backward()
        method.after_step()
        method.eval()
        z = method.embed(views[0])
        assert z.shape[0] == 12
        assert z.dtype == torch.float32
        assert_close(z.norm(dim=1), torch.ones(12))


@pytest.mark.parametrize("name", METHODS)
def test_a_step_lowers_the_loss(name):
    method, batch = build(name), feature_batch(clouds(), torch.arange(40))
    before = sum(method.losses(batch, stream()).values())
    before.backward()
    torch.optim.SGD(method.trained(), lr=0.01).step()
    assert sum(method.losses(batch, stream()).values()) < before


@pytest.mark.parametrize("name", METHODS)
def test_embedding_and_assigning_leave_the_state_alone(name):
    method = build(name).eval()
    before = {key: value.clone() for key, value in method.state_dict().items()}
    method.embed(clouds())
    method.assign(clouds())
    assert all(torch.equal(before[key], value) for key, value in method.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
def test_the_same_stream_gives_the_same_weights(name):
    ends = []
    for _ in range(2):
        torch.manual_seed(3)
        method = build(name)
        train(method, clouds(), steps=6)
        ends.append(method.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.parametrize("name", METHODS)
def test_the_state_dict_is_the_whole_state(name):
    # In the middle of an epoch after the E step: the copy goes on as the original does, without a
    # new E step.
    options = {"warmup": 0, "negatives": 2, "queue": 7} if name == "pcl" else {}
    first, second = build(name, **options), build(name, **options)
    train(first, clouds(), steps=4)
    second.load_state_dict(first.state_dict())
    for step in range(2):
        batch = feature_batch(clouds(), torch.arange(step, 30, 2), step)
        one, two = (m.losses(batch, stream(step)) for m in (first, second))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
        first.after_step()
        second.after_step()


@pytest.mark.parametrize("name", METHODS)
def test_collapse_reads_as_a_gap_of_zero(name):
    # A head that ignores its input gives equal embeddings. The queue of PCL is filled with them.
    method = build(name)
    for module in method.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.zero_()
            module.bias.data.fill_(1.0)
    if isinstance(method, PCL):
        method.queue.keys.copy_(normalize(torch.ones_like(method.queue.keys), dim=1))
    terms = method.losses(feature_batch(clouds(), torch.arange(40)), stream())
    figures = method.readouts({key: term.item() for key, term in terms.items()}, images=40)
    assert figures["instance_gap"] == pytest.approx(0, abs=1e-5)
    if name == "cc":
        assert figures["cluster_gap"] == pytest.approx(0, abs=1e-5)


# CC


def test_cc_without_k_has_no_cluster_head():
    method = build("cc", k=None)
    assert method.losses(feature_batch(clouds(), torch.arange(40)), stream()).keys() == {"instance"}
    assert method.assign(clouds()) is None
    assert not [key for key in method.state_dict() if key.startswith("cluster")]
    assert method.readouts({"instance": 1.0}, 20) == {"instance_gap": nt_xent_ceiling(20) - 1}
    assert method.advice(2) is None


def test_cc_finds_planted_clusters_with_its_head():
    x, method = clouds(), build("cc")
    train(method, x, steps=200, batch=40, lr=1e-2)
    p = method.eval().assign(x)
    assert p is not None
    assert p.shape == (40, 4)
    assert_close(p.sum(dim=1), torch.ones(40))
    label = p.argmax(dim=1).view(4, 10)
    assert all(len(set(row)) == 1 for row in label.tolist())
    assert len(set(label[:, 0].tolist())) == 4


def test_cc_weighs_its_entropy_term():
    batch = feature_batch(clouds(), torch.arange(40))
    one, half, off = (build("cc", entropy_weight=w) for w in (1.0, 0.5, 0.0))
    half.load_state_dict(one.state_dict())
    full = one.losses(batch, stream())["balance"]
    assert full > 0
    assert_close(half.losses(batch, stream())["balance"], full / 2)
    assert off.losses(batch, stream())["balance"] == 0


def test_cc_normalises_each_view_by_itself_and_simclr_both_together():
    # A view twice as bright is the same view after a BatchNorm of its own.
    for cls, alike in [(CC, True), (SimCLR, False)]:
        method = cls(nn.BatchNorm1d(8), Facts(20, None, 8), cls.Config())
        x = clouds()
        same, bright = (
            method.losses(Batch([x, scale * x], torch.arange(40)), stream())["instance"]
            for scale in (1, 50)
        )
        assert (abs(same.item() - bright.item()) < 1e-2) is alike


@pytest.mark.parametrize(("batch", "word"), [(7, "too few"), (8, "few"), (19, "few"), (20, None)])
def test_cc_speaks_up_about_small_batches(batch, word):
    said = build("cc", k=4).advice(batch)
    assert said is None if word is None else word in said
    assert said is None or ("too few" in said) == (batch < 8)


# PCL


def test_the_slow_batch_norm_keeps_the_statistics_of_its_own_passes():
    method = PCL(nn.BatchNorm1d(8), Facts(40, 4, 8), PCL.Config(momentum=0.5))
    method.encoder.weight.data.fill_(3.0)
    x = clouds()
    method.losses(Batch([x, 100 + x], torch.arange(40)), stream())
    method.after_step()
    assert_close(method.slow_encoder.weight.data, torch.full((8,), 2.8))
    # Running means start at 0 and take a tenth of each batch's.
    assert_close(method.encoder.running_mean, 0.1 * x.mean(dim=0))
    assert_close(method.slow_encoder.running_mean, 0.1 * (100 + x).mean(dim=0))


def test_pcl_pushes_its_keys_after_the_step():
    method = build("pcl", queue=6)
    before = method.queue.keys.clone()
    batch = feature_batch(clouds(), torch.arange(4))
    with torch.no_grad():
        keys = method.embed(batch.views[1])
    method.losses(batch, stream())
    assert torch.equal(method.queue.keys, before)
    method.after_step()
    assert_close(method.queue.keys[:4], keys)
    assert torch.equal(method.queue.keys[4:], before[4:])


def test_pcls_slow_copy_follows_quickly_at_first():
    # From 0 towards 1 with momenta min(¼, 1/10), min(¼, 2/11), min(¼, 3/12), ¼: what is left of
    # the start is their product.
    method = PCL(nn.BatchNorm1d(8), Facts(40, 4, 8), PCL.Config(momentum=0.25))
    method.slow_encoder.weight.data.zero_()
    left = 1.0
    for momentum in (1 / 10, 2 / 11, 3 / 12, 1 / 4):
        method.after_step()
        left *= momentum
        assert_close(method.slow_encoder.weight.data, torch.full((8,), 1 - left))


def test_pcl_contrasts_a_picture_with_its_batch_mates_and_the_queue():
    # Heads that ignore their input: 40 equal keys, then 20 more in the queue.
    method, batch = build("pcl", queue=20), feature_batch(clouds(), torch.arange(40))
    for linear in (method.slow_head[2], method.head[2]):
        linear.weight.data.zero_()
    assert method.losses(batch, stream())["instance"].item() == pytest.approx(math.log(40))
    method.queue.push(method.eval().embed(clouds()[:20]))
    assert method.train().losses(batch, stream())["instance"].item() == pytest.approx(math.log(60))


@pytest.mark.parametrize(
    ("images", "asked", "length"),
    [(40, 16384, 20), (41, 16384, 20), (3, 7, 1), (99_999, None, 0), (100_000, None, 16384)],
)
def test_pcls_queue_holds_half_of_the_pictures_at_most(images, asked, length):
    assert len(build("pcl", n=images, queue=asked).queue.keys) == length


def test_pcl_contrasts_with_prototypes_only_after_the_warm_up():
    method, x = build("pcl", warmup=2), clouds()
    batch = feature_batch(x, torch.arange(40))
    for epoch in range(3):
        figures = method.on_epoch(epoch, lambda: normalize(x, dim=1).repeat(1, 16), stream())
        assert bool(figures) == (epoch == 2)
        assert ("prototype" in method.losses(batch, stream())) == (epoch == 2)


def planted(**options) -> tuple[PCL, dict[str, float], Tensor]:
    """PCL after an E step on four planted clouds of ten unit rows."""
    method = build("pcl", warmup=0, feature_dim=8, **options)
    x = normalize(clouds(), dim=1)
    assert isinstance(method, PCL)
    return method, method.on_epoch(0, lambda: x, stream()), x


def test_the_e_step_finds_planted_clusters_and_their_concentrations():
    method, figures, x = planted(clusters=[4])
    label = method.label[0].view(4, 10)
    assert all(len(set(row)) == 1 for row in label.tolist())
    centers = torch.stack([x[method.label[0] == c].mean(dim=0) for c in range(4)])
    assert_close(method.prototypes, normalize(centers, dim=1))
    # Distances are to the centres before they were normalised.
    distance = (x - centers[method.label[0]]).norm(dim=1)
    assert_close(method.phi, concentration(distance, method.label[0], 4, 0.2))
    assert figures["phi_mean"] == pytest.approx(0.2)
    assert figures["phi_min"] <= figures["phi_mean"] <= figures["phi_max"]
    assert figures["singletons"] == 0
    assert "agreement" not in figures


def test_a_second_e_step_starts_from_the_first_and_says_how_far_they_agree():
    method, _, x = planted(clusters=[4, 8])
    label = method.label.clone()
    figures = method.on_epoch(1, lambda: x, stream(1))
    assert figures["agreement"] == pytest.approx(1)
    assert torch.equal(method.label, label)


def test_the_e_step_keeps_shapes_when_pictures_are_copies():
    # Three distinct rows for eight prototypes: three are used, five are zero and attract nobody.
    method = build("pcl", warmup=0, feature_dim=8, clusters=[8])
    x = torch.eye(8)[:3].repeat(14, 1)[:40]
    figures = method.on_epoch(0, lambda: x, stream())
    assert method.prototypes.norm(dim=1).tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert_close(method.phi, torch.full((8,), 0.2))
    assert figures["singletons"] == pytest.approx(5 / 8)
    terms = method.losses(feature_batch(clouds(), torch.arange(40)), stream())
    assert terms["prototype"].isfinite()
    method.on_epoch(1, lambda: x, stream())


def test_pcl_counts_each_prototype_once_unless_asked_for_the_published_form():
    # Queries on their own prototypes: distinct gets near 0, while the published form cannot go
    # below the log of how often the batch holds the cluster: 10, so log 10.
    method, _, x = planted(clusters=[4])
    repeated, _, _ = planted(clusters=[4], prototypes="repeated")
    q, index = method.prototypes[method.label[0]], torch.arange(len(x))
    assert method._prototype(q, index, stream()) < 0.1
    assert repeated._prototype(q, index, stream()) > math.log(10) - 1e-5


def test_pcl_draws_at_most_the_prototypes_that_the_batch_does_not_own():
    # Zero queries make the loss the log of the number of choices: 8 prototypes, of which the
    # batch of one picture owns one; more negatives than 7 cannot be had.
    for most, choices in [(3, 4), (7, 8), (1000, 8), (None, 8)]:
        method, _, _ = planted(clusters=[8], negatives=most)
        loss = method._prototype(torch.zeros(1, 8), torch.tensor([0]), stream())
        assert loss.item() == pytest.approx(math.log(choices), abs=1e-6)


def test_pcl_trains_with_fewer_prototypes_than_a_batch_holds_pictures():
    method = build("pcl", warmup=0, clusters=[2, 3], queue=5)
    train(method, clouds(), steps=3, batch=40)
    assert all(p.isfinite().all() for p in method.parameters())


def test_pcl_embeds_with_its_slow_copy():
    method, x = build("pcl"), clouds()
    before = method.eval().embed(x)
    method.encoder[0].weight.data.zero_()
    assert torch.equal(method.embed(x), before)
    method.after_step()
    assert not torch.equal(method.embed(x), before)


@pytest.mark.parametrize(
    ("images", "k", "asked", "expected"),
    [
        (400, None, None, [4, 8, 16]),
        (13_000, None, None, [130, 260, 520]),
        (400, 10, None, [10, 20, 40]),
        (50, 10, None, [10, 20, 25]),
        (10, None, None, [4, 5]),
        (3, None, None, [2]),
        (400, 10, [30, 7, 7], [7, 30]),
    ],
)
def test_pcl_takes_its_sizes_from_what_is_known(images, k, asked, expected):
    assert sizes(Facts(images, k, 8), asked) == expected


def test_pcl_refuses_sizes_that_the_pictures_cannot_fill():
    with pytest.raises(UsageError, match="40 clusters of 40"):
        sizes(Facts(40, None, 8), [4, 40])
    with pytest.raises(UsageError, match="1 clusters"):
        sizes(Facts(40, None, 8), [1])
    with pytest.raises(DataError, match="at least 3"):
        sizes(Facts(2, None, 8), None)


def test_pcl_brings_planted_clusters_closer():
    x, method = clouds(spread=0.3), build("pcl", warmup=4, momentum=0.9)
    owner = np.repeat(np.arange(4), 10)
    same = torch.from_numpy(owner[:, None] == owner)

    def contrast() -> float:
        with torch.no_grad():
            z = method.eval().embed(x)
        cosine = z @ z.T
        return (cosine[same].mean() - cosine[~same].mean()).item()

    before = contrast()
    train(method.train(), x, steps=60)
    assert contrast() > before + 0.2
