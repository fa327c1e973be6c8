"""Routes: add, show, warp and remove photos."""

import json
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from transformatcher.web.dependencies import CurrentPhoto, CurrentServices, CurrentSession
from transformatcher.web.page_state import session_json
from transformatcher.web.predictions import ControlPoints, match_missing, warp_source
from transformatcher.web.session import XY
from transformatcher.web.uploads import to_png

EXAMPLES = ("cat_a.jpg", "cat_b.jpg", "cat_c.jpg")  # the first is the source

router = APIRouter(prefix="/api/sessions/{session_id}")


@router.post("/photos", status_code=201)
async def add_photo(
    request: Request,
    session: CurrentSession,
    services: CurrentServices,
    role: Literal["source", "target"],
    name: Annotated[str, Query(max_length=1000)] = "",
) -> dict[str, Any]:
    """Add the photo in the body. It is the file itself, as a multipart form would be written to disk."""
    as_source = role == "source"
    with services.jobs.slot() as run_job:
        session.check_room(as_source=as_source)
        data = await request.body()

        def job() -> dict[str, Any]:
            services.add_photo(session, data, name, as_source=as_source)
            match_missing(session, services.matcher)
            with session.lock:
                return session_json(session)

        return await run_in_threadpool(run_job, job)


@router.post("/examples", status_code=201)
def add_examples(session: CurrentSession, services: CurrentServices) -> dict[str, Any]:
    """Replace all photos by three cats, with six points on the first."""
    folder = files("transformatcher") / "examples"

    def job() -> dict[str, Any]:
        with session.lock:
            for photo_id in list(session.photos):
                session.remove_photo(photo_id)
        for name in EXAMPLES:
            services.add_photo(session, (folder / name).read_bytes(), name, as_source=name == EXAMPLES[0])
        with session.lock:
            for label, xy in json.loads((folder / "cat_a.json").read_text(encoding="utf-8")).items():
                session.add_point(XY(*xy), label)
        match_missing(session, services.matcher)
        with session.lock:
            return session_json(session)

    return services.jobs.run(job)


@router.delete("/photos/{photo_id}")
def remove_photo(session: CurrentSession, photo: CurrentPhoto) -> dict[str, Any]:
    """Remove a photo."""
    with session.lock:
        session.remove_photo(photo.id)
        return session_json(session)


@router.get("/photos/{photo_id}/image")
def show_photo(photo: CurrentPhoto) -> Response:
    """The stored copy as JPEG."""
    return Response(photo.jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.get("/photos/{photo_id}/warp")
def warp_photo(
    session: CurrentSession, photo: CurrentPhoto, services: CurrentServices, control_points: ControlPoints = "auto"
) -> Response:
    """The source warped onto a target, as PNG; the header X-Control-Points tells what the warp follows."""
    warped = services.jobs.run(lambda: warp_source(session, photo.id, control_points))
    headers = {"X-Control-Points": warped.control_points}
    return Response(to_png(warped.pixels, warped.alpha), media_type="image/png", headers=headers)
