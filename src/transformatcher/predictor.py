"""Two photos in, corresponding points out: the façade that most people use."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from transformatcher.checkpoint import SHIPPED, load_checkpoint
from transformatcher.config import ModelConfig, model_config
from transformatcher.coords import grid_norm, norm_to_cell, norm_to_px, px_to_norm
from transformatcher.data.pairs import point_array
from transformatcher.errors import InputError
from transformatcher.images import read_image, to_rgb, to_tensor
from transformatcher.keypoints import bilinear_sample
from transformatcher.models.backbone import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.flow import reverse
from transformatcher.models.matcher import TransforMatcher
from transformatcher.schema import Matches, Size

Photo = str | Path | Image.Image | np.ndarray


PointList = Sequence[Sequence[float | int]] | np.ndarray


class Matcher:
    """A model with everything around it: reading, resizing, coordinates.

    Args:
        model: with its weights.
        config: the one it was built from.
        device: "auto" takes a GPU where there is one.
    """

    def __init__(self, model: TransforMatcher, config: ModelConfig, device: str = "auto") -> None:
        self.device = pick_device(device)
        self.model = model.eval().to(self.device)
        self.config = config

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None, device: str = "auto") -> "Matcher":
        """The model that comes with the package, or the checkpoint in a local folder."""
        return cls(*load_checkpoint(SHIPPED if path is None else Path(path)), device=device)

    @classmethod
    def raw(cls, backbone: str, weights: str | None, device: str = "auto", *, download: bool = False) -> "Matcher":
        """No trained matcher: the mean correlation of a backbone's layers.

        Args:
            backbone: resnet50, resnet50_v1 or resnet101.
            weights: a .safetensors file or the name of torchvision weights; None leaves them random.
            device: as for the constructor.
            download: let torchvision fetch named weights that are not in its cache.
        """
        config = model_config({"variant": "raw", "backbone": backbone})
        model = build_matcher(config)
        if weights is not None:
            load_backbone_weights(model.backbone, weights, download=download)
        return cls(model, config, device)

    @torch.inference_mode()
    def match(self, src: Photo, trg: Photo, keypoints: PointList | None = None) -> Matches:
        """Find points of one photo on another.

        Args:
            src, trg: paths, PIL images or uint8 arrays (grey, RGB or RGBA), of any sizes.
            keypoints: (n, 2) points (x, y) in pixels of ``src``; None for the mutually consistent cells of the grid.
        """
        src_image, trg_image = _pixels(src), _pixels(trg)
        src_size, trg_size = src_image.shape[:2], trg_image.shape[:2]
        tensors = torch.stack([to_tensor(image, self.config.image_size) for image in (src_image, trg_image)])
        features = self.model.encode(tensors.to(self.device))
        refined = self.model.refine([f[:1] for f in features], [f[1:] for f in features])
        flow = self.model.readout(refined)
        if keypoints is None:
            src_norm, trg_norm = self._consistent_cells(refined, flow.trg_norm)
        else:
            points = check_points(keypoints, src_size, "source keypoints")
            src_norm = torch.from_numpy(px_to_norm(points, src_size)).float().to(self.device)
            trg_norm = self.model.transfer(flow, src_norm[None])[0]
        peak = bilinear_sample(flow.peak[..., None], src_norm[None])[0, :, 0]
        return Matches(
            keypoints0=norm_to_px(src_norm.double().cpu().numpy(), src_size),
            keypoints1=norm_to_px(trg_norm.double().cpu().numpy(), trg_size),
            confidence=peak.double().cpu().numpy(),
        )

    def _consistent_cells(self, refined: torch.Tensor, flow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cells of the correlation grid that come back to within one cell of themselves when matched there and back."""
        grid: Size = (refined.shape[1], refined.shape[2])
        src_norm = grid_norm(grid, like=refined).flatten(0, 1)
        trg_norm = bilinear_sample(flow, src_norm[None])[0]
        back_norm = bilinear_sample(self.model.readout(reverse(refined)).trg_norm, trg_norm[None])[0]
        drift = (norm_to_cell(back_norm, grid) - norm_to_cell(src_norm, grid)).norm(dim=1)
        return src_norm[drift < 1], trg_norm[drift < 1]


def pick_device(name: str) -> torch.device:
    """auto, cpu, cuda, cuda:1, … → a device that is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # each back end has errors of its own
        raise InputError(f"device {name!r}: torch cannot use it here; choose auto, cpu or cuda") from error
    return device


def check_points(points: PointList, size: Size, what: str) -> Float[np.ndarray, "n 2"]:
    """Points that are finite and inside an image of ``size`` (h, w), or an error that names the first that is not."""
    array = point_array(points, what)
    h, w = size
    for index, (x, y) in enumerate(array):
        if not (0 <= x <= w and 0 <= y <= h):
            raise InputError(f"{what}: number {index}, ({x:g}, {y:g}), lies outside the image of {w} × {h} pixels")
    return array


def _pixels(photo: Photo) -> UInt8[np.ndarray, "h w 3"]:
    if isinstance(photo, Image.Image):
        return np.array(to_rgb(photo))
    if isinstance(photo, np.ndarray):
        channels = photo.shape[2] if photo.ndim == 3 else 1
        if photo.dtype != np.uint8 or photo.ndim not in (2, 3) or channels not in (1, 3, 4):
            raise InputError(f"image array: expected uint8 of h × w, h × w × 3 or 4, got {photo.dtype} {photo.shape}")
        return np.array(to_rgb(Image.fromarray(photo.squeeze())))
    return read_image(Path(photo))
