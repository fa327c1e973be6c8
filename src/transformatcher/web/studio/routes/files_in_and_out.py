"""Routes: the project as files of other tools, and marks from a COCO-keypoint file."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from transformatcher.annotation.formats.coco_import import import_coco
from transformatcher.annotation.formats.export import FORMATS, export_zip
from transformatcher.annotation.formats.linked_photos import folder_name
from transformatcher.errors import InputError
from transformatcher.files import parse_json
from transformatcher.web.errors import RequestError, client_of
from transformatcher.web.studio.dependencies import CurrentStudio
from transformatcher.web.studio.page_json import project_json
from transformatcher.web.uploads import clean_name

MAX_SENTENCES = 100  # about what was left out

router = APIRouter(prefix="/api")


@router.get("/formats")
def list_formats() -> list[dict[str, Any]]:
    """What the project can be exported to, and why some formats cannot be written here."""
    return [
        {"name": form.name, "title": form.title, "available": form.available, "why": form.why}
        for form in FORMATS.values()
    ]


@router.get("/export")
def export(
    studio: CurrentStudio,
    form: Annotated[str, Query(alias="format", max_length=100)],
    predictions: Literal["omit", "include", "only"] = "omit",
) -> FileResponse:
    """The project as a file to download; a ZIP file, without the photos, where the format is a folder."""
    if form not in FORMATS:
        raise RequestError(404, f"no format is called {form!r}; there are {', '.join(FORMATS)}")
    folder = TemporaryDirectory(prefix="transformatcher-")
    try:
        name = f"{folder_name(studio.project.folder.resolve().name)}-{form}{FORMATS[form].suffix or '.zip'}"
        out = Path(folder.name) / name
        export_zip(studio.project, form, out, predictions=predictions, threshold=studio.threshold)
    except BaseException:
        folder.cleanup()
        raise
    return FileResponse(out, filename=name, background=BackgroundTask(folder.cleanup))


@router.post("/import")
async def import_marks(
    request: Request, studio: CurrentStudio, name: Annotated[str, Query(max_length=1000)] = ""
) -> dict[str, Any]:
    """Take over the keypoints of the COCO file in the body as marks."""
    file_name = clean_name(name) if name else "the file"

    def job(body: bytes) -> dict[str, Any]:
        data = _parse(body, file_name)
        with studio.editing() as project:
            summary = import_coco(project, data, name=file_name)
        skipped = summary.skipped[:MAX_SENTENCES]
        if (more := len(summary.skipped) - MAX_SENTENCES) > 0:
            skipped.append(f"and {more} more")
        return {
            "images": summary.images,
            "objects": summary.objects,
            "keypoints": summary.keypoints,
            "predictions": summary.predictions,
            "skipped": skipped,
            "project": project_json(studio),
        }

    with studio.jobs.slot(
        client_of(request)
    ) as run_job:  # one at a time, as parsed JSON takes many times the memory of its text
        body = await request.body()
        return await run_in_threadpool(run_job, lambda: job(body))


def _parse(body: bytes, file_name: str) -> Mapping[str, Any]:
    try:
        data = parse_json(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file_name}: not a JSON file.") from error
    if not isinstance(data, dict):
        raise InputError(f"{file_name}: not a COCO-keypoint file, which is a JSON object.")
    return data
