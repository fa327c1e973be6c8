"""Images and keypoints → the same, cropped, mirrored and in other colours, a batch at a time on any device.

The random numbers of an image are drawn on the host, from a generator of its own. So they depend on that seed alone:
not on the rest of the batch, nor on rank or device. Nothing here waits for the device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from transformatcher.coords import norm_to_px, px_to_norm
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.schema import ImagePair, Size

Images = Float[Tensor, "b 3 h w"]
Factors = Float[Tensor, "b k"]  # the k parameters of an operation, for every image
CropBox = Float[np.ndarray, "4"]  # (x0, y0, x1, y1), normalised; may reach beyond the image

MAX_SAMPLES = 3  # per output pixel and axis; a reduction by more than this factor is slightly aliased

# ---------------------------------------------------------------- what is drawn at random


@dataclass(frozen=True)
class Augmentation:
    """Probabilities of the random changes; see :class:`transformatcher.config.DataConfig`."""

    p_color: float = 0.2
    p_crop: float = 0.5
    p_object_crop: float = 0.0
    p_flip: float = 0.0
    p_swap: float = 0.0


@dataclass(frozen=True)
class ColorAugmentation:
    """The changes to the colours of one image, applied in this order; None or False leaves one out."""

    grayscale: bool = False
    posterize: bool = False
    equalize: bool = False
    sharpness: float | None = None  # 1 changes nothing
    brightness_contrast: tuple[float, float] | None = None  # added, multiplied
    solarize: bool = False
    jitter: tuple[float, float, float, float] | None = None  # factors of brightness, contrast, saturation; hue shift


@dataclass(frozen=True)
class Sample:
    """One pair and the changes drawn for it; src and trg are the two rows of each array."""

    images: tuple[int, int]  # indices in the image cache
    kps_norm: Float[np.ndarray, "2 n 2"]
    visible: Bool[np.ndarray, " n"]
    crops: Float[np.ndarray, "2 4"]
    flips: tuple[bool, bool]
    colors: tuple[ColorAugmentation, ColorAugmentation]


def draw_sample(
    pair: ImagePair,
    images: tuple[int, int],
    sizes: tuple[Size, Size],
    input_size: Size,
    augmentation: Augmentation,
    rng: np.random.Generator,
) -> Sample:
    """Draw all changes to one pair.

    Args:
        pair: the annotations.
        images: indices of source and target in the image cache.
        sizes: (h, w) of the original images.
        input_size: (h, w) of the network's input.
        augmentation: the probabilities.
        rng: for this sample alone.
    """
    kps = np.stack([px_to_norm(pair.src_kps_px, sizes[0]), px_to_norm(pair.trg_kps_px, sizes[1])])
    flip = bool(rng.random() < augmentation.p_flip)
    crops = []
    for side, box in enumerate((pair.src_bbox_px, pair.trg_bbox_px)):
        around_object = rng.random() < augmentation.p_object_crop
        crop = draw_crop(rng, kps[side], pair.visible, input_size, probability=augmentation.p_crop)
        if box is not None:
            box_norm = px_to_norm(box.reshape(2, 2), sizes[side]).reshape(4)
            object_crop = draw_object_crop(rng, box_norm, kps[side][pair.visible])
            crop = object_crop if around_object else crop
        crops.append(crop)
    return Sample(
        images=images,
        kps_norm=kps,
        visible=pair.visible,
        crops=np.stack(crops),
        flips=(pair.src_flip != flip, pair.trg_flip != flip),
        colors=(draw_color(rng, augmentation.p_color), draw_color(rng, augmentation.p_color)),
    )


def swap_pair(pair: ImagePair) -> ImagePair:
    """The same pair with source and target exchanged."""
    return replace(
        pair,
        src_image=pair.trg_image,
        trg_image=pair.src_image,
        src_kps_px=pair.trg_kps_px,
        trg_kps_px=pair.src_kps_px,
        src_bbox_px=pair.trg_bbox_px,
        trg_bbox_px=pair.src_bbox_px,
        src_flip=pair.trg_flip,
        trg_flip=pair.src_flip,
        absent_px=np.zeros((0, 2)),  # the record does not list the keypoints that only the old target shows
    )


def draw_color(rng: np.random.Generator, probability: float = 0.2) -> ColorAugmentation:
    """Draw each change of colour independently with ``probability``.

    The ranges are those of albumentations, which the authors trained with.
    DEVIATION: they sharpen the full photo, and the reduction to the network's input then takes half of that away; we
    sharpen after the reduction, and less. Their jitter shuffles its four steps; ours keeps them in order.
    """
    grayscale, posterize, equalize, sharpen, relight, solarize, jitter = (rng.random(7) < probability).tolist()
    # All numbers are drawn, used or not, so that another probability does not change the draws that follow.
    sharpness = rng.uniform(2, 4)
    brightness, contrast = rng.uniform(-0.2, 0.2), rng.uniform(0.8, 1.2)
    factors, hue = rng.uniform(0.8, 1.2, size=3).tolist(), rng.uniform(-0.2, 0.2)
    return ColorAugmentation(
        grayscale=grayscale,
        posterize=posterize,
        equalize=equalize,
        sharpness=sharpness if sharpen else None,
        brightness_contrast=(brightness, contrast) if relight else None,
        solarize=solarize,
        jitter=(*factors, hue) if jitter else None,
    )


def draw_crop(
    rng: np.random.Generator,
    kps_norm: Float[np.ndarray, "n 2"],
    visible: Bool[np.ndarray, " n"],
    size: Size,
    *,
    margin_px: float = 20.0,
    probability: float = 0.5,
) -> CropBox:
    """With ``probability``, a random crop that keeps every visible keypoint; else the whole image.

    Each edge is uniform between the image border and ``margin_px`` from the outermost keypoint, in pixels of the image
    at ``size`` (h, w). Around a single keypoint the margin is half its distance to that border.
    """
    h, w = size
    chance, *fractions = rng.random(5)
    borders = np.array([[0, 0], [w, h]], dtype=np.float64)
    if visible.any() and chance < probability:
        kps_px = norm_to_px(kps_norm[visible].astype(np.float64), size)
        outermost = np.stack([kps_px.min(axis=0), kps_px.max(axis=0)])
        margins = abs(outermost - borders) / 2 if len(kps_px) == 1 else margin_px
        tightest = (outermost + np.array([[-1], [1]]) * margins).clip(0, borders[1])
        borders += np.reshape(fractions, (2, 2)) * (tightest - borders)
    return px_to_norm(borders, size).reshape(4)


def draw_object_crop(
    rng: np.random.Generator,
    box_norm: Float[np.ndarray, "4"],
    kps_norm: Float[np.ndarray, "n 2"],
    margin: tuple[float, float] = (0.05, 0.6),
    min_side: float = 0.6,
) -> CropBox:
    """A random crop around one object, within the image.

    Args:
        rng: for the four edges.
        box_norm: of the object.
        kps_norm: visible keypoints; the crop keeps them even if they lie outside the box.
        margin: least and largest distance of an edge from the object, as fractions of the object's width or height.
        min_side: least width and height of the crop; the image's are 2.
    """
    low, high = np.split(box_norm, 2)
    if len(kps_norm):
        low, high = np.minimum(low, kps_norm.min(axis=0)), np.maximum(high, kps_norm.max(axis=0))
    below, above = rng.uniform(*margin, size=(2, 2)) * (high - low)
    low, high = (low - below).clip(-1, 1), (high + above).clip(-1, 1)
    extent = np.maximum(high - low, min_side)
    start = ((low + high - extent) / 2).clip(-1, 1 - extent)  # a crop at the border grows inwards
    return np.concatenate([start, start + extent])


# ---------------------------------------------------------------- what is done to pixels and points


def crop_and_resize(
    images: UInt8[Tensor, "b 3 hi wi"], crops: Float[Tensor, "b 4"], flips: Bool[Tensor, " b"], size: Size
) -> Images:
    """Each image's crop, mirrored where ``flips`` is true, at ``size`` (h, w) and in [0, 1].

    Beyond the image its border repeats. Reductions are antialiased almost as torchvision's resize does it.
    """
    (hi, wi), (h, w) = images.shape[-2:], size
    starts, ends = _starts_and_ends(crops.float(), flips)
    xs, kx = _sample_along(starts[:, :1], ends[:, :1], wi, w)  # (b, kx·w)
    ys, ky = _sample_along(starts[:, 1:], ends[:, 1:], hi, h)  # (b, ky·h)
    whole = (len(images), ky * h, kx * w)
    grid = torch.stack([xs[:, None, :].expand(whole), ys[:, :, None].expand(whole)], dim=-1)  # (b, ky·h, kx·w, 2)
    samples = F.grid_sample(images / 255, grid, padding_mode="border", align_corners=False)
    return F.avg_pool2d(samples, (ky, kx))


def transform_points(
    points_norm: Float[Tensor, "b n 2"], crops: Float[Tensor, "b 4"], flips: Bool[Tensor, " b"]
) -> Float[Tensor, "b n 2"]:
    """Points of the images → the same points in the output of :func:`crop_and_resize`, both normalised."""
    starts, ends = (corner[:, None] for corner in _starts_and_ends(crops, flips))
    return (points_norm - starts) * 2 / (ends - starts) - 1


def _starts_and_ends(
    crops: Float[Tensor, "b 4"], flips: Bool[Tensor, " b"]
) -> tuple[Float[Tensor, "b 2"], Float[Tensor, "b 2"]]:
    """The points that become the output's first and last corner: a crop read from right to left comes out mirrored."""
    x0, y0, x1, y1 = crops.unbind(1)
    return torch.stack([x0.where(~flips, x1), y0], dim=1), torch.stack([x1.where(~flips, x0), y1], dim=1)


def _sample_along(
    start: Float[Tensor, "b 1"], end: Float[Tensor, "b 1"], old: int, new: int
) -> tuple[Float[Tensor, "b kn"], int]:
    """Where to sample ``old`` pixels for the ``new`` ones between start and end, and the number k of samples for each.

    k is what a reduction of the whole image needs, since only the device knows how large the crops are. The distance of
    the k samples depends on the crop: the average of bilinear samples (a kernel of variance 1/6 pixel²) gets the
    variance of torchvision's antialiasing, s²/6 at s old pixels for a new one; a magnified crop is not blurred.
    """
    k = min(math.ceil(old / new), MAX_SAMPLES)
    step = (end - start) / new  # (b, 1)
    apart = (2 * (step**2 - (2 / old) ** 2) / max(k**2 - 1, 1)).clamp(min=0).sqrt()  # variance apart²·(k² - 1)/12
    centres = start + (torch.arange(new, device=start.device) + 0.5) * step  # (b, new)
    offsets = (torch.arange(k, device=start.device) - (k - 1) / 2) * apart  # (b, k)
    return (centres[:, :, None] + offsets[:, None, :]).flatten(1), k


def apply_colors(images: Images, augmentations: Sequence[ColorAugmentation]) -> Images:
    """Images in [0, 1] → a copy with changed colours, one augmentation for each image."""
    if len(augmentations) != len(images):
        raise ValueError(f"{len(images)} images, but {len(augmentations)} color augmentations")
    images = images.clone()
    for name, operation in OPERATIONS.items():
        drawn = {row: getattr(augmentation, name) for row, augmentation in enumerate(augmentations)}
        drawn = {row: value for row, value in drawn.items() if value is not None and value is not False}
        if drawn:
            rows = _send(list(drawn), images.device)
            factors = _send([np.atleast_1d(value).tolist() for value in drawn.values()], images.device)
            images.index_copy_(0, rows, operation(images.index_select(0, rows), factors.to(images.dtype)))
    return images


def normalise(images: Images) -> Images:
    """Images in [0, 1] → images normalised with ImageNet's mean and standard deviation, as the backbone takes them."""
    # torchvision's normalize waits for the device, to check that no deviation is zero
    mean, std = (
        _send(values, images.device).to(images.dtype)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return (images - mean) / std


def _send(values: Sequence[object], device: torch.device) -> Shaped[Tensor, "..."]:
    """Numbers → a tensor on the device, without the wait of ``torch.tensor(…, device=…)``."""
    return torch.tensor(values).to(device, non_blocking=True)


def _grayscale(images: Images, _: Factors) -> Images:
    return tv.rgb_to_grayscale(images, num_output_channels=3)


def _posterize(images: Images, _: Factors) -> Images:
    return tv.posterize(images, bits=4)


def _equalize(images: Images, _: Factors) -> Images:
    return tv.equalize(images)


def _sharpen(images: Images, factors: Factors) -> Images:
    """The same as torchvision's ``adjust_sharpness``, which waits for the device while it copies its kernel there.

    Its blur gives the pixel the weight 5/13 and each of the eight around it 1/13, so it removes 9/13 of the difference
    between the pixel and the mean of the nine. The outermost pixels stay as they are.
    """
    detail = images[..., 1:-1, 1:-1] - F.avg_pool2d(images, 3, stride=1)
    return (images + (factors[:, :, None, None] - 1) * 9 / 13 * F.pad(detail, (1, 1, 1, 1))).clamp(0, 1)


def _relight(images: Images, factors: Factors) -> Images:
    brightness, contrast = factors[:, :, None, None, None].unbind(1)
    return (images * contrast + brightness).clamp(0, 1)


def _solarize(images: Images, _: Factors) -> Images:
    return tv.solarize(images, threshold=0.5)


def _jitter(images: Images, factors: Factors) -> Images:
    """Torchvision's ``adjust_brightness``, ``_contrast``, ``_saturation`` and ``_hue``, with factors for each image."""
    brightness, contrast, saturation, shift = factors[:, :, None, None, None].unbind(1)  # (b, 1, 1, 1) each
    images = (images * brightness).clamp(0, 1)
    mean = tv.rgb_to_grayscale(images).mean(dim=(1, 2, 3), keepdim=True)
    images = torch.lerp(mean, images, contrast).clamp(0, 1)
    images = torch.lerp(tv.rgb_to_grayscale(images), images, saturation).clamp(0, 1)
    return _shift_hue(images, shift)


def _shift_hue(images: Images, shift: Float[Tensor, "b 1 1 1"]) -> Images:
    """Add ``shift`` to the hue (1 is the full circle), at the same saturation and value (HSV)."""
    value = images.amax(1, keepdim=True)  # (b, 1, h, w)
    chroma = value - images.amin(1, keepdim=True)
    red, green, blue = images[:, :, None].unbind(1)
    hues = (green - blue, blue - red + 2 * chroma, red - green + 4 * chroma)  # in sixths, where this colour is largest
    hue = torch.where(value == red, hues[0], torch.where(value == green, hues[1], hues[2]))
    hue = hue / chroma.clamp(min=1e-12) + 6 * shift  # arbitrary for grey
    sixths = torch.cat([hue + start for start in (5, 3, 1)], dim=1).remainder(6)  # (b, 3, h, w)
    return value - chroma * torch.minimum(sixths, 4 - sixths).clamp(0, 1)


# In the order of the authors.
OPERATIONS: dict[str, Callable[[Images, Factors], Images]] = {
    "grayscale": _grayscale,
    "posterize": _posterize,
    "equalize": _equalize,
    "sharpness": _sharpen,
    "brightness_contrast": _relight,
    "solarize": _solarize,
    "jitter": _jitter,
}
