"""Image files → uint8 canvases of one size, decoded once and kept where there is room, else when they are asked for."""

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

Keep = Literal["device", "host", "disk"]


class ImageStore:
    """All images of a training run.

    Args:
        images: with whether each is to be turned as its EXIF tag says.
        canvas: (h, w) that every image is resized to; the aspect ratio is not kept.
        device: where canvases are wanted.
        keep: ``device`` and ``host`` decode everything now; ``disk`` decodes what is asked for.
        threads: that decode. Decoding and resizing leave Python's lock alone, so they do the work of processes.
        track: called with the numbers of images decoded and in all.
    """

    def __init__(
        self,
        images: Sequence[tuple[ImageSource, bool]],
        canvas: Size,
        device: torch.device,
        keep: Keep = "host",
        threads: int = 4,
        track: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.images = images
        self.canvas = canvas
        self.device = device
        self.pool = ThreadPoolExecutor(threads)
        self.pixels: UInt8[Tensor, "n 3 h w"] | None = None
        if keep == "disk":
            self.sizes = list(self.pool.map(lambda image: image_size(image[0], orient=image[1]), images))
            return
        self.sizes = []
        self.pixels = torch.empty(len(images), 3, *canvas, dtype=torch.uint8)
        for index, (size, pixels) in enumerate(self.pool.map(self._decode, range(len(images)))):
            self.sizes.append(size)
            self.pixels[index] = pixels
            track(index + 1, len(images))
        if keep == "device":
            self.pixels = self.pixels.to(device)

    def __call__(self, indices: Sequence[int]) -> UInt8[Tensor, "b 3 h w"]:
        """The canvases of some images, on the device."""
        if self.pixels is None:
            chosen = torch.stack([pixels for _, pixels in self.pool.map(self._decode, indices)])
        else:
            chosen = self.pixels[torch.as_tensor(indices, device=self.pixels.device)]
        return chosen.to(self.device, non_blocking=True)

    def _decode(self, index: int) -> tuple[Size, UInt8[Tensor, "3 h w"]]:
        source, orient = self.images[index]
        image = read_image(source, orient=orient)
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
        return (image.shape[0], image.shape[1]), tv.resize(pixels, list(self.canvas), antialias=True)


def choose_place(n_images: int, canvas: Size, device: torch.device) -> Keep:
    """On the device where they take at most half of what is free there, else on the host likewise, else on disk."""
    size = n_images * 3 * canvas[0] * canvas[1]
    if device.type == "cuda" and size <= torch.cuda.mem_get_info(device)[0] / 2:
        return "device"
    return "host" if size <= _free_memory() / 2 else "disk"


def _free_memory() -> float:
    """Bytes, or infinity on systems that do not tell."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
