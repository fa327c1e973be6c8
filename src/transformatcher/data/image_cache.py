"""Image files → uint8 images of one size, decoded once and cached in memory, or decoded whenever they are needed."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from transformatcher.images import image_size, read_image
from transformatcher.schema import ImageSource, Size

CacheDevice = Literal["device", "host", "disk"]
OrientedImage = tuple[ImageSource, bool]  # and whether to turn the image as its EXIF tag says


class ImageCache:
    """All images of a training run at one size.

    Args:
        images: files or pixels, each with whether to turn it as its EXIF tag says.
        size: (h, w) that every image is resized to; the aspect ratio is not kept.
        device: that the images are returned on.
        location: ``device`` and ``host`` decode all images now and keep them there; ``disk`` decodes on demand.
        threads: that decode. Decoding and resizing release Python's lock, so threads are as fast as processes.
        track: called with the numbers of images decoded and in all.
    """

    def __init__(
        self,
        images: Sequence[OrientedImage],
        size: Size,
        device: torch.device,
        location: CacheDevice = "host",
        threads: int = 4,
        track: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.images = images
        self.size = size
        self.device = device
        self.pool = ThreadPoolExecutor(threads)
        self.pixels: UInt8[Tensor, "n 3 h w"] | None = None
        self.original_sizes: list[Size]
        if location == "disk":
            self.original_sizes = list(self.pool.map(lambda image: image_size(image[0], orient=image[1]), images))
            return
        self.original_sizes = []
        self.pixels = torch.empty(len(images), 3, *size, dtype=torch.uint8)
        for index, (original_size, pixels) in enumerate(self.pool.map(self._decode, range(len(images)))):
            self.original_sizes.append(original_size)
            self.pixels[index] = pixels
            track(index + 1, len(images))
        if location == "device":
            self.pixels = self.pixels.to(device)

    def __call__(self, indices: Sequence[int]) -> UInt8[Tensor, "b 3 h w"]:
        """The images at some indices, on the device."""
        if self.pixels is None:
            chosen = torch.stack([pixels for _, pixels in self.pool.map(self._decode, indices)])
        else:
            chosen = self.pixels[torch.as_tensor(indices, device=self.pixels.device)]
        return chosen.to(self.device, non_blocking=True)

    def _decode(self, index: int) -> tuple[Size, UInt8[Tensor, "3 h w"]]:
        """The original size (h, w) of an image, and its resized pixels."""
        source, orient = self.images[index]
        image = read_image(source, orient=orient)
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
        return (image.shape[0], image.shape[1]), tv.resize(pixels, list(self.size), antialias=True)


def choose_cache_device(n_images: int, size: Size, device: torch.device) -> CacheDevice:
    """The fastest place where the images take at most half of the free memory: device, then host, else disk."""
    n_bytes = n_images * 3 * size[0] * size[1]
    if device.type == "cuda" and n_bytes <= torch.cuda.mem_get_info(device)[0] / 2:
        return "device"
    return "host" if n_bytes <= _free_memory() / 2 else "disk"


def _free_memory() -> float:
    """Free bytes of the host; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
