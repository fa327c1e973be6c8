"""What is known of a match → the probability that it is right; of a pair → that both photos show one kind of thing."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field, StrictFloat, StrictStr, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

from transformatcher.config.check import CHECKED
from transformatcher.coords import Array
from transformatcher.errors import InputError
from transformatcher.files import read_json, write_text
from transformatcher.inference.cues import MIN_DISTANCE, MIN_PEAK, PAIR_CUES, POINT_CUES, PairCues, PointCues

CALIBRATION = "calibration.json"  # beside a checkpoint's weights
MATCH_THRESHOLD = 0.5  # a point whose match is more likely wrong than right counts as having no match
SAME_KIND_THRESHOLD = 0.5  # below it, two photos more likely show different kinds of things
WEIGHT_DECAY = 1e-4  # of the calibration for several passes, see logistic_regression
CERTAIN = 20.0  # a logit that is as good as certain


@dataclass(frozen=True, config=CHECKED)
class Calibration:
    """``confidence = σ(bias + sharpness · log peak + consistency · log cycle_error)``.

    ``peak`` is the probability of the best target cell. ``cycle_error`` is the distance in [-1, 1]² between a source
    point and its match taken back to the source.

    Example:
        >>> Calibration(bias=3.3, sharpness=2.3, consistency=-1.1)(np.array([0.4]), np.array([0.05])).round(2)
        array([0.99])
    """

    bias: StrictFloat
    sharpness: StrictFloat
    consistency: StrictFloat
    alpha: StrictFloat = 0.1  # a match is right if its error is at most this part of …
    pck_threshold: StrictStr = "img"  # … this length (see evaluation/metrics.py)
    fitted_on: StrictStr = ""

    def __call__(self, peak: Array, cycle_error: Array) -> Array:
        """Peaks and cycle errors, tensors or arrays of one shape → the probability of each match to be right."""
        if isinstance(peak, np.ndarray):
            return self(torch.tensor(peak), torch.tensor(cycle_error)).numpy()
        log_peak, log_error = _logarithms(peak, cycle_error)
        return (self.bias + self.sharpness * log_peak + self.consistency * log_error).sigmoid()


def _logarithms(peak: Tensor, cycle_error: Tensor) -> tuple[Tensor, Tensor]:
    return peak.clamp(min=MIN_PEAK).log(), cycle_error.clamp(min=MIN_DISTANCE).log()


def is_match(confidence: Float[np.ndarray, " n"], *, calibrated: bool) -> Bool[np.ndarray, " n"]:
    """Which points have a match: those at least as likely right as wrong. Without a calibration, all of them."""
    return confidence >= (MATCH_THRESHOLD if calibrated else -np.inf)


def fit_calibration(
    peak: Float[np.ndarray, " n"],
    cycle_error: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    alpha: float = 0.1,
    pck_threshold: str = "img",
    fitted_on: str = "",
) -> Calibration:
    """Logistic regression: the calibration that gives the observed matches the highest likelihood.

    Args:
        peak, cycle_error: of each match.
        right: whether its error is at most ``alpha`` times the length that ``pck_threshold`` names.
        alpha, pck_threshold: kept in the calibration.
        fitted_on: a name of the data, kept in the calibration.
    """
    logarithms = _logarithms(torch.tensor(peak), torch.tensor(cycle_error))
    weights = logistic_regression(np.stack([values.numpy() for values in logarithms], axis=1), right)
    bias, sharpness, consistency = weights.tolist()
    return Calibration(bias, sharpness, consistency, alpha, pck_threshold, fitted_on)


def logistic_regression(
    x: Float[np.ndarray, "n k"],
    right: Bool[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"] | None = None,
    *,
    ridge: float = 0.0,
) -> Float[np.ndarray, " k1"]:
    """Bias and k weights that give the observed labels the highest likelihood.

    Args:
        x: k numbers for each of n cases.
        right: the labels.
        weight: how much each case counts; None: all the same.
        ridge: pull of the weights of standardised numbers towards 0, against the mean loss of a case.
    """
    if right.all() or not right.any():
        raise InputError(f"calibration needs right and wrong matches; all {len(right)} given are alike")
    from scipy.optimize import minimize  # takes half a second, and only fitting needs it

    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)  # a number that is the same in all cases gets no weight
    scaled = np.concatenate([np.ones((len(x), 1)), (x - centre) / scale], axis=1)
    sign = np.where(right, 1.0, -1.0)
    weight = np.full(len(x), 1 / len(x)) if weight is None else weight / weight.sum()
    pull = np.r_[0.0, np.full(x.shape[1], ridge)]  # none on the bias

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (scaled @ weights)
        gradient = -(scaled * (weight * sign * _sigmoid(-margin))[:, None]).sum(axis=0) + 2 * pull * weights
        return float((weight * np.logaddexp(0, -margin)).sum() + (pull * weights**2).sum()), gradient

    fitted = minimize(loss, np.zeros(scaled.shape[1]), jac=True, method="BFGS").x
    weights = fitted[1:] / scale
    return np.r_[fitted[0] - centre @ weights, weights]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.clip(-700, 700)))


Weight = Annotated[StrictFloat, Field(ge=-1e6, le=1e6)]


@dataclass(frozen=True, config=CHECKED)
class FineCalibration:
    """The calibration of matches in several passes: two logistic regressions.

    A match is right if its error is at most ``alpha`` times the length that ``pck_threshold`` names; a point that the
    target does not show is never found rightly. Both weights are named: bias, and those of POINT_CUES and
    PAIR_CUES in :mod:`transformatcher.inference.cues`.
    """

    right_weights: Mapping[StrictStr, Weight]
    same_kind_weights: Mapping[StrictStr, Weight]
    alpha: StrictFloat = 0.1
    pck_threshold: StrictStr = "bbox"
    fitted_on: StrictStr = ""

    def __post_init__(self) -> None:
        """Refuse weights of other names than ours."""
        for weights, names in (
            (self.right_weights, ("bias", *POINT_CUES, *PAIR_CUES)),
            (self.same_kind_weights, ("bias", *PAIR_CUES)),
        ):
            if set(weights) != set(names):
                raise ValueError(f"weights must be named {', '.join(names)}, not {', '.join(map(repr, weights))}")

    def right(self, points: PointCues, pair: PairCues) -> Float[torch.Tensor, "b n"]:
        """The probability of each match to be right."""
        n = points.values.shape[1]
        x = torch.cat([points.values, pair.values[:, None].expand(-1, n, -1)], dim=-1)
        return _probability(self.right_weights, (*POINT_CUES, *PAIR_CUES), x)

    def same_kind(self, pair: PairCues) -> Float[torch.Tensor, " b"]:
        """The probability that both photos of each pair show the same kind of thing."""
        return _probability(self.same_kind_weights, PAIR_CUES, pair.values)


def fit_fine_calibration(
    cues: Float[np.ndarray, "n 17"],
    right: Bool[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
    pair_cues: Float[np.ndarray, "p 8"],
    same_kind: Bool[np.ndarray, " p"],
    *,
    alpha: float = 0.1,
    pck_threshold: str = "bbox",
    fitted_on: str = "",
) -> FineCalibration:
    """Two logistic regressions, one over matches and one over pairs.

    Args:
        cues: of each match: POINT_CUES, then the PAIR_CUES of its pair.
        right: whether each match is right.
        weight: how much each match counts.
        pair_cues: of each pair.
        same_kind: whether the photos of each pair show the same kind of thing. If all do, the probability is 1.
        alpha, pck_threshold, fitted_on: kept in the calibration.
    """
    right_weights = logistic_regression(cues, right, weight, ridge=WEIGHT_DECAY)
    kind_weights = np.r_[CERTAIN, np.zeros(pair_cues.shape[1])]
    if not same_kind.all():
        kind_weights = logistic_regression(pair_cues, same_kind, ridge=WEIGHT_DECAY)
    return FineCalibration(
        _named(("bias", *POINT_CUES, *PAIR_CUES), right_weights),
        _named(("bias", *PAIR_CUES), kind_weights),
        alpha,
        pck_threshold,
        fitted_on,
    )


def _named(names: tuple[str, ...], weights: np.ndarray) -> dict[str, float]:
    return dict(zip(names, weights.round(6).tolist(), strict=True))


def _probability(weights: Mapping[str, float], names: tuple[str, ...], x: Float[torch.Tensor, "*b k"]) -> torch.Tensor:
    return (x @ x.new_tensor([weights[name] for name in names]) + weights["bias"]).sigmoid()


@dataclass(frozen=True, config=CHECKED)
class Calibrations:
    """What a checkpoint knows about its confidence: for one pass, and for several."""

    one_pass: Calibration | None = None
    coarse_to_fine: FineCalibration | None = None


def save_calibration(folder: Path, calibrations: Calibrations) -> Path:
    """Write ``calibration.json`` into the folder of the checkpoint that it belongs to."""
    parts = {name: part for name, part in asdict(calibrations).items() if part is not None}
    write_text(folder / CALIBRATION, json.dumps(parts, indent=2) + "\n")
    return folder / CALIBRATION


def load_calibration(folder: Path) -> Calibrations:
    """The calibrations in a checkpoint folder; both None if there is no file."""
    path = folder / CALIBRATION
    if not path.is_file():
        return Calibrations()
    try:
        return TypeAdapter(Calibrations).validate_python(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: not a calibration ({where + ': ' if where else ''}{first['msg']}); delete it, and run "
            "transformatcher calibrate"
        ) from error
