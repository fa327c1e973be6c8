"""Two photos → corresponding points: the façade that most people use."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from transformatcher.config import ModelConfig, model_config
from transformatcher.data.prefetch import batched
from transformatcher.errors import InputError
from transformatcher.images import to_tensor
from transformatcher.inference.calibration import CALIBRATION, Calibration, load_calibration, save_calibration
from transformatcher.inference.checkpoint import SHIPPED, find_checkpoint, load_checkpoint, save_checkpoint
from transformatcher.inference.device import pick_device
from transformatcher.inference.matched_pair import EncodedPhoto, MatchedPair, MatchedPoints
from transformatcher.inference.photos import PhotoLike, PointList, photo_name, to_pixels
from transformatcher.inference.readout import TwoWayFlow
from transformatcher.models.backbones.weights import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.transformatcher import TransforMatcher


class Matcher:
    """A model with all that it needs to match photos: reading, resizing, coordinates, confidence.

    Args:
        model: with its weights.
        config: the one it was built from.
        device: "auto" takes a GPU where there is one.
        calibration: of the model's confidence; without one, confidence is the peak of a match.

    Example:
        >>> matcher = Matcher.from_pretrained()
        >>> matches = matcher.match("cat_a.jpg", "cat_b.jpg", [[168, 115], [262, 241]])
        >>> matches.keypoints1, matches.confidence  # (2, 2) pixels of cat_b.jpg, (2,) in [0, 1]
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
        """Load the model that comes with the package, or another checkpoint.

        Args:
            path: a checkpoint folder, or ``owner/name`` on the Hugging Face hub; None for the model in the package.
            device: as for the constructor.
            settings: what ``--set`` changes on the command line: ``{"image_size": 352}`` gives it larger images.
            download: fetch the checkpoint from the hub if it is not in the hub's cache. Without it, the network is
                never used.
            revision: of a checkpoint on the hub: a branch, tag or commit.

        Example:
            >>> Matcher.from_pretrained(device="cpu", settings={"image_size": 352})
        """
        folder = SHIPPED if path is None else find_checkpoint(path, download=download, revision=revision)
        model, config = load_checkpoint(folder, settings)
        return cls(model, config, device, load_calibration(folder if folder.is_dir() else folder.parent))

    def save_pretrained(self, folder: str | Path, *, half: bool = False) -> None:
        """Write what :meth:`from_pretrained` reads: model.safetensors, config.json and, if any, calibration.json.

        The Hugging Face hub accepts such a folder as the files of a model.

        Args:
            folder: created if it does not exist.
            half: store weights as float16, in half the space.

        Example:
            >>> matcher.save_pretrained("my-matcher", half=True)
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
        else:  # a calibration of other weights would be wrong for these
            (folder / CALIBRATION).unlink(missing_ok=True)

    @classmethod
    def raw(
        cls, backbone: str, weights: str | None, device: str = "auto", *, download: bool = False, **settings: Any
    ) -> "Matcher":
        """Match without a trained refiner, by the mean correlation of a backbone's layers.

        Args:
            backbone: resnet50, resnet50_v1, resnet101, or timm:NAME for any network of timm.
            weights: a .safetensors file or the name of torchvision weights ("timm" for timm's own); None leaves them
                random.
            device: as for the constructor.
            download: let torchvision or timm download named weights that are not in their cache.
            settings: other keys of :class:`ModelConfig`, such as image_size and layers.

        Example:
            >>> Matcher.raw("timm:vit_small_patch14_dinov2.lvd142m", "timm", download=True)
        """
        config = model_config({**settings, "variant": "raw", "backbone": backbone})
        model = build_matcher(config)
        if weights is not None:
            load_backbone_weights(model.backbone, weights, download=download)
        return cls(model, config, device)

    def match(self, src: PhotoLike, trg: PhotoLike, keypoints: PointList | None = None) -> MatchedPoints:
        """Find points of one photo on another.

        Args:
            src, trg: paths, PIL images, uint8 arrays (h, w), (h, w, 3 or 4) or tensors (3, h, w), of any sizes.
            keypoints: (n, 2) points (x, y) in pixels of ``src``; None for the cycle-consistent cells of the
                correlation grid.

        Example:
            >>> matcher.match("cat_a.jpg", "cat_b.jpg", [[168, 115]]).keypoints1
        """
        return next(self.match_many(src, [trg], keypoints))

    def match_many(
        self, src: PhotoLike, targets: Iterable[PhotoLike], keypoints: PointList | None = None, batch: int = 4
    ) -> Iterator[MatchedPoints]:
        """As :meth:`match`, for many targets: the source is encoded once, targets are matched ``batch`` at a time.

        Example:
            >>> for matches in matcher.match_many("cat_a.jpg", ["cat_b.jpg", "cat_c.jpg"], [[168, 115]]):
            ...     print(matches.keypoints1)
        """
        for pair in self.pairs(src, targets, batch):
            yield pair.consistent() if keypoints is None else pair.points(keypoints)

    @torch.inference_mode()
    def encode(self, photos: Sequence[PhotoLike]) -> list[EncodedPhoto]:
        """Compute the features of photos, which :meth:`pairs` takes instead of the photos themselves.

        Example:
            >>> reference, = matcher.encode(["cat_a.jpg"])
            >>> for target in ["cat_b.jpg", "cat_c.jpg"]:
            ...     next(matcher.pairs(reference, [target])).points([[168, 115]])
        """
        pixels = [to_pixels(photo) for photo in photos]
        tensors = torch.stack([to_tensor(image, self.config.image_size) for image in pixels])
        features = self.model.encode(tensors.to(self.device))
        return [
            EncodedPhoto(image, [f[i : i + 1] for f in features], photo_name(photos[i]))
            for i, image in enumerate(pixels)
        ]

    def pairs(
        self, src: PhotoLike | EncodedPhoto, targets: Iterable[PhotoLike | EncodedPhoto], batch: int = 4
    ) -> Iterator[MatchedPair]:
        """Match the source with each target, ``batch`` at a time; ask the pairs for any points.

        Example:
            >>> pair = next(matcher.pairs("cat_a.jpg", ["cat_b.jpg"]))
            >>> pair.points([[168, 115]]), pair.flow_px, pair.heatmap([168, 115])
        """
        for chunk in batched(targets, batch):
            src, *photos = self._encoded([src, *chunk])
            yield from self._match_encoded(src, photos)

    def _encoded(self, photos: Sequence[PhotoLike | EncodedPhoto]) -> list[EncodedPhoto]:
        """The same photos, those that are not encoded yet in one batch."""
        new = [photo for photo in photos if not isinstance(photo, EncodedPhoto)]
        encoded = iter(self.encode(new) if new else [])
        return [photo if isinstance(photo, EncodedPhoto) else next(encoded) for photo in photos]

    @torch.inference_mode()
    def _match_encoded(self, src: EncodedPhoto, targets: Sequence[EncodedPhoto]) -> list[MatchedPair]:
        src_features = [f.expand(len(targets), -1, -1, -1) for f in src.features]
        trg_features = [torch.cat(layer) for layer in zip(*(photo.features for photo in targets), strict=True)]
        flows = TwoWayFlow.of(self.model.readout, self.model.refine(src_features, trg_features))
        return [
            MatchedPair(src, trg, self.model, flows.rows(slice(i, i + 1)), self.calibration)
            for i, trg in enumerate(targets)
        ]
