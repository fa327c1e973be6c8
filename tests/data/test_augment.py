from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from transformatcher.coords import norm_to_px, px_to_norm
from transformatcher.data.augment import (
    Augmentation,
    ColorAugmentation,
    apply_colors,
    crop_and_resize,
    draw_color,
    draw_crop,
    draw_object_crop,
    draw_sample,
    normalise,
    swap_pair,
    transform_points,
)
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.images import to_tensor
from transformatcher.schema import ImagePair

WHOLE = torch.tensor([-1.0, -1.0, 1.0, 1.0])
ALL_ON = ColorAugmentation(
    grayscale=True,
    posterize=True,
    equalize=True,
    sharpness=2.5,
    brightness_contrast=(0.1, 0.9),
    solarize=True,
    jitter=(0.9, 1.1, 1.2, -0.15),
)


def photos(b: int = 3, size: tuple[int, int] = (20, 28), seed: int = 0) -> torch.Tensor:
    """Smooth colourful uint8 images."""
    noise = torch.rand(b, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(noise, size, mode="bicubic").clamp(0, 1)
    return tv.to_dtype(smooth, torch.uint8, scale=True)


def only(name: str) -> ColorAugmentation:
    return replace(ColorAugmentation(), **{name: getattr(ALL_ON, name)})


# Where things are


def random_crops(rng: np.random.Generator, b: int) -> torch.Tensor:
    """Windows that keep the middle; some reach beyond the image."""
    low, high = rng.uniform(-1.3, -0.5, (b, 2)), rng.uniform(0.5, 1.3, (b, 2))
    return torch.tensor(np.concatenate([low, high], axis=1), dtype=torch.float32)


@pytest.mark.parametrize("size", [(60, 90), (110, 40), (30, 35)])
def test_points_move_with_the_pixels(size):
    # A blob's centre of mass, found in the output, is where transform_points says.
    rng, (hi, wi), b = np.random.default_rng(0), (80, 100), 16
    points_norm = torch.tensor(rng.uniform(-0.3, 0.3, (b, 1, 2)), dtype=torch.float32)
    x, y = norm_to_px(points_norm, (hi, wi))[:, 0, :, None, None].unbind(1)  # (b, 1, 1) each
    rows, columns = torch.meshgrid(torch.arange(hi) + 0.5, torch.arange(wi) + 0.5, indexing="ij")
    blobs = 255 * torch.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 3**2))  # (b, hi, wi)
    images = blobs.round().to(torch.uint8)[:, None].expand(-1, 3, -1, -1)
    crops, flips = random_crops(rng, b), torch.arange(b) % 2 == 0

    out = crop_and_resize(images, crops, flips, size)
    assert out.shape == (b, 3, *size)
    assert out.dtype == torch.float32
    weight = out[:, 0] / out[:, 0].sum(dim=(1, 2), keepdim=True)
    rows, columns = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    found_px = torch.stack([(weight * columns).sum(dim=(1, 2)), (weight * rows).sum(dim=(1, 2))], dim=-1)
    expected_px = norm_to_px(transform_points(points_norm, crops, flips), size)[:, 0]
    torch.testing.assert_close(found_px, expected_px, atol=0.03, rtol=0)


@pytest.mark.parametrize("size", [(50, 60), (25, 64), (120, 90), (13, 11)])
def test_a_ramp_shows_the_coordinates(size):
    # Pixel values are coordinates (red the column, green the row): what the output shows at a pixel, moves there.
    rng, (hi, wi), b = np.random.default_rng(1), (50, 64), 8
    rows, columns = torch.meshgrid(torch.arange(hi), torch.arange(wi), indexing="ij")
    ramp = torch.stack([columns, rows, torch.zeros_like(rows)]).to(torch.uint8).expand(b, 3, hi, wi)
    crops, flips = random_crops(rng, b), torch.arange(b) % 3 == 0
    out = crop_and_resize(ramp, crops, flips, size)

    shown_px = out[:, :2].flatten(2).mT * 255 + 0.5  # (b, h·w, 2), pixel centres
    moved_px = norm_to_px(transform_points(px_to_norm(shown_px, (hi, wi)), crops, flips), size)
    rows, columns = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    expected_px = torch.stack([columns, rows], dim=-1).flatten(0, 1).expand(b, -1, -1)
    inside = ((shown_px > 6) & (shown_px < torch.tensor([wi - 6, hi - 6]))).all(dim=-1)  # no border repeated
    assert inside.sum() > 0.3 * inside.numel()
    torch.testing.assert_close(moved_px[inside], expected_px[inside], atol=1e-3, rtol=0)


def test_whole_crop_of_the_same_size_changes_nothing():
    images = photos(2)
    out = crop_and_resize(images, WHOLE.expand(2, 4), torch.tensor([False, True]), (20, 28))
    torch.testing.assert_close(out[0] * 255, images[0].float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(out[1] * 255, images[1].flip(-1).float(), atol=1e-3, rtol=0)
    points = torch.rand(2, 4, 2) * 2 - 1
    moved = transform_points(points, WHOLE.expand(2, 4), torch.tensor([False, True]))
    torch.testing.assert_close(moved, torch.stack([points[0], points[1] * torch.tensor([-1.0, 1.0])]))


def test_crop_at_pixel_borders_is_a_slice():
    images = photos(1)
    crop = torch.tensor([[1 / 14 - 1, 2 / 10 - 1, 21 / 14 - 1, 12 / 10 - 1]])  # columns 1 to 21, rows 2 to 12
    mirrored = crop_and_resize(images, crop, torch.tensor([True]), (10, 20))
    torch.testing.assert_close(mirrored * 255, images[:, :, 2:12, 1:21].flip(-1).float(), atol=0.02, rtol=0)


def test_beyond_the_image_its_border_repeats():
    images = photos(1)
    out = crop_and_resize(images, 2 * WHOLE[None], torch.tensor([False]), (40, 56))
    padded = tv.pad(images, [14, 10], padding_mode="edge")
    torch.testing.assert_close(out * 255, padded.float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [(26, 40), (20, 30), (14, 21)])  # reduced 1.5, 2 and 2.9 times
def test_reduction_is_that_of_torchvision(size):
    # Stripes two pixels wide: plain sampling makes moiré of them, antialiasing makes grey.
    images = torch.where(torch.arange(60) % 4 < 2, photos(1, (40, 60)), 255 - photos(1, (40, 60)))
    out = crop_and_resize(images, WHOLE[None], torch.tensor([False]), size)
    expected, plain = (tv.resize(images / 255, list(size), antialias=antialias) for antialias in (True, False))
    rms = [(other - expected)[..., 1:-1].square().mean().sqrt() for other in (out, plain)]
    assert rms[0] < 0.5 * rms[1]


def test_magnified_crops_are_not_blurred():
    images = photos(1, (40, 60))
    crop = torch.tensor([[-0.5, -0.5, 0.5, 0.5]])
    out = crop_and_resize(images, crop, torch.tensor([False]), (25, 35))  # the whole image would be reduced
    expected = tv.resize(images[..., 10:30, 15:45] / 255, [25, 35], antialias=True)
    torch.testing.assert_close(out[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1], atol=1e-5, rtol=0)


# Crops


def crops_px(kps_px, size, draws=300, visible=None, **options):
    kps_norm = px_to_norm(np.array(kps_px, dtype=np.float64).reshape(-1, 2), size)
    visible = np.ones(len(kps_norm), dtype=bool) if visible is None else np.array(visible)
    rng = np.random.default_rng(0)
    crops = np.stack([draw_crop(rng, kps_norm, visible, size, **options) for _ in range(draws)])
    return norm_to_px(crops.reshape(-1, 2, 2), size).reshape(-1, 4)


def test_crop_keeps_the_keypoints_and_their_margin():
    # The third keypoint is not visible, and may go.
    crops = crops_px([[50, 60], [120, 90], [np.nan, 0]], (120, 240), visible=[True, True, False], probability=1.0)
    slack = 1e-9
    assert (crops[:, :2] >= -slack).all()
    assert (crops[:, 2:] <= np.array([240, 120]) + slack).all()
    assert (crops[:, :2] <= np.array([30, 40]) + slack).all()
    assert (crops[:, 2:] >= np.array([140, 110]) - slack).all()
    # and the whole range in between is used, each edge by itself
    np.testing.assert_allclose(crops.min(axis=0), [0, 0, 140, 110], atol=1.5)
    np.testing.assert_allclose(crops.max(axis=0), [30, 40, 240, 120], atol=1.5)
    np.testing.assert_allclose(crops.mean(axis=0), [15, 20, 190, 115], atol=4)
    assert abs(np.corrcoef(crops.T) - np.eye(4)).max() < 0.2


def test_crop_around_one_keypoint_keeps_half_the_way_to_each_border():
    crops = crops_px([[40, 90], [7, 7]], (120, 240), visible=[True, False], probability=1.0)
    np.testing.assert_allclose(crops.min(axis=0), [0, 0, 140, 105], atol=1.5)
    np.testing.assert_allclose(crops.max(axis=0), [20, 45, 240, 120], atol=1.5)
    assert (crops[:, :2] <= [20, 45]).all()
    assert (crops[:, 2:] >= [140, 105]).all()


@pytest.mark.parametrize("kps_px", [[[0, 0]], [[0, 0], [240, 120]], [[5, 110], [230, 15]], [[-3, 50], [243, 50]]])
def test_crop_stops_at_the_border(kps_px):
    crops = crops_px(kps_px, (120, 240), probability=1.0)
    assert (crops[:, :2] >= 0).all()
    assert (crops[:, 2:] <= [240, 120]).all()
    if len(kps_px) > 1:  # no room between the margin and the left and right borders
        np.testing.assert_allclose(crops[:, [0, 2]], [[0, 240]] * len(crops))
    else:
        np.testing.assert_allclose(crops[:, :2], 0)


def test_no_crop():
    whole = [[0, 0, 240, 120]] * 20
    np.testing.assert_allclose(crops_px([[100, 60], [120, 70]], (120, 240), draws=20, probability=0.0), whole)
    np.testing.assert_allclose(crops_px([[9, 9]], (120, 240), draws=20, visible=[False], probability=1.0), whole)
    np.testing.assert_allclose(crops_px([], (120, 240), draws=20, probability=1.0), whole)


def test_half_of_the_images_are_cropped():
    crops = crops_px([[100, 60], [120, 70]], (120, 240), draws=1000)
    assert abs((crops != [0, 0, 240, 120]).any(axis=1).mean() - 0.5) < 0.05


# Colours


def test_draws_follow_the_seed():
    def draw(seed):
        rng = np.random.default_rng(seed)
        return draw_color(rng), draw_crop(rng, np.zeros((2, 2)), np.ones(2, bool), (240, 240), probability=1.0).tolist()

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_each_change_happens_to_a_fifth_independently():
    rng = np.random.default_rng(0)
    augmentations = [draw_color(rng) for _ in range(4000)]
    happens = np.array(
        [
            [getattr(augmentation, f.name) != f.default for f in fields(ColorAugmentation)]
            for augmentation in augmentations
        ],
        dtype=float,
    )
    np.testing.assert_allclose(happens.mean(axis=0), 0.2, atol=0.02)
    assert abs(np.corrcoef(happens.T) - np.eye(7)).max() < 0.06
    assert draw_color(rng, probability=0.0) == ColorAugmentation()


def test_parameters_keep_to_their_ranges():
    rng = np.random.default_rng(0)
    augmentations = [draw_color(rng, probability=1.0) for _ in range(500)]
    drawn = np.array(
        [
            [augmentation.sharpness, *augmentation.brightness_contrast, *augmentation.jitter]
            for augmentation in augmentations
        ]
    )
    np.testing.assert_allclose(drawn.min(axis=0), [2, -0.2, 0.8, 0.8, 0.8, 0.8, -0.2], atol=0.02)
    np.testing.assert_allclose(drawn.max(axis=0), [4, 0.2, 1.2, 1.2, 1.2, 1.2, 0.2], atol=0.02)


def jitter(image, brightness, contrast, saturation, hue):
    image = tv.adjust_contrast(tv.adjust_brightness(image, brightness), contrast)
    return tv.adjust_hue(tv.adjust_saturation(image, saturation), hue)


BY_TORCHVISION = {
    "grayscale": lambda image: tv.rgb_to_grayscale(image, num_output_channels=3),
    "posterize": lambda image: tv.posterize(image, bits=4),
    "equalize": tv.equalize,
    "sharpness": lambda image: tv.adjust_sharpness(image, 2.5),
    "brightness_contrast": lambda image: (image * 0.9 + 0.1).clamp(0, 1),
    "solarize": lambda image: tv.solarize(image, 0.5),
    "jitter": lambda image: jitter(image, 0.9, 1.1, 1.2, -0.15),
}


@pytest.mark.parametrize("name", [f.name for f in fields(ColorAugmentation)])
def test_each_change_is_that_of_torchvision(name):
    images = photos() / 255
    expected = BY_TORCHVISION[name](images[1])
    assert (expected - images[1]).abs().max() > 0.05
    out = apply_colors(images, [ColorAugmentation(), only(name), ColorAugmentation()])
    torch.testing.assert_close(out, torch.stack([images[0], expected, images[2]]), atol=2e-6, rtol=0)


def test_strong_changes_saturate_as_those_of_torchvision():
    image = photos(1)[0] / 255
    blurred, jittered = apply_colors(
        image.expand(2, -1, -1, -1), [ColorAugmentation(sharpness=0.0), ColorAugmentation(jitter=(1.6, 0.5, 1.8, 0.1))]
    )
    torch.testing.assert_close(blurred, tv.adjust_sharpness(image, 0.0), atol=2e-6, rtol=0)
    torch.testing.assert_close(jittered, jitter(image, 1.6, 0.5, 1.8, 0.1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("hue", [-0.5, -0.2, 0.0, 0.13, 0.5])
def test_hue_of_every_kind_of_colour(hue):
    levels = torch.linspace(0, 1, 5)
    colours = torch.cartesian_prod(levels, levels, levels).T.reshape(3, 5, 25)  # ties, grey, black and white among them
    out = apply_colors(colours[None], [ColorAugmentation(jitter=(1.0, 1.0, 1.0, hue))])[0]
    torch.testing.assert_close(out, tv.adjust_hue(colours, hue), atol=2e-6, rtol=0)


def test_changes_come_in_the_order_of_the_fields():
    image = photos(1) / 255
    expected = image[0]
    for field in fields(ColorAugmentation):
        expected = BY_TORCHVISION[field.name](expected)
    torch.testing.assert_close(apply_colors(image, [ALL_ON])[0], expected, atol=1e-5, rtol=0)


def test_an_image_augmentations_the_same_in_any_batch():
    images, rng = photos(8) / 255, np.random.default_rng(3)
    augmentations = [draw_color(rng, probability=0.6) for _ in range(8)]
    before = images.clone()
    together = apply_colors(images, augmentations)
    assert torch.equal(images, before)  # the input is left alone
    alone = torch.cat([apply_colors(images[i : i + 1], augmentations[i : i + 1]) for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)

    crops, flips = random_crops(rng, 8), torch.arange(8) % 2 == 0
    together = crop_and_resize(photos(8), crops, flips, (16, 12))
    alone = [crop_and_resize(photos(8)[i : i + 1], crops[i : i + 1], flips[i : i + 1], (16, 12)) for i in range(8)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


def test_values_stay_between_0_and_1():
    rng = np.random.default_rng(0)
    images = torch.cat([photos(30) / 255, torch.zeros(1, 3, 20, 28), torch.ones(1, 3, 20, 28)])
    for probability in (0.4, 1.0):
        out = apply_colors(images, [draw_color(rng, probability) for _ in range(32)])
        assert out.shape == images.shape
        assert out.dtype == torch.float32
        assert out.min() >= 0  # false for NaN
        assert out.max() <= 1


def test_no_look_changes_nothing():
    images = photos() / 255
    assert torch.equal(apply_colors(images, [ColorAugmentation()] * 3), images)


def test_as_many_augmentations_as_images():
    with pytest.raises(ValueError, match="3 images, but 2 color augmentations"):
        apply_colors(photos() / 255, [ColorAugmentation()] * 2)


def test_without_augmentation_training_sees_what_evaluation_sees():
    images = photos()
    out = normalise(crop_and_resize(images, WHOLE.expand(3, 4), torch.zeros(3, dtype=torch.bool), (20, 28)))
    expected = torch.stack([to_tensor(image.permute(1, 2, 0).numpy(), (20, 28)) for image in images])
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


@pytest.mark.gpu
def test_the_device_changes_nothing_and_is_not_waited_for():
    rng, b = np.random.default_rng(0), 16
    images, crops, flips = photos(b), random_crops(rng, b), torch.arange(b) % 2 == 0
    augmentations = [draw_color(rng, probability=0.5) for _ in range(b)]
    expected = apply_colors(crop_and_resize(images, crops, flips, (12, 16)), augmentations)
    inputs = [value.cuda() for value in (images, crops, flips)]
    with pytest.warns(UserWarning, match="prototype feature"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        out = normalise(apply_colors(crop_and_resize(*inputs, (12, 16)), augmentations))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # a value at the edge of a bin may fall to its other side
    assert ((out.cpu() - normalise(expected)).abs() > 1e-4).float().mean() < 0.01


UNCHANGED = Augmentation(p_color=0.0, p_crop=0.0)


def boxed_pair() -> ImagePair:
    """Images of 60 × 80 and 90 × 50 pixels (h × w); both boxes span [-0.6, 0.6], all keypoints lie inside."""
    boxes = [np.array([0.2 * w, 0.2 * h, 0.8 * w, 0.8 * h]) for h, w in ((60, 80), (90, 50))]
    kps = [np.array([[w / 2, h / 2], [w / 3, h / 3]]) for h, w in ((60, 80), (90, 50))]
    return ImagePair("pair", "cat", Path("a.png"), Path("b.png"), *kps, np.ones(2, dtype=bool), *boxes)


class TestObjectCrop:
    def test_keeps_the_object_its_keypoints_and_the_least_width(self):
        rng = np.random.default_rng(0)
        for _ in range(300):
            low = rng.uniform(-1, 0.9, 2)
            high = np.minimum(low + rng.uniform(0.01, 1.5, 2), 1)
            kps = rng.uniform(-1, 1, (rng.integers(0, 4), 2))
            x0, y0, x1, y1 = draw_object_crop(rng, np.concatenate([low, high]), kps)
            assert abs(np.array([x0, y0, x1, y1])).max() < 1 + 1e-9
            inside = np.vstack([low, high, kps])
            assert (inside >= [x0 - 1e-9, y0 - 1e-9]).all()
            assert (inside <= [x1 + 1e-9, y1 + 1e-9]).all()
            assert min(x1 - x0, y1 - y0) > 0.6 - 1e-9

    def test_margins_are_parts_of_the_object(self):
        rng = np.random.default_rng(0)
        crops = np.stack(
            [draw_object_crop(rng, np.array([-0.4, -0.4, 0.4, 0.4]), np.empty((0, 2))) for _ in range(300)]
        )
        distances = abs(crops) - 0.4
        assert distances.min() >= 0.05 * 0.8
        assert distances.max() <= 0.6 * 0.8
        assert np.ptp(distances) > 0.4
        assert not np.allclose(crops[:, 0], -crops[:, 2])  # each edge for itself

    def test_a_box_outside_the_image_still_has_a_crop(self):
        x0, y0, x1, y1 = draw_object_crop(np.random.default_rng(0), np.array([-3.0, 1.5, -2.0, 2.0]), np.empty((0, 2)))
        assert x1 - x0 == pytest.approx(0.6)
        assert y1 - y0 == pytest.approx(0.6)

    def test_each_image_has_its_own_box(self):
        pair, sizes = boxed_pair(), ((60, 80), (90, 50))
        for seed in range(20):
            rng = np.random.default_rng(seed)
            crops = draw_sample(pair, (0, 1), sizes, (56, 64), replace(UNCHANGED, p_object_crop=1.0), rng).crops
            # both boxes span [-0.6, 0.6]; the margin is at least 0.05 of 1.2
            assert (crops * [-1, -1, 1, 1] >= 0.66 - 1e-9).all()

    def test_without_a_box_there_is_none(self):
        pair = replace(boxed_pair(), src_bbox_px=None)
        sizes = (60, 80), (90, 50)
        sample = draw_sample(
            pair, (0, 1), sizes, (56, 64), replace(UNCHANGED, p_object_crop=1.0), np.random.default_rng(0)
        )
        assert sample.crops[0].tolist() == [-1, -1, 1, 1]
        assert abs(sample.crops[1]).min() < 1


def test_swap_exchanges_all_that_belongs_to_a_side():
    pair = replace(synthetic_pair(3)[0], src_flip=True, src_bbox_px=np.array([1.0, 2, 3, 4]), trg_bbox_px=None)
    pair = replace(pair, absent_px=np.ones((2, 2)))
    once = swap_pair(pair)
    for name in ("image", "kps_px", "bbox_px", "flip"):
        assert getattr(once, f"src_{name}") is getattr(pair, f"trg_{name}")
        assert getattr(once, f"trg_{name}") is getattr(pair, f"src_{name}")
    assert once.absent_px.shape == (0, 2)  # what only the new target shows
