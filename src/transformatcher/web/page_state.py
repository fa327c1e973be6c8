"""A session → the JSON that the page shows."""

import base64
from collections.abc import Mapping
from typing import Any

from transformatcher.web.predictions import HeatMap, PointPrediction, predict_points
from transformatcher.web.session import Session


def session_json(session: Session) -> dict[str, Any]:
    """Photos, points and the predictions of each point on each target."""
    by_point = predict_points(session)
    return {
        "source": session.source_id,
        "photos": [
            {
                "id": photo.id,
                "name": photo.name,
                "width": photo.size[1],
                "height": photo.size[0],
                "ready": photo.id == session.source_id or (session.source_id, photo.id) in session.pairs,
            }
            for photo in session.photos.values()
        ],
        "points": [
            {
                "id": point.id,
                "name": point.name,
                "x": round(point.xy.x, 2),
                "y": round(point.xy.y, 2),
                "predictions": predictions_json(by_point[point.id]),
            }
            for point in session.points.values()
        ],
    }


def predictions_json(predictions: Mapping[str, PointPrediction]) -> dict[str, Any]:
    """Target id → prediction; x and y are null where the user said that the point is not visible."""
    return {
        target: {
            "x": None if prediction.xy is None else round(prediction.xy.x, 2),
            "y": None if prediction.xy is None else round(prediction.xy.y, 2),
            "confidence": round(prediction.confidence, 4),
            "is_match": prediction.is_match,
            "pinned": prediction.pinned,
            "reference": prediction.reference,
        }
        for target, prediction in predictions.items()
    }


def heatmaps_json(heatmaps: Mapping[str, HeatMap]) -> dict[str, Any]:
    """Target id → heat map, its bytes row by row in base64."""
    return {
        target: {"width": m.shape[1], "height": m.shape[0], "values": base64.b64encode(m.tobytes()).decode()}
        for target, m in heatmaps.items()
    }
