import numpy as np
import pytest

from transformatcher.coords import px_to_norm
from transformatcher.data.synthetic import random_homography, synthetic_pair


def test_keypoints_follow_the_exact_map_and_stay_inside():
    pair, forward = synthetic_pair(5, size=(90, 130), n_points=12)
    src, trg = px_to_norm(pair.src_kps_px, (90, 130)), px_to_norm(pair.trg_kps_px, (90, 130))
    np.testing.assert_allclose(forward(src), trg, atol=1e-12)
    np.testing.assert_allclose(forward.inverse()(trg), src, atol=1e-12)
    assert (np.abs(trg) < 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_pixels_follow_the_map(seed):
    """At whole pixels the target shows what the source shows at the mapped place."""
    pair, _ = synthetic_pair(seed, size=(120, 160), n_points=200)
    src, trg = np.asarray(pair.src_image, dtype=float), np.asarray(pair.trg_image, dtype=float)

    def look(image, points):
        columns, rows = (points - 0.5).round().astype(int).clip(0).T
        return image[rows.clip(max=119), columns.clip(max=159)]

    matched = np.abs(look(src, pair.src_kps_px) - look(trg, pair.trg_kps_px)).mean()
    shuffled = np.abs(look(src, pair.src_kps_px) - look(trg, pair.trg_kps_px[::-1])).mean()
    assert matched < 0.35 * shuffled


def test_no_strength_is_the_identity():
    forward = random_homography(np.random.default_rng(0), strength=0.0)
    points = np.random.default_rng(1).uniform(-1, 1, (5, 2))
    np.testing.assert_allclose(forward(points), points)


def test_a_seed_is_a_pair():
    first, again, other = (synthetic_pair(seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.trg_image, again.trg_image)
    assert not np.array_equal(first.trg_image, other.trg_image)
