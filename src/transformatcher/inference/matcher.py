"""Two photos in, corresponding points out: the façade that most people use."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from transformatcher.config import ModelConfig, model_config
from transformatcher.coords import grid_norm, norm_to_px, px_to_norm
from transformatcher.data.pairs import point_array
from transformatcher.errors import InputError
from transformatcher.images import read_image, to_rgb, to_tensor
from transformatcher.inference.calibration import CALIBRATION, Calibration, load_calibration, save_calibration
from transformatcher.inference.checkpoint import SHIPPED, find_checkpoint, load_checkpoint, save_checkpoint
from transformatcher.models.backbones.resnet import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.flow import KernelSoftArgmax, cycle_consistent_cells, cycle_error, swap_source_target
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Flow, Matches, Size

if TYPE_CHECKING:
    import matplotlib.figure

Photo = str | Path | Image.Image | np.ndarray | Tensor
PointList = Sequence[Sequence[float | int]] | np.ndarray

MATCH_THRESHOLD = 0.5  # a match that is more likely wrong than right is none
SMALLEST = 4  # pixels along a side


@dataclass(frozen=True)
class EncodedPhoto:
    """A photo and its features: the half of the work that can be kept for other pairs."""

    pixels: UInt8[np.ndarray, "_ _ 3"]
    features: list[Tensor]  # (1, c, h, w) each

    @property
    def size(self) -> Size:
        """(h, w) in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]


@dataclass(frozen=True)
class MatchedPoints(Matches):
    """What :meth:`Matcher.match` found; it knows its photos, so it can draw itself and answer for other points."""

    pair: "MatchedPair" = field(kw_only=True, repr=False)

    @property
    def calibrated(self) -> bool:
        """Whether confidence is a probability; else it is only the sharpness of the match."""
        return self.pair.calibration is not None

    @property
    def is_match(self) -> np.ndarray:
        """Which points have a match at all: those more likely right than wrong. All, where that cannot be told."""
        return self.confidence >= MATCH_THRESHOLD if self.calibrated else np.ones(len(self.confidence), dtype=bool)

    @property
    def reliable(self) -> np.ndarray:
        """Which points to build on: those found; where that cannot be told, the sharper half."""
        if self.calibrated or not len(self.confidence):
            return self.is_match
        return self.confidence >= np.median(self.confidence)

    @property
    def flow_px(self) -> Float[np.ndarray, "h w 2"]:
        """Where every cell of a grid over the source lands, in pixels of the target."""
        return self.pair.flow_px

    @property
    def flow_confidence(self) -> Float[np.ndarray, "h w"]:
        """Confidence of every cell of the flow."""
        return self.pair.flow_confidence

    def draw(self, path: str | Path | None = None, title: str = "") -> "matplotlib.figure.Figure":
        """Both photos with the matches between them, coloured by confidence; saved if a path is given."""
        from transformatcher.viz.pictures import draw_matches, save_figure  # half a second, for those who draw

        threshold = MATCH_THRESHOLD if self.calibrated else None
        src, trg = self.pair.src.pixels, self.pair.trg.pixels
        figure = draw_matches(src, trg, self, title, calibrated=self.calibrated, threshold=threshold)
        if path is not None:
            save_figure(figure, Path(path))
        return figure


class MatchedPair:
    """Two photos, matched: ask it for any points.

    Args:
        src, trg: the photos.
        model: that matched them.
        refined: its scores of all candidate matches.
        calibration: of its confidence, if there is one.
    """

    def __init__(
        self,
        src: EncodedPhoto,
        trg: EncodedPhoto,
        model: TransforMatcher,
        refined: Float[Tensor, "1 hs ws ht wt"],
        calibration: Calibration | None,
    ) -> None:
        self.src, self.trg, self.model, self.refined, self.calibration = src, trg, model, refined, calibration
        self._forth, self._back = model.readout(refined), model.readout(swap_source_target(refined))

    @torch.inference_mode()
    def points(self, keypoints: PointList) -> MatchedPoints:
        """Where points (x, y), in pixels of the source, lie on the target."""
        points = check_points(keypoints, self.src.size, "source keypoints")
        src_norm = torch.from_numpy(px_to_norm(points, self.src.size)).float().to(self.refined.device)
        return self._matches(src_norm, self.model.transfer(self._forth, src_norm[None])[0])

    @torch.inference_mode()
    def consistent(self) -> MatchedPoints:
        """The cells of the correlation grid that come back to within one cell of themselves."""
        grid: Size = (self.refined.shape[1], self.refined.shape[2])
        src_norm, trg_norm, stays = cycle_consistent_cells(self._forth, self._back, grid)
        return self._matches(src_norm[0, stays[0]], trg_norm[0, stays[0]])

    @torch.inference_mode()
    def heatmap(self, point: Sequence[float | int] | np.ndarray) -> Float[np.ndarray, "h w"]:
        """The match distribution of one point of the source over a grid on the target; it sums to one."""
        (x, y) = check_points(np.asarray(point)[None], self.src.size, "source point")[0]
        norm = torch.from_numpy(px_to_norm(np.array([[x, y]]), self.src.size)).float().to(self.refined.device)
        assert isinstance(self.model.readout, KernelSoftArgmax)
        ht, wt = self.refined.shape[3:]
        scores = bilinear_sample(self.refined.flatten(3), norm[None])  # (1, 1, ht·wt)
        one = scores.reshape(1, 1, 1, ht, wt).expand(1, 2, 2, ht, wt)  # four cells alike: interpolation changes nothing
        return self.model.readout.distribution(one)[0, 0, 0].double().cpu().numpy()

    @torch.inference_mode()
    def warp_points(self, src_norm: Float[Tensor, "n 2"]) -> tuple[Float[Tensor, "n 2"], Float[np.ndarray, " n"]]:
        """Points of the source, as [-1, 1]² → where the flow carries them on the target, and how sure that is."""
        trg_norm = bilinear_sample(self._forth.trg_norm, src_norm[None])[0]
        return trg_norm, self._confidence(src_norm, trg_norm)

    def reversed(self) -> "MatchedPair":
        """The same matches, read from target to source."""
        return MatchedPair(self.trg, self.src, self.model, swap_source_target(self.refined), self.calibration)

    @cached_property
    def flow_px(self) -> Float[np.ndarray, "h w 2"]:
        """Where every cell of a grid over the source lands, in pixels of the target."""
        return norm_to_px(self._forth.trg_norm[0].double().cpu().numpy(), self.trg.size)

    @cached_property
    def flow_confidence(self) -> Float[np.ndarray, "h w"]:
        """Confidence of every cell of the flow."""
        h, w = self._forth.peak.shape[1:]
        with torch.inference_mode():
            src_norm = grid_norm((h, w), like=self._forth.peak).flatten(0, 1)
            return self._confidence(src_norm, self._forth.trg_norm[0].flatten(0, 1)).reshape(h, w)

    def draw_flow(self, path: str | Path | None = None, title: str = "") -> "matplotlib.figure.Figure":
        """Where all of the source lands, as colours; saved if a path is given."""
        from transformatcher.viz.pictures import draw_flow, save_figure

        flow_norm = self._forth.trg_norm[0].double().cpu().numpy()
        src, trg, sure = self.src.pixels, self.trg.pixels, self.flow_confidence
        figure = draw_flow(src, trg, flow_norm, sure, title, calibrated=self.calibration is not None)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def draw_heatmap(
        self, point: Sequence[float | int] | np.ndarray, path: str | Path | None = None, title: str = ""
    ) -> "matplotlib.figure.Figure":
        """Where on the target one point of the source might be, as a heat map; saved if a path is given."""
        from transformatcher.viz.pictures import draw_heatmap, save_figure

        place = np.asarray(point, dtype=np.float64)
        figure = draw_heatmap(self.src.pixels, self.trg.pixels, place, self.heatmap(point), title)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def _matches(self, src_norm: Float[Tensor, "n 2"], trg_norm: Float[Tensor, "n 2"]) -> MatchedPoints:
        return MatchedPoints(
            keypoints0=norm_to_px(src_norm.double().cpu().numpy(), self.src.size),
            keypoints1=norm_to_px(trg_norm.double().cpu().numpy(), self.trg.size),
            confidence=self._confidence(src_norm, trg_norm),
            pair=self,
        )

    def _confidence(self, src_norm: Float[Tensor, "n 2"], trg_norm: Float[Tensor, "n 2"]) -> Float[np.ndarray, " n"]:
        sure = match_confidence(self._forth, self._back, src_norm[None], trg_norm[None], self.calibration)
        return sure[0].double().cpu().numpy()


def match_confidence(
    forth: Flow,
    back: Flow,
    src_norm: Float[Tensor, "b n 2"],
    trg_norm: Float[Tensor, "b n 2"],
    calibration: Calibration | None,
) -> Float[Tensor, "b n"]:
    """How sure matches are: calibrated, the probability of each to be right; else their sharpness, in float64."""
    peak = bilinear_sample(forth.peak[..., None], src_norm)[..., 0].double()
    if calibration is None:
        return peak
    found = [values.flatten().double().cpu().numpy() for values in (peak, cycle_error(back, src_norm, trg_norm))]
    return torch.from_numpy(calibration(*found)).to(peak.device).reshape(peak.shape)


class Matcher:
    """A model with everything around it: reading, resizing, coordinates, confidence.

    Args:
        model: with its weights.
        config: the one it was built from.
        device: "auto" takes a GPU where there is one.
        calibration: of its confidence; without, confidence is the sharpness of a match.
    """

    def __init__(
        self, model: TransforMatcher, config: ModelConfig, device: str = "auto", calibration: Calibration | None = None
    ) -> None:
        self.device = pick_device(device)
        self.model = model.eval().to(self.device)
        self.config = config
        self.calibration = calibration

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        device: str = "auto",
        *,
        settings: Mapping[str, Any] | None = None,
        download: bool = False,
        revision: str | None = None,
    ) -> "Matcher":
        """The model that comes with the package, or a checkpoint of your own or of others.

        Args:
            path: a checkpoint folder, or ``owner/name`` on the Hugging Face hub; None for the model in the package.
            device: as for the constructor.
            settings: what ``--set`` changes on the command line: ``{"image_size": 352}`` gives it larger images.
            download: fetch it from the hub where it is not in the hub's cache; else nothing goes over the network.
            revision: of a checkpoint on the hub: a branch, tag or commit.
        """
        folder = SHIPPED if path is None else find_checkpoint(path, download=download, revision=revision)
        model, config = load_checkpoint(folder, settings)
        return cls(model, config, device, load_calibration(folder if folder.is_dir() else folder.parent))

    def save_pretrained(self, folder: str | Path, *, half: bool = False) -> None:
        """Write what :meth:`from_pretrained` reads: model.safetensors, config.json and, if any, calibration.json.

        Such a folder is what the Hugging Face hub takes as a model's files.

        Args:
            folder: made if it is not there.
            half: weights as float16, in half the space.
        """
        folder = Path(folder)
        with torch.device("meta"):
            wanted = {key: value.shape for key, value in build_matcher(self.config).state_dict().items()}
        if wanted != {key: value.shape for key, value in self.model.state_dict().items()}:
            raise InputError(
                f"{folder}: this model was not built for its settings: save it at the image_size of its training"
            )
        save_checkpoint(folder, self.model, self.config, half=half)
        if self.calibration is not None:
            save_calibration(folder, self.calibration)
        else:  # that of other weights would promise what these do not keep
            (folder / CALIBRATION).unlink(missing_ok=True)

    @classmethod
    def raw(
        cls, backbone: str, weights: str | None, device: str = "auto", *, download: bool = False, **settings: Any
    ) -> "Matcher":
        """No trained matcher: the mean correlation of a backbone's layers.

        Args:
            backbone: resnet50, resnet50_v1, resnet101, or timm:NAME for any network of timm.
            weights: a .safetensors file or the name of torchvision weights ("timm" for timm's own); None leaves them
                random.
            device: as for the constructor.
            download: let torchvision, or timm's hub, fetch named weights that are not in the cache.
            settings: other keys of :class:`ModelConfig`, such as image_size and layers.
        """
        config = model_config({**settings, "variant": "raw", "backbone": backbone})
        model = build_matcher(config)
        if weights is not None:
            load_backbone_weights(model.backbone, weights, download=download)
        return cls(model, config, device)

    def match(self, src: Photo, trg: Photo, keypoints: PointList | None = None) -> MatchedPoints:
        """Find points of one photo on another.

        Args:
            src, trg: paths, PIL images, uint8 arrays (h, w), (h, w, 3 or 4) or tensors (3, h, w), of any sizes.
            keypoints: (n, 2) points (x, y) in pixels of ``src``; None for the mutually consistent cells of the grid.
        """
        pair = next(self.pairs(src, [trg]))
        return pair.consistent() if keypoints is None else pair.points(keypoints)

    def match_many(
        self, src: Photo, targets: Iterable[Photo], keypoints: PointList | None = None, batch: int = 4
    ) -> Iterator[MatchedPoints]:
        """As :meth:`match`, for many targets; the source's features are computed once, targets ``batch`` at a time."""
        for pair in self.pairs(src, targets, batch):
            yield pair.consistent() if keypoints is None else pair.points(keypoints)

    @torch.inference_mode()
    def encode(self, photos: Sequence[Photo]) -> list[EncodedPhoto]:
        """Photos → what :meth:`pairs` takes instead of them, to be kept where one photo is matched often."""
        pixels = [to_pixels(photo) for photo in photos]
        tensors = torch.stack([to_tensor(image, self.config.image_size) for image in pixels])
        features = self.model.encode(tensors.to(self.device))
        return [EncodedPhoto(image, [f[i : i + 1] for f in features]) for i, image in enumerate(pixels)]

    def pairs(
        self, src: Photo | EncodedPhoto, targets: Iterable[Photo | EncodedPhoto], batch: int = 4
    ) -> Iterator[MatchedPair]:
        """The source matched with each target, to be asked for any points."""
        remaining = iter(targets)
        while chunk := list(islice(remaining, batch)):
            fresh = [photo for photo in ([src] if not isinstance(src, EncodedPhoto) else []) + chunk
                     if not isinstance(photo, EncodedPhoto)]  # fmt: skip
            encoded = iter(self.encode(fresh) if fresh else [])
            src = src if isinstance(src, EncodedPhoto) else next(encoded)
            photos = [photo if isinstance(photo, EncodedPhoto) else next(encoded) for photo in chunk]
            yield from self._match_encoded(src, photos)

    @torch.inference_mode()
    def _match_encoded(self, src: EncodedPhoto, targets: Sequence[EncodedPhoto]) -> list[MatchedPair]:
        src_features = [f.expand(len(targets), -1, -1, -1) for f in src.features]
        trg_features = [torch.cat(layer) for layer in zip(*(photo.features for photo in targets), strict=True)]
        refined = self.model.refine(src_features, trg_features)
        return [
            MatchedPair(src, trg, self.model, refined[i : i + 1], self.calibration) for i, trg in enumerate(targets)
        ]


def pick_device(name: str) -> torch.device:
    """auto, cpu, cuda, cuda:1, … → a device that is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # each back end has errors of its own
        known = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
        raise InputError(f"device {name!r}: torch cannot use it here; choose {known}") from error
    return device


def check_points(points: PointList, size: Size, what: str) -> Float[np.ndarray, "n 2"]:
    """Points that are finite and inside an image of ``size`` (h, w), or an error that names the first that is not."""
    array = point_array(points, what)
    h, w = size
    for index, (x, y) in enumerate(array):
        if not (0 <= x <= w and 0 <= y <= h):
            raise InputError(f"{what}: point {index + 1}, ({x:g}, {y:g}), lies outside the image of {w} × {h} pixels")
    return array


def to_pixels(photo: Photo) -> UInt8[np.ndarray, "_ _ 3"]:
    """Any photo that a user may bring → RGB pixels, enough of them to show something."""
    pixels = _decoded(photo)
    h, w = pixels.shape[:2]
    if min(h, w) < SMALLEST:
        name = photo if isinstance(photo, str | Path) else "image"
        raise InputError(f"{name}: {w} × {h} pixels; a photo to be matched has at least {SMALLEST} × {SMALLEST}")
    return pixels


def _decoded(photo: Photo) -> UInt8[np.ndarray, "_ _ 3"]:
    if isinstance(photo, Image.Image):
        return np.array(to_rgb(photo))
    if isinstance(photo, Tensor):
        if photo.dim() != 3 or photo.shape[0] not in (1, 3):
            raise InputError(f"image tensor: expected 3 × h × w (or 1 × h × w), got {tuple(photo.shape)}")
        if photo.is_floating_point():
            if not (photo.min() >= 0 and photo.max() <= 1):
                raise InputError("image tensor: floating-point values must lie in [0, 1], before any normalisation")
            photo = (photo * 255).round()
        return _decoded(photo.to(torch.uint8).permute(1, 2, 0).cpu().numpy())
    if isinstance(photo, np.ndarray):
        channels = photo.shape[2] if photo.ndim == 3 else 1
        if photo.dtype != np.uint8 or photo.ndim not in (2, 3) or channels not in (1, 3, 4):
            raise InputError(f"image array: expected uint8 of h × w, h × w × 3 or 4, got {photo.dtype} {photo.shape}")
        return np.array(to_rgb(Image.fromarray(photo[..., 0] if channels == 1 and photo.ndim == 3 else photo)))
    return read_image(Path(photo))
