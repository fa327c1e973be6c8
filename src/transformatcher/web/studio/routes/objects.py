"""Routes: the keypoints of an object, its box, and its removal."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, FiniteFloat

from transformatcher.annotation import edits
from transformatcher.annotation.records import Visibility
from transformatcher.errors import InputError
from transformatcher.web.studio.dependencies import CurrentInstance, CurrentKeypointId, CurrentStudio
from transformatcher.web.studio.page_json import detail_json
from transformatcher.web.studio.pictures import heat_png
from transformatcher.web.studio.routes.photos import Box

router = APIRouter(prefix="/api/instances/{instance_id}")


class NewMark(BaseModel):
    """Where a keypoint is, in pixels of the upright photo; x and y are left out where it is not there."""

    model_config = ConfigDict(extra="forbid")
    visibility: Visibility
    x: FiniteFloat | None = None
    y: FiniteFloat | None = None

    def to_xy(self) -> tuple[float, float] | None:
        """The position, or None if it has neither x nor y."""
        if (self.x is None) != (self.y is None):
            raise InputError("A position needs both x and y.")
        return None if self.x is None or self.y is None else (self.x, self.y)


class BoxChange(BaseModel):
    """Another box, x0, y0, x1, y1 in pixels of the upright photo; null: the object is looked for everywhere."""

    model_config = ConfigDict(extra="forbid")
    box: Box | None


@router.put("/points/{keypoint_id}")
def set_mark(
    instance: CurrentInstance, keypoint_id: CurrentKeypointId, studio: CurrentStudio, body: NewMark
) -> dict[str, Any]:
    """Set a keypoint by hand."""
    with studio.editing() as project:
        edits.set_mark(project, instance.id, keypoint_id, body.visibility, body.to_xy())
    return detail_json(studio, instance.photo_id)


@router.delete("/points/{keypoint_id}")
def remove_mark(instance: CurrentInstance, keypoint_id: CurrentKeypointId, studio: CurrentStudio) -> dict[str, Any]:
    """Take back what was said of a keypoint: its prediction counts again."""
    with studio.editing() as project:
        edits.remove_mark(project, instance.id, keypoint_id)
    return detail_json(studio, instance.photo_id)


@router.get("/points/{keypoint_id}/heatmap")
def show_heatmap(instance: CurrentInstance, keypoint_id: CurrentKeypointId, studio: CurrentStudio) -> Response:
    """Where else a predicted keypoint may be, as PNG: the more opaque, the more likely.

    The header X-Box tells which part of the photo it covers: x0,y0,x1,y1 in pixels. Status 204: it is not known; it is
    for photos on the screen, a moment after they were predicted.
    """
    heat = studio.worker.predictor.heatmap(instance.id, keypoint_id)
    if heat is None:
        return Response(status_code=204)
    headers = {"X-Box": ",".join(map(str, heat.box))}
    return Response(heat_png(heat.values), media_type="image/png", headers=headers)


@router.put("/box")
def change_box(instance: CurrentInstance, studio: CurrentStudio, body: BoxChange) -> dict[str, Any]:
    """Give the object another box."""
    with studio.editing() as project:
        edits.change_box(project, instance.id, body.box)
    return detail_json(studio, instance.photo_id)


@router.delete("")
def remove_instance(instance: CurrentInstance, studio: CurrentStudio) -> dict[str, Any]:
    """Remove the object with its marks."""
    with studio.editing() as project:
        edits.remove_instance(project, instance.id)
    return detail_json(studio, instance.photo_id)
