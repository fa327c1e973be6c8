"""Thin-plate warps against maps that are known, and the animation made from them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.viz.warp import blend, morph, save_animation, save_warped, thin_plate_spline, thin_plate_warp

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
SMOOTH_MATRIX = np.array([[0.8, 0.3], [-0.2, 1.1]])


def photo(h: int, w: int, seed: int = 0) -> np.ndarray:
    """Smooth blobs, so that half a pixel of error is a small error."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((w, h), Image.Resampling.BICUBIC))


def points(n: int, h: int, w: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 0.9, (n, 2)) * [w, h]


@pytest.mark.parametrize("smoothing", [0.0, 0.01, 10.0])
def test_identical_points_return_the_image(smoothing: float):
    image = photo(70, 110)
    kps = CORNERS * [110, 70]
    warped, mask = thin_plate_warp(image, kps, kps, (70, 110), smoothing=smoothing)
    assert mask.all()
    assert np.array_equal(warped, image)


@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_a_known_affine_map_is_recovered(smoothing: float):
    trg_px = points(12, 200, 300)
    spline = thin_plate_spline(trg_px, trg_px @ SMOOTH_MATRIX.T + [20, -15], smoothing=smoothing)
    queries = points(50, 200, 300, seed=1)
    np.testing.assert_allclose(spline(queries), queries @ SMOOTH_MATRIX.T + [20, -15], atol=1e-6)


def test_a_shift_moves_whole_pixels_and_masks_what_was_outside():
    image = photo(40, 60)
    trg_px = np.array([[10.0, 10.0], [50.0, 5.0], [20.0, 35.0], [45.0, 30.0]])
    warped, mask = thin_plate_warp(image, trg_px - [8, 3], trg_px, (40, 60), margin=9.0)
    assert np.array_equal(warped[3:, 8:], image[:-3, :-8])
    assert mask[3:, 8:].all()
    assert not mask[:3].any()
    assert not mask[:, :8].any()
    assert not warped[~mask].any()


def test_another_size_of_the_same_photo():
    """Half a pixel means the same in both: a target twice as large is the resized source."""
    image, large = photo(60, 80), photo(120, 160)
    warped, mask = thin_plate_warp(image, CORNERS * [80, 60], CORNERS * [160, 120], (120, 160))
    assert mask.all()
    assert np.abs(warped[2:-2, 2:-2].astype(int) - large[2:-2, 2:-2]).max() <= 6


def test_a_large_source_is_averaged_not_picked():
    """Fine stripes become grey where a pixel of the target covers many."""
    image = np.zeros((800, 800, 3), dtype=np.uint8)
    image[:, ::2] = 254
    warped, _ = thin_plate_warp(image, 800 * CORNERS, 40 * CORNERS, (40, 40))
    assert warped.min() >= 120
    assert warped.max() <= 134


def test_points_map_exactly_without_smoothing_and_nearly_with():
    src_px, trg_px = points(20, 100, 150), points(20, 300, 200, seed=1)
    np.testing.assert_allclose(thin_plate_spline(trg_px, src_px)(trg_px), src_px, atol=1e-6)
    off = [
        np.linalg.norm(thin_plate_spline(trg_px, src_px, smoothing=s)(trg_px) - src_px, axis=1).mean()
        for s in (1e-4, 1e-2, 1.0)
    ]
    assert 0 < off[0] < off[1] < off[2]


def test_a_marked_point_arrives_where_its_match_is():
    """On a frame so large that the spline is only evaluated on nodes, 10 pixels apart."""
    src_px, trg_px = points(9, 300, 400), points(9, 300, 400) * [4, 5] + points(9, 60, 60, seed=2)
    image = np.zeros((300, 400, 3), dtype=np.uint8)
    x, y = src_px[0]
    yy, xx = np.mgrid[:300, :400] + 0.5
    image[..., 0] = 255 * np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 50)
    warped, _ = thin_plate_warp(image, src_px, trg_px, (1500, 1600), smoothing=0.0)
    top, left = np.unravel_index(warped[..., 0].argmax(), (1500, 1600))
    assert np.hypot(left + 0.5 - trg_px[0, 0], top + 0.5 - trg_px[0, 1]) < 4  # a pixel of the source


def test_the_same_smoothing_means_the_same_at_any_scale_and_number():
    src_px, trg_px, queries = points(8, 100, 100), points(8, 100, 100, seed=1), points(5, 100, 100, seed=2)
    found = thin_plate_spline(trg_px, src_px, smoothing=0.01)(queries)
    scaled = thin_plate_spline(10 * trg_px + 500, 7 * src_px - 30, smoothing=0.01)(10 * queries + 500)
    np.testing.assert_allclose(scaled, 7 * found - 30, atol=1e-6)


def test_reach_limits_what_lies_outside_the_matches():
    image, kps = photo(100, 100), 40 + 20 * CORNERS
    shares = [thin_plate_warp(image, kps, kps, (100, 100), margin=margin)[1].sum() for margin in (0.0, 0.5, 5.0)]
    assert shares == [20 * 20, 40 * 40, 100 * 100]


def test_matches_that_share_a_target_are_merged():
    src_px = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [4.0, 6.0], [8.0, 6.0]])
    trg_px = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [12.0, 12.0], [12.0, 12.0]])
    found = thin_plate_spline(trg_px, src_px)(trg_px)
    np.testing.assert_allclose(found[:3], src_px[:3], atol=1e-9)
    np.testing.assert_allclose(found[3], [6, 6], atol=1e-9)


@pytest.mark.parametrize(
    ("src_px", "trg_px", "message"),
    [
        (np.zeros((0, 2)), np.zeros((0, 2)), "0 distinct matches; it takes 3 or more"),
        (CORNERS[:2], CORNERS[:2], "2 distinct matches"),
        (CORNERS, CORNERS[[0, 1, 1, 0]], "2 distinct matches"),
        (CORNERS, CORNERS * 0, "1 distinct matches"),
        (CORNERS, CORNERS[:, :1] * [1, 2] + CORNERS[:, 1:] * [3, 6], "all 4 matches lie on one line"),
        (CORNERS * [1, 0], CORNERS, "all 4 matches lie on one line; give a keypoint off it"),
        (CORNERS, CORNERS * np.array([[1.0], [np.nan], [1.0], [1.0]]), "match number 1 is not finite"),
    ],
)
def test_too_little_to_bend_by(src_px: np.ndarray, trg_px: np.ndarray, message: str):
    with pytest.raises(InputError, match=message):
        thin_plate_warp(photo(20, 20), src_px, trg_px, (20, 20))


def test_smoothing_cannot_be_negative():
    with pytest.raises(InputError, match=r"smoothing is -1\.0"):
        thin_plate_spline(CORNERS, CORNERS, smoothing=-1.0)


def test_more_points_than_the_matrix_takes():
    trg_px = points(2500, 100, 100)
    found = thin_plate_spline(trg_px, trg_px @ SMOOTH_MATRIX.T, smoothing=0.01)(trg_px[:50])
    np.testing.assert_allclose(found, trg_px[:50] @ SMOOTH_MATRIX.T, atol=1e-4)


@pytest.mark.parametrize(("src_size", "trg_size"), [((1, 1), (1, 1)), ((32, 32), (7, 301)), ((5, 400), (64, 1))])
def test_frames_of_any_size(src_size: tuple[int, int], trg_size: tuple[int, int]):
    image = photo(*src_size)[:, ::-1]  # a view, as mirrored images are
    warped, mask = thin_plate_warp(image, CORNERS * src_size[::-1], CORNERS * trg_size[::-1], trg_size)
    assert warped.shape == (*trg_size, 3)
    assert mask.all()


def test_blend_and_morph():
    trg, warped = np.full((4, 6, 3), 40, dtype=np.uint8), np.full((4, 6, 3), 240, dtype=np.uint8)
    mask = np.zeros((4, 6), dtype=bool)
    mask[:, 3:] = True
    half = blend(warped, mask, trg, 0.5)
    assert (half[:, :3] == 40).all()
    assert (half[:, 3:] == 140).all()
    frames = morph(warped, mask, trg, steps=5)
    assert [int(frame[0, 4, 0]) for frame in frames] == [40, 69, 140, 211, 240]
    assert all((frame[:, :3] == 40).all() for frame in frames)


def test_the_bare_image_is_transparent_where_there_is_none(tmp_path: Path):
    warped, mask = photo(8, 12), np.zeros((8, 12), dtype=bool)
    mask[2:, 3:] = True
    save_warped(tmp_path / "new" / "warped.png", warped, mask)
    with Image.open(tmp_path / "new" / "warped.png") as image:
        pixels = np.asarray(image)
    assert np.array_equal(pixels[..., :3], warped)
    assert np.array_equal(pixels[..., 3], np.where(mask, 255, 0))
    with pytest.raises(InputError, match=r"ends in \.png or \.webp"):
        save_warped(tmp_path / "warped.jpg", warped, mask)


def test_the_animation_plays_forth_and_back(tmp_path: Path):
    frames = [np.full((30, 20, 3), value, dtype=np.uint8) for value in (0, 80, 160, 240)]
    save_animation(tmp_path / "new" / "morph.gif", frames, milliseconds=50, hold=700)
    with Image.open(tmp_path / "new" / "morph.gif") as gif:
        assert (gif.n_frames, gif.size, gif.info["loop"]) == (6, (20, 30), 0)
        seen, stays = [], []
        for index in range(gif.n_frames):
            gif.seek(index)
            seen.append(gif.convert("RGB").getpixel((5, 5))[0])
            stays.append(gif.info["duration"])
    assert seen == [0, 80, 160, 240, 160, 80]
    assert stays == [700, 50, 50, 700, 50, 50]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["morph.gif"]


@pytest.mark.parametrize("n", [1, 2])
def test_short_animations(tmp_path: Path, n: int):
    save_animation(tmp_path / "short.gif", [photo(20, 20, seed) for seed in range(n)])
    with Image.open(tmp_path / "short.gif") as gif:
        assert gif.n_frames == n


def test_large_frames_are_scaled_down(tmp_path: Path):
    save_animation(tmp_path / "large.gif", [photo(900, 300), photo(900, 300, 1)], side=90)
    with Image.open(tmp_path / "large.gif") as gif:
        assert gif.size == (30, 90)


def test_animations_that_cannot_be_written(tmp_path: Path):
    frames = [photo(8, 8)]
    with pytest.raises(InputError, match=r"name ends in \.gif"):
        save_animation(tmp_path / "morph.png", frames)
    with pytest.raises(InputError, match="no frames"):
        save_animation(tmp_path / "morph.gif", [])
    (tmp_path / "taken.gif").mkdir()
    with pytest.raises(InputError, match=r"taken\.gif: cannot be written"):
        save_animation(tmp_path / "taken.gif", frames)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.gif"]  # nothing half-written stays
