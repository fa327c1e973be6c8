"""Routes: predict, add, change, correct and delete points."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from transformatcher.errors import InputError
from transformatcher.web.dependencies import CurrentServices, CurrentSession
from transformatcher.web.page_state import heatmaps_json, predictions_json, session_json
from transformatcher.web.predictions import point_heatmaps, position_heatmaps, predict_position
from transformatcher.web.session import MAX_LABEL_LENGTH, XY

Label = Annotated[str, Field(max_length=MAX_LABEL_LENGTH)]

router = APIRouter(prefix="/api/sessions/{session_id}")


class Position(BaseModel):
    """A position in pixels; without x and y: not visible, or not changed."""

    model_config = ConfigDict(extra="forbid")
    x: FiniteFloat | None = None
    y: FiniteFloat | None = None

    def to_xy(self) -> XY | None:
        """The position, or None if it has neither x nor y."""
        if (self.x is None) != (self.y is None):
            raise InputError("A position needs both x and y.")
        return None if self.x is None or self.y is None else XY(self.x, self.y)


class PointChange(Position):
    """A new position or a new name, or both."""

    name: Label | None = None


class NewPoint(BaseModel):
    """A click on the source."""

    model_config = ConfigDict(extra="forbid")
    x: FiniteFloat
    y: FiniteFloat
    name: Label = ""


@router.get("/match")
def match_position(session: CurrentSession, x: FiniteFloat, y: FiniteFloat, heatmap: bool = False) -> dict[str, Any]:
    """Any position on the source → its predictions on all targets, and their heat maps on demand."""
    with session.lock:
        predictions = predict_position(session, XY(x, y))
        heatmaps = position_heatmaps(session, XY(x, y)) if heatmap else {}
    return {"predictions": predictions_json(predictions), "heatmaps": heatmaps_json(heatmaps)}


@router.get("/points/{point_id}/heatmaps")
def show_heatmaps(session: CurrentSession, point_id: int) -> dict[str, Any]:
    """The heat maps of a point on all targets."""
    with session.lock:
        return {"heatmaps": heatmaps_json(point_heatmaps(session, point_id))}


@router.post("/points", status_code=201)
def add_point(session: CurrentSession, body: NewPoint) -> dict[str, Any]:
    """Add a point to the source; ``added`` is its id."""
    with session.lock:
        point = session.add_point(XY(body.x, body.y), body.name)
        return session_json(session) | {"added": point.id}


@router.patch("/points/{point_id}")
def change_point(session: CurrentSession, point_id: int, body: PointChange) -> dict[str, Any]:
    """Move or rename a point."""
    with session.lock:
        session.change_point(point_id, body.to_xy(), body.name)
        return session_json(session)


@router.delete("/points/{point_id}")
def remove_point(session: CurrentSession, point_id: int) -> dict[str, Any]:
    """Delete a point."""
    with session.lock:
        session.remove_point(point_id)
        return session_json(session)


@router.put("/points/{point_id}/pins/{photo_id}")
def pin_point(
    session: CurrentSession, services: CurrentServices, point_id: int, photo_id: str, body: Position
) -> dict[str, Any]:
    """Correct a prediction on a target, or say that the point is not visible; the target becomes a reference."""
    with session.lock:
        session.pin(point_id, photo_id, body.to_xy())
    services.match_missing(session)
    with session.lock:
        return session_json(session)


@router.delete("/points/{point_id}/pins/{photo_id}")
def unpin_point(session: CurrentSession, services: CurrentServices, point_id: int, photo_id: str) -> dict[str, Any]:
    """Undo a correction."""
    with session.lock:
        session.unpin(point_id, photo_id)
    services.match_missing(session)
    with session.lock:
        return session_json(session)
