from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from transformatcher.coords import norm_to_px, px_to_norm
from transformatcher.data.augment import (
    Look,
    apply_looks,
    draw_crop,
    draw_look,
    move_points,
    normalise,
    sample_windows,
)
from transformatcher.images import to_tensor

WHOLE = torch.tensor([-1.0, -1.0, 1.0, 1.0])
ALL_ON = Look(
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


def only(name: str) -> Look:
    return replace(Look(), **{name: getattr(ALL_ON, name)})


# Where things are


def random_windows(rng: np.random.Generator, b: int) -> torch.Tensor:
    """Windows that keep the middle; some reach beyond the image."""
    low, high = rng.uniform(-1.3, -0.5, (b, 2)), rng.uniform(0.5, 1.3, (b, 2))
    return torch.tensor(np.concatenate([low, high], axis=1), dtype=torch.float32)


@pytest.mark.parametrize("size", [(60, 90), (110, 40), (30, 35)])
def test_points_move_with_the_pixels(size):
    # A blob's centre of mass, found in the output, is where move_points says.
    rng, (hi, wi), b = np.random.default_rng(0), (80, 100), 16
    points_norm = torch.tensor(rng.uniform(-0.3, 0.3, (b, 1, 2)), dtype=torch.float32)
    x, y = norm_to_px(points_norm, (hi, wi))[:, 0, :, None, None].unbind(1)  # (b, 1, 1) each
    rows, columns = torch.meshgrid(torch.arange(hi) + 0.5, torch.arange(wi) + 0.5, indexing="ij")
    blobs = 255 * torch.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 3**2))  # (b, hi, wi)
    images = blobs.round().to(torch.uint8)[:, None].expand(-1, 3, -1, -1)
    windows, flips = random_windows(rng, b), torch.arange(b) % 2 == 0

    out = sample_windows(images, windows, flips, size)
    assert out.shape == (b, 3, *size)
    assert out.dtype == torch.float32
    weight = out[:, 0] / out[:, 0].sum(dim=(1, 2), keepdim=True)
    rows, columns = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    found_px = torch.stack([(weight * columns).sum(dim=(1, 2)), (weight * rows).sum(dim=(1, 2))], dim=-1)
    expected_px = norm_to_px(move_points(points_norm, windows, flips), size)[:, 0]
    torch.testing.assert_close(found_px, expected_px, atol=0.03, rtol=0)


@pytest.mark.parametrize("size", [(50, 60), (25, 64), (120, 90), (13, 11)])
def test_a_ramp_shows_the_coordinates(size):
    # Pixel values are coordinates (red the column, green the row): what the output shows at a pixel, moves there.
    rng, (hi, wi), b = np.random.default_rng(1), (50, 64), 8
    rows, columns = torch.meshgrid(torch.arange(hi), torch.arange(wi), indexing="ij")
    ramp = torch.stack([columns, rows, torch.zeros_like(rows)]).to(torch.uint8).expand(b, 3, hi, wi)
    windows, flips = random_windows(rng, b), torch.arange(b) % 3 == 0
    out = sample_windows(ramp, windows, flips, size)

    shown_px = out[:, :2].flatten(2).mT * 255 + 0.5  # (b, h·w, 2), pixel centres
    moved_px = norm_to_px(move_points(px_to_norm(shown_px, (hi, wi)), windows, flips), size)
    rows, columns = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    expected_px = torch.stack([columns, rows], dim=-1).flatten(0, 1).expand(b, -1, -1)
    inside = ((shown_px > 6) & (shown_px < torch.tensor([wi - 6, hi - 6]))).all(dim=-1)  # no border repeated
    assert inside.sum() > 0.3 * inside.numel()
    torch.testing.assert_close(moved_px[inside], expected_px[inside], atol=1e-3, rtol=0)


def test_whole_window_of_the_same_size_changes_nothing():
    images = photos(2)
    out = sample_windows(images, WHOLE.expand(2, 4), torch.tensor([False, True]), (20, 28))
    torch.testing.assert_close(out[0] * 255, images[0].float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(out[1] * 255, images[1].flip(-1).float(), atol=1e-3, rtol=0)
    points = torch.rand(2, 4, 2) * 2 - 1
    moved = move_points(points, WHOLE.expand(2, 4), torch.tensor([False, True]))
    torch.testing.assert_close(moved, torch.stack([points[0], points[1] * torch.tensor([-1.0, 1.0])]))


def test_crop_at_pixel_borders_is_a_slice():
    images = photos(1)
    window = torch.tensor([[1 / 14 - 1, 2 / 10 - 1, 21 / 14 - 1, 12 / 10 - 1]])  # columns 1 to 21, rows 2 to 12
    mirrored = sample_windows(images, window, torch.tensor([True]), (10, 20))
    torch.testing.assert_close(mirrored * 255, images[:, :, 2:12, 1:21].flip(-1).float(), atol=0.02, rtol=0)


def test_beyond_the_image_its_border_repeats():
    images = photos(1)
    out = sample_windows(images, 2 * WHOLE[None], torch.tensor([False]), (40, 56))
    padded = tv.pad(images, [14, 10], padding_mode="edge")
    torch.testing.assert_close(out * 255, padded.float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [(26, 40), (20, 30), (14, 21)])  # reduced 1.5, 2 and 2.9 times
def test_reduction_is_that_of_torchvision(size):
    # Stripes two pixels wide: plain sampling makes moiré of them, antialiasing makes grey.
    images = torch.where(torch.arange(60) % 4 < 2, photos(1, (40, 60)), 255 - photos(1, (40, 60)))
    out = sample_windows(images, WHOLE[None], torch.tensor([False]), size)
    expected, plain = (tv.resize(images / 255, list(size), antialias=antialias) for antialias in (True, False))
    rms = [(other - expected)[..., 1:-1].square().mean().sqrt() for other in (out, plain)]
    assert rms[0] < 0.5 * rms[1]


def test_magnified_windows_are_not_blurred():
    images = photos(1, (40, 60))
    window = torch.tensor([[-0.5, -0.5, 0.5, 0.5]])
    out = sample_windows(images, window, torch.tensor([False]), (25, 35))  # the whole image would be reduced
    expected = tv.resize(images[..., 10:30, 15:45] / 255, [25, 35], antialias=True)
    torch.testing.assert_close(out[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1], atol=1e-5, rtol=0)


# Crops


def crops_px(kps_px, size, draws=300, visible=None, **options):
    kps_norm = px_to_norm(np.array(kps_px, dtype=np.float64).reshape(-1, 2), size)
    visible = np.ones(len(kps_norm), dtype=bool) if visible is None else np.array(visible)
    rng = np.random.default_rng(0)
    windows = np.stack([draw_crop(rng, kps_norm, visible, size, **options) for _ in range(draws)])
    return norm_to_px(windows.reshape(-1, 2, 2), size).reshape(-1, 4)


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
        return draw_look(rng), draw_crop(rng, np.zeros((2, 2)), np.ones(2, bool), (240, 240), probability=1.0).tolist()

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_each_change_happens_to_a_fifth_independently():
    rng = np.random.default_rng(0)
    looks = [draw_look(rng) for _ in range(4000)]
    happens = np.array([[getattr(look, f.name) != f.default for f in fields(Look)] for look in looks], dtype=float)
    np.testing.assert_allclose(happens.mean(axis=0), 0.2, atol=0.02)
    assert abs(np.corrcoef(happens.T) - np.eye(7)).max() < 0.06
    assert draw_look(rng, probability=0.0) == Look()


def test_parameters_keep_to_their_ranges():
    rng = np.random.default_rng(0)
    looks = [draw_look(rng, probability=1.0) for _ in range(500)]
    drawn = np.array([[look.sharpness, *look.brightness_contrast, *look.jitter] for look in looks])
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


@pytest.mark.parametrize("name", [f.name for f in fields(Look)])
def test_each_change_is_that_of_torchvision(name):
    images = photos() / 255
    expected = BY_TORCHVISION[name](images[1])
    assert (expected - images[1]).abs().max() > 0.05
    out = apply_looks(images, [Look(), only(name), Look()])
    torch.testing.assert_close(out, torch.stack([images[0], expected, images[2]]), atol=2e-6, rtol=0)


def test_strong_changes_saturate_as_those_of_torchvision():
    image = photos(1)[0] / 255
    blurred, jittered = apply_looks(
        image.expand(2, -1, -1, -1), [Look(sharpness=0.0), Look(jitter=(1.6, 0.5, 1.8, 0.1))]
    )
    torch.testing.assert_close(blurred, tv.adjust_sharpness(image, 0.0), atol=2e-6, rtol=0)
    torch.testing.assert_close(jittered, jitter(image, 1.6, 0.5, 1.8, 0.1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("hue", [-0.5, -0.2, 0.0, 0.13, 0.5])
def test_hue_of_every_kind_of_colour(hue):
    levels = torch.linspace(0, 1, 5)
    colours = torch.cartesian_prod(levels, levels, levels).T.reshape(3, 5, 25)  # ties, grey, black and white among them
    out = apply_looks(colours[None], [Look(jitter=(1.0, 1.0, 1.0, hue))])[0]
    torch.testing.assert_close(out, tv.adjust_hue(colours, hue), atol=2e-6, rtol=0)


def test_changes_come_in_the_order_of_the_fields():
    image = photos(1) / 255
    expected = image[0]
    for field in fields(Look):
        expected = BY_TORCHVISION[field.name](expected)
    torch.testing.assert_close(apply_looks(image, [ALL_ON])[0], expected, atol=1e-5, rtol=0)


def test_an_image_looks_the_same_in_any_batch():
    images, rng = photos(8) / 255, np.random.default_rng(3)
    looks = [draw_look(rng, probability=0.6) for _ in range(8)]
    before = images.clone()
    together = apply_looks(images, looks)
    assert torch.equal(images, before)  # the input is left alone
    alone = torch.cat([apply_looks(images[i : i + 1], looks[i : i + 1]) for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)

    windows, flips = random_windows(rng, 8), torch.arange(8) % 2 == 0
    together = sample_windows(photos(8), windows, flips, (16, 12))
    alone = [sample_windows(photos(8)[i : i + 1], windows[i : i + 1], flips[i : i + 1], (16, 12)) for i in range(8)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


def test_values_stay_between_0_and_1():
    rng = np.random.default_rng(0)
    images = torch.cat([photos(30) / 255, torch.zeros(1, 3, 20, 28), torch.ones(1, 3, 20, 28)])
    for probability in (0.4, 1.0):
        out = apply_looks(images, [draw_look(rng, probability) for _ in range(32)])
        assert out.shape == images.shape
        assert out.dtype == torch.float32
        assert out.min() >= 0  # false for NaN
        assert out.max() <= 1


def test_no_look_changes_nothing():
    images = photos() / 255
    assert torch.equal(apply_looks(images, [Look()] * 3), images)


def test_as_many_looks_as_images():
    with pytest.raises(ValueError, match="3 images, but 2 looks"):
        apply_looks(photos() / 255, [Look()] * 2)


def test_without_augmentation_training_sees_what_evaluation_sees():
    images = photos()
    out = normalise(sample_windows(images, WHOLE.expand(3, 4), torch.zeros(3, dtype=torch.bool), (20, 28)))
    expected = torch.stack([to_tensor(image.permute(1, 2, 0).numpy(), (20, 28)) for image in images])
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


@pytest.mark.gpu
def test_the_device_changes_nothing_and_is_not_waited_for():
    rng, b = np.random.default_rng(0), 16
    images, windows, flips = photos(b), random_windows(rng, b), torch.arange(b) % 2 == 0
    looks = [draw_look(rng, probability=0.5) for _ in range(b)]
    expected = apply_looks(sample_windows(images, windows, flips, (12, 16)), looks)
    inputs = [value.cuda() for value in (images, windows, flips)]
    with pytest.warns(UserWarning, match="prototype feature"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        out = normalise(apply_looks(sample_windows(*inputs, (12, 16)), looks))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # a value at the edge of a bin may fall to its other side
    assert ((out.cpu() - normalise(expected)).abs() > 1e-4).float().mean() < 0.01
