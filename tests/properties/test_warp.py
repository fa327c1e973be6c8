"""Warps: exact where the truth is known, one sentence where there is none."""

import contextlib

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from transformatcher.errors import InputError
from transformatcher.viz.warp import blend, morph, thin_plate_spline, thin_plate_warp

clouds = arrays(np.float64, st.tuples(st.integers(0, 9), st.just(2)), elements=st.floats(0, 60), unique=True)
anything = st.floats(allow_nan=True, allow_infinity=True, width=64)
pixels = arrays(np.uint8, (7, 9, 3))


def spread_out(points: np.ndarray) -> bool:
    """Far from lying on a line."""
    if len(points) < 3:
        return False
    along, across = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    return bool(across > 0.05 * along) and bool(across > 1)


@given(clouds, st.tuples(*[st.floats(-2, 2)] * 4), st.tuples(*[st.floats(-50, 50)] * 2), clouds)
def test_an_affine_map_is_recovered_everywhere(points, matrix, shift, elsewhere):
    affine = np.array(matrix).reshape(2, 2)
    a, b, c, d = matrix
    assume(spread_out(points) and abs(a * d - b * c) > 0.2)  # numpy's own determinant warns of tiny numbers
    spline = thin_plate_spline(points, points @ affine.T + shift)
    expected = elsewhere @ affine.T + shift
    np.testing.assert_allclose(spline(elsewhere), expected, atol=0.05) if len(elsewhere) else None


@given(clouds, st.integers(0, 1000))
def test_without_smoothing_it_goes_through_every_match(points, seed):
    assume(spread_out(points))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + 100 * np.eye(len(points))
    assume(distance.min() > 1)
    partners = points + np.random.default_rng(seed).normal(0, 5, points.shape)
    assume(spread_out(partners))
    np.testing.assert_allclose(thin_plate_spline(points, partners)(points), partners, atol=0.05)


@given(
    arrays(np.float64, (5, 2), elements=anything | st.floats(-100, 100)),
    arrays(np.float64, (5, 2), elements=anything | st.floats(-100, 100)),
)
@example(np.array([[0.0, 0], [1e-12, 0], [0, 1e-12], [5, 5], [5, 6]]), np.eye(5, 2) * 1e-9)
@example(np.array([[0.0, 0], [10, 0], [0, 10], [1e300, 5], [5, 1e300]]), np.random.default_rng(0).uniform(0, 9, (5, 2)))
@example(np.random.default_rng(0).uniform(0, 9, (5, 2)), np.array([[0.0, 0], [10, 0], [0, 10], [1e300, 5], [5, 1e300]]))
def test_any_points_give_a_picture_or_a_sentence(points0, points1):
    src = np.full((30, 40, 3), 200, dtype=np.uint8)
    with contextlib.suppress(InputError):
        warped, mask = thin_plate_warp(src, points0, points1, (12, 17))
        assert warped.shape == (12, 17, 3)
        assert mask.shape == (12, 17)
        assert (warped[~mask] == 0).all()
        assert (warped[mask] == 200).all()


@given(pixels, pixels, arrays(bool, (7, 9)), st.floats(0, 1))
def test_a_blend_lies_between(warped, trg, mask, share):
    mixed = blend(warped, mask, trg, share).astype(int)
    assert (mixed >= np.minimum(warped, trg)).all()
    assert (mixed <= np.maximum(warped, trg)).all()
    np.testing.assert_array_equal(mixed[~mask], trg[~mask])
    np.testing.assert_array_equal(blend(warped, mask, trg, 0.0), trg)
    np.testing.assert_array_equal(blend(warped, mask, trg, 1.0)[mask], warped[mask])


@given(pixels, pixels, arrays(bool, (7, 9)), st.integers(2, 8))
def test_a_morph_goes_from_one_to_the_other(warped, trg, mask, steps):
    frames = morph(warped, mask, trg, steps)
    assert len(frames) == steps
    np.testing.assert_array_equal(frames[0], trg)
    np.testing.assert_array_equal(frames[-1], np.where(mask[..., None], warped, trg))
