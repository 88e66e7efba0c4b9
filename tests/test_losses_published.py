"""The objectives against what the published code gives for the same input.

The numbers in golden/ were recorded by running each repository at the commit named in the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from deepclust import losses

GOLDEN = Path(__file__).parent / "golden"
GRADIENT = {"rtol": 0, "atol": 1e-8}


def golden(file: str, *starts: str) -> list[Any]:
    """Return the cases of a golden file whose names start so, as test parameters."""
    cases = json.loads((GOLDEN / f"{file}.json").read_text(encoding="utf-8"))["cases"]
    chosen = [case for case in cases if case["name"].startswith(starts or ("",))]
    return [pytest.param(case["inputs"], case["outputs"], id=case["name"]) for case in chosen]


def array(values: Any, *, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def along_sphere(z: Tensor, gradient: list[Any]) -> Tensor:
    """The published gradient at unit rows, without the part that normalising takes away."""
    g, z = array(gradient), z.detach()
    return g - (g * z).sum(-1, keepdim=True) * z


def grad_of(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize(("given_", "expected"), golden("cc", "instance"))
def test_nt_xent_is_ccs_instance_loss(given_, expected):
    a, b = array(given_["z_i"], grad=True), array(given_["z_j"], grad=True)
    loss = losses.nt_xent(a, b, given_["temperature"])
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-9)
    ga, gb = grad_of(loss, a, b)
    assert_close(ga, along_sphere(a, expected["grad_z_i"]), **GRADIENT)
    assert_close(gb, along_sphere(b, expected["grad_z_j"]), **GRADIENT)


@pytest.mark.parametrize(("given_", "expected"), golden("cc", "instance"))
def test_the_core_has_ccs_gradients_unprojected(given_, expected):
    a, b = array(given_["z_i"], grad=True), array(given_["z_j"], grad=True)
    image = torch.arange(len(a)).repeat(2)
    same = image[:, None] == image
    loss = losses.multi_positive_nce(torch.cat([a, b]), same, given_["temperature"])
    ga, gb = grad_of(loss, a, b)
    assert_close(ga, array(expected["grad_z_i"]), **GRADIENT)
    assert_close(gb, array(expected["grad_z_j"]), **GRADIENT)


@pytest.mark.parametrize(("given_", "expected"), golden("cc", "cluster_B"))
def test_cluster_contrast_and_balance_are_ccs_cluster_loss(given_, expected):
    a, b = array(given_["c_i"], grad=True), array(given_["c_j"], grad=True)
    contrast = losses.cluster_contrast(a, b, given_["temperature"])
    uneven = losses.balance(a), losses.balance(b)
    assert contrast.item() == pytest.approx(expected["contrast"], abs=1e-9)
    assert uneven[0].item() == pytest.approx(expected["entropy_penalty_i"], abs=1e-9)
    assert uneven[1].item() == pytest.approx(expected["entropy_penalty_j"], abs=1e-9)
    total = contrast + sum(uneven)
    assert total.item() == pytest.approx(expected["total"], abs=1e-9)
    ga, gb = grad_of(total, a, b)
    assert_close(ga, array(expected["grad_c_i"]), **GRADIENT)
    assert_close(gb, array(expected["grad_c_j"]), **GRADIENT)


@pytest.mark.parametrize(("given_", "expected"), golden("cc", "cluster_empty"))
def test_an_empty_cluster_is_finite_where_the_published_code_gives_nan(given_, expected):
    a, b = array(given_["c_i"], grad=True), array(given_["c_j"], grad=True)
    assert expected["total_is_nan"]
    # Columns (1,0,1,0), (0,1,0,1) and 0: rows 1 and 2 of each view see 1, 0, 0, 0, 0 and the
    # empty row sees five zeros, so (2 log(1 + 4/e) + log 5) / 3. Balance: log 3 − log 2, twice.
    contrast = losses.cluster_contrast(a, b, 1.0)
    expected_contrast = (2 * math.log(1 + 4 / math.e) + math.log(5)) / 3
    assert contrast.item() == pytest.approx(expected_contrast, abs=1e-12)
    uneven = losses.balance(a) + losses.balance(b)
    assert uneven.item() == pytest.approx(2 * math.log(1.5), abs=1e-12)
    assert all(g.isfinite().all() for g in grad_of(contrast + uneven, a, b))


@pytest.mark.parametrize(("given_", "expected"), golden("simclr"))
def test_nt_xent_is_half_of_simclrs_value(given_, expected):
    a, b = array(given_["hidden"]).chunk(2)
    loss = losses.nt_xent(a, b, given_["temperature"]).item()
    assert loss == pytest.approx(expected["nt_xent_mean_over_2N"], abs=1e-9)
    assert 2 * loss == pytest.approx(expected["loss_a_plus_b"], abs=1e-9)


@pytest.mark.parametrize(("given_", "expected"), golden("supcon"))
def test_supcon_is_the_published_one_up_to_its_factor(given_, expected):
    z = array(given_["features"], grad=True)
    label = None if given_["labels"] is None else torch.tensor(given_["labels"])
    tau, base = given_["temperature"], given_["base_temperature"]
    loss = losses.supcon(z, label, tau, base)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-9)
    plain = losses.supcon(z, label, tau).item()
    assert plain == pytest.approx(expected["loss"] * base / tau, abs=1e-9)
    if "grad" in expected:
        assert_close(grad_of(loss, z)[0], along_sphere(z, expected["grad"]), **GRADIENT)


@pytest.mark.parametrize(("given_", "expected"), golden("align_uniform"))
def test_align_and_uniform_are_the_published_ones(given_, expected):
    x, y = array(given_["x"], grad=True), array(given_["y"], grad=True)
    align = losses.align(x, y, given_["alpha"])
    ux, uy = losses.uniform(x, given_["t"]), losses.uniform(y, given_["t"])
    assert align.item() == pytest.approx(expected["align"], abs=1e-9)
    assert ux.item() == pytest.approx(expected["uniform_x"], abs=1e-9)
    assert uy.item() == pytest.approx(expected["uniform_y"], abs=1e-9)
    gx, gy = grad_of(align + ux, x, y)
    assert_close(gx, along_sphere(x, expected["grad_x_of_sum"]), **GRADIENT)
    assert_close(gy, along_sphere(y, expected["grad_y_of_sum"]), **GRADIENT)


@pytest.mark.parametrize(("given_", "expected"), golden("pcl", "density"))
def test_concentration_is_the_published_density(given_, expected):
    # The published outputs are float32, hence 1e-6.
    x, centers = array(given_["x"]), array(given_["centroids"])
    distance, label = torch.cdist(x, centers).min(dim=1)
    assert label.tolist() == expected["im2cluster"]
    phi = losses.concentration(
        distance, label, len(centers), given_["temperature"], given_["alpha"]
    )
    assert_close(phi, array(expected["density"]), rtol=0, atol=1e-6)
    assert phi.mean().item() == pytest.approx(given_["temperature"], abs=1e-12)


@pytest.mark.parametrize(("given_", "expected"), golden("pcl", "protonce"))
def test_info_nce_and_repeated_proto_nce_are_the_published_pcl(given_, expected):
    q = array(given_["q"], grad=True)
    tau, index = given_["temperature"], torch.tensor(given_["index"])
    info = losses.info_nce(q, array(given_["k"]), array(given_["queue"]).T, tau)
    assert info.item() == pytest.approx(expected["loss_instance"], abs=1e-9)
    terms = [
        losses.proto_nce(
            q,
            array(given_["centroids"][m]),
            torch.tensor(given_["im2cluster"][m])[index],
            array(given_["density"][m]),
            torch.tensor(given_["sampled_negative_prototypes"][m]),
            repeated=True,
        )
        for m in range(len(given_["centroids"]))
    ]
    proto = torch.stack(terms).mean()
    assert proto.item() == pytest.approx(expected["loss_proto_mean"], abs=1e-9)
    assert (info + proto).item() == pytest.approx(expected["loss_total"], abs=1e-9)
    assert_close(grad_of(info + proto, q)[0], along_sphere(q, expected["grad_q"]), **GRADIENT)


@pytest.mark.parametrize(("given_", "expected"), golden("scan", "scan"))
def test_scan_and_balance_are_scans_loss_up_to_a_constant(given_, expected):
    a, b = array(given_["anchors"], grad=True), array(given_["neighbors"], grad=True)
    weight = given_["entropy_weight"]
    consistency, uneven = losses.scan(a, b), losses.balance(a.softmax(dim=1))
    entropy = math.log(a.shape[1]) - uneven
    assert consistency.item() == pytest.approx(expected["consistency"], abs=1e-9)
    assert entropy.item() == pytest.approx(expected["entropy"], abs=1e-9)
    assert (consistency - weight * entropy).item() == pytest.approx(expected["total"], abs=1e-9)
    ga, gb = grad_of(consistency + weight * uneven, a, b)
    assert_close(ga, array(expected["grad_anchors"]), **GRADIENT)
    assert_close(gb, array(expected["grad_neighbors"]), **GRADIENT)


@pytest.mark.parametrize("balanced", [True, False])
def test_self_label_is_scans_confident_cross_entropy(balanced):
    # The published outputs are float32, hence 1e-6.
    [case] = golden("scan", f"selflabel_balance{balanced}")
    given_, expected = case.values
    strong = array(given_["strong"], grad=True)
    loss = losses.self_label(array(given_["weak"]), strong, given_["threshold"], balanced=balanced)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    assert_close(grad_of(loss, strong)[0], array(expected["grad_strong"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("given_", "expected"), golden("temi"))
def test_temi_is_the_published_loss_of_each_head(given_, expected):
    student = array(given_["student"], grad=True)
    loss = losses.temi(
        student, array(given_["teacher"]), array(expected["pk_after"]), beta=given_["beta"]
    )
    # The published running mean starts from 1/k in float32: 3e-8 off for k = 3.
    assert_close(loss, array(expected["loss_per_head"]), rtol=0, atol=1e-9)
    gradient = grad_of(loss.sum(), student)[0]
    assert_close(gradient, array(expected["grad_student"]), **GRADIENT)
