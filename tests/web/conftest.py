"""Studios without a model, on four photos and without any. The helpers are imported late: they skip without FastAPI."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from helpers.studio_client import photo_folder

    return photo_folder(tmp_path / "photos")


@pytest.fixture
def studio(folder: Path) -> Iterator[Any]:
    from helpers.studio_client import StudioClient, open_project

    with open_project(folder) as project, StudioClient(project) as client:
        yield client


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Any]:
    """A studio whose photos are uploaded."""
    from helpers.studio_client import StudioClient, open_project

    (tmp_path / "temporary").mkdir()
    with open_project(tmp_path / "temporary") as project, StudioClient(project, temporary=True) as client:
        yield client
