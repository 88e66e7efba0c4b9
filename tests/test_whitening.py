import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepclust.algorithms import whitening
from deepclust.algorithms.whitening import Recipe
from deepclust.errors import UsageError


def features(n=40, v=3, d=6, seed=0):
    """Draw clean features (n, d) and views (n, v, d), some columns scattered more."""
    rng = np.random.default_rng(seed)
    clean = rng.normal(size=(n, d)) + 1
    noise = rng.normal(size=(n, v, d)) * np.linspace(0.1, 1, d)
    return clean, clean[:, None] + noise


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def whiten(clean, views, **options):
    """Fit the map of one layer and apply it to the same pictures."""
    return whitening.fit_whitening(clean, views, **options).transform(clean, views)


def plainly(clean, views, components, shrinkage):
    """The same recipe picture by picture, in float64."""
    clean, views = unit(clean), unit(views)
    mean = clean.mean(axis=0)
    basis = np.linalg.svd(clean - mean, full_matrices=False)[2][:components].T
    scatter = np.zeros((basis.shape[1],) * 2)
    for seen in views @ basis:
        for one in seen:
            scatter += np.outer(one - seen.mean(axis=0), one - seen.mean(axis=0))
    scatter /= views.shape[0] * views.shape[1]
    scatter += shrinkage * np.trace(scatter) / len(scatter) * np.eye(len(scatter))
    values, vectors = np.linalg.eigh(scatter)
    projection = basis @ vectors @ np.diag(values**-0.5) @ vectors.T

    def apply(x):
        return unit((x - mean) @ projection)

    return unit(apply(clean) + 2 * apply(views).mean(axis=1))


@pytest.mark.parametrize("components", [3, 6, 256])
@pytest.mark.parametrize("shrinkage", [0.1, 1.0])
def test_whitening_is_the_formula(components, shrinkage):
    clean, views = features()
    found = whiten(clean, views, components=components, shrinkage=shrinkage)
    expected = plainly(clean, views, min(components, 6), shrinkage)
    # The signs of principal directions are free, and dot products do not see them.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=2e-6)


def test_whitened_views_scatter_alike_in_all_directions():
    # Without shrinkage the projection is basis · S^(−½), so the scatter within pictures becomes I.
    clean, views = features(n=200)
    fitted = whitening.fit_whitening(clean, views, shrinkage=0)
    seen = unit(views) @ fitted.projection
    inner = (seen - seen.mean(axis=1, keepdims=True)).reshape(-1, 6)
    np.testing.assert_allclose(inner.T @ inner / len(inner), np.eye(6), atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_whitening_ignores_turns_lengths_and_the_order_of_views(seed):
    clean, views = features(seed=seed)
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    lengths = rng.uniform(0.1, 10, size=(40, 1))
    z = whiten(clean, views)
    other = whiten((lengths * clean) @ turn, views[:, ::-1] @ turn)
    np.testing.assert_allclose(z @ z.T, other @ other.T, atol=5e-6)


def test_whitening_is_the_same_in_chunks_and_from_float16_on_disk(monkeypatch, tmp_path):
    clean, views = features()
    views = views.astype(np.float16)
    np.save(tmp_path / "views.npy", views)
    whole = whitening.fit_whitening(clean, views)
    monkeypatch.setattr(whitening, "CHUNK", 7)
    parts = whitening.fit_whitening(clean, np.load(tmp_path / "views.npy", mmap_mode="r"))
    np.testing.assert_allclose(parts.projection, whole.projection, rtol=1e-7, atol=1e-9)


def layers(n, seed=0):
    clean, views = features(n, seed=seed)
    return {"head": (clean, views), "grid": (clean[:, :4], views[:, :, :4])}


@pytest.mark.parametrize("n", [whitening.FEW - 1, 60])
def test_later_pictures_go_through_the_fitted_map(n):
    taps = layers(n)
    fitted = whitening.fit_recipe(taps)
    z = fitted.transform(taps)
    assert z.shape == (n, 10)
    assert z.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-6)
    later = {name: (c[:5], v[:5]) for name, (c, v) in taps.items()}
    np.testing.assert_allclose(fitted.transform(later), z[:5], atol=1e-6)
    again = Recipe.from_arrays(fitted.arrays())
    assert (again.transform(later) == fitted.transform(later)).all()
    with pytest.raises(UsageError, match="grid"):
        fitted.transform({"head": later["head"]})


def test_whitening_by_neighbours_takes_them_for_views():
    clean, views = features()
    near = np.random.default_rng(0).integers(40, size=(40, 5))
    found = whitening.by_neighbours({"head": (clean, views)}, near).layers["head"]
    expected = whitening.fit_whitening(clean, clean[near])
    np.testing.assert_array_equal(found.projection, expected.projection)


def test_neighbours_count_from_a_few_pictures_on():
    for n, same in ((whitening.FEW - 1, True), (whitening.FEW, False)):
        taps = layers(n)
        z, by_views = (
            fit(taps).transform(taps) for fit in (whitening.fit_recipe, whitening.by_views)
        )
        assert np.allclose(z, by_views, atol=1e-6) == same


def test_one_view_has_no_scatter():
    clean, views = features(v=1)
    with pytest.raises(UsageError, match="two views"):
        whiten(clean, views)


def test_views_that_are_all_alike_leave_plain_components():
    clean, _ = features()
    z = whiten(clean, np.repeat(clean[:, None], 3, axis=1))
    assert np.isfinite(z).all()
    basis = unit(clean) - unit(clean).mean(axis=0)
    np.testing.assert_allclose(z @ z.T, unit(basis) @ unit(basis).T, atol=1e-5)


def smoothed_plainly(z, count, rounds):
    """The same row by row: a neighbour that has the row among its own counts fully."""
    nearest = np.argsort(-(z @ z.T) + 9 * np.eye(len(z)), axis=1)[:, :count]
    x = z
    for _ in range(rounds):
        blended = []
        for i, own in enumerate(nearest):
            weight = np.array([1 if i in nearest[j] else whitening.ONE_SIDED for j in own])
            pulled = weight @ x[own] / weight.sum()
            blended.append((1 - whitening.PULL) * z[i] + whitening.PULL * pulled)
        x = unit(np.array(blended))
    return x


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), rounds=st.integers(1, 4))
def test_smoothing_is_the_formula(seed, rounds):
    z = unit(np.random.default_rng(seed).normal(size=(80, 4))).astype(np.float32)
    found = whitening.smooth(z, rounds=rounds)
    np.testing.assert_allclose(found, smoothed_plainly(z, 80 // 20, rounds), atol=1e-5)


def test_few_rows_are_not_smoothed():
    z = unit(np.random.default_rng(0).normal(size=(19, 4))).astype(np.float32)
    np.testing.assert_allclose(whitening.smooth(z), z, atol=1e-6)


def test_later_rows_are_smoothed_among_the_old_ones():
    rng = np.random.default_rng(0)
    corners = np.eye(4)[np.arange(80) % 4]
    old = unit(corners + 0.2 * rng.normal(size=(80, 4))).astype(np.float32)
    later = unit(np.eye(4) + 0.2 * rng.normal(size=(4, 4))).astype(np.float32)
    kept = old.copy()
    smoothed = whitening.smooth(later, among=old)
    assert (old == kept).all()
    # The first round by hand: 80 // 20 = 4 neighbours, by cosine; one that has four old rows
    # nearer to itself than the new one counts less.
    likeness = later @ old.T
    nearest = np.argsort(-likeness, axis=1)[:, :4]
    fourth = np.sort(old @ old.T - 9 * np.eye(80), axis=1)[:, -4]
    weight = np.where(likeness >= fourth, 1, whitening.ONE_SIDED)
    weight = np.take_along_axis(weight, nearest, axis=1)[:, :, None]
    pulled = (weight * old[nearest]).sum(axis=1) / weight.sum(axis=1)
    by_hand = unit((1 - whitening.PULL) * later + whitening.PULL * pulled)
    np.testing.assert_allclose(whitening.smooth(later, rounds=1, among=old), by_hand, atol=1e-6)
    assert ((smoothed @ np.eye(4)).argmax(axis=1) == np.arange(4)).all()


def test_principal_directions_are_those_of_the_covariance():
    x = features(n=100)[0]
    mean, basis = whitening.principal(x, 2)
    np.testing.assert_allclose(mean, x.mean(axis=0))
    variance = ((x - mean) @ basis).var(axis=0)
    np.testing.assert_allclose(variance, np.linalg.eigvalsh(np.cov(x.T, bias=True))[:-3:-1])
