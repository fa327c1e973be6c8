"""Routes: export and import a COCO-keypoint file."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from transformatcher.errors import InputError
from transformatcher.files import parse_json
from transformatcher.web.coco import category_name, from_coco, to_coco
from transformatcher.web.dependencies import CurrentServices, CurrentSession
from transformatcher.web.page_state import session_json
from transformatcher.web.predictions import match_missing
from transformatcher.web.uploads import clean_name

router = APIRouter(prefix="/api/sessions/{session_id}")


@router.get("/coco")
def export_coco(
    session: CurrentSession, category: Annotated[str, Query(min_length=1, max_length=80)] = "object"
) -> Response:
    """All points as a file to download."""
    with session.lock:
        text = json.dumps(to_coco(session, category), indent=1)
    headers = {"Content-Disposition": 'attachment; filename="keypoints.json"'}
    return Response(text, media_type="application/json", headers=headers)


@router.post("/coco")
async def import_coco(
    request: Request,
    session: CurrentSession,
    services: CurrentServices,
    name: Annotated[str, Query(max_length=1000)] = "",
) -> dict[str, Any]:
    """Replace all points by those of the file in the body."""
    file_name = clean_name(name) if name else "the file"
    with services.jobs.slot() as run_job:  # in a job, as parsed JSON takes many times the memory of its text
        body = await request.body()

        def job() -> dict[str, Any]:
            data = _parse(body, file_name)
            with session.lock:
                warnings = from_coco(data, session, file_name)
            match_missing(session, services.matcher)
            with session.lock:
                return session_json(session) | {"warnings": warnings, "category": category_name(data)}

        return await run_in_threadpool(run_job, job)


def _parse(body: bytes, file_name: str) -> Any:
    try:
        return parse_json(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file_name}: not a JSON file.") from error
