"""A studio on a small folder, as the page's scripts use it. Modules that import this are skipped without FastAPI."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import write_image

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="FastAPI's test client needs httpx")

from transformatcher.annotation.project import Project  # noqa: E402
from transformatcher.annotation.scan import scan_photos  # noqa: E402
from transformatcher.web.studio.server import make_studio  # noqa: E402

BASE_URL = "http://127.0.0.1:8000"
HEADERS = {"X-Transformatcher": "1"}
KEYPOINTS = ["left eye", "right eye", "nose"]


@dataclass
class FakeWorker:
    """A prediction worker that predicts nothing, and remembers what it is told."""

    calibrated: bool = True
    state: str = "idle"
    paused: bool = False
    problem: str | None = None
    suggested: int | None = None
    edits: int = 0
    in_view: list[int] = field(default_factory=list)
    heatmaps: dict[tuple[int, int], Any] = field(default_factory=dict)  # by object and keypoint

    @property
    def predictor(self) -> Any:
        return SimpleNamespace(
            matcher=SimpleNamespace(calibrated=self.calibrated),
            progress=lambda: SimpleNamespace(done=2, total=5, photos_per_second=1.23456),
            suggestion=lambda: self.suggested,
            heatmap=lambda instance_id, keypoint_id: self.heatmaps.get((instance_id, keypoint_id)),
        )

    def person_is_active(self) -> None:
        self.edits += 1

    def look_at(self, photo_ids: Iterable[int]) -> None:
        self.in_view = list(photo_ids)


class StudioClient:
    """A page that is open on a project."""

    def __init__(self, project: Project, worker: Any = None, **options: Any) -> None:
        self.project, self.worker = project, worker or FakeWorker()
        self.app = make_studio(project, self.worker, **options)
        self.client = testclient.TestClient(self.app, base_url=BASE_URL, headers=HEADERS)

    def __enter__(self) -> "StudioClient":
        self.client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.client.__exit__(*error)

    def send(self, method: str, path: str, status: int = 200, json: Any = None, **options: Any) -> Any:
        """Send a request, check the response's status, and return its JSON, or the response if it has none."""
        options |= {} if json is None else {"json": json}
        response = self.client.request(method, f"/api{path}", **options)
        assert response.status_code == status, response.text
        is_json = response.content and response.headers.get("content-type") == "application/json"
        return response.json() if is_json else response

    def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return self.send("GET", path, status, **options)

    def post(self, path: str, json: Any = None, status: int = 200, **options: Any) -> Any:
        return self.send("POST", path, status, json, **options)

    def put(self, path: str, json: Any, status: int = 200) -> Any:
        return self.send("PUT", path, status, json)

    def error(self, method: str, path: str, status: int, json: Any = None, **options: Any) -> str:
        """The sentence of a request that is refused."""
        return str(self.send(method, path, status, json, **options)["error"])

    def photo_ids(self) -> dict[str, int]:
        """Path → id of each photo."""
        return {photo["path"]: photo["id"] for photo in self.get("/photos")["photos"]}

    def add_category(self, name: str = "cat", keypoints: Iterable[str] = KEYPOINTS) -> dict[str, Any]:
        """Add a category of three keypoints, joined in a row."""
        names = list(keypoints)
        skeleton = [[i, i + 1] for i in range(len(names) - 1)]
        state = self.post("/categories", {"name": name, "keypoints": names, "skeleton": skeleton}, 201)
        return next(category for category in state["categories"] if category["name"] == name)

    def add_object(self, photo_id: int, category: dict[str, Any], box: list[float] | None = None) -> int:
        """Add an object to a photo."""
        body = {"category_id": category["id"], "box": box}
        return int(self.post(f"/photos/{photo_id}/instances", body, 201)["instance"])

    def mark(self, instance: int, keypoint: int, x: float, y: float) -> Any:
        """Set a visible keypoint."""
        return self.put(f"/instances/{instance}/points/{keypoint}", {"visibility": 2, "x": x, "y": y})


def photo_folder(folder: Path, n: int = 4) -> Path:
    """A folder of photos of 80 × 60 pixels: 0.jpg, 1.jpg, … and in/the-last.png."""
    for seed in range(n - 1):
        write_image(folder / f"{seed}.jpg", seed=seed)
    write_image(folder / "in" / "the-last.png", seed=n)
    return folder


def open_project(folder: Path) -> Project:
    """A project whose photos are known."""
    project = Project(folder)
    scan_photos(project)
    return project


def predict(
    project: Project, photo_id: int, category: dict[str, Any], confidence: float, same_kind: float = 0.9
) -> int:
    """Store predictions as the predictor does: an object without a box, all keypoints at (10, 20), (11, 21), …"""
    with project.changing([photo_id]):
        run = project.database.run
        instance = run("INSERT INTO instance (photo_id, category_id) VALUES (?, ?)", photo_id, category["id"])
        for n, keypoint in enumerate(category["keypoints"]):
            run(
                "INSERT INTO prediction (instance_id, keypoint_id, x, y, confidence, reference, mirrored) "
                "VALUES (?, ?, ?, ?, ?, NULL, 0)",
                instance, keypoint["id"], 10.0 + n, 20.0 + n, confidence + 0.01 * n,
            )  # fmt: skip
        run(
            "INSERT INTO predicted (instance_id, voters, same_kind, at) VALUES (?, '[]', ?, ?)",
            instance, same_kind, "2026-01-01T00:00:00+00:00",
        )  # fmt: skip
    return instance
