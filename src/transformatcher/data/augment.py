"""Images and keypoints → the same, cropped, mirrored and in other colours, a batch at a time on any device.

What happens to an image is drawn on the host from a generator of its own, so it depends on that seed alone: not on the
batch the image is in, nor on rank or device. Nothing here waits for the device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from transformatcher.coords import norm_to_px, px_to_norm
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.schema import Size

Images = Float[Tensor, "b 3 h w"]
Factors = Float[Tensor, "b k"]  # what an operation's k parameters are for every image
Window = Float[np.ndarray, "4"]  # (x0, y0, x1, y1) in the image as [-1, 1]²; may reach beyond it

FINEST_SAMPLING = 3  # samples per output pixel and axis; beyond a threefold reduction some aliasing is accepted


@dataclass(frozen=True)
class Look:
    """What happens to the colours of one image, in this order; the parameters are None where nothing does."""

    grayscale: bool = False
    posterize: bool = False
    equalize: bool = False
    sharpness: float | None = None  # 1 changes nothing
    brightness_contrast: tuple[float, float] | None = None  # added, multiplied
    solarize: bool = False
    jitter: tuple[float, float, float, float] | None = None  # brightness, contrast, saturation factors; turn of the hue


def draw_look(rng: np.random.Generator, probability: float = 0.2) -> Look:
    """Each change independently with ``probability``.

    The ranges are those of albumentations, which the authors trained with.
    DEVIATION: they sharpen the full photo, whose reduction to the network's input then takes half of it away again; we
    sharpen after the reduction, and less. Their jitter shuffles its four steps; ours keeps them in order.
    """
    grayscale, posterize, equalize, sharpen, relight, solarize, jitter = (rng.random(7) < probability).tolist()
    # Every number is drawn, needed or not: another probability leaves the draws that follow as they were.
    sharpness = rng.uniform(2, 4)
    brightness, contrast = rng.uniform(-0.2, 0.2), rng.uniform(0.8, 1.2)
    factors, hue = rng.uniform(0.8, 1.2, size=3).tolist(), rng.uniform(-0.2, 0.2)
    return Look(
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
) -> Window:
    """With ``probability``, a random window that keeps every visible keypoint; else the whole image.

    Each edge lies anywhere between the border and ``margin_px`` from the outermost keypoint, in pixels of the image at
    ``size`` (h, w). Around a single keypoint the margin is half its distance to that border.
    """
    h, w = size
    chance, *shares = rng.random(5)
    borders = np.array([[0, 0], [w, h]], dtype=np.float64)
    if visible.any() and chance < probability:
        kps_px = norm_to_px(kps_norm[visible].astype(np.float64), size)
        outermost = np.stack([kps_px.min(axis=0), kps_px.max(axis=0)])
        margins = abs(outermost - borders) / 2 if len(kps_px) == 1 else margin_px
        tightest = (outermost + np.array([[-1], [1]]) * margins).clip(0, borders[1])
        borders += np.reshape(shares, (2, 2)) * (tightest - borders)
    return px_to_norm(borders, size).reshape(4)


def sample_windows(
    images: UInt8[Tensor, "b 3 hi wi"], windows: Float[Tensor, "b 4"], flips: Bool[Tensor, " b"], size: Size
) -> Images:
    """Each image's window, then mirrored where ``flips`` says so, at ``size`` (h, w) and in [0, 1].

    Beyond the image its border repeats. Reductions are antialiased much as torchvision's resize does it.
    """
    (hi, wi), (h, w) = images.shape[-2:], size
    starts, ends = _starts_and_ends(windows.float(), flips)
    xs, kx = _sample_along(starts[:, :1], ends[:, :1], wi, w)  # (b, kx·w)
    ys, ky = _sample_along(starts[:, 1:], ends[:, 1:], hi, h)  # (b, ky·h)
    whole = (len(images), ky * h, kx * w)
    grid = torch.stack([xs[:, None, :].expand(whole), ys[:, :, None].expand(whole)], dim=-1)  # (b, ky·h, kx·w, 2)
    samples = F.grid_sample(images / 255, grid, padding_mode="border", align_corners=False)
    return F.avg_pool2d(samples, (ky, kx))


def move_points(
    points_norm: Float[Tensor, "b n 2"], windows: Float[Tensor, "b 4"], flips: Bool[Tensor, " b"]
) -> Float[Tensor, "b n 2"]:
    """Points of the images → the same points in what `sample_windows` makes of them, both as [-1, 1]²."""
    starts, ends = (corner[:, None] for corner in _starts_and_ends(windows, flips))
    return (points_norm - starts) * 2 / (ends - starts) - 1


def _starts_and_ends(
    windows: Float[Tensor, "b 4"], flips: Bool[Tensor, " b"]
) -> tuple[Float[Tensor, "b 2"], Float[Tensor, "b 2"]]:
    """What becomes the first and the last corner of the output: a window read from right to left comes out mirrored."""
    x0, y0, x1, y1 = windows.unbind(1)
    return torch.stack([x0.where(~flips, x1), y0], dim=1), torch.stack([x1.where(~flips, x0), y1], dim=1)


def _sample_along(
    start: Float[Tensor, "b 1"], end: Float[Tensor, "b 1"], old: int, new: int
) -> tuple[Float[Tensor, "b kn"], int]:
    """Where to sample ``old`` pixels for the ``new`` ones between start and end, and how often (k) for each of them.

    k is what a reduction of the whole image needs, since only the device knows how large the windows are. How far the
    k samples lie apart is up to the window: the average of bilinear samples (a kernel of variance 1/6 pixel²) gets the
    variance of torchvision's antialiasing, s²/6 at s old pixels for a new one; a magnified window is not blurred.
    """
    k = min(math.ceil(old / new), FINEST_SAMPLING)
    step = (end - start) / new  # (b, 1)
    apart = (2 * (step**2 - (2 / old) ** 2) / max(k**2 - 1, 1)).clamp(min=0).sqrt()  # variance apart²·(k² - 1)/12
    centres = start + (torch.arange(new, device=start.device) + 0.5) * step  # (b, new)
    offsets = (torch.arange(k, device=start.device) - (k - 1) / 2) * apart  # (b, k)
    return (centres[:, :, None] + offsets[:, None, :]).flatten(1), k


def apply_looks(images: Images, looks: Sequence[Look]) -> Images:
    """Images in [0, 1] → the same with their colours changed, each as its look says."""
    if len(looks) != len(images):
        raise ValueError(f"{len(images)} images, but {len(looks)} looks")
    images = images.clone()
    for name, operation in OPERATIONS.items():
        drawn = {row: getattr(look, name) for row, look in enumerate(looks)}
        drawn = {row: value for row, value in drawn.items() if value is not None and value is not False}
        if drawn:
            rows = _send(list(drawn), images.device)
            factors = _send([np.atleast_1d(value).tolist() for value in drawn.values()], images.device)
            images.index_copy_(0, rows, operation(images.index_select(0, rows), factors.to(images.dtype)))
    return images


def normalise(images: Images) -> Images:
    """[0, 1] → ImageNet's mean and deviation, as the backbone wants it."""
    # torchvision's own waits for the device to tell that no deviation is zero
    mean, std = (
        _send(values, images.device).to(images.dtype)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return (images - mean) / std


def _send(values: Sequence[object], device: torch.device) -> Shaped[Tensor, "..."]:
    """Numbers → a tensor on the device, without waiting for it as ``torch.tensor(…, device=…)`` does."""
    return torch.tensor(values).to(device, non_blocking=True)


def _grayscale(images: Images, _: Factors) -> Images:
    return tv.rgb_to_grayscale(images, num_output_channels=3)


def _posterize(images: Images, _: Factors) -> Images:
    return tv.posterize(images, bits=4)


def _equalize(images: Images, _: Factors) -> Images:
    return tv.equalize(images)


def _sharpen(images: Images, factors: Factors) -> Images:
    """As torchvision's ``adjust_sharpness``, whose kernel travels to the device while all wait.

    Its blur weighs the pixel 5/13 and each of the eight around it 1/13, so it takes away 9/13 of what distinguishes
    the pixel from the mean of the nine. The outermost pixels stay as they are.
    """
    detail = images[..., 1:-1, 1:-1] - F.avg_pool2d(images, 3, stride=1)
    return (images + (factors[:, :, None, None] - 1) * 9 / 13 * F.pad(detail, (1, 1, 1, 1))).clamp(0, 1)


def _relight(images: Images, factors: Factors) -> Images:
    brightness, contrast = factors[:, :, None, None, None].unbind(1)
    return (images * contrast + brightness).clamp(0, 1)


def _solarize(images: Images, _: Factors) -> Images:
    return tv.solarize(images, threshold=0.5)


def _jitter(images: Images, factors: Factors) -> Images:
    """Torchvision's ``adjust_brightness``, ``_contrast``, ``_saturation`` and ``_hue``, for factors that differ."""
    brightness, contrast, saturation, turn = factors[:, :, None, None, None].unbind(1)  # (b, 1, 1, 1) each
    images = (images * brightness).clamp(0, 1)
    mean = tv.rgb_to_grayscale(images).mean(dim=(1, 2, 3), keepdim=True)
    images = torch.lerp(mean, images, contrast).clamp(0, 1)
    images = torch.lerp(tv.rgb_to_grayscale(images), images, saturation).clamp(0, 1)
    return _turn_hue(images, turn)


def _turn_hue(images: Images, turn: Float[Tensor, "b 1 1 1"]) -> Images:
    """Hue + ``turn`` (1 is once around), at the same saturation and value (HSV)."""
    value = images.amax(1, keepdim=True)  # (b, 1, h, w)
    chroma = value - images.amin(1, keepdim=True)
    red, green, blue = images[:, :, None].unbind(1)
    hues = (green - blue, blue - red + 2 * chroma, red - green + 4 * chroma)  # in sixths, where this colour is largest
    hue = torch.where(value == red, hues[0], torch.where(value == green, hues[1], hues[2]))
    hue = hue / chroma.clamp(min=1e-12) + 6 * turn  # of grey, any
    sixths = torch.cat([hue + start for start in (5, 3, 1)], dim=1).remainder(6)  # (b, 3, h, w)
    return value - chroma * torch.minimum(sixths, 4 - sixths).clamp(0, 1)


# In the order in which the authors apply them.
OPERATIONS: dict[str, Callable[[Images, Factors], Images]] = {
    "grayscale": _grayscale,
    "posterize": _posterize,
    "equalize": _equalize,
    "sharpness": _sharpen,
    "brightness_contrast": _relight,
    "solarize": _solarize,
    "jitter": _jitter,
}
