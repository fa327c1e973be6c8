"""A COCO-keypoint file of references and a frame of a CVAT task → skeletons; ``create`` is what ``cvat-cli`` calls."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from PIL import Image, ImageOps

from transformatcher.inference.interfaces.threshold import choose_threshold
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import to_pixels
from transformatcher.inference.propagate import MOST_REFERENCES, KeypointPropagator
from transformatcher.inference.propagate_inputs import Annotations, name_in, read_annotations
from transformatcher.inference.propagate_voting import KeypointEstimate
from transformatcher.schema import Size

try:
    import cvat_sdk.auto_annotation as cvataa
    from cvat_sdk import models
except ImportError as error:
    raise ModuleNotFoundError("this needs the package cvat-sdk: pip install cvat-cli", name="cvat_sdk") from error

logger = logging.getLogger(__name__)


def create(
    references: str,
    images_root: str | None = None,
    threshold: float | None = None,
    category: str | None = None,
    most_references: int = MOST_REFERENCES,
    weights: str | None = None,
    device: str = "auto",
) -> "KeypointFunction":
    """The function that ``cvat-cli … --function-parameter NAME=TYPE:VALUE`` asks for.

    Args:
        references: a COCO-keypoint file with the annotated photos.
        images_root: the folder of these photos; None: ``images/`` beside the file, or its own folder.
        threshold: points of less confidence are outside; None: 0.5 for calibrated models, else none is.
        category: only this one; None: all of the file.
        most_references: how many references vote on a frame, those that look most like it.
        weights: a checkpoint folder; None: the model that comes with the package.
        device: such as "cpu" or "cuda".
    """
    matcher = Matcher.from_pretrained(weights, device)
    annotations = read_annotations(Path(references), Path(images_root) if images_root else None, category)
    return KeypointFunction(matcher, annotations, threshold, most_references)


class KeypointFunction:
    """A detection function for CVAT: one skeleton of each category on each frame.

    A frame with the name and the size of an annotated photo gets none, as its annotation is there already.

    Args:
        matcher: finds the points.
        annotations: of the references.
        threshold: see :func:`create`.
        most_references: how many references vote on a frame.

    Example:
        >>> function = KeypointFunction(Matcher.from_pretrained(), read_annotations(Path("marked.json"), None, None))
        >>> cvat_sdk.auto_annotation.annotate_task(client, 7, function)
    """

    def __init__(
        self,
        matcher: Matcher,
        annotations: Annotations,
        threshold: float | None = None,
        most_references: int = MOST_REFERENCES,
    ) -> None:
        self.threshold = choose_threshold(threshold, matcher)
        self.calibrated = matcher.calibrated
        self.propagator = KeypointPropagator(matcher, annotations.references, most_references)
        self.annotated: dict[str, Size] = {  # the name of each annotated photo as the file writes it, and its size
            name_in(annotations.root, path): photo.size for path, photo in self.propagator.photos.items()
        }
        self.spec = cvataa.DetectionFunctionSpec(
            labels=[
                cvataa.skeleton_label_spec(
                    name, number, [cvataa.keypoint_spec(point, row) for row, point in enumerate(group[0].kp_names)]
                )
                for number, (name, group) in enumerate(annotations.references.items())
            ]
        )

    def detect(
        self, context: cvataa.DetectionFunctionContext, image: Image.Image
    ) -> Sequence[models.LabeledShapeRequest]:
        """The skeletons on one frame; categories without a point of enough confidence have none.

        Points of less confidence are outside, as CVAT wants all points of a skeleton. The context's threshold, where it
        has one, goes before that of the function.
        """
        pixels = to_pixels(ImageOps.exif_transpose(image))
        size = (pixels.shape[0], pixels.shape[1])
        if self.annotated.get(context.frame_name) == size:
            logger.warning("%s: left out, as it is among the annotated photos", context.frame_name)
            return []
        threshold = self.threshold
        if context.conf_threshold is not None and self.calibrated:
            threshold = context.conf_threshold
        (estimates,) = self.propagator([pixels])
        shapes = []
        for number, estimate in enumerate(estimates.values()):
            found = (estimate.confidence > 0) & (estimate.confidence >= threshold)
            if found.any():
                shapes.append(_skeleton(number, estimate, found, size))
        return shapes


def _skeleton(
    label: int, estimate: KeypointEstimate, found: Bool[np.ndarray, " n"], size: Size
) -> models.LabeledShapeRequest:
    """All points of one object; those not found are outside, where they probably are or else amid the others."""
    points = estimate.kps_px.clip(0, np.array([size[1], size[0]], dtype=float))
    points = np.where((estimate.confidence > 0)[:, None], points, points[found].mean(axis=0)).round(2)
    return cvataa.skeleton(
        label,
        [
            cvataa.keypoint(row, points[row].tolist(), outside=not found[row], occluded=False)
            for row in range(len(points))
        ],
    )
