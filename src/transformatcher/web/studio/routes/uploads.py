"""Routes: photos uploaded into a temporary project, and examples."""

import io
import json
from contextlib import suppress
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from PIL import Image
from starlette.concurrency import run_in_threadpool

from transformatcher.annotation import edits
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import VISIBLE
from transformatcher.annotation.scan import identify_photo, scan_photos
from transformatcher.files import write_bytes
from transformatcher.web.errors import RequestError, client_of
from transformatcher.web.studio.dependencies import CurrentStudio, Studio
from transformatcher.web.studio.page_json import project_json, summary_json
from transformatcher.web.uploads import FORMATS, check_upload, clean_name

EXAMPLES = ("cat_a.jpg", "cat_b.jpg", "cat_c.jpg")  # the first has marks
CATEGORY = "cat"
SUFFIXES = {"JPEG": (".jpg", ".jpeg"), "MPO": (".jpg", ".jpeg"), "PNG": (".png",), "WEBP": (".webp",),
            "BMP": (".bmp",), "TIFF": (".tif", ".tiff")}  # fmt: skip


async def _check_temporary(studio: CurrentStudio) -> None:
    if not studio.temporary:
        raise RequestError(403, f"Photos come from the folder {studio.project.folder}; copy them there and scan it")


router = APIRouter(prefix="/api", dependencies=[Depends(_check_temporary)])


@router.post("/photos", status_code=201)
async def upload_photo(
    request: Request, studio: CurrentStudio, name: Annotated[str, Query(max_length=1000)] = ""
) -> dict[str, Any]:
    """Add the photo in the body. It is the file itself, as a multipart form would be written to disk."""

    def job(data: bytes) -> dict[str, Any]:
        check_upload(data, name, studio.limits.pixels)
        with studio.editing() as project:
            _check_room(studio, [len(data)])
            path = _store(project.folder, clean_name(name), data)
            photo_id = _ids(project, [path])[0]
        return {"photo": summary_json(studio.overview.photo(photo_id)), "project": project_json(studio)}

    with studio.jobs.slot(
        client_of(request)
    ) as run_job:  # before the body is read, so that a full queue also limits memory
        data = await request.body()
        return await run_in_threadpool(run_job, lambda: job(data))


@router.post("/examples", status_code=201)
def add_examples(studio: CurrentStudio) -> dict[str, Any]:
    """Add three cats, with six points marked on the first."""
    folder = files("transformatcher") / "examples"
    points: dict[str, list[float]] = json.loads((folder / "cat_a.json").read_text(encoding="utf-8"))
    photos = [(folder / name).read_bytes() for name in EXAMPLES]
    with studio.editing() as project:
        _check_room(studio, list(map(len, photos)))
        paths = [_store(project.folder, name, data) for name, data in zip(EXAMPLES, photos, strict=True)]
        photo_id = _ids(project, paths)[0]
        name, number = CATEGORY, 1
        while (category := project.category_named(name)) is not None and set(points) - set(category.names):
            name, number = f"{CATEGORY} {number + 1}", number + 1
        if category is None:
            category = edits.add_category(project, name, list(points))
        instance = edits.add_instance(project, photo_id, category.id)
        for keypoint in category.keypoints:
            if keypoint.name in points:
                x, y = map(float, points[keypoint.name])
                edits.set_mark(project, instance.id, keypoint.id, VISIBLE, (x, y))
    return project_json(studio)


def _check_room(studio: Studio, sizes: list[int]) -> None:
    """Raise RequestError if photos of these sizes in bytes are more than the project may hold."""
    project, limits = studio.project, studio.limits
    taken = [photo.bytes for photo in project.photos()]
    if len(taken) + len(sizes) > limits.photos:
        raise RequestError(413, f"No more than {limits.photos} photos here; for more: transformatcher annotate FOLDER")
    if sum(taken) + sum(sizes) > limits.total_bytes:
        raise RequestError(
            413,
            f"No more than {limits.total_bytes / 1e6:g} MB of photos here; for more: transformatcher annotate FOLDER",
        )


def _store(folder: Path, name: str, data: bytes) -> Path:
    """Write a photo's bytes into the folder, under a name that a scan finds and no other photo has."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        suffixes = SUFFIXES.get(image.format or "")
        if suffixes is None:  # a GIF; its first picture
            buffer = io.BytesIO()
            image.save(buffer, "PNG")
            data, suffixes = buffer.getvalue(), (".png",)
    stem = PurePath(name).stem.translate(dict.fromkeys(map(ord, '<>:"/\\|?*'), "_")).strip(". ") or "photo"
    suffix = PurePath(name).suffix.lower()
    suffix = suffix if suffix in suffixes else suffixes[0]
    path, number = folder / f"{stem}{suffix}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem} ({number}){suffix}"
    write_bytes(path, data)
    return path


def _ids(project: Project, paths: list[Path]) -> list[int]:
    """Take new files into the project → their ids. If it cannot be written, the files go again."""
    try:
        scan_photos(project)
    except BaseException:
        for path in paths:
            with suppress(OSError):
                path.unlink()
        raise
    by_path = {photo.path: photo for photo in project.photos()}
    found = [by_path[path.relative_to(project.folder).as_posix()] for path in paths]
    return [identify_photo(project, photo).id for photo in found]
