"""Model and pairs → predicted keypoints in a file; scores.py computes PCK from it in any protocol."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformatcher.coords import norm_to_px
from transformatcher.data.pairs import LoadedPair, PairAnnotation, collate, load_pair, stack_points
from transformatcher.data.prefetch import batched, prefetch
from transformatcher.errors import InputError
from transformatcher.inference.coarse_to_fine import CoarseToFine
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.engine import Engine, LocalEngine, Track, Worker, ignore
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.passes import FineMatches, QueryPoints
from transformatcher.inference.readout import PointMatches, TwoWayFlow, read_points
from transformatcher.models.transformatcher import Features, TransforMatcher
from transformatcher.run_folder import LineFile, Run, open_run_folder
from transformatcher.schema import ImagePair, Size

PREDICTIONS = "predictions.jsonl"
CHUNK = 32  # pairs that a worker of a cluster is given at a time
PHOTOS = "photos"  # in run.json: the hash of the photos
HASHED_BYTES = 16_384  # of the beginning and the end of a photo
LEVELS = ("easy", "medium", "hard")  # the levels of each factor of difficulty, 0 to 2


@dataclass(frozen=True)
class Prediction:
    """The predicted keypoints of one pair and all that scoring needs; coordinates are pixels of the original images.

    Only keypoints that are visible in both images count, and those of the source that the target does not show.
    """

    name: str
    category: str
    src_size: list[int]  # (h, w)
    trg_size: list[int]
    kp_index: list[int]  # of each keypoint below, its index among those of the annotation
    src_kps: list[list[float]]
    trg_kps: list[list[float]]
    pred_kps: list[list[float]]
    peak: list[float]  # probability of the best target cell at each keypoint
    trg_bbox: list[float] | None  # x0, y0, x1, y1
    difficulty: dict[str, int]  # factor → index into LEVELS
    cycle_error: list[float] = field(default_factory=list)  # in [-1, 1]²: source → target → source
    # Of each keypoint, the index in these lists of its twin on the other side of the object; -1 without a visible one.
    twins: list[int] = field(default_factory=list)
    # Keypoints of the source that the target does not show: whatever is predicted for them is wrong.
    absent_kps: list[list[float]] = field(default_factory=list)
    absent_peak: list[float] = field(default_factory=list)
    absent_cycle_error: list[float] = field(default_factory=list)
    # Of models that match in several passes, see inference/cues.py:
    mirrored: bool = False  # the mirrored source was matched
    cues: list[list[float]] = field(default_factory=list)
    absent_cues: list[list[float]] = field(default_factory=list)
    pair_cues: list[float] = field(default_factory=list)


class PairPredictor:
    """Annotated pairs → the predictions of their keypoints: what a worker does.

    Args:
        model: in evaluation mode, on ``device``.
        image_size: (h, w) of the network's input.
        device: where the model is.
        coarse_to_fine: match in several passes; None: once.
        all_points: see :func:`predict_batch`.
        batch: pairs at a time.
        threads: that decode images.
    """

    def __init__(
        self,
        model: TransforMatcher,
        image_size: Size,
        device: torch.device,
        coarse_to_fine: CoarseToFine | None = None,
        *,
        all_points: bool = False,
        batch: int = 8,
        threads: int = 2,
    ) -> None:
        self.model, self.device, self.coarse_to_fine = model, device, coarse_to_fine
        self.image_size, self.all_points, self.batch, self.threads = image_size, all_points, batch, threads

    def __call__(self, pairs: Iterable[ImagePair]) -> Iterator[Prediction]:
        """The predictions of pairs, in their order; images are decoded ahead of their use."""
        detail = 0.0 if self.coarse_to_fine is None else self.coarse_to_fine.detail
        load = partial(load_pair, size=self.image_size, detail=detail)
        for loaded in batched(prefetch(load, pairs, ahead=2 * self.batch, threads=self.threads), self.batch):
            yield from predict_batch(self.model, loaded, self.device, self.coarse_to_fine, all_points=self.all_points)


def make_predictor(matcher: Matcher, device: str, _track: Track = ignore, **options: Any) -> PairPredictor:
    """A predictor with the model of a matcher, which is brought to a device; ``options`` are the predictor's."""
    matcher = matcher.to(device)
    return PairPredictor(matcher.network, matcher.config.image_size, matcher.device, matcher.coarse_to_fine, **options)


def predict_to_disk(
    make_worker: Callable[[Track], Worker[ImagePair, Prediction]],
    pairs: Sequence[ImagePair],
    out: Path,
    run: Run,
    *,
    engine: Engine | None = None,
    overwrite: bool = False,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Predict every pair's keypoints and append them to ``out/predictions.jsonl``; pairs already there are skipped.

    Args:
        make_worker: makes what predicts, such as :func:`make_predictor`.
        pairs: with distinct names.
        out: created if it does not exist. A folder with predictions of another ``run`` is an error.
        run: the command and what the predictions depend on (model, weights, data), stored in ``out/run.json``.
        engine: what runs the workers; None: one worker in this process.
        overwrite: replace predictions of another run.
        track: called with the number of pairs done and of all pairs.

    Returns:
        The file of predictions.
    """
    by_name = {pair.name: pair for pair in pairs}

    def compute(names: Sequence[str]) -> Iterator[Prediction]:
        missing = [by_name[name] for name in names]
        return (engine or LocalEngine()).run(make_worker, missing, name=run.command, chunk=CHUNK)

    def add_photos(before: Mapping[str, Any]) -> Mapping[str, Any]:
        return {PHOTOS: run.arguments.get(PHOTOS), **before}  # runs of earlier versions did not note them

    with open_run_folder(out, run, [PREDICTIONS], overwrite=overwrite, upgrade=add_photos):
        prediction_file(out).complete(list(by_name), compute, track)
    return out / PREDICTIONS


def prediction_file(out: Path) -> LineFile[Prediction]:
    """The file of predictions in a folder, which need not exist yet."""
    return LineFile(out / PREDICTIONS, _parse_prediction, "a prediction", "predict again with --overwrite")


def read_predictions(out: Path) -> list[Prediction]:
    """The predictions that :func:`predict_to_disk` wrote to a folder."""
    path = out / PREDICTIONS
    if not path.is_file():
        raise InputError(f"{path}: no predictions there; run transformatcher eval first")
    predictions = list(prediction_file(out).read().values())
    if not predictions:
        raise InputError(f"{path}: holds no predictions")
    return predictions


def fingerprint(pairs: Iterable[ImagePair]) -> str:
    """A short hash of all annotations of the pairs; images do not count."""
    digest = hashlib.sha256()
    for pair in pairs:
        flags = (pair.src_flip, pair.trg_flip, pair.orient)
        digest.update(repr((pair.name, pair.category, flags, sorted(pair.difficulty.items()))).encode())
        arrays = (pair.src_kps_px, pair.trg_kps_px, pair.visible, pair.src_bbox_px, pair.trg_bbox_px, pair.absent_px)
        for array in arrays:
            digest.update(b"none" if array is None else array.tobytes())
    return digest.hexdigest()[:16]


def fingerprint_photos(pairs: Iterable[ImagePair]) -> str:
    """A short hash of the photos of pairs: of their sizes in bytes, their beginnings and their ends."""
    digest = hashlib.sha256()
    photos = {image for pair in pairs for image in (pair.src_image, pair.trg_image) if isinstance(image, Path)}
    for path in sorted(photos):
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{path.name} {size} ".encode(errors="surrogateescape") + file.read(HASHED_BYTES))
                file.seek(max(size - HASHED_BYTES, 0))
                digest.update(file.read())
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    return digest.hexdigest()[:16]


def predict_batch(
    model: TransforMatcher,
    loaded: Sequence[LoadedPair],
    device: torch.device,
    coarse_to_fine: CoarseToFine | None = None,
    *,
    all_points: bool = False,
) -> Iterator[Prediction]:
    """Predict the keypoints of decoded pairs as one batch.

    Args:
        model: in evaluation mode, on ``device``.
        loaded: decoded pairs, with images of the network's input size, and the original pixels for several passes.
        device: where the model is.
        coarse_to_fine: match in several passes; None: once.
        all_points: make the crops of further passes around all keypoints of the source, also those that the target does
            not show; else around those that both images show.
    """
    tensors = collate(loaded)
    absent_norm = stack_points([item.absent_px for item in loaded], [item.src_size for item in loaded])
    src_kps = torch.cat([tensors.src_kps_norm, absent_norm], dim=1).to(device)
    with torch.inference_mode():
        features = model.encode_pair(tensors.src.to(device), tensors.trg.to(device))
        if coarse_to_fine is None:
            flows = TwoWayFlow.of(model.readout, model.refine(*features))
            matches = read_points(flows, src_kps, transfer=model.transfer)
        else:
            asked = torch.zeros(absent_norm.shape[:2], dtype=torch.bool)
            for row, item in zip(asked, loaded, strict=True):
                row[: len(item.absent_px)] = all_points
            given = torch.cat([tensors.visible, asked], dim=1)
            query = QueryPoints(src_kps, given).to(device)
            matches = coarse_to_fine.match(*_photos(loaded, features), query)
        trg_norm, peak, cycle_error = (
            values.double().cpu().numpy() for values in (matches.trg_norm, matches.peak, matches.cycle_error)
        )
    for row, item in enumerate(loaded):
        index = np.flatnonzero(item.pair.visible)
        absent = tensors.src_kps_norm.shape[1] + np.arange(len(item.absent_px))
        yield Prediction(
            **truth(item),
            pred_kps=norm_to_px(trg_norm[row, index], item.trg_size).round(4).tolist(),
            peak=peak[row, index].round(6).tolist(),
            cycle_error=cycle_error[row, index].round(6).tolist(),
            absent_peak=peak[row, absent].round(6).tolist(),
            absent_cycle_error=cycle_error[row, absent].round(6).tolist(),
            **_cues(matches, row, index, absent),
        )


def truth(item: PairAnnotation) -> dict[str, Any]:
    """The fields of a :class:`Prediction` that are known before anything is predicted."""
    index = np.flatnonzero(item.pair.visible)
    row_of = {keypoint: row for row, keypoint in enumerate(index.tolist())}
    twins = item.pair.twins
    return {
        "name": item.pair.name,
        "category": item.pair.category,
        "src_size": list(item.src_size),
        "trg_size": list(item.trg_size),
        "kp_index": index.tolist(),
        "src_kps": item.src_kps_px[index].round(4).tolist(),
        "trg_kps": item.trg_kps_px[index].round(4).tolist(),
        "absent_kps": item.absent_px.round(4).tolist(),
        "trg_bbox": None if item.trg_bbox_px is None else item.trg_bbox_px.round(4).tolist(),
        "difficulty": dict(item.pair.difficulty),
        "twins": [row_of.get(twins[keypoint], -1) for keypoint in index.tolist()] if twins else [],
    }


def _photos(
    loaded: Sequence[LoadedPair], features: tuple[Features, Features]
) -> tuple[list[EncodedPhoto], list[EncodedPhoto]]:
    """Sources and targets of a batch with their features."""
    src, trg = [], []
    for row, item in enumerate(loaded):
        assert item.src_pixels is not None
        assert item.trg_pixels is not None
        src.append(EncodedPhoto(item.src_pixels, [f[row : row + 1] for f in features[0]]))
        trg.append(EncodedPhoto(item.trg_pixels, [f[row : row + 1] for f in features[1]]))
    return src, trg


def _cues(matches: PointMatches, row: int, index: np.ndarray, absent: np.ndarray) -> dict[str, Any]:
    """What calibrate needs of a pair that was matched in several passes."""
    if not isinstance(matches, FineMatches):
        return {}
    assert matches.point_cues is not None
    assert matches.pair_cues is not None
    assert matches.mirrored is not None
    values = matches.point_cues.values[row].cpu().numpy().round(4)
    return {
        "mirrored": bool(matches.mirrored[row]),
        "cues": values[index].tolist(),
        "absent_cues": values[absent].tolist(),
        "pair_cues": matches.pair_cues.values[row].cpu().numpy().round(4).tolist(),
    }


def _parse_prediction(data: Any) -> Prediction:
    prediction = Prediction(**data)
    _check_prediction(prediction)
    return prediction


def _check_prediction(prediction: Prediction) -> None:
    """Raise ValueError or TypeError for a prediction that cannot be scored."""
    if not (isinstance(prediction.name, str) and isinstance(prediction.category, str)):
        raise TypeError("its name and category are not strings")
    if not isinstance(prediction.difficulty, dict):
        raise TypeError(f"difficulty {prediction.difficulty} is not a table of levels")
    points = [np.array(kps, dtype=np.float64) for kps in (prediction.trg_kps, prediction.pred_kps)]
    if not (points[0].shape == points[1].shape == (len(prediction.peak), 2) and points[0].size):
        raise ValueError("trg_kps, pred_kps and peak are not of the same length, or not points [x, y]")
    if not all(np.isfinite(kps).all() for kps in points):
        raise ValueError("a keypoint is NaN or infinite")
    if len(prediction.trg_size) != 2 or not all(isinstance(side, int) and side > 0 for side in prediction.trg_size):
        raise ValueError(f"{prediction.trg_size} is not the size of an image")
    if not all(isinstance(twin, int) and -1 <= twin < len(points[0]) for twin in prediction.twins):
        raise ValueError(f"twins {prediction.twins} are not indices of its {len(points[0])} keypoints")
    if len(prediction.twins) not in (0, len(points[0])):
        raise ValueError(f"{len(prediction.twins)} twins of {len(points[0])} keypoints")
    if prediction.trg_bbox is not None and np.array(prediction.trg_bbox, dtype=np.float64).shape != (4,):
        raise ValueError(f"{prediction.trg_bbox} is not a box")
    if not all(isinstance(level, int) and 0 <= level < len(LEVELS) for level in prediction.difficulty.values()):
        raise ValueError(f"difficulty {prediction.difficulty}: levels are 0 to {len(LEVELS) - 1}")
