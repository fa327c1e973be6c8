"""The confidence that somebody asks for → the confidence that a keypoint needs to count as found."""

from transformatcher.errors import InputError
from transformatcher.inference.calibration import MATCH_THRESHOLD
from transformatcher.inference.matcher import Matcher


def choose_threshold(given: float | None, matcher: Matcher) -> float:
    """The confidence that a keypoint needs; 0 where none is asked for and confidence is not a probability.

    Raises:
        InputError: for a number that is no probability, or for any number if the matcher is not calibrated.

    Example:
        >>> choose_threshold(None, Matcher.from_pretrained())
        0.5
    """
    if given is None:
        return MATCH_THRESHOLD if matcher.calibrated else 0.0
    if not matcher.calibrated:
        raise InputError(
            "threshold: this model's confidence is not calibrated, so it is not a probability; "
            "leave it out, or calibrate the model with transformatcher calibrate"
        )
    if not 0 <= given <= 1:
        raise InputError(f"threshold {given:g}: a confidence lies between 0 and 1")
    return given
