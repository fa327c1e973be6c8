"""The server that Label Studio connects to: its answers, what it learns, and whom it refuses."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.propagation import POINTS, make_photo

from transformatcher.inference.interfaces.label_studio import ImageFolders
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate_inputs import read_annotations

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="FastAPI's test client needs httpx")

from transformatcher.web import label_studio_backend  # noqa: E402
from transformatcher.web.label_studio import make_label_studio_app  # noqa: E402
from transformatcher.web.label_studio_backend import FAILED, LabelStudioBackend  # noqa: E402

BASE_URL = "http://127.0.0.1:9090"
XML = """<View><Image name="img" value="$image"/>
  <KeyPointLabels name="kp" toName="img"><Label value="One"/><Label value="Two"/><Label value="Three"/></KeyPointLabels>
  <RectangleLabels name="box" toName="img"><Label value="thing"/></RectangleLabels></View>"""
SIZE = np.array([200, 120])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three photos, of which two are the same."""
    for name, seed in (("a.png", 3), ("b.png", 3), ("c.png", 7)):
        make_photo(seed).save(tmp_path / name)
    return tmp_path


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def backend(matcher: Matcher, root: Path, log: list[str]) -> LabelStudioBackend:
    """Without a file of references."""
    return LabelStudioBackend(matcher, {}, ImageFolders(root), 0.0, log=log.append)


@pytest.fixture
def client(backend: LabelStudioBackend) -> Iterator[Any]:
    with testclient.TestClient(make_label_studio_app(backend), base_url=BASE_URL) as client:
        yield client


def marked(root: Path) -> Path:
    """A COCO-keypoint file in which a.png is annotated."""
    points = [value for x, y in POINTS.values() for value in (x, y, 2)]
    data = {
        "images": [{"id": 1, "file_name": "a.png", "width": 200, "height": 120}],
        "categories": [{"id": 1, "name": "thing", "keypoints": list(POINTS)}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "keypoints": points}],
    }
    path = root / "marked.json"
    path.write_text(json.dumps(data))
    return path


def task(name: str = "b.png", number: int = 1) -> dict[str, Any]:
    return {"id": number, "data": {"image": f"/data/local-files/?d={name}"}}


def event(
    action: str = "ANNOTATION_CREATED", shift: float = 0, name: str = "a.png", **annotation: Any
) -> dict[str, Any]:
    """A webhook's payload: the points of a.png as a person annotates them, perhaps all shifted."""
    result = []
    for label, (x, y) in zip(("One", "Two", "Three"), POINTS.values(), strict=True):
        value = {"x": (x + shift) / 2, "y": y / 1.2, "width": 0.5, "keypointlabels": [label]}
        common = {"to_name": "img", "original_width": 200, "original_height": 120, "image_rotation": 0}
        result.append({"id": label, "type": "keypointlabels", "from_name": "kp", "value": value, **common})
    return {
        "action": action,
        "annotation": {"id": 5, "result": result, "was_cancelled": False, **annotation},
        "task": task(name),
        "project": {"id": 3, "label_config": XML},
    }


def predict(client: Any, *tasks: Any, status: int = 200, project: str = "3.1700000000", xml: str = XML) -> Any:
    """The answer to a request for predictions."""
    body = {"tasks": list(tasks or [task()]), "label_config": xml, "project": project, "params": {"context": None}}
    response = post(client, "/predict", body)
    assert response.status_code == status, response.text
    return response.json()


def post(client: Any, path: str, body: Any) -> Any:
    """As Label Studio sends it: all letters beyond ASCII are escaped."""
    return client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


def points_of(prediction: dict[str, Any]) -> np.ndarray:
    """The predicted points in pixels, in the order of the labels."""
    values = [region["value"] for region in prediction["result"] if region["type"] == "keypointlabels"]
    return np.array([(value["x"], value["y"]) for value in values]) / 100 * SIZE


class TestAnswers:
    @pytest.mark.parametrize("path", ["/", "/health"])
    def test_health(self, client: Any, path: str):
        response = client.get(path)
        assert (response.status_code, response.json()["status"]) == (200, "UP")
        assert response.headers["X-Content-Type-Options"] == "nosniff"

    def test_setup_tells_the_version(self, client: Any):
        body = {"project": "3.17", "schema": XML, "hostname": "http://localhost:8080", "access_token": "a token"}
        version = client.post("/setup", json=body).json()["model_version"]
        assert version.startswith("transformatcher ")
        assert "0 references" in version

    def test_setup_refuses_labels_without_keypoints(self, client: Any, log: list[str]):
        response = client.post("/setup", json={"project": "3.17", "schema": "<View/>"})
        assert response.status_code == 422
        assert "no <KeyPointLabels> for an <Image>" in response.json()["error"]
        assert "setup: label config: it has no <KeyPointLabels>" in log[0]

    def test_one_prediction_for_each_task(self, matcher: Matcher, root: Path, log: list[str]):
        references = read_annotations(marked(root), root, None).references
        backend = LabelStudioBackend(matcher, references, ImageFolders(root), 0.0, log=log.append)
        address = "data:image/png;base64," + base64.b64encode((root / "b.png").read_bytes()).decode()
        (root / "bad.png").write_bytes(b"garbage")
        tasks = [task(), {"id": 2, "data": {"image": address}}, task("bad.png", 3), task("../x.png", 4), 5]
        with testclient.TestClient(make_label_studio_app(backend), base_url=BASE_URL) as client:
            answer = predict(client, *tasks)
        assert len(answer["results"]) == 5
        np.testing.assert_allclose(points_of(answer["results"][0]), list(POINTS.values()), atol=8)
        np.testing.assert_allclose(points_of(answer["results"][1]), points_of(answer["results"][0]), atol=2)
        assert [item["model_version"] for item in answer["results"]] == [answer["model_version"]] * 2 + [FAILED] * 3
        assert [item["result"] == [] for item in answer["results"]] == [False, False, True, True, True]
        assert "not an image that can be decoded" in answer["results"][2]["error"]
        assert [line.partition(":")[0] for line in log] == ["task 3", "task 4", "task 4"]
        assert "lies outside --images-root" in log[1]
        assert answer["results"][0]["result"][0]["value"]["rectanglelabels"] == ["thing"]

    def test_a_large_photo_in_a_data_address_is_scaled_back(self, matcher: Matcher, root: Path, log: list[str]):
        references = read_annotations(marked(root), root, None).references
        backend = LabelStudioBackend(matcher, references, ImageFolders(root), 0.0, log=log.append)
        make_photo(3).resize((2000, 1200)).save(root / "large.png")
        address = "data:image/png;base64," + base64.b64encode((root / "large.png").read_bytes()).decode()
        answer = backend.predict([{"id": 1, "data": {"image": address}}], XML, 3)
        (prediction,) = answer["results"]
        assert prediction["result"][0]["original_width"] == 2000
        np.testing.assert_allclose(points_of(prediction), list(POINTS.values()), atol=8)

    def test_too_many_pixels(self, backend: LabelStudioBackend, client: Any, monkeypatch: pytest.MonkeyPatch):
        client.post("/webhook", json=event())
        monkeypatch.setattr(label_studio_backend, "MAX_PIXELS", 100)
        address = "data:image/png;base64," + base64.b64encode((backend.folders.root / "b.png").read_bytes()).decode()
        (prediction,) = predict(client, {"id": 1, "data": {"image": address}})["results"]
        assert "too many pixels" in prediction["error"] or "million" in prediction["error"]

    def test_a_prediction_is_remembered_until_the_photo_changes(
        self, backend: LabelStudioBackend, client: Any, root: Path, monkeypatch: pytest.MonkeyPatch
    ):
        client.post("/webhook", json=event())
        first = predict(client)

        def fail(*_: Any) -> None:
            raise AssertionError("computed again")

        monkeypatch.setattr(label_studio_backend, "_read", fail)
        assert predict(client) == first
        monkeypatch.undo()
        make_photo(7).save(root / "b.png")
        assert predict(client)["results"][0]["result"] != first["results"][0]["result"]
        assert len(backend._remembered) == 2
        monkeypatch.setattr(label_studio_backend, "MAX_REMEMBERED", 1)
        predict(client, task("c.png"))
        assert len(backend._remembered) == 1

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"label_config": XML}, "tasks is not a list"),
            ({"tasks": []}, "label_config is not a text"),
            ({"tasks": [], "label_config": XML}, "no reference yet: annotate an image in Label Studio"),
            ([], "malformed"),
        ],
    )
    def test_malformed_requests(self, client: Any, body: Any, message: str):
        response = client.post("/predict", json=body)
        assert response.status_code == 422
        assert message in response.json()["error"]

    def test_labels_that_are_no_keypoints_of_the_references(self, matcher: Matcher, root: Path):
        references = read_annotations(marked(root), root, None).references
        backend = LabelStudioBackend(matcher, references, ImageFolders(root), 0.0, log=lambda _: None)
        xml = XML.replace("One", "1").replace("Two", "2").replace("Three", "3")
        with testclient.TestClient(make_label_studio_app(backend), base_url=BASE_URL) as client:
            error = predict(client, xml=xml, status=422)["error"]
        assert error.startswith(
            "label config: none of its labels (1, 2, 3) is a keypoint of the references (one, three"
        )

    def test_log_lines_cannot_change_the_terminal(self, client: Any, log: list[str]):
        client.post("/webhook", json=event())
        odd = "\x1b[2J\n\ud800"
        (prediction,) = predict(client, {"id": odd, "data": {"image": odd}})["results"]
        assert prediction["error"].startswith("�[2J��: neither a local file")
        assert log[-1].startswith("task �[2J��: �[2J��: neither a local file")
        refused = post(client, "/webhook", event(name=f"{odd}.png", id=odd))
        assert "/data/local-files/?d=�[2J��.png: no file can have this name" in refused.json()["error"]
        assert log[-1].startswith("annotation �[2J�� is no reference")
        assert post(client, "/webhook", event(id=odd)).status_code == 201
        gone = {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": odd}]}
        assert post(client, "/webhook", gone).status_code == 201
        assert "1 reference," in predict(client)["model_version"]


class TestLearning:
    def test_annotations_become_references(self, client: Any, log: list[str]):
        response = client.post("/webhook", json=event())
        assert (response.status_code, response.json()) == (201, {"status": "learned", "references": 1})
        answer = predict(client)
        np.testing.assert_allclose(points_of(answer["results"][0]), list(POINTS.values()), atol=8)
        assert "1 reference," in answer["model_version"]
        assert log == ["annotation 5 has arrived; annotations of this project that are references: 1"]

    def test_a_correction_replaces_the_annotation_and_the_version(self, client: Any):
        client.post("/webhook", json=event())
        before = predict(client)
        assert client.post("/webhook", json=event("ANNOTATION_UPDATED", shift=20)).json()["references"] == 1
        after = predict(client)
        assert after["model_version"] != before["model_version"]
        shift = points_of(after["results"][0]) - points_of(before["results"][0])
        np.testing.assert_allclose(shift.mean(axis=0), [20, 0], atol=6)

    def test_beside_a_file(self, matcher: Matcher, root: Path):
        references = read_annotations(marked(root), root, None).references
        backend = LabelStudioBackend(matcher, references, ImageFolders(root), 0.0, log=lambda _: None)
        with testclient.TestClient(make_label_studio_app(backend), base_url=BASE_URL) as client:
            assert "1 reference," in predict(client)["model_version"]
            client.post("/webhook", json=event(name="b.png"))
            assert "2 references" in predict(client)["model_version"]
        assert len(backend._photos) == 2

    def test_other_projects_do_not_learn_from_it(self, client: Any):
        client.post("/webhook", json=event())
        assert "no reference yet" in predict(client, project="4.17", status=422)["error"]

    @pytest.mark.parametrize(
        "gone",
        [
            {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 5}]},
            event("ANNOTATION_UPDATED", was_cancelled=True),
            event("ANNOTATION_UPDATED", result=[]),
        ],
        ids=["deleted", "skipped", "empty"],
    )
    def test_annotations_that_are_gone(self, client: Any, gone: dict[str, Any]):
        client.post("/webhook", json=event())
        assert client.post("/webhook", json=gone).status_code == 201
        assert "no reference yet" in predict(client, status=422)["error"]

    def test_a_photo_that_is_gone(self, client: Any, root: Path, log: list[str]):
        client.post("/webhook", json=event())
        (root / "a.png").unlink()
        assert "no reference yet" in predict(client, status=422)["error"]
        assert any("a.png: no such image file" in line for line in log)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (event(result="x"), "its result is not a list of regions"),
            (event(name="gone.png"), "no such file in --images-root"),
            (event() | {"task": {"data": {"image": "s3://bucket/a.png"}}}, "nothing is fetched"),
            (
                event() | {"task": {"data": {"image": "data:image/png;base64,AAAA"}}},
                "are predicted, but are no references",
            ),
            (event() | {"project": {"id": 3}}, "label config: not valid XML"),
            (event() | {"task": None}, "task is not an object; let the webhook send its payload"),
        ],
        ids=["result", "gone", "s3", "data", "no config", "no payload"],
    )
    def test_what_cannot_be_a_reference(self, client: Any, body: dict[str, Any], message: str):
        response = client.post("/webhook", json=body)
        assert response.status_code == 422
        assert message in response.json()["error"]

    def test_other_events_are_ignored(self, client: Any):
        for action in ("PROJECT_UPDATED", "START_TRAINING", None, []):
            response = client.post("/webhook", json={"action": action, "project": {"id": 3}})
            assert (response.status_code, response.json()) == (201, {"status": "ignored"})

    def test_the_oldest_go_first(self, client: Any, backend: LabelStudioBackend, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(label_studio_backend, "MAX_LEARNED", 2)
        for number, name in enumerate(("a.png", "b.png", "c.png")):
            body = event(name=name)
            body["annotation"]["id"] = number
            client.post("/webhook", json=body)
        assert list(backend._learned) == ["1", "2"]
        predict(client)
        assert [path.name for path in backend._photos] == ["b.png", "c.png"]


class TestWhoMayAsk:
    def app(self, backend: LabelStudioBackend, **options: Any) -> Any:
        return testclient.TestClient(make_label_studio_app(backend, **options), base_url=BASE_URL)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": BASE_URL},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-origin"},
        ],
    )
    def test_web_pages_may_not(self, client: Any, headers: dict[str, str]):
        response = client.post("/predict", json={}, headers=headers)
        assert (response.status_code, response.json()["error"].startswith("Requests of web pages")) == (403, True)

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
    def test_bodies_that_pages_can_send_are_refused(self, client: Any, kind: str):
        response = client.post("/webhook", content=json.dumps(event()), headers={"Content-Type": kind})
        assert response.status_code == 415
        assert client.options("/predict", headers={"Origin": "http://evil.example"}).status_code == 403

    @pytest.mark.parametrize(
        ("options", "host", "status"),
        [
            ({}, "localhost:9090", 200),
            ({}, "evil.example", 403),
            ({}, "host.docker.internal:9090", 403),
            ({"host": "0.0.0.0"}, "host.docker.internal:9090", 200),
            ({"host": "0.0.0.0"}, "192.168.1.7:9090", 200),
            ({"host": "0.0.0.0"}, "backend:9090", 403),
            ({"host": "0.0.0.0", "names": ["Backend"]}, "backend:9090", 200),
        ],
    )
    def test_names_of_the_server(self, backend: LabelStudioBackend, options: dict[str, Any], host: str, status: int):
        with self.app(backend, **options) as client:
            assert client.get("/health", headers={"Host": host}).status_code == status

    def test_bodies_without_a_length_or_too_long(self, client: Any):
        kind = {"Content-Type": "application/json"}
        assert client.post("/predict", content=(b"x" for _ in range(3)), headers=kind).status_code == 411
        response = client.post("/predict", content=b"", headers={"Content-Length": "50000001", **kind})
        assert (response.status_code, "the limit is 50 MB" in response.json()["error"]) == (413, True)

    def test_a_password(self, backend: LabelStudioBackend):
        with self.app(backend, credentials="anna:pässword:1") as client:
            assert client.get("/").status_code == 200
            assert client.get("/health").status_code == 401
            refused = client.post("/setup", json={"project": "3.1", "schema": XML})
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"].startswith("Basic")
            for wrong in ("anna:pässword", "anna:", ":"):
                token = base64.b64encode(wrong.encode()).decode()
                headers = {"Authorization": f"Basic {token}"}
                assert client.post("/webhook", json=event(), headers=headers).status_code == 401
            for scheme, token in (("Token", "YQ=="), ("Basic", "\xff"), ("Basic", "")):
                headers = {"Authorization": f"{scheme} {token}".encode("latin-1")}
                assert client.post("/setup", json={}, headers=headers).status_code == 401
            right = {"Authorization": "Basic " + base64.b64encode("anna:pässword:1".encode()).decode()}
            assert client.post("/setup", json={"project": "3.1", "schema": XML}, headers=right).status_code == 200
        assert backend._learned == {}
