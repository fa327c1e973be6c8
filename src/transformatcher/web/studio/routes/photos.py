"""Routes: a photo with its objects, its pictures, and what a person says of it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from transformatcher.annotation import edits
from transformatcher.annotation.database import NotWrittenError
from transformatcher.annotation.records import Photo
from transformatcher.annotation.scan import set_problem
from transformatcher.errors import InputError, printable
from transformatcher.web.studio.dependencies import CurrentPhoto, CurrentStudio, IdentifiedPhoto, Studio, get_category
from transformatcher.web.studio.page_json import detail_json
from transformatcher.web.studio.pictures import file_version

Box = tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]
Version = Annotated[str, Query(max_length=100)]

MAX_KNOWN = 5000  # objects of a photo

router = APIRouter(prefix="/api/photos/{photo_id}")


class Skip(BaseModel):
    """Whether a photo shows nothing to mark."""

    model_config = ConfigDict(extra="forbid")
    skipped: bool = True


class NewInstance(BaseModel):
    """An object; without a box, it is looked for in the whole photo.

    ``known`` are the objects that the page shows: so a request that is sent again, as its answer was lost, adds no
    second one.
    """

    model_config = ConfigDict(extra="forbid")
    category_id: int
    box: Box | None = None
    known: Annotated[list[int], Field(max_length=MAX_KNOWN)] | None = None


@router.get("")
def show_photo(photo: IdentifiedPhoto, studio: CurrentStudio) -> dict[str, Any]:
    """A photo with its objects and their keypoints."""
    return detail_json(studio, photo.id)


@router.get("/image")
def show_image(request: Request, photo: CurrentPhoto, studio: CurrentStudio, v: Version = "") -> Response:
    """The photo, upright, as JPEG. With ``v``, which stands for the photo's content, browsers keep it."""
    return _picture(request, photo, studio, studio.pictures.large, keep=bool(v))


@router.get("/thumbnail")
def show_thumbnail(request: Request, photo: CurrentPhoto, studio: CurrentStudio, v: Version = "") -> Response:
    """A small picture of the photo, upright, as JPEG."""
    return _picture(request, photo, studio, studio.pictures.thumbnail, keep=bool(v))


def _picture(
    request: Request, photo: Photo, studio: Studio, make: Callable[[Path, str], bytes | Path], *, keep: bool
) -> Response:
    path = studio.project.path_of(photo)
    try:
        version = file_version(path)
        cache = "private, max-age=31536000, immutable" if keep else "private, no-cache"
        headers = {"ETag": f'"{version}"', "Cache-Control": cache}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        content = make(path, version)
    except InputError as error:
        reason = str(error).removeprefix(printable(f"{path}: "))
        if photo.problem is None:
            with suppress(NotWrittenError):
                set_problem(studio.project, photo.id, reason)
        raise InputError(f"{photo.path}: {reason}") from error
    if isinstance(content, Path):
        return FileResponse(content, media_type="image/jpeg", headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


@router.post("/accept")
def accept(photo: IdentifiedPhoto, studio: CurrentStudio) -> dict[str, Any]:
    """Accept the photo as it is shown."""
    with studio.editing() as project:
        edits.accept(project, photo.id, studio.threshold)
    return detail_json(studio, photo.id)


@router.post("/reopen")
def reopen(photo: CurrentPhoto, studio: CurrentStudio) -> dict[str, Any]:
    """Review the photo again."""
    with studio.editing() as project:
        edits.reopen(project, photo.id)
    return detail_json(studio, photo.id)


@router.post("/skip")
def skip(photo: CurrentPhoto, studio: CurrentStudio, body: Skip) -> dict[str, Any]:
    """Say that the photo shows nothing to mark, or take that back."""
    with studio.editing() as project:
        edits.skip(project, photo.id, skipped=body.skipped)
    return detail_json(studio, photo.id)


@router.post("/instances", status_code=201)
def add_instance(photo: IdentifiedPhoto, studio: CurrentStudio, body: NewInstance) -> dict[str, Any]:
    """Add an object; ``instance`` is its id."""
    category = get_category(body.category_id, studio)
    with studio.editing() as project:
        instance = edits.add_instance(project, photo.id, category.id, body.box, body.known)
    return detail_json(studio, photo.id) | {"instance": instance.id}
