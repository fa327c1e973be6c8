"""A small matcher that matches in two passes, and so tells mirrored pairs and kinds of things apart."""

from conftest import Patches
from helpers.calibration import fine_calibration

from transformatcher.config import model_config
from transformatcher.inference.calibration import Calibrations
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher

SETTINGS = {
    "variant": "raw", "backbone": "resnet50", "stages": [2], "image_size": [96, 96], "temperature": 0.02,
    "coarse_to_fine": {"passes": 2},
}  # fmt: skip


def two_pass_matcher(*, confidence_logit: float = 2.0, same_kind_logit: float = 2.0) -> Matcher:
    """It finds a photo in itself and in its mirror image; confidence and ``same_kind`` are always the same."""
    config = model_config(SETTINGS)
    calibration = fine_calibration({"bias": confidence_logit}, {"bias": same_kind_logit})
    matcher = Matcher(build_matcher(config), config, "cpu", Calibrations(coarse_to_fine=calibration))
    matcher.model.backbone = Patches()
    return matcher
