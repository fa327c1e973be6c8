"""Requests that come from elsewhere, or are too large or too slow, are refused; all responses have strict headers."""

import asyncio
from typing import Any

import pytest
from helpers.studio_client import BASE_URL, HEADERS, StudioClient
from helpers.web_client import post_in_part

from transformatcher.web import security
from transformatcher.web.errors import RequestError
from transformatcher.web.security import SecurityMiddleware, is_local_host, with_upload_deadline


async def no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


def test_headers_are_on_every_response(studio: StudioClient):
    photo = studio.photo_ids()["0.jpg"]
    paths = {
        "/": 200, "/api/project": 200, "/api/photos": 200, f"/api/photos/{photo}/image": 200,
        f"/api/photos/{photo}/thumbnail": 200, "/api/export?format=coco": 200, "/api/photos/999": 404,
        "/nothing": 404, "/static/no": 404, "/static/app.js": 200,
    }  # fmt: skip
    responses = {path: studio.client.get(path) for path in paths}
    assert {path: response.status_code for path, response in responses.items()} == paths
    refused = studio.client.get("/", headers={"Host": "evil.example"})
    assert refused.status_code == 403
    for response in (*responses.values(), refused):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert "access-control-allow-origin" not in response.headers
    for path in ("/api/project", "/api/export?format=coco", "/api/photos/999"):
        assert responses[path].headers["cache-control"] == "no-store"


class TestHost:
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[", ""]
    )
    def test_other_names_are_refused(self, studio: StudioClient, host: str):
        for method in ("GET", "POST"):
            message = studio.error(method, "/project", 403, headers={"Host": host})
            assert "does not answer to the name" in message

    @pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:8000", "[::1]:8000"])
    def test_names_of_this_machine_are_allowed(self, studio: StudioClient, host: str):
        studio.post("/undo", headers={"Host": host})

    def test_a_server_on_all_interfaces(self):
        middleware = SecurityMiddleware(no_app, "0.0.0.0", 1)
        assert middleware.is_allowed_host("192.168.1.5:8000")
        assert middleware.is_allowed_host("localhost")
        assert not middleware.is_allowed_host("evil.example")
        assert SecurityMiddleware(no_app, "Box.Local", 1).is_allowed_host("box.local:80")

    def test_local_hosts(self):
        assert is_local_host("127.0.0.2")
        assert not is_local_host("0.0.0.0")


class TestOrigin:
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
    def test_other_sites_are_refused(self, studio: StudioClient, headers: dict[str, str]):
        assert "other sites" in studio.error("POST", "/undo", 403, headers=headers)

    @pytest.mark.parametrize("path", ["/project", "/photos", "/photos/1/image", "/export?format=coco"])
    def test_other_sites_cannot_load_anything(self, studio: StudioClient, path: str):
        assert "other sites" in studio.error("GET", path, 403, headers={"Sec-Fetch-Site": "cross-site"})

    def test_a_form_lacks_the_header(self, studio: StudioClient):
        del studio.client.headers["X-Transformatcher"]
        assert "need the header" in studio.error("POST", "/undo", 403)
        for method, path in (("POST", "/undo"), ("DELETE", "/instances/1"), ("PUT", "/instances/1/box")):
            assert "need the header" in studio.error(method, path, 403, headers={"Origin": BASE_URL})
        studio.post("/undo", headers={"Origin": BASE_URL, **HEADERS})

    @pytest.mark.parametrize(
        "kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
    )
    @pytest.mark.parametrize("path", ["/photos", "/import", "/categories"])
    def test_bodies_of_forms_are_refused(self, temporary: StudioClient, path: str, kind: str):
        message = temporary.error("POST", path, 415, content=b"x", headers={"Content-Type": kind})
        assert f"Bodies of type {kind.partition(';')[0]} are refused" in message


class TestBody:
    @pytest.mark.parametrize(
        ("path", "limit"), [("/categories", 64_000), ("/import", 4_000_000), ("/photos", 20_000_000)]
    )
    def test_size_limits(self, temporary: StudioClient, path: str, limit: int):
        for length in (limit + 1, 10**40):
            headers = {"Content-Length": str(length)}
            assert f"the limit is {limit / 1e6:g} MB" in temporary.error("POST", path, 413, headers=headers)
        assert SecurityMiddleware(no_app, "x", 100).max_body_bytes("/api/photos") == 100

    def test_own_annotation_files_may_be_larger(self, studio: StudioClient):
        length = {"Content-Length": "20000001"}
        assert "the limit is 20 MB" in studio.error("POST", "/import", 413, headers=length)

    def test_a_body_of_unknown_length(self, temporary: StudioClient):
        chunks = (b"x" for _ in range(3))
        assert "Content-Length" in temporary.error("POST", "/photos", 411, content=chunks)


class TestUploadDeadline:
    """Over real connections: test_load.py."""

    def test_a_slow_body(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(security, "UPLOAD_GRACE_S", 0.1)

        async def upload() -> None:
            chunks = iter([b"x" * 100, b"x" * 100])

            async def receive() -> Any:
                chunk = next(chunks, None)
                if chunk is None:
                    await asyncio.sleep(60)
                return {"type": "http.request", "body": chunk, "more_body": True}

            receive_in_time = with_upload_deadline(receive)
            for _ in range(2):
                assert len((await receive_in_time())["body"]) == 100
            with pytest.raises(RequestError, match="too slow") as caught:
                await receive_in_time()
            assert caught.value.status_code == 408

        asyncio.run(upload())

    def test_no_deadline_after_the_body(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(security, "UPLOAD_GRACE_S", 0.05)

        async def leave_late() -> list[str]:
            async def receive() -> Any:
                if seen:
                    await asyncio.sleep(0.2)
                    return {"type": "http.disconnect"}
                return {"type": "http.request", "body": b"x", "more_body": False}

            seen: list[str] = []
            receive_in_time = with_upload_deadline(receive)
            for _ in range(2):
                seen.append((await receive_in_time())["type"])
            return seen

        assert asyncio.run(leave_late()) == ["http.request", "http.disconnect"]

    @pytest.mark.parametrize("path", ["/photos", "/import", "/categories"])
    def test_the_page_gets_a_sentence(self, temporary: StudioClient, path: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(security, "UPLOAD_GRACE_S", 0.1)
        status, answer = post_in_part(temporary.app, path, {"type": "http.request", "body": b"a", "more_body": True})
        assert (status, answer) == (408, {"error": "The upload was too slow."})
