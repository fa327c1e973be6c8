"""The studio's state → the JSON that the page shows."""

import gzip
import json
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from transformatcher.annotation.records import Category, Instance, PhotoSummary
from transformatcher.inference.calibration import MATCH_THRESHOLD, SAME_KIND_THRESHOLD
from transformatcher.web.studio.dependencies import Studio
from transformatcher.web.studio.pace import seconds_per_photo

MIN_GZIP_BYTES = 20_000


def json_response(data: Any, request: Request) -> Response:
    """A response with JSON, compressed if it is large. FastAPI's own is slow for thousands of photos."""
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    headers = {"Vary": "Accept-Encoding"}
    if len(body) > MIN_GZIP_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers = gzip.compress(body, 1), headers | {"Content-Encoding": "gzip"}
    return Response(body, media_type="application/json", headers=headers)


def project_json(studio: Studio) -> dict[str, Any]:
    """How far the project is, and what belongs to all photos."""
    project, predictor = studio.project, studio.worker.predictor
    progress, state = predictor.progress(), studio.worker.state  # first: photos are not behind what is said of them
    totals = studio.overview.totals()
    undo, redo = project.journal.names()
    pace = seconds_per_photo(project)
    return {
        "revision": totals.revision,
        "folder": str(project.folder),
        "file": str(project.file),
        "temporary": studio.temporary,
        "uploads": studio.temporary,
        "calibrated": studio.calibrated,
        "threshold": MATCH_THRESHOLD,
        "categories": [category_json(category) for category in project.categories()],
        "counts": totals.counts,
        "unsure": totals.unsure,
        "undo": undo,
        "redo": redo,
        "suggestion": predictor.suggestion(),
        "prediction": {
            "state": state,
            "done": progress.done,
            "total": progress.total,
            "photos_per_second": _rounded(progress.photos_per_second, 2),
            "problem": studio.worker.problem,
        },
        "pace": {
            "seconds_per_photo": _rounded(pace, 1),
            "remaining_s": None if pace is None else round(pace * totals.left),
        },
    }


def category_json(category: Category) -> dict[str, Any]:
    """A category with its keypoints in order."""
    return {
        "id": category.id,
        "name": category.name,
        "keypoints": [{"id": k.id, "name": k.name, "twin": k.twin} for k in category.keypoints],
        "skeleton": [list(edge) for edge in category.skeleton],
    }


def summary_json(summary: PhotoSummary) -> dict[str, Any]:
    """What the grid shows of a photo."""
    h, w = summary.size or (None, None)
    return {
        "id": summary.id,
        "path": summary.path,
        "width": w,
        "height": h,
        "state": summary.state,
        "sureness": _rounded(summary.sureness, 4),
        "instances": summary.instances,
        "problem": summary.problem,
        "revision": summary.revision,
        "other_kind": summary.same_kind is not None and summary.same_kind < SAME_KIND_THRESHOLD,
    }


def photos_json(studio: Studio, since: int) -> dict[str, Any]:
    """The photos that have changed after a revision."""
    revision, summaries = studio.overview.since(since)
    return {"revision": revision, "photos": [summary_json(summary) for summary in summaries]}


def detail_json(studio: Studio, photo_id: int) -> dict[str, Any]:
    """A photo with its objects and their keypoints."""
    project = studio.project
    summary = studio.overview.photo(photo_id)  # first: what is read after it is not older than its revision
    with project.database.lock:
        categories = {category.id: category for category in project.categories()}
        instances = project.instances([photo_id])
    return {
        "photo": summary_json(summary),
        "instances": [_instance_json(i, categories[i.category_id], studio.threshold) for i in instances],
    }


def _instance_json(instance: Instance, category: Category, threshold: float) -> dict[str, Any]:
    return {
        "id": instance.id,
        "category_id": instance.category_id,
        "box": None if instance.box is None else list(instance.box),
        "reviewed": instance.reviewed,
        "same_kind": _rounded(instance.same_kind, 3),
        "mirrored": any(prediction.mirrored for prediction in instance.predictions.values()),
        "predicted_at": instance.predicted_at,
        "points": [_point_json(instance, keypoint.id, threshold) for keypoint in category.keypoints],
    }


def _point_json(instance: Instance, keypoint_id: int, threshold: float) -> dict[str, Any]:
    """The mark of a keypoint if there is one, else its prediction."""
    point: dict[str, Any] = {"keypoint_id": keypoint_id}
    if (mark := instance.marks.get(keypoint_id)) is not None:
        x, y = mark.xy or (None, None)
        source = mark.source.partition(":")[0]  # of “import: FILE”
        return point | {
            "source": source, "visibility": mark.visibility, "x": x, "y": y, "confidence": None,
            "is_match": mark.visibility > 0,
        }  # fmt: skip
    if (found := instance.predictions.get(keypoint_id)) is not None:
        return point | {
            "source": "prediction", "visibility": 2, "x": round(found.xy[0], 2), "y": round(found.xy[1], 2),
            "confidence": round(found.confidence, 4), "is_match": found.confidence >= threshold,
        }  # fmt: skip
    return point | {"source": None, "visibility": 0, "x": None, "y": None, "confidence": None, "is_match": False}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
