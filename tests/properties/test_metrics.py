"""PCK under every change that must not matter, and those that must."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from transformatcher.evaluation.metrics import (
    PCK_THRESHOLDS,
    bootstrap_ci95,
    bootstrap_weights,
    correct_points,
    pck_per_pair,
    pck_per_point,
    point_errors,
    reference_length,
)
from transformatcher.evaluation.predict import Prediction
from transformatcher.evaluation.scores import score

whole_points = arrays(np.float64, (4, 2), elements=st.integers(0, 300).map(float))
pairs_of_points = st.lists(st.tuples(whole_points, whole_points), min_size=1, max_size=5)
shares = st.floats(0.001, 1.0)
masks = st.lists(arrays(bool, st.integers(1, 8)), min_size=1, max_size=6)


def prediction(number: int, true: np.ndarray, found: np.ndarray, *, scale: float = 1.0) -> Prediction:
    """A pair whose target has 300 × 400 pixels, or is an enlargement of that."""
    return Prediction(
        name=str(number),
        category="cat",
        src_size=[10, 10],
        trg_size=[round(300 * scale), round(400 * scale)],
        kp_index=list(range(len(true))),
        src_kps=[[1.0, 1.0]] * len(true),
        trg_kps=(true * scale).tolist(),
        pred_kps=(found * scale).tolist(),
        peak=[1.0] * len(true),
        trg_bbox=[10 * scale, 10 * scale, 200 * scale, 290 * scale],
        difficulty={},
    )


@given(whole_points, whole_points, st.floats(0, 500), shares, shares)
def test_more_tolerance_never_hurts(found, true, length, one, two):
    errors = point_errors(found, true)
    low, high = (correct_points(errors, length, alpha) for alpha in sorted((one, two)))
    assert (high >= low).all()
    assert (correct_points(errors, length * 2, one) >= correct_points(errors, length, one)).all()


@given(whole_points, whole_points, st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(-3, 3))
def test_distances_do_not_care_where_nor_in_which_unit(found, true, right, down, power):
    moved = [points + np.array([right, down]) for points in (found, true)]
    np.testing.assert_array_equal(point_errors(*moved), point_errors(found, true))
    scaled = [points * 2.0**power for points in (found, true)]
    np.testing.assert_allclose(point_errors(*scaled), point_errors(found, true) * 2.0**power)
    np.testing.assert_array_equal(point_errors(found, true), point_errors(true, found))


@given(whole_points, st.integers(-4, 4), st.integers(0, 500))
def test_reference_lengths_grow_with_the_picture(kps, power, shift):
    factor = 2.0**power
    box = np.array([10.0, 20.0, 90.0, 240.0])
    for pck_threshold in ("img", "bbox", "bbox-kp"):
        length = reference_length(pck_threshold, size=(320, 480), kps=kps, bbox=box)
        assert length is not None
        size = (int(320 * factor), int(480 * factor))
        assert reference_length(pck_threshold, size=size, kps=kps * factor, bbox=box * factor) == length * factor
    tight = reference_length("bbox-kp", size=(1, 1), kps=kps, bbox=None)
    assert reference_length("bbox-kp", size=(1, 1), kps=kps + shift, bbox=None) == tight
    padded = reference_length("bbox-padded", size=(1, 1), kps=kps, bbox=None)
    assert tight is not None
    assert padded is not None
    assert padded >= tight + 2  # the artefact only ever flatters


@given(masks, st.randoms(use_true_random=False))
def test_means_lie_between_and_the_order_of_pairs_is_nobodys_business(correct, random):
    per_pair, per_point = pck_per_pair(correct), pck_per_point(correct)
    shares_of_pairs = [100 * pair.mean() for pair in correct]
    for value in (per_pair, per_point):
        assert min(shares_of_pairs) - 1e-9 <= value <= max(shares_of_pairs) + 1e-9
    shuffled = random.sample(correct, len(correct))
    np.testing.assert_allclose([pck_per_pair(shuffled), pck_per_point(shuffled)], [per_pair, per_point])
    same_length = [pair[:1] for pair in correct]
    np.testing.assert_allclose(pck_per_pair(same_length), pck_per_point(same_length))


@given(pairs_of_points, st.integers(1, 3))
def test_scores_in_the_published_frame_do_not_depend_on_the_size_of_the_file(pairs, power):
    small = score([prediction(i, true, found) for i, (true, found) in enumerate(pairs)])
    large = score([prediction(i, true, found, scale=2.0**power) for i, (true, found) in enumerate(pairs)])
    assert large["pck"].keys() == small["pck"].keys() == set(PCK_THRESHOLDS)
    assert large == small


@given(pairs_of_points)
def test_scores_grow_with_alpha_and_lie_in_their_intervals_range(pairs):
    scores = score([prediction(i, true, found) for i, (true, found) in enumerate(pairs)], alphas=(0.05, 0.1, 0.5))
    for row in scores["pck"].values():
        for key in ("per_pair", "per_point"):
            values = [row[alpha][key] for alpha in ("0.05", "0.1", "0.5")]
            assert values == sorted(values)
            assert all(0 <= value <= 100 for value in values)
        assert all(0 <= cell["ci95"][0] <= cell["ci95"][1] <= 100 for cell in row.values())


@given(pairs_of_points)
def test_a_perfect_prediction_scores_a_hundred(pairs):
    assume(all(np.ptp(true, axis=0).max() > 0 for true, _ in pairs))
    scores = score([prediction(i, true, true) for i, (true, _) in enumerate(pairs)])
    assert all(cell["per_pair"] == 100 for row in scores["pck"].values() for cell in row.values())


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-100, 100)), st.integers(0, 5), st.floats(-50, 50))
def test_bootstrap(values, seed, shift):
    weights = bootstrap_weights(len(values), resamples=200, seed=seed)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights >= 0).all()
    low, high = bootstrap_ci95(values, weights)
    assert values.min() - 1e-9 <= low <= high <= values.max() + 1e-9
    np.testing.assert_allclose(bootstrap_ci95(values + shift, weights), [low + shift, high + shift], atol=1e-9)
    np.testing.assert_allclose(bootstrap_ci95(-values, weights), [-high, -low], atol=1e-9)
    np.testing.assert_array_equal(weights, bootstrap_weights(len(values), resamples=200, seed=seed))
