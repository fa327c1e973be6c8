"""Routes: add and change categories with their keypoints."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from transformatcher.annotation import edits
from transformatcher.web.studio.dependencies import CurrentCategory, CurrentStudio
from transformatcher.web.studio.page_json import project_json

MAX_KEYPOINTS = 200
MAX_NAME = 200  # characters; what is too long for a name gets a sentence of its own

Name = Annotated[str, Field(max_length=MAX_NAME)]
Skeleton = Annotated[list[tuple[int, int]], Field(max_length=2 * MAX_KEYPOINTS)]

router = APIRouter(prefix="/api/categories")


class NewCategory(BaseModel):
    """A name, the names of the keypoints in order, and edges as pairs of positions in this order."""

    model_config = ConfigDict(extra="forbid")
    name: Name
    keypoints: Annotated[list[Name], Field(max_length=MAX_KEYPOINTS)]
    skeleton: Skeleton = []


class NamedKeypoint(BaseModel):
    """A keypoint; without an id, it is a new one."""

    model_config = ConfigDict(extra="forbid")
    id: int | None = None
    name: Name


class CategoryChange(BaseModel):
    """A category as it is to be."""

    model_config = ConfigDict(extra="forbid")
    name: Name
    keypoints: Annotated[list[NamedKeypoint], Field(max_length=MAX_KEYPOINTS)]
    skeleton: Skeleton = []


@router.post("", status_code=201)
def add_category(studio: CurrentStudio, body: NewCategory) -> dict[str, Any]:
    """Add a category."""
    with studio.editing() as project:
        edits.add_category(project, body.name, body.keypoints, body.skeleton)
    return project_json(studio)


@router.put("/{category_id}")
def change_category(category: CurrentCategory, studio: CurrentStudio, body: CategoryChange) -> dict[str, Any]:
    """Rename a category; add, rename, reorder and remove its keypoints."""
    keypoints = [(keypoint.id, keypoint.name) for keypoint in body.keypoints]
    with studio.editing() as project:
        edits.change_category(project, category.id, body.name, keypoints, body.skeleton)
    return project_json(studio)
