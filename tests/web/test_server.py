"""The server as a page, and as a stranger, meets it."""

import asyncio
import io
import json
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from transformatcher.cli import main as cli
from transformatcher.data.coco_keypoints import load_coco_objects
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.inference.matcher import Matcher

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="FastAPI's test client needs httpx")

from transformatcher.web import security as guard  # noqa: E402
from transformatcher.web.job_queue import Workers  # noqa: E402
from transformatcher.web.refusal import RefusedError  # noqa: E402
from transformatcher.web.security import Guard, is_local  # noqa: E402
from transformatcher.web.server import make_app  # noqa: E402
from transformatcher.web.session import Limits, Store  # noqa: E402
from transformatcher.web.uploads import give_memory_back  # noqa: E402

BASE = "http://127.0.0.1:8000"
OURS = {"X-Transformatcher": "1"}


def client_of(matcher: Matcher, limits: Limits | None = None, **more: Any) -> Any:
    return testclient.TestClient(make_app(matcher, limits, **more), base_url=BASE, headers=OURS)


@pytest.fixture
def client(matcher: Matcher) -> Iterator[Any]:
    with client_of(matcher) as client:
        yield client


def picture(seed: int = 0, size: tuple[int, int] = (120, 200)) -> np.ndarray:
    image = synthetic_pair(seed, size=size)[0].src_image
    assert isinstance(image, np.ndarray)
    return image


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims to be huge."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(99)))
    sealed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)


class Page:
    """What the page's script does, in short."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.root = f"/api/sessions/{client.post('/api/sessions').json()['session']}"

    def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        response = self.client.request(method, self.root + path, **more)
        assert response.status_code == status, response.text
        json_came = response.content and response.headers.get("content-type") == "application/json"
        return response.json() if json_came else response

    def upload(self, data: bytes, role: str = "target", name: str = "photo.png", status: int = 201) -> Any:
        return self.ask("POST", "/photos", status, params={"role": role, "name": name}, content=data)


@pytest.fixture
def page(client: Any) -> Page:
    """A source, and two targets that are the same photo."""
    page = Page(client)
    page.upload(encoded(picture(3)), "source", "src.png")
    page.upload(encoded(picture(7, (160, 160))), name="one.png")
    page.upload(encoded(picture(7, (160, 160))), name="two.png")
    return page


def ids_of(state: Any) -> dict[str, str]:
    return {photo["name"]: photo["id"] for photo in state["photos"]}


class TestPage:
    def test_it_loads_nothing_from_elsewhere(self, client: Any):
        index = client.get("/")
        assert index.headers["content-type"].startswith("text/html")
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        files = ["/static/app.js", "/static/api.js", "/static/stage.js", "/static/style.css", "/static/icon.svg"]
        texts = [index.text, *(client.get(name).raise_for_status().text for name in files)]
        for text in texts:
            assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
            assert "innerHTML" not in text
        assert client.get("/static/app.js").headers["content-type"].startswith("text/javascript")

    def test_headers_are_on_every_answer(self, client: Any):
        answers = [client.get("/"), client.get("/api/sessions/none"), client.get("/nothing"), client.get("/static/no")]
        answers.append(client.get("/", headers={"Host": "evil.example"}))
        assert [answer.status_code for answer in answers] == [200, 404, 404, 404, 403]
        for answer in answers:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "access-control-allow-origin" not in answer.headers
        assert answers[1].headers["cache-control"] == "no-store"
        assert answers[1].json()["error"].startswith("This session is over")

    @pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/static/../server.py", "/static/%2e%2e/server.py"])
    def test_nothing_else_is_served(self, client: Any, path: str):
        assert client.get(path).status_code == 404


class TestStrangers:
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[", ""]
    )
    def test_other_names_are_refused(self, client: Any, host: str):
        response = client.post("/api/sessions", headers={"Host": host})
        assert response.status_code == 403
        assert "does not answer to the name" in response.json()["error"]

    @pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:8000", "[::1]:8000"])
    def test_this_machine_is_not(self, client: Any, host: str):
        assert client.post("/api/sessions", headers={"Host": host}).status_code == 201

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Origin": "http://127.0.0.1:9999"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
    )
    def test_other_sites_are_refused(self, client: Any, headers: dict[str, str]):
        response = client.post("/api/sessions", headers=headers)
        assert response.status_code == 403
        assert "other sites" in response.json()["error"]

    def test_a_form_cannot_pretend(self, matcher: Matcher):
        with testclient.TestClient(make_app(matcher), base_url=BASE) as bare:
            assert bare.post("/api/sessions").status_code == 403
            assert bare.post("/api/sessions", headers={"Origin": BASE}).status_code == 403
            assert bare.post("/api/sessions", headers={"Origin": BASE, **OURS}).status_code == 201

    def test_only_a_farewell_comes_without_our_header(self, matcher: Matcher):
        with client_of(matcher) as client:
            page = Page(client)
            del client.headers["x-transformatcher"]
            assert client.post(f"{page.root}/close").status_code == 403
            assert client.post(f"{page.root}/close", headers={"Origin": BASE}).status_code == 204
            page.ask("GET", "", 404)

    def test_a_server_for_the_network(self):
        guard = Guard(lambda *_: None, "0.0.0.0", 1)  # type: ignore[arg-type, return-value]
        assert guard.knows("192.168.1.5:8000")
        assert guard.knows("localhost")
        assert not guard.knows("evil.example")
        assert Guard(lambda *_: None, "Box.Local", 1).knows("box.local:80")  # type: ignore[arg-type, return-value]
        assert is_local("127.0.0.2")
        assert not is_local("0.0.0.0")


class TestUploads:
    def test_state(self, page: Page):
        state = page.ask("GET", "")
        assert [(p["name"], p["width"], p["height"], p["ready"]) for p in state["photos"]] == [
            ("src.png", 200, 120, True),
            ("one.png", 160, 160, True),
            ("two.png", 160, 160, True),
        ]
        assert state["source"] == state["photos"][0]["id"]
        image = page.ask("GET", f"/photos/{state['source']}/image")
        with Image.open(io.BytesIO(image.content)) as shown:
            assert (shown.format, shown.size) == ("JPEG", (200, 120))

    def test_targets_may_come_first(self, client: Any):
        page = Page(client)
        assert not page.upload(encoded(picture(7)))["photos"][0]["ready"]
        assert all(photo["ready"] for photo in page.upload(encoded(picture(3)), "source")["photos"])

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "photo.png: the file is empty"),
            (b"garbage" * 100, "photo.png: not a photo in a format known here"),
            (encoded(picture())[:3000], "photo.png: the photo is damaged"),
            (b"GIF89a" + bytes(20), "photo.png: "),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a photo"),
            (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a photo"),  # Pillow would start Ghostscript
            (b"II*\x00" + bytes(64), "photo.png: "),
        ],
    )
    def test_garbage(self, client: Any, data: bytes, message: str):
        assert message in Page(client).upload(data, status=422)["error"]

    @pytest.mark.parametrize("size", [(60_000, 60_000), (11_000, 9_000), (8_000, 7_000)])
    def test_a_bomb_is_known_by_its_header(self, client: Any, size: tuple[int, int]):
        assert "up to 50 million pixels" in Page(client).upload(png_header(*size), status=413)["error"]

    def test_limits(self, matcher: Matcher):
        data = encoded(picture())
        with client_of(matcher, Limits(upload_bytes=len(data), pixels=200 * 120, photos=2)) as client:
            page = Page(client)
            page.upload(data, "source")
            error = page.upload(data + b"x", status=413)["error"]
            assert error.startswith("The file is too large: the server takes up to 0.0")
            assert "201 × 120" in page.upload(png_header(201, 120), status=413)["error"]
            page.upload(data)
            assert "2 photos are all that fit in" in page.upload(data, status=422)["error"]

    @pytest.mark.parametrize(("path", "most"), [("/points", 64_000), ("/coco", 4_000_000), ("/photos", 20_000_000)])
    def test_only_photos_may_be_long(self, client: Any, path: str, most: int):
        page = Page(client)
        for length, status in ((most + 1, 413), (10**40, 413)):
            headers = {"Content-Length": str(length)}
            error = page.ask("POST", path, status, params={"role": "target"}, content=b"", headers=headers)["error"]
            assert f"takes up to {most / 1e6:g} MB" in error
        assert Guard(lambda *_: None, "x", 100).longest(path) == 100  # type: ignore[arg-type, return-value]

    def test_a_body_of_unknown_length(self, client: Any):
        page = Page(client)
        chunks = (b"x" for _ in range(3))
        assert "Content-Length" in page.ask("POST", "/photos?role=target", 411, content=chunks)["error"]

    def test_photos_are_turned_and_large_ones_kept_small(self, client: Any):
        page = Page(client)
        exif = Image.Exif()
        exif[0x0112] = 6
        state = page.upload(encoded(np.zeros((1000, 3000, 3), np.uint8), "JPEG", exif=exif), "source", "turned.jpg")
        assert (state["photos"][0]["width"], state["photos"][0]["height"]) == (1000, 3000)
        shown = page.ask("GET", f"/photos/{state['source']}/image")
        with Image.open(io.BytesIO(shown.content)) as image:
            assert max(image.size) == 1280
        state = page.ask("POST", "/points", 201, json={"x": 999, "y": 2999})  # pixels of the original
        assert (state["points"][0]["x"], state["points"][0]["y"]) == (999, 2999)

    @pytest.mark.parametrize(
        ("name", "shown"),
        [("../../etc/passwd", "passwd"), ("C:\\photos\\a.png", "a.png"), ("a\x00\u202eb.png", "ab.png"), ("", "photo")],
    )
    def test_names_are_only_names(self, client: Any, name: str, shown: str):
        assert Page(client).upload(encoded(picture()), name=name)["photos"][0]["name"] == shown

    def test_nothing_is_written(self, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        noise = np.random.default_rng(0).integers(0, 255, (900, 900, 3), dtype=np.uint8)
        page.upload(encoded(noise))  # more than a form parser would keep in memory
        page.ask("POST", "/points", 201, json={"x": 9, "y": 9})
        page.ask("GET", "/coco")
        assert list(tmp_path.iterdir()) == []

    def test_examples(self, client: Any):
        state = Page(client).ask("POST", "/examples", 201)
        assert list(ids_of(state)) == ["cat_a.jpg", "cat_b.jpg", "cat_c.jpg"]
        assert state["points"][2]["name"] == "nose"
        assert len(state["points"][2]["on"]) == 2


class TestPatience:
    """What needs real connections is in test_load.py."""

    def test_a_body_that_crawls(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(guard, "GRACE_S", 0.1)

        async def crawl() -> None:
            sent = iter([b"x" * 100, b"x" * 100])

            async def receive() -> Any:
                chunk = next(sent, None)
                if chunk is None:
                    await asyncio.sleep(60)
                return {"type": "http.request", "body": chunk, "more_body": True}

            receive_in_time = guard.in_time(receive)
            for _ in range(2):
                assert len((await receive_in_time())["body"]) == 100
            with pytest.raises(RefusedError, match="too slowly") as caught:
                await receive_in_time()
            assert caught.value.status == 408

        asyncio.run(crawl())

    def test_after_the_body_there_is_all_the_time(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(guard, "GRACE_S", 0.05)

        async def leave_late() -> list[str]:
            async def receive() -> Any:
                if seen:
                    await asyncio.sleep(0.2)
                    return {"type": "http.disconnect"}
                return {"type": "http.request", "body": b"x", "more_body": False}

            seen: list[str] = []
            receive_in_time = guard.in_time(receive)
            for _ in range(2):
                seen.append((await receive_in_time())["type"])
            return seen

        assert asyncio.run(leave_late()) == ["http.request", "http.disconnect"]

    def test_a_system_with_another_allocator(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("ctypes.CDLL", lambda _: object())
        give_memory_back()

    def test_an_annotation_file_waits_for_its_turn(self, matcher: Matcher):
        workers = Workers(threads=1, waiting=0)
        with client_of(matcher, workers=workers) as client, workers.place():
            assert "busy" in Page(client).ask("POST", "/coco", 503, content=b"{}")["error"]


class TestPoints:
    def test_any_point_on_all_targets(self, page: Page, matcher: Matcher):
        ids = ids_of(page.ask("GET", ""))
        answer = page.ask("GET", "/match?x=50&y=30&heat=true")
        assert set(answer["on"]) == {ids["one.png"], ids["two.png"]}
        found = answer["on"][ids["one.png"]]
        (source,), (target,) = matcher.encode([picture(3)]), matcher.encode([picture(7, (160, 160))])
        want = next(matcher.pairs(source, [target])).points([[50, 30]])
        np.testing.assert_allclose([found["x"], found["y"]], want.keypoints1[0], atol=0.1)
        assert 0 < found["confidence"] <= 1
        assert found["reference"] == ids["src.png"]
        heat = answer["heat"][ids["one.png"]]
        assert heat["width"] * heat["height"] > 100
        assert page.ask("GET", "/match?x=50&y=30")["heat"] == {}

    def test_named_points(self, page: Page):
        state = page.ask("POST", "/points", 201, json={"x": 50, "y": 30})
        assert state["points"][0]["name"] == "point 1"
        state = page.ask("PATCH", f"/points/{state['added']}", json={"name": " left  eye "})
        assert state["points"][0]["name"] == "left eye"
        before = state["points"][0]["on"]
        state = page.ask("PATCH", "/points/1", json={"x": 150, "y": 90})
        assert state["points"][0]["on"] != before
        assert page.ask("GET", "/points/1/heat")["heat"].keys() == before.keys()
        assert page.ask("DELETE", "/points/1")["points"] == []
        assert "not here any more" in page.ask("DELETE", "/points/1", 404)["error"]

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "message"),
        [
            ("POST", "/points", {"x": 500, "y": 1}, 422, "lies outside the image of 200 × 120 pixels"),
            ("POST", "/points", {"x": 1}, 422, "The request is malformed: y"),
            ("POST", "/points", {"x": 1, "y": 1, "name": "n" * 81}, 422, "malformed: name"),
            ("POST", "/points", {"x": 1, "y": 1, "z": 1}, 422, "malformed: z"),
            ("PATCH", "/points/1", {"x": 1}, 422, "both x and y"),
            ("PUT", "/points/7/on/x", {"x": 1, "y": 1}, 404, "not here any more"),
            ("PUT", "/points/1/on/x", {"x": 1, "y": 1}, 404, "not here any more"),
            ("GET", "/match?x=nan&y=1", None, 422, "malformed: x"),
            ("GET", "/match?x=-1&y=1", None, 422, "lies outside"),
            ("GET", "/photos/x/image", None, 404, "not here any more"),
        ],
    )
    def test_mistakes_get_a_sentence(self, page: Page, method: str, path: str, body: Any, status: int, message: str):
        page.ask("POST", "/points", 201, json={"x": 50, "y": 30})
        assert message in page.ask(method, path, status, json=body)["error"]

    def test_not_json(self, page: Page):
        headers = {"Content-Type": "application/json"}
        assert "malformed" in page.ask("POST", "/points", 422, content=b'{"x": NaN, "y": 1}', headers=headers)["error"]
        assert "malformed" in page.ask("POST", "/points", 422, content=b"{", headers=headers)["error"]

    def test_no_source_yet(self, client: Any):
        assert "no source photo yet" in Page(client).ask("GET", "/match?x=1&y=1", 422)["error"]


class TestCorrection:
    def test_it_helps_the_other_targets(self, page: Page):
        """Two targets are one photo, which the source does not resemble: put right on one, right on the other."""
        ids = ids_of(page.ask("POST", "/points", 201, json={"x": 50, "y": 30}))
        one, two, truth = ids["one.png"], ids["two.png"], np.array([100.0, 70.0])

        def error(state: Any) -> float:
            found = state["points"][0]["on"][two]
            return float(np.linalg.norm(truth - [found["x"], found["y"]]))

        before = page.ask("GET", "")
        after = page.ask("PUT", f"/points/1/on/{one}", json={"x": truth[0], "y": truth[1]})
        assert after["points"][0]["on"][one] == {
            "x": 100, "y": 70, "confidence": 1, "found": True, "pinned": True, "reference": "",
        }  # fmt: skip
        assert after["points"][0]["on"][two]["reference"] == one
        assert error(after) < 15
        assert error(after) < error(before)
        back = page.ask("DELETE", f"/points/1/on/{one}")
        assert back["points"] == before["points"]

    def test_not_there(self, page: Page):
        ids = ids_of(page.ask("POST", "/points", 201, json={"x": 50, "y": 30}))
        state = page.ask("PUT", f"/points/1/on/{ids['one.png']}", json={})
        placement = state["points"][0]["on"][ids["one.png"]]
        assert (placement["x"], placement["found"], placement["pinned"]) == (None, False, True)

    def test_removing_the_photo_takes_its_word_back(self, page: Page):
        ids = ids_of(page.ask("POST", "/points", 201, json={"x": 50, "y": 30}))
        page.ask("PUT", f"/points/1/on/{ids['one.png']}", json={"x": 100, "y": 70})
        state = page.ask("DELETE", f"/photos/{ids['one.png']}")
        assert state["points"][0]["on"][ids["two.png"]]["reference"] == ids["src.png"]


class TestWarp:
    def test_through_points_and_through_matches(self, page: Page):
        target = ids_of(page.ask("GET", ""))["one.png"]
        response = page.ask("GET", f"/photos/{target}/warp")
        assert response.headers["x-through"].endswith("sure matches")
        for x, y in ((20, 20), (180, 25), (100, 100)):
            page.ask("POST", "/points", 201, json={"x": x, "y": y})
        for (x, y), point in zip(((30, 30), (130, 30), (80, 130)), (1, 2, 3), strict=True):
            page.ask("PUT", f"/points/{point}/on/{target}", json={"x": x, "y": y})
        response = page.ask("GET", f"/photos/{target}/warp")
        assert response.headers["x-through"] == "3 points"
        with Image.open(io.BytesIO(response.content)) as image:
            assert (image.mode, image.size) == ("RGBA", (160, 160))
            assert np.asarray(image)[60, 80, 3] == 255

    def test_too_few(self, page: Page):
        target = ids_of(page.ask("GET", ""))["one.png"]
        assert "takes 3 or more" in page.ask("GET", f"/photos/{target}/warp?through=points", 422)["error"]
        assert page.ask("GET", f"/photos/{target}/warp?through=magic", 422)["error"]


class TestFiles:
    def test_round_trip(self, page: Page, tmp_path: Path):
        ids = ids_of(page.ask("POST", "/points", 201, json={"x": 50.5, "y": 30, "name": "nose"}))
        page.ask("POST", "/points", 201, json={"x": 150, "y": 90, "name": "tail"})
        before = page.ask("PUT", f"/points/2/on/{ids['one.png']}", json={"x": 100, "y": 70})
        response = page.client.get(f"{page.root}/coco", params={"category": "cat"})
        assert response.headers["content-disposition"] == 'attachment; filename="keypoints.json"'
        (tmp_path / "keypoints.json").write_bytes(response.content)
        objects = load_coco_objects(tmp_path / "keypoints.json", tmp_path)
        assert [item.image.name for item in objects] == ["src.png", "one.png", "two.png"]
        assert objects[0].kp_names == ("nose", "tail")
        np.testing.assert_allclose(objects[0].kps_px, [[50.5, 30], [150, 90]])
        np.testing.assert_allclose(objects[1].kps_px[1], [100, 70])
        for point in (1, 2):
            page.ask("DELETE", f"/points/{point}")
        after = page.ask("POST", "/coco", params={"name": "keypoints.json"}, content=response.content)
        assert (after.pop("remarks"), after.pop("category")) == ([], "cat")
        assert after == before

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\xff\xfe", "k.json: not a JSON file"),
            (b"[" * 100_000, "k.json: not a JSON file"),
            (b'["\\ud800"]', "k.json: not a JSON file"),  # half a character
            (b"[]", "k.json: not a COCO-keypoint file"),
            (b'{"images": [], "annotations": [], "categories": []}', "no keypoints for the source photo"),
            (b'{"images": [1], "annotations": [], "categories": []}', "no usable id"),
        ],
    )
    def test_unusable(self, page: Page, content: bytes, message: str):
        assert message in page.ask("POST", "/coco?name=k.json", 422, content=content)["error"]
        assert "no point to export" in page.ask("GET", "/coco", 422)["error"]


class TestSessions:
    def test_they_end(self, matcher: Matcher):
        now = [0.0]
        limits = Limits(idle_s=100.0, sessions=2)
        with client_of(matcher, limits, store=Store(limits, clock=lambda: now[0])) as client:
            page, other = Page(client), Page(client)
            now[0] = 90
            page.ask("GET", "")
            now[0] = 150
            assert "This session is over" in other.ask("GET", "", 404)["error"]
            page.ask("GET", "")
            page.ask("DELETE", "", 204)
            page.ask("GET", "", 404)
            first = Page(client)
            Page(client), Page(client)
            first.ask("GET", "", 404)  # the least recently used of three

    def test_one_cannot_see_another(self, client: Any):
        mine, other = Page(client), Page(client)
        state = mine.upload(encoded(picture()), "source")
        assert other.ask("GET", "")["photos"] == []
        other.ask("GET", f"/photos/{state['source']}/image", 404)

    def test_a_full_queue_sends_away(self, matcher: Matcher):
        workers = Workers(threads=1, waiting=0)
        begun, go_on = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            go_on.wait(10)

        with client_of(matcher, workers=workers) as client:
            page = Page(client)
            busy = threading.Thread(target=workers.run, args=(work,))
            busy.start()
            assert begun.wait(10)
            response = client.post(f"{page.root}/photos?role=source", content=encoded(picture()))
            assert response.status_code == 503
            assert response.headers["retry-after"] == "2"
            assert "busy with other photos" in response.json()["error"]
            page.ask("POST", "/examples", 503)
            page.ask("GET", "")  # what is light still works
            go_on.set()
            busy.join()
            page.upload(encoded(picture()), "source")

    def test_a_fault_of_ours_is_a_sentence_too(self, matcher: Matcher, monkeypatch: pytest.MonkeyPatch):
        app = make_app(matcher)
        with testclient.TestClient(app, base_url=BASE, headers=OURS, raise_server_exceptions=False) as client:
            page = Page(client)
            monkeypatch.setattr(matcher, "encode", lambda _: 1 / 0)
            assert "Something went wrong" in page.upload(encoded(picture()), status=500)["error"]

            def out_of_memory(_: Any) -> None:
                raise RuntimeError("CUDA out of memory")

            monkeypatch.setattr(matcher, "encode", out_of_memory)
            assert "out of memory" in page.upload(encoded(picture()), status=507)["error"]


class TestCommand:
    def test_without_the_extra(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        monkeypatch.delitem(sys.modules, "transformatcher.web.server")
        monkeypatch.setitem(sys.modules, "fastapi", None)
        assert cli.main(["serve", "--no-browser"]) == 2
        assert "pip install 'transformatcher[serve]'" in capsys.readouterr().err

    def test_options(self, monkeypatch: pytest.MonkeyPatch, matcher: Matcher):
        calls = []
        monkeypatch.setattr("transformatcher.cli.serve.load_matcher", lambda _: (matcher, "a test"))
        monkeypatch.setattr("transformatcher.web.server.serve", lambda *args, **more: calls.append((args, more)))
        options = ["--port", "9", "--max-upload-mb", "3", "--max-pixels", "4", "--max-sessions", "5", "--no-browser"]
        assert cli.main(["serve", *options]) == 0
        limits = Limits(upload_bytes=3_000_000, pixels=4, sessions=5)
        assert calls == [((matcher, "127.0.0.1", 9, limits), {"browser": False})]

    def test_a_port_that_is_taken(self):
        code = (
            "from transformatcher.web.listening import bind\n"
            "a = bind('127.0.0.1', 0); a.listen()\n"
            "assert a.proto == 6, 'small answers would wait for 40 ms'\n"
            "bind('127.0.0.1', a.getsockname()[1])"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "InputError: port" in result.stderr
        assert "choose another, --port" in result.stderr


def test_state_is_json(page: Page):
    assert json.loads(json.dumps(page.ask("GET", "")))["points"] == []
