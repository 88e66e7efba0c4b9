"""The objectives against closed forms that can be derived by hand, and against their laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from deepclust import losses

CLOSE = {"rtol": 0, "atol": 1e-12}


def array(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def unit(n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1)


@st.composite
def matrices(draw: st.DrawFn, rows: tuple[int, int] = (2, 7), columns: tuple[int, int] = (2, 6)):
    n, d = draw(st.integers(*rows)), draw(st.integers(*columns))
    seed = draw(st.integers(0, 2**31))
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_nt_xent_of_orthonormal_views(n):
    # Each row: similarity 1 to its own view, 0 to the 2(n − 1) others, so
    # −log( e^(1/τ) / (e^(1/τ) + 2(n − 1)) ) = log(1 + 2(n − 1) e^(−1/τ)).
    eye = torch.eye(n, dtype=torch.float64)
    expected = math.log(1 + 2 * (n - 1) * math.exp(-1 / 0.5))
    assert losses.nt_xent(eye, eye, 0.5).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [2, 5, 256])
def test_total_collapse_sits_at_the_ceiling(n):
    same = torch.ones(n, 4, dtype=torch.float64)
    assert losses.nt_xent(same, same, 0.1).item() == pytest.approx(losses.nt_xent_ceiling(n))
    label = torch.arange(n) % 2
    with_labels = losses.supcon(torch.stack([same, same], dim=1), label, 0.1).item()
    assert with_labels == pytest.approx(losses.nt_xent_ceiling(n))


@pytest.mark.parametrize("k", [2, 4, 10, 20])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_cluster_contrast_reaches_both_its_bounds(k, temperature):
    floor, ceiling = losses.cluster_bounds(k, temperature)
    onehot = torch.eye(k, dtype=torch.float64).repeat(3, 1)
    uniform = torch.full((3 * k, k), 1 / k, dtype=torch.float64)
    assert losses.cluster_contrast(onehot, onehot, temperature).item() == pytest.approx(floor)
    assert losses.cluster_contrast(uniform, uniform, temperature).item() == pytest.approx(ceiling)


def test_cluster_bounds_are_the_tabled_ones():
    # log(1 + 18/e) and log 19.
    floor, ceiling = losses.cluster_bounds(10)
    assert floor == pytest.approx(2.031, abs=5e-4)
    assert ceiling == pytest.approx(2.944, abs=5e-4)


def test_balance_is_zero_for_equal_clusters_and_log_k_for_a_single_one():
    onehot = torch.eye(4, dtype=torch.float64)
    assert losses.balance(onehot).item() == pytest.approx(0, abs=1e-12)
    assert losses.balance(onehot[[2, 2, 2]]).item() == pytest.approx(math.log(4), abs=1e-12)


def test_info_nce_of_equal_embeddings_is_the_log_of_the_choices():
    same = torch.ones(3, 4, dtype=torch.float64)
    queue = torch.full((7, 4), 0.5, dtype=torch.float64)
    assert losses.info_nce(same, same, queue, 0.2).item() == pytest.approx(math.log(8))
    mates = losses.info_nce(same, same, queue, 0.2, mates=True)
    assert mates.item() == pytest.approx(math.log(10))


def test_the_keys_of_batch_mates_are_negatives_if_asked_for():
    # Orthonormal pictures, the queue orthogonal to all: own key at cosine 1, two mates and four
    # keys of the queue at 0, so log(1 + 6 e^(−1/τ)).
    eye = torch.eye(4, dtype=torch.float64)
    queue = eye[[3, 3, 3, 3]]
    loss = losses.info_nce(eye[:3], eye[:3], queue, 0.5, mates=True)
    assert loss.item() == pytest.approx(math.log(1 + 6 * math.exp(-2)), abs=1e-12)


def test_concentration_by_hand():
    # Two clusters of two: mean distances 1 and 3, so φ ∝ 1 and 3; the cluster of one takes 3.
    # Percentiles of (1, 3, 3)/log 12: p10 at 0.2 of the way from 1 to 3, 1.4; p90 is 3. The mean
    # of (1.4, 3, 3) is 7.4/3, so φ = τ · 3/7.4 · (1.4, 3, 3).
    distance = array([1, 1, 2, 4, 9])
    phi = losses.concentration(distance, torch.tensor([0, 0, 1, 1, 2]), 3, 0.2)
    assert_close(phi, 0.2 * 3 / 7.4 * array([1.4, 3, 3]), **CLOSE)


def test_concentration_survives_clusters_of_copies():
    # The published φ of a cluster of copies is 0 where a tenth of the clusters are such.
    label = torch.tensor([0, 0, 1, 1, 2, 2])
    phi = losses.concentration(array([0, 0, 0, 0, 1, 1]), label, 3, 0.2)
    assert phi.min().item() == pytest.approx(0.02)
    still = losses.concentration(torch.zeros(6), label, 3, 0.2)
    assert_close(still, torch.full((3,), 0.2))
    alone = losses.concentration(torch.ones(3), torch.arange(3), 3, 0.2)
    assert_close(alone, torch.full((3,), 0.2))


def test_proto_nce_counts_a_shared_prototype_once():
    # Four images sit on one of two orthogonal prototypes: cosine 1 and 0, φ = ½. Distinct:
    # log(1 + e^−2). Repeated: each sees its own prototype four times, log(4 + e^−2).
    prototypes = torch.eye(2, dtype=torch.float64)
    q, label, phi = prototypes[[0, 0, 0, 0]], torch.zeros(4, dtype=torch.long), array([0.5, 0.5])
    distinct = losses.proto_nce(q, prototypes, label, phi)
    repeated = losses.proto_nce(q, prototypes, label, phi, repeated=True)
    assert distinct.item() == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-12)
    assert repeated.item() == pytest.approx(math.log(4 + math.exp(-2)), abs=1e-12)


def test_proto_nce_takes_the_batchs_own_clusters_and_the_given_negatives():
    # Cosines 0 everywhere, so the loss is the log of the number of choices: of 6 clusters the
    # batch holds two and one more is given; without a choice of negatives all 6 count.
    prototypes = torch.eye(8, dtype=torch.float64)[:6]
    q = torch.eye(8, dtype=torch.float64)[[6, 7, 7]]
    label, phi = torch.tensor([4, 1, 4]), torch.ones(6)
    some = losses.proto_nce(q, prototypes, label, phi, torch.tensor([3]))
    assert some.item() == pytest.approx(math.log(3))
    assert losses.proto_nce(q, prototypes, label, phi).item() == pytest.approx(math.log(6))
    assert losses.absent(label, 6).tolist() == [0, 2, 3, 5]


def test_distinct_and_repeated_proto_nce_agree_on_a_batch_without_repeats():
    q, prototypes, phi = unit(3, 5), unit(6, 5, 1), array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])
    label = torch.tensor([5, 0, 2])
    distinct = losses.proto_nce(q, prototypes, label, phi)
    assert_close(losses.proto_nce(q, prototypes, label, phi, repeated=True), distinct, **CLOSE)


def test_uniform_of_equal_rows_is_zero_and_align_of_equal_views_too():
    same = torch.ones(5, 3, dtype=torch.float64)
    assert losses.uniform(same).item() == 0
    assert losses.align(same, same).item() == 0
    assert losses.align(same, -same).item() == pytest.approx(4)


def test_effective_rank_counts_directions():
    eye = torch.eye(6)
    assert losses.effective_rank(eye[:, :4]) == pytest.approx(4)
    assert losses.effective_rank(torch.ones(5, 3)) == pytest.approx(1, abs=1e-5)
    # Singular values 3 and 1: shares ¾ and ¼, exp(H) = 4 / 3^¾.
    assert losses.effective_rank(torch.diag(array([3, 1]))) == pytest.approx(4 / 3**0.75)


@pytest.mark.parametrize("balanced", [True, False])
def test_self_label_is_zero_where_no_image_is_sure(balanced):
    strong = unit(4, 3).requires_grad_()
    loss = losses.self_label(torch.zeros(4, 3), strong, 0.9, balanced=balanced)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, strong)[0].abs().max() == 0


@given(a=matrices(), seed=st.integers(0, 99), scale=st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_nt_xent_ignores_order_and_scale(a, seed, scale):
    b = a + torch.randn(a.shape, generator=torch.Generator().manual_seed(seed)).double()
    turned = torch.arange(len(a)).roll(1)
    loss = losses.nt_xent(a, b, 0.5)
    assert_close(losses.nt_xent(b, a, 0.5), loss)
    assert_close(losses.nt_xent(a[turned], b[turned], 0.5), loss)
    assert_close(losses.nt_xent(scale * a, b, 0.5), loss)


@given(a=matrices(), temperature=st.floats(0.05, 2))
@settings(max_examples=30, deadline=None)
def test_nt_xent_stays_within_what_cosines_allow(a, temperature):
    # The logits span at most 2/τ, so the loss lies within that of its value at equal logits.
    loss = losses.nt_xent(a, a.flip(0), temperature).item()
    ceiling = losses.nt_xent_ceiling(len(a))
    assert max(0, ceiling - 2 / temperature) - 1e-9 <= loss <= ceiling + 2 / temperature + 1e-9


@given(a=matrices(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_supcon_without_labels_is_nt_xent(a, seed):
    b = a + torch.randn(a.shape, generator=torch.Generator().manual_seed(seed)).double()
    expected = losses.nt_xent(a, b, 0.3)
    views = torch.stack([a, b], dim=1)
    assert_close(losses.supcon(views, None, 0.3), expected)
    assert_close(losses.supcon(views, torch.arange(len(a)), 0.3), expected)


@given(logits=matrices((2, 9), (2, 6)), sharpness=st.floats(0, 200))
@settings(max_examples=50, deadline=None)
def test_balance_lies_between_zero_and_log_k(logits, sharpness):
    value = losses.balance((sharpness * logits).softmax(dim=1)).item()
    assert -1e-12 <= value <= math.log(logits.shape[1]) + 1e-12


@given(logits=matrices((2, 9), (2, 6)), sharpness=st.floats(0, 200))
@settings(max_examples=50, deadline=None)
def test_cluster_contrast_of_agreeing_views_keeps_its_bounds(logits, sharpness):
    # Columns are not negative, so cosines lie in [0, 1]; with its own view at cosine 1 a cluster
    # cannot do worse than uniform nor better than orthogonal. An empty column has no own view.
    p = (sharpness * logits).softmax(dim=1)
    p = (p + 1e-6) / (p + 1e-6).sum(dim=1, keepdim=True)
    floor, ceiling = losses.cluster_bounds(p.shape[1])
    assert floor - 1e-9 <= losses.cluster_contrast(p, p, 1.0).item() <= ceiling + 1e-9


@given(x=matrices(), t=st.floats(0.5, 4))
@settings(max_examples=30, deadline=None)
def test_uniform_keeps_its_bounds(x, t):
    n = len(x)
    assert -2 * t * n / (n - 1) - 1e-9 <= losses.uniform(x, t).item() <= 1e-9


@given(x=matrices((3, 12), (1, 3)), k=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_concentration_is_positive_and_centred_on_the_temperature(x, k):
    phi = losses.concentration(x.norm(dim=1), torch.arange(len(x)) % k, k, 0.2)
    assert phi.shape == (k,)
    assert (phi >= 0.02 - 1e-12).all()
    assert phi.mean().item() >= 0.2 - 1e-12


@given(x=matrices((2, 9), (2, 6)))
@settings(max_examples=30, deadline=None)
def test_effective_rank_lies_between_one_and_full_rank(x):
    assert 1 - 1e-9 <= losses.effective_rank(x) <= min(x.shape) + 1e-6


def test_half_precision_is_widened_and_double_is_kept():
    a, b = unit(4, 8), unit(4, 8, 1)
    assert losses.nt_xent(a, b, 0.5).dtype == torch.float64
    half = losses.nt_xent(a.bfloat16(), b.bfloat16(), 0.5)
    assert half.dtype == torch.float32
    assert_close(half, losses.nt_xent(a.bfloat16().double(), b.bfloat16().double(), 0.5).float())
    assert losses.balance(a.abs().half()).dtype == torch.float32


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: losses.nt_xent(a, b, 0.5),
        lambda a, b: losses.cluster_contrast(a.softmax(1), b.softmax(1), 1.0),
        lambda a, b: losses.balance(a.softmax(1)) + losses.scan(a, b),
        lambda a, b: losses.supcon(torch.stack([a, b], 1), torch.tensor([0, 1, 0]), 0.5),
        lambda a, b: losses.info_nce(a, b, unit(5, 4, 2), 0.5),
        lambda a, b: losses.info_nce(a, b, unit(5, 4, 2), 0.5, mates=True),
        lambda a, b: losses.proto_nce(a, b, torch.tensor([0, 2, 0]), torch.ones(3)),
        lambda a, b: losses.align(a, b) + losses.uniform(a),
    ],
    ids=[
        "nt_xent",
        "cluster",
        "balance_scan",
        "supcon",
        "info_nce",
        "mates",
        "proto_nce",
        "align_uniform",
    ],
)
def test_gradients_agree_with_finite_differences(loss):
    a, b = 1.5 * unit(3, 4), 0.7 * unit(3, 4, 1)
    assert torch.autograd.gradcheck(loss, (a.requires_grad_(), b.requires_grad_()))
