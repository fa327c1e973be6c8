"""Matcher and pairs → predictions on disk → scores. Two passes, so that another protocol costs only seconds."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float

from transformatcher.coords import norm_to_px, rescale_px
from transformatcher.data.pairs import LoadedPair, collate, load_pair, stack_points
from transformatcher.errors import InputError
from transformatcher.files import alone_in, appended, read_json, whole_lines, write_text
from transformatcher.keypoints import bilinear_sample
from transformatcher.metrics import (
    ALPHAS,
    KINDS,
    Kind,
    bootstrap_ci95,
    bootstrap_weights,
    correct_points,
    pck_per_pair,
    pck_per_point,
    point_errors,
    reference_length,
)
from transformatcher.models.flow import drift, reverse
from transformatcher.models.matcher import TransforMatcher
from transformatcher.schema import ImagePair, Size

PREDICTIONS, RUN, SCORES = "predictions.jsonl", "run.json", "scores.json"
LEVELS = ("easy", "medium", "hard")
PUBLISHED_FRAME: Size = (240, 240)
PUBLISHED_KIND: Mapping[str, Kind] = {"spair": "bbox", "pfpascal": "img", "pfwillow": "bbox-kp", "coco": "bbox"}


@dataclass(frozen=True)
class Prediction:
    """All that scoring needs to know of one pair: visible keypoints only, in pixels of the original images."""

    name: str
    category: str
    src_size: list[int]
    trg_size: list[int]
    kp_index: list[int]  # which of the benchmark's keypoints these are
    src_kps: list[list[float]]
    trg_kps: list[list[float]]
    pred_kps: list[list[float]]
    peak: list[float]  # how sharp the match distribution is at each keypoint
    trg_bbox: list[float] | None
    difficulty: dict[str, int]
    drift: list[float] = field(default_factory=list)  # how far from itself each keypoint arrives there and back
    # The same of keypoints that the target does not show, so that whatever was found for them is wrong.
    absent_kps: list[list[float]] = field(default_factory=list)
    absent_peak: list[float] = field(default_factory=list)
    absent_drift: list[float] = field(default_factory=list)


# ---------------------------------------------------------------- pass 1: predictions


def predict_to_disk(
    model: TransforMatcher,
    pairs: Sequence[ImagePair],
    out: Path,
    run: Mapping[str, Any],
    *,
    image_size: Size,
    device: torch.device,
    batch: int = 8,
    threads: int = 2,
    overwrite: bool = False,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Predict every pair's keypoints and append them to ``out/predictions.jsonl``; pairs already there are skipped.

    Args:
        model: in evaluation mode, on ``device``.
        pairs: with distinct names.
        out: created if need be. A folder that holds predictions of another ``run`` is refused.
        run: what the predictions depend on (model, weights, data), kept in ``out/run.json``.
        image_size, device, batch, threads: how to run.
        overwrite: throw away what is there, whatever run it came from.
        track: called with the numbers of pairs done and in all.
    """
    with alone_in(out):
        path = _prepare_folder(out, run, overwrite)
        done = {prediction.name for prediction in _read_lines(path)} if path.exists() else set()
        todo = [pair for pair in pairs if pair.name not in done]
        track(len(pairs) - len(todo), len(pairs))
        with appended(path) as write:
            for count, prediction in enumerate(_predict(model, todo, image_size, device, batch, threads), 1):
                write(json.dumps(asdict(prediction)))
                track(len(pairs) - len(todo) + count, len(pairs))
    return path


def read_predictions(out: Path) -> list[Prediction]:
    """What :func:`predict_to_disk` left in a folder."""
    path = out / PREDICTIONS
    if not path.is_file():
        raise InputError(f"{path}: no predictions there; run transformatcher eval first")
    predictions = list(_read_lines(path))
    if not predictions:
        raise InputError(f"{path}: holds no predictions")
    return predictions


def fingerprint(pairs: Iterable[ImagePair]) -> str:
    """A short hash of all that the pairs' annotations say."""
    digest = hashlib.sha256()
    for pair in pairs:
        flags = (pair.src_flip, pair.trg_flip, pair.orient)
        digest.update(repr((pair.name, pair.category, flags, sorted(pair.difficulty.items()))).encode())
        arrays = (pair.src_kps_px, pair.trg_kps_px, pair.visible, pair.src_bbox_px, pair.trg_bbox_px, pair.absent_px)
        for array in arrays:
            digest.update(b"none" if array is None else array.tobytes())
    return digest.hexdigest()[:16]


def _decoded_batches(pairs: Sequence[ImagePair], size: Size, batch: int, threads: int) -> Iterator[list[LoadedPair]]:
    """Batches of decoded pairs; threads decode the next two while one is in use."""
    chunks = (pairs[start : start + batch] for start in range(0, len(pairs), batch))
    with ThreadPoolExecutor(threads) as pool:

        def submit(most: int) -> list[list[Future[LoadedPair]]]:
            return [[pool.submit(load_pair, pair, size) for pair in chunk] for chunk in islice(chunks, most)]

        ahead = submit(2)
        while ahead:
            chunk = ahead.pop(0)
            ahead += submit(1)
            yield [future.result() for future in chunk]


def _predict(
    model: TransforMatcher, pairs: Sequence[ImagePair], size: Size, device: torch.device, batch: int, threads: int
) -> Iterator[Prediction]:
    for loaded in _decoded_batches(pairs, size, batch, threads):
        yield from predict_batch(model, loaded, device)


def predict_batch(model: TransforMatcher, loaded: Sequence[LoadedPair], device: torch.device) -> Iterator[Prediction]:
    """Predict the keypoints of a few decoded pairs at once."""
    tensors = collate(loaded)
    absent_norm = stack_points([item.absent_px for item in loaded], [item.src_size for item in loaded])
    with torch.inference_mode():
        refined = model.refine(*model.encode_pair(tensors.src.to(device), tensors.trg.to(device)))
        flow, src_kps = model.readout(refined), torch.cat([tensors.src_kps_norm, absent_norm], dim=1).to(device)
        found = model.transfer(flow, src_kps)
        drifts = drift(model.readout(reverse(refined)), src_kps, found).double().cpu().numpy()
        trg_norm = found.double().cpu().numpy()
        peak = bilinear_sample(flow.peak[..., None], src_kps)[..., 0].double().cpu().numpy()
    for row, item in enumerate(loaded):
        index = np.flatnonzero(item.pair.visible)
        absent = tensors.src_kps_norm.shape[1] + np.arange(len(item.absent_px))
        yield Prediction(
            name=item.pair.name,
            category=item.pair.category,
            src_size=list(item.src_size),
            trg_size=list(item.trg_size),
            kp_index=index.tolist(),
            src_kps=item.src_kps_px[index].round(4).tolist(),
            trg_kps=item.trg_kps_px[index].round(4).tolist(),
            pred_kps=norm_to_px(trg_norm[row, index], item.trg_size).round(4).tolist(),
            peak=peak[row, index].round(6).tolist(),
            drift=drifts[row, index].round(6).tolist(),
            absent_kps=item.absent_px.round(4).tolist(),
            absent_peak=peak[row, absent].round(6).tolist(),
            absent_drift=drifts[row, absent].round(6).tolist(),
            trg_bbox=None if item.trg_bbox_px is None else item.trg_bbox_px.round(4).tolist(),
            difficulty=dict(item.pair.difficulty),
        )


def _prepare_folder(out: Path, run: Mapping[str, Any], overwrite: bool) -> Path:
    path = out / PREDICTIONS
    text = json.dumps(run, indent=2, sort_keys=True) + "\n"
    if overwrite:
        path.unlink(missing_ok=True)
    elif path.exists():
        before = read_run(out)
        differing = [key for key in sorted({*before, *run}) if before.get(key) != json.loads(text).get(key)]
        if differing:
            raise InputError(
                f"{out}: holds predictions of another run ({', '.join(differing)} differ); "
                "choose another --out, or give --overwrite"
            )
    write_text(out / RUN, text)
    return path


def read_run(out: Path) -> dict[str, Any]:
    """What the predictions in a folder depend on; empty where that cannot be told."""
    try:
        run = read_json(out / RUN)
    except InputError:
        return {}
    return run if isinstance(run, dict) else {}


def _read_lines(path: Path) -> Iterator[Prediction]:
    """Every whole line, each of another pair."""
    names = set()
    for number, line in enumerate(whole_lines(path), 1):
        try:
            prediction = Prediction(**json.loads(line))
            _check_prediction(prediction)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not a prediction ({error})") from error
        if prediction.name in names:
            raise InputError(f"{path}, line {number}: {prediction.name} a second time; predict anew with --overwrite")
        names.add(prediction.name)
        yield prediction


def _check_prediction(prediction: Prediction) -> None:
    """Raise where a line has all its keys and still says nothing that can be scored."""
    if not (isinstance(prediction.name, str) and isinstance(prediction.category, str)):
        raise TypeError("its name and category are not words")
    if not isinstance(prediction.difficulty, dict):
        raise TypeError(f"{prediction.difficulty} are not levels of difficulty")
    points = [np.array(kps, dtype=np.float64) for kps in (prediction.trg_kps, prediction.pred_kps)]
    if not (points[0].shape == points[1].shape == (len(prediction.peak), 2) and points[0].size):
        raise ValueError("true and predicted keypoints are not as many points [x, y] as there are peaks")
    if not all(np.isfinite(kps).all() for kps in points):
        raise ValueError("a keypoint is NaN or infinite")
    if len(prediction.trg_size) != 2 or not all(isinstance(side, int) and side > 0 for side in prediction.trg_size):
        raise ValueError(f"{prediction.trg_size} is not the size of an image")
    if prediction.trg_bbox is not None and np.array(prediction.trg_bbox, dtype=np.float64).shape != (4,):
        raise ValueError(f"{prediction.trg_bbox} is not a box")
    if not all(isinstance(level, int) and 0 <= level < len(LEVELS) for level in prediction.difficulty.values()):
        raise ValueError(f"{prediction.difficulty} are not levels of difficulty")


# ---------------------------------------------------------------- pass 2: scores


@dataclass(frozen=True)
class _Scored:
    """One pair in the chosen frame: its errors, and the lengths they are measured against."""

    category: str
    difficulty: Mapping[str, int]
    errors: np.ndarray  # (n,)
    lengths: Mapping[Kind, float]


def score(
    predictions: Sequence[Prediction], *, frame: Size | None = PUBLISHED_FRAME, alphas: Sequence[float] = ALPHAS
) -> dict[str, Any]:
    """Predictions → PCK for every threshold kind and α, in all, by category and by difficulty.

    Args:
        predictions: of any benchmark; a kind is left out where a pair has no box for it.
        frame: the (h, w) every target is resized to before distances are taken, boxes with it (published numbers use
            240 × 240), or None for the original pixels.
        alphas: tolerances.
    """
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    kinds = [kind for kind in KINDS if all(kind in pair.lengths for pair in pairs)]
    factors = sorted({factor for pair in pairs for factor in pair.difficulty})

    def table(group: Sequence[_Scored]) -> dict[str, Any]:
        weights = bootstrap_weights(len(group))
        return {kind: {f"{alpha:g}": _cell(group, kind, alpha, weights) for alpha in alphas} for kind in kinds}

    def groups(key: Callable[[_Scored], str | None]) -> dict[str, Any]:
        names = sorted({name for pair in pairs if (name := key(pair)) is not None}, key=_level_order)
        return {name: table([pair for pair in pairs if key(pair) == name]) for name in names}

    return {
        "n_pairs": len(pairs),
        "n_points": sum(len(pair.errors) for pair in pairs),
        "frame": "original" if frame is None else f"{frame[0]}x{frame[1]}",
        "pck": table(pairs),
        "per_category": groups(lambda pair: pair.category),
        "difficulty": {factor: groups(partial(_level, factor)) for factor in factors},
    }


def judged_points(
    predictions: Sequence[Prediction], kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Every predicted point of every pair: (sharpness, drift there and back, whether it is right)."""
    if any(len(prediction.drift) != len(prediction.peak) for prediction in predictions):
        raise InputError("these predictions do not say how far points drift there and back; run eval again")
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    if any(kind not in pair.lengths for pair in pairs):
        raise InputError(f"threshold {kind!r}: not every pair has the object box that it needs")
    right = [correct_points(pair.errors, pair.lengths[kind], alpha) for pair in pairs]
    return (
        np.concatenate([prediction.peak for prediction in predictions]),
        np.concatenate([prediction.drift for prediction in predictions]),
        np.concatenate(right),
    )


def absent_points(predictions: Sequence[Prediction]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Every point that its target does not show: (sharpness, drift there and back) of what was found all the same."""
    peaks, drifts = ([getattr(p, f"absent_{name}") for p in predictions] for name in ("peak", "drift"))
    return np.concatenate(peaks).astype(np.float64), np.concatenate(drifts).astype(np.float64)


def pair_scores(
    predictions: Sequence[Prediction], kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> Float[np.ndarray, " n"]:
    """The PCK of each pair alone, in percent."""
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    missing = next((p.name for p, scored in zip(predictions, pairs, strict=True) if kind not in scored.lengths), None)
    if missing is not None:
        raise InputError(f"pair {missing} has no object box, which the threshold {kind!r} needs")
    return np.array([100 * correct_points(pair.errors, pair.lengths[kind], alpha).mean() for pair in pairs])


def tolerance_px(
    prediction: Prediction, kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> tuple[float, float]:
    """How far along (x, y), in pixels of the original target, a prediction may lie from the truth and be right."""
    h, w = prediction.trg_size
    radius = alpha * _in_frame(prediction, frame).lengths[kind]
    frame_h, frame_w = frame or (h, w)
    return radius * w / frame_w, radius * h / frame_h


def worst_first(
    predictions: Sequence[Prediction], kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> list[int]:
    """Places of the predictions, the lowest PCK first; of equal PCK, that with larger errors is worse."""
    scores = pair_scores(predictions, kind, alpha, frame)
    radii = [np.maximum(tolerance_px(one, kind, alpha, frame), 1e-9) for one in predictions]
    errors = [
        np.linalg.norm((np.array(one.pred_kps) - one.trg_kps) / radius, axis=1).mean()
        for one, radius in zip(predictions, radii, strict=True)
    ]
    return [int(place) for place in np.lexsort((-np.array(errors), scores))]


def _in_frame(prediction: Prediction, frame: Size | None) -> _Scored:
    size = (prediction.trg_size[0], prediction.trg_size[1])
    new = frame or size
    true, predicted = (rescale_px(np.array(kps), size, new) for kps in (prediction.trg_kps, prediction.pred_kps))
    bbox = None
    if prediction.trg_bbox is not None:
        bbox = rescale_px(np.array(prediction.trg_bbox).reshape(2, 2), size, new).reshape(4)
    lengths = {kind: reference_length(kind, size=new, kps=true, bbox=bbox) for kind in KINDS}
    return _Scored(
        category=prediction.category,
        difficulty=prediction.difficulty,
        errors=point_errors(predicted, true),
        lengths={kind: length for kind, length in lengths.items() if length is not None},
    )


def _cell(group: Sequence[_Scored], kind: Kind, alpha: float, weights: np.ndarray) -> dict[str, Any]:
    correct = [correct_points(pair.errors, pair.lengths[kind], alpha) for pair in group]
    low, high = bootstrap_ci95(np.array([100 * pair.mean() for pair in correct]), weights)
    return {
        "per_pair": round(pck_per_pair(correct), 3),
        "per_point": round(pck_per_point(correct), 3),
        "ci95": [round(low, 3), round(high, 3)],
    }


def _level(factor: str, pair: _Scored) -> str | None:
    level = pair.difficulty.get(factor)
    return None if level is None else LEVELS[level]


def _level_order(name: str) -> tuple[int, str]:
    return (LEVELS.index(name) if name in LEVELS else 0, name)


def headline(scores: Mapping[str, Any], out: Path, kind: str = "auto") -> tuple[Kind, str]:
    """The threshold kind and α to show where there is room for one: what the benchmark's publications use, and 0.1."""
    kinds = list(scores["pck"])
    if kind == "auto":
        kind = PUBLISHED_KIND.get(read_run(out).get("benchmark", ""), "img")
        kind = kind if kind in kinds else "img"
    if kind not in kinds:
        raise InputError(f"threshold {kind!r}: not every pair has the box it needs; choose one of {', '.join(kinds)}")
    alphas = list(scores["pck"][kind])
    return cast(Kind, kind), "0.1" if "0.1" in alphas else alphas[-1]


def remarks(predictions: Sequence[Prediction], out: Path) -> list[str]:
    """Sentences on what a reader of the scores should know."""
    found = []
    wanted = read_run(out).get("n_pairs", len(predictions))
    if wanted != len(predictions):
        found.append(f"unfinished: {len(predictions)} of {wanted} pairs are predicted so far")
    without = sum(prediction.trg_bbox is None for prediction in predictions)
    if without:
        found.append(f"no bbox threshold: {without} of {len(predictions)} pairs have no object box")
    outside = sum(
        not (0 <= x <= prediction.trg_size[1] and 0 <= y <= prediction.trg_size[0])
        for prediction in predictions
        for x, y in prediction.trg_kps
    )
    if outside:
        found.append(f"{outside} true keypoints lie outside their image (transformatcher data check names them)")
    return found


def write_scores(path: Path, scores: Mapping[str, Any]) -> Path:
    """Scores → a JSON file."""
    write_text(path, json.dumps(scores, indent=2) + "\n")
    return path


def scores_name(frame: Size | None, alphas: Sequence[float]) -> str:
    """The file for scores under a protocol: scores.json for the published one, a name of its own for any other."""
    parts = ["scores"]
    if frame != PUBLISHED_FRAME:
        parts.append("original" if frame is None else f"{frame[0]}x{frame[1]}")
    if list(alphas) != list(ALPHAS):
        parts.append("alpha-" + "-".join(f"{alpha:g}" for alpha in alphas))
    return "-".join(parts) + ".json"


def parse_frame(text: str) -> Size | None:
    """``original``, ``240`` or ``240x320`` (h × w) → a frame."""
    if text == "original":
        return None
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"frame {text!r}: expected 'original', a side such as 240, or HEIGHTxWIDTH")
    return int(parts[0]), int(parts[-1])


def parse_alphas(values: Iterable[float]) -> list[float]:
    """Tolerances in rising order, as parts of a length."""
    alphas = sorted(set(values))
    if not alphas or not all(0 < alpha <= 1 for alpha in alphas):
        raise InputError(f"alpha {', '.join(f'{alpha:g}' for alpha in alphas)}: tolerances lie between 0 and 1")
    return alphas
