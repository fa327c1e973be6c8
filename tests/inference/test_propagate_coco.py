"""Records of images, in COCO's keys."""

from pathlib import Path

import numpy as np
import pytest

from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.inference.propagate_coco import parse_record, to_record
from transformatcher.inference.propagate_voting import KeypointEstimate

BY = {"thing": "fingerprint"}


def an_object() -> AnnotatedObject:
    return AnnotatedObject("7", Path("a"), None, "thing", np.zeros((1, 2)), np.ones(1, bool), None, ("one",))


@pytest.mark.parametrize("points", [[[0.0, 0.0]], [[30.0, 20.0]], [[3.0, 5.0], [3.0, 15.0]], [[-1.0, 31.0]]])
def test_boxes_are_never_empty_and_never_outside(points):
    n = len(points)
    estimate = KeypointEstimate(np.array(points), np.ones(n), np.zeros(n, dtype=int))
    item = an_object()
    (note,) = to_record("x.png", (20, 30), {"thing": estimate}, {"thing": [item]}, None, BY)["annotations"]
    x, y, w, h = note["bbox"]
    assert min(x, y) >= 0
    assert min(w, h) >= 1
    assert x + w <= 30
    assert y + h <= 20
    assert note["area"] == pytest.approx(w * h, abs=0.01)


def test_thresholds_and_points_that_no_reference_shows():
    estimate = KeypointEstimate(np.ones((3, 2)), np.array([0.0, 0.4, 0.6]), np.zeros(3, dtype=int))
    for threshold, found in ((None, 2), (0.0, 2), (0.5, 1), (0.7, 0)):
        record = to_record("x.png", (20, 30), {"thing": estimate}, {"thing": [an_object()]}, threshold, BY)
        assert [note["num_keypoints"] for note in record["annotations"]] == ([found] if found else [])
        assert record["predicted"] == {"thing": {"references": "fingerprint", "found": found > 0}}


@pytest.mark.parametrize("value", [None, [], {"file_name": "x"}])
def test_what_is_no_record(value):
    with pytest.raises(ValueError, match="expected an object with file_name"):
        parse_record(value)


def test_annotations_say_whether_their_reference_was_matched_mirrored():
    references = {"thing": [an_object(), an_object()]}
    for chosen, expected in (([0, 1, 1], True), ([0, 0, 1], False)):
        estimate = KeypointEstimate(np.ones((3, 2)), np.ones(3), np.array(chosen), mirrored=[1])
        (note,) = to_record("x.png", (20, 30), {"thing": estimate}, references, None, BY)["annotations"]
        assert note["mirrored"] is expected
