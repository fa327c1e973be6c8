"""Routes: the project as a whole, what changes in it, undo and redo, the prediction, a new look at the folder."""

import sqlite3
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from transformatcher import __version__
from transformatcher.annotation.scan import scan_photos
from transformatcher.web.errors import RequestError
from transformatcher.web.studio.dependencies import CurrentStudio, Studio
from transformatcher.web.studio.page_json import json_response, photos_json, project_json

POLL_S = 25.0  # that a request waits for a change
MAX_IN_VIEW = 1000

Revision = Annotated[int, Query(ge=-1)]

router = APIRouter(prefix="/api")


class View(BaseModel):
    """The photos on the screen."""

    model_config = ConfigDict(extra="forbid")
    photos: Annotated[list[int], Field(max_length=MAX_IN_VIEW)]


class PredictionChange(BaseModel):
    """Whether predictions are to rest."""

    model_config = ConfigDict(extra="forbid")
    paused: bool


@router.get("/health")
async def report_health() -> dict[str, str]:
    """Whether the server is there."""
    return {"status": "ok", "version": __version__}


@router.get("/project")
def show_project(studio: CurrentStudio) -> dict[str, Any]:
    """The state of the project."""
    return project_json(studio)


@router.get("/photos")
def list_photos(request: Request, studio: CurrentStudio, since: Revision = -1) -> Response:
    """The photos that have changed after a revision."""
    return json_response(photos_json(studio, since), request)


@router.get("/changes")
async def wait_for_changes(request: Request, studio: CurrentStudio, since: Revision = -1) -> Response:
    """The photos that have changed after a revision, as soon as there are any, and the state of the project."""
    await studio.feed.wait(since, POLL_S)

    def answer() -> Response:
        changes = photos_json(studio, since)
        return json_response(changes | {"project": project_json(studio)}, request)

    return await run_in_threadpool(answer)


@router.post("/undo")
def undo(studio: CurrentStudio) -> dict[str, Any]:
    """Undo the last action of a person."""
    return _move(studio, "undo")


@router.post("/redo")
def redo(studio: CurrentStudio) -> dict[str, Any]:
    """Do again what was undone last."""
    return _move(studio, "redo")


def _move(studio: Studio, direction: str) -> dict[str, Any]:
    with studio.editing() as project:
        try:
            moved = project.undo() if direction == "undo" else project.redo()
        except sqlite3.IntegrityError as error:
            names = dict(zip(("undo", "redo"), project.journal.names(), strict=True))
            raise RequestError(
                409, f"“{names[direction]}” cannot be {direction}ne: something else in the project builds on it"
            ) from error
    name, photos = moved or (None, [])
    return {"name": name, "photos": photos, "project": project_json(studio)}


@router.post("/view")
def look_at(studio: CurrentStudio, body: View) -> dict[str, Any]:
    """Tell which photos are on the screen: they are predicted first."""
    studio.worker.look_at(body.photos)
    return {}


@router.post("/prediction")
def change_prediction(studio: CurrentStudio, body: PredictionChange) -> dict[str, Any]:
    """Let the predictions rest, or go on."""
    studio.worker.paused = body.paused
    return project_json(studio)


@router.post("/scan")
def scan(studio: CurrentStudio) -> dict[str, Any]:
    """Look at the folder again: new, moved, changed and missing photos, and those that are back."""
    with studio.editing() as project:
        report = scan_photos(project)
    counts = {name: len(getattr(report, name)) for name in ("added", "moved", "changed", "missing", "back")}
    return counts | {"left_out": report.left_out, "project": project_json(studio)}
