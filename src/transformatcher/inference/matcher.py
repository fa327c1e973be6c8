"""Two photos → corresponding points: the façade that most people use."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_args

import torch

from transformatcher.config import ModelConfig, model_config, to_plain
from transformatcher.coords import px_to_norm
from transformatcher.data.prefetch import batched
from transformatcher.errors import InputError
from transformatcher.images import to_tensor
from transformatcher.inference.calibration import CALIBRATION, Calibrations, load_calibration, save_calibration
from transformatcher.inference.checkpoint import SHIPPED, find_checkpoint, load_checkpoint, save_checkpoint
from transformatcher.inference.coarse_to_fine import CoarseToFine
from transformatcher.inference.device import pick_device
from transformatcher.inference.encoded_photo import EncodedPhoto, RecentSources
from transformatcher.inference.matched_pair import MatchedPair, MatchedPoints
from transformatcher.inference.passes import QueryPoints
from transformatcher.inference.photos import PhotoLike, PointList, check_count, check_points, photo_name, to_pixels
from transformatcher.inference.readout import TwoWayFlow
from transformatcher.models.backbones.weights import load_backbone_weights
from transformatcher.models.build import build_matcher, pair_memory
from transformatcher.models.cost import largest_batch
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.fused.inference import for_inference
from transformatcher.models.fused.precision import Precision, choose_dtype
from transformatcher.models.sampler import Sampler
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import hash_tensors


class Matcher:
    """A model with all that it needs to match photos: reading, resizing, coordinates, confidence.

    Args:
        model: with its weights.
        config: the one it was built from.
        device: "auto" takes a GPU where there is one.
        calibration: of the model's confidence; without one, confidence is the peak of a match.
        try_mirrored: compare the target with the mirrored source, too, and match the mirrored source if it fits better:
            two cars that face opposite ways. Only for models that match in several passes.
        precision: of the backbone: "float32", "bfloat16", or "auto" for bfloat16 where the device multiplies it faster.

    Attributes:
        model: the model as it was given, to be saved, exported or trained on.
        network: what matches photos: the model prepared for inference in this precision.

    Example:
        >>> matcher = Matcher.from_pretrained()
        >>> matches = matcher.match("cat_a.jpg", "cat_b.jpg", [[168, 115], [262, 241]])
        >>> matches.keypoints1, matches.confidence  # (2, 2) pixels of cat_b.jpg, (2,) in [0, 1]
    """

    def __init__(
        self,
        model: TransforMatcher,
        config: ModelConfig,
        device: str = "auto",
        calibration: Calibrations | None = None,
        *,
        try_mirrored: bool = True,
        precision: Precision = "auto",
    ) -> None:
        if precision not in get_args(Precision):
            raise InputError(f"precision {precision!r}: choose {', '.join(get_args(Precision))}")
        self.device = pick_device(device)
        self.model = model.eval().to(self.device)
        self.config = config
        self.calibration = calibration or Calibrations()
        self.try_mirrored = try_mirrored
        self.precision: Precision = precision
        self.recent_sources = RecentSources()

    @cached_property
    def network(self) -> TransforMatcher:
        """The model prepared for inference, once it is needed; later changes of the model's weights do not reach it."""
        dtype = choose_dtype(self.precision, self.device)
        return for_inference(self.model, dtype, self.config.image_size)

    @property
    def _reading(self) -> tuple[KernelSoftArgmax, Sampler]:
        """What reads matches out of refined maps."""
        assert isinstance(self.network.readout, KernelSoftArgmax)  # there is no other kind
        return self.network.readout, self.network.sampler

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the model itself; what is prepared from it is prepared again."""
        return {key: value for key, value in vars(self).items() if key != "network"} | {
            "recent_sources": RecentSources()
        }

    def describe(self) -> dict[str, Any]:
        """All that its matches depend on, as JSON values: what a run folder is compared by."""
        return {
            "model": to_plain(self.config),
            "weights": hash_tensors(self.model.state_dict()),
            "calibration": asdict(self.calibration) if self.calibrated else None,
            "precision": self.precision,
            "try_mirrored": self.try_mirrored and self.coarse_to_fine is not None,
        }

    def to(self, device: str) -> "Matcher":
        """The same matcher on another device ("auto": see the constructor), where its model then is."""
        options: dict[str, Any] = {"try_mirrored": self.try_mirrored, "precision": self.precision}
        return Matcher(self.model, self.config, device, self.calibration, **options)

    @property
    def coarse_to_fine(self) -> CoarseToFine | None:
        """How photos are matched in several passes; None if they are matched once, as in the paper."""
        if self.config.coarse_to_fine.passes == 1:
            return None
        return CoarseToFine(
            self.network,
            self.config.image_size,
            self.config.coarse_to_fine,
            self.calibration.coarse_to_fine,
            self.try_mirrored,
        )

    @property
    def calibrated(self) -> bool:
        """Whether confidence is the probability of a match to be right; if not, it is only the match's peak."""
        one_pass = self.config.coarse_to_fine.passes == 1
        return (self.calibration.one_pass if one_pass else self.calibration.coarse_to_fine) is not None

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        device: str = "auto",
        *,
        settings: Mapping[str, Any] | None = None,
        download: bool = False,
        revision: str | None = None,
        try_mirrored: bool = True,
        precision: Precision = "auto",
    ) -> "Matcher":
        """Load the model that comes with the package, or another checkpoint.

        Args:
            path: a checkpoint folder, or ``owner/name`` on the Hugging Face hub; None for the model in the package.
            device: as for the constructor.
            settings: what ``--set`` changes on the command line: ``{"coarse_to_fine.passes": 1}`` matches whole photos
                alone, ``{"coarse_to_fine.mirror_average": True}`` takes twice the time and is right more often.
            download: fetch the checkpoint from the hub if it is not in the hub's cache. Without it, the network is
                never used.
            revision: of a checkpoint on the hub: a branch, tag or commit.
            try_mirrored, precision: as for the constructor.

        Example:
            >>> Matcher.from_pretrained(device="cpu", settings={"image_size": 352})
        """
        folder = SHIPPED if path is None else find_checkpoint(path, download=download, revision=revision)
        model, config = load_checkpoint(folder, settings)
        calibration = load_calibration(folder if folder.is_dir() else folder.parent)
        return cls(model, config, device, calibration, try_mirrored=try_mirrored, precision=precision)

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
        if self.calibration != Calibrations():
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
            keypoints: (n, 2) points (x, y) in pixels of ``src``; None for the cycle-consistent cells of a grid over
                its object.

        Example:
            >>> matcher.match("cat_a.jpg", "cat_b.jpg", [[168, 115]]).keypoints1
        """
        return next(self.match_many(src, [trg], keypoints))

    def match_many(
        self,
        src: PhotoLike | EncodedPhoto,
        targets: Iterable[PhotoLike | EncodedPhoto],
        keypoints: PointList | None = None,
        batch: int = 4,
    ) -> Iterator[MatchedPoints]:
        """As :meth:`match`, for many targets: the source is encoded once, targets are matched ``batch`` at a time.

        Example:
            >>> for matches in matcher.match_many("cat_a.jpg", ["cat_b.jpg", "cat_c.jpg"], [[168, 115]]):
            ...     print(matches.keypoints1)
        """
        for pair in self._pairs(src, targets, keypoints, batch):
            yield pair.consistent() if keypoints is None else pair.points(keypoints)

    @torch.inference_mode()
    def encode(self, photos: Sequence[PhotoLike], *, keep_views: bool = False) -> list[EncodedPhoto]:
        """Compute the features of photos, which :meth:`pairs` takes instead of the photos themselves.

        Args:
            photos: of any sizes; they are encoded in one batch.
            keep_views: keep the features of their crops and mirror images, too, as long as the photos are kept: for
                photos that are matched with many others, not one after another. It takes up to five times the memory.

        Example:
            >>> reference, = matcher.encode(["cat_a.jpg"])
            >>> for target in ["cat_b.jpg", "cat_c.jpg"]:
            ...     next(matcher.pairs(reference, [target])).points([[168, 115]])
        """
        pixels = [to_pixels(photo) for photo in photos]
        if not pixels:
            raise InputError("no photo to encode: the list is empty")
        tensors = torch.stack([to_tensor(image, self.config.image_size) for image in pixels])
        features = self.network.encode(tensors.to(self.device))
        return [
            EncodedPhoto(image, [f[i : i + 1] for f in features], photo_name(photos[i]), keep_views=keep_views)
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
        return self._pairs(src, targets, None, batch)

    def _pairs(
        self,
        src: PhotoLike | EncodedPhoto,
        targets: Iterable[PhotoLike | EncodedPhoto],
        keypoints: PointList | None,
        batch: int,
    ) -> Iterator[MatchedPair]:
        """Matched pairs; a model that matches in several passes crops the photos around the keypoints, if any."""
        batch = min(check_count(batch, "batch"), self._largest_batch)
        for chunk in batched(targets, batch):
            src, *photos = self._encoded([src, *chunk])
            pairs = self._match_encoded(src, photos, keypoints)
            self.recent_sources.keep([src], [photo for photo in photos if photo is not src])
            yield from pairs  # after the views are dropped: who wants one pair only never comes back

    @cached_property
    def _largest_batch(self) -> int:
        """The number of pairs that fit into the memory of this machine together."""
        return largest_batch(pair_memory(self.config))

    def _encoded(self, photos: Sequence[PhotoLike | EncodedPhoto]) -> list[EncodedPhoto]:
        """The same photos, those that are not encoded yet in one batch."""
        new = [photo for photo in photos if not isinstance(photo, EncodedPhoto)]
        encoded = iter(self.encode(new) if new else [])
        return [photo if isinstance(photo, EncodedPhoto) else next(encoded) for photo in photos]

    @torch.inference_mode()
    def _match_encoded(
        self, src: EncodedPhoto, targets: Sequence[EncodedPhoto], keypoints: PointList | None
    ) -> list[MatchedPair]:
        if (coarse_to_fine := self.coarse_to_fine) is not None:
            return self._match_in_passes(coarse_to_fine, src, targets, keypoints)
        src_features = [f.expand(len(targets), -1, -1, -1) for f in src.features]
        trg_features = [torch.cat(layer) for layer in zip(*(photo.features for photo in targets), strict=True)]
        flows = TwoWayFlow.of(self.network.readout, self.network.refine(src_features, trg_features))
        return [
            MatchedPair(src, trg, *self._reading, flows.rows(slice(i, i + 1)), self.calibration.one_pass)
            for i, trg in enumerate(targets)
        ]

    def _match_in_passes(
        self,
        coarse_to_fine: CoarseToFine,
        src: EncodedPhoto,
        targets: Sequence[EncodedPhoto],
        keypoints: PointList | None,
    ) -> list[MatchedPair]:
        query = None
        if keypoints is not None and len(keypoints) > 0 and self.config.coarse_to_fine.region == "points":
            points = px_to_norm(check_points(keypoints, src.size, "source keypoints"), src.size)
            query = QueryPoints.all(torch.from_numpy(points).float().to(self.device).expand(len(targets), -1, -1))
        passes = coarse_to_fine.run([src] * len(targets), targets, query)
        if query is None:
            return [
                MatchedPair(src, trg, *self._reading, passes=passes.rows(slice(i, i + 1)))
                for i, trg in enumerate(targets)
            ]
        matches = cache(lambda: passes.read(query.norm, query.given))  # of all pairs together, once it is needed
        return [
            MatchedPair(
                src,
                trg,
                *self._reading,
                passes=passes.rows(slice(i, i + 1)),
                asked=query.norm[:1],
                asked_matches=lambda i=i: matches().rows(slice(i, i + 1)),  # type: ignore[misc]
            )
            for i, trg in enumerate(targets)
        ]
