"""Photos with objects → tasks of Label Studio, and the configuration of its labelling page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from transformatcher import __version__
from transformatcher.annotation.formats.objects import Contents, ObjectToExport, PhotoToExport, Point
from transformatcher.annotation.records import HIDDEN, Category
from transformatcher.files import write_text

IMAGE, BOX, KEYPOINT, VISIBILITY = "image", "box", "keypoint", "visibility"  # names in the configuration


def write_label_studio(contents: Contents, out: Path) -> list[str]:
    """Write ``tasks.json`` and ``config.xml`` into a folder, which is empty. Returns what gets lost."""
    root = contents.folder.absolute().name
    tasks = [_task(photo, root) for photo in contents.photos]
    write_text(out / "tasks.json", json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    write_text(out / "config.xml", label_config(contents.categories))
    lost = []
    if any(category.skeleton for category in contents.categories):
        lost.append("Label Studio has no skeletons")
    if any(point.marked and point.xy is None for item in contents.objects for point in item.points):
        lost.append("Label Studio has no “not there”: such keypoints are left out, like those that nobody has marked")
    return lost


def label_config(categories: Sequence[Category]) -> str:
    """The configuration: a box for each category, a point for each name of a keypoint, and “hidden” for points."""
    names = dict.fromkeys(name for category in categories for name in category.names)
    boxes = "".join(f"    <Label value={quoteattr(category.name)}/>\n" for category in categories)
    points = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in names)
    return (
        "<View>\n"
        f'  <Image name="{IMAGE}" value="${IMAGE}"/>\n'
        f'  <RectangleLabels name="{BOX}" toName="{IMAGE}">\n{boxes}  </RectangleLabels>\n'
        f'  <KeyPointLabels name="{KEYPOINT}" toName="{IMAGE}">\n{points}  </KeyPointLabels>\n'
        f'  <Choices name="{VISIBILITY}" toName="{IMAGE}" perRegion="true" whenTagName="{KEYPOINT}">\n'
        '    <Choice value="hidden"/>\n  </Choices>\n'
        "</View>\n"
    )


def _task(photo: PhotoToExport, root: str) -> dict[str, Any]:
    """One photo. What a person marked is an annotation, what was predicted a prediction."""
    marked = [region for item in photo.objects if not item.predicted for region in _regions(item, predicted=False)]
    predicted = [
        region for item in photo.objects if item.score is not None for region in _regions(item, predicted=True)
    ]
    task: dict[str, Any] = {
        "id": photo.id,
        "data": {IMAGE: f"/data/local-files/?d={quote(f'{root}/{photo.path}')}"},
        "annotations": [{"result": marked}] if marked or photo.reviewed else [],
        "predictions": [],
    }
    if predicted:
        scores = [item.score for item in photo.objects if item.score is not None]
        score = round(sum(scores) / len(scores), 4)
        task["predictions"] = [{"model_version": f"transformatcher {__version__}", "score": score, "result": predicted}]
    return task


def _regions(item: ObjectToExport, *, predicted: bool) -> list[dict[str, Any]]:
    """The box of an object and, as its children, its points that are marked or predicted; in percent of the photo."""
    x0, y0, x1, y1 = item.extent
    box_id = f"{'prediction' if predicted else 'object'}-{item.id}"
    (left, top), (right, bottom) = _percent((x0, y0), item), _percent((x1, y1), item)
    value = {"x": left, "y": top, "width": right - left, "height": bottom - top, "rotation": 0}
    regions = [_region(item, box_id, BOX, "rectanglelabels", value, item.category.name)]
    for keypoint, point in zip(item.category.keypoints, item.points, strict=True):
        if point.xy is None or point.marked == predicted:
            continue
        regions += _point(item, box_id, keypoint.name, f"{box_id}-{keypoint.id}", point)
    return regions


def _point(item: ObjectToExport, box_id: str, name: str, point_id: str, point: Point) -> list[dict[str, Any]]:
    assert point.xy is not None
    x, y = _percent(point.xy, item)
    place = {"x": x, "y": y, "width": 0.5}  # of the dot on the screen
    region = _region(item, point_id, KEYPOINT, "keypointlabels", place, name) | {"parentID": box_id}
    if point.confidence is not None:
        region["score"] = round(point.confidence, 4)
    hidden = [_region(item, point_id, VISIBILITY, "choices", place, "hidden")] if point.visibility == HIDDEN else []
    return [region, *hidden]


def _region(
    item: ObjectToExport, region_id: str, control: str, kind: str, value: dict[str, float], label: str
) -> dict[str, Any]:
    h, w = item.size
    return {
        "id": region_id,
        "type": kind,
        "from_name": control,
        "to_name": IMAGE,
        "original_width": w,
        "original_height": h,
        "image_rotation": 0,
        "value": {**value, kind: [label]},
    }


def _percent(xy: tuple[float, float], item: ObjectToExport) -> tuple[float, float]:
    h, w = item.size
    return 100 * xy[0] / w, 100 * xy[1] / h
