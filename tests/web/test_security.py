"""Requests that come from elsewhere, or are too large or too slow, are refused; all responses have strict headers."""

import asyncio
from typing import Any

import pytest
from helpers.web_client import BASE_URL, HEADERS, PageClient, make_client, post_in_part, testclient

from transformatcher.inference.matcher import Matcher
from transformatcher.web import security
from transformatcher.web.errors import RequestError
from transformatcher.web.security import SecurityMiddleware, is_local_host, with_upload_deadline
from transformatcher.web.server import make_app


async def no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


def test_headers_are_on_every_response(client: Any):
    responses = [client.get("/"), client.get("/api/sessions/none"), client.get("/nothing"), client.get("/static/no")]
    responses.append(client.get("/", headers={"Host": "evil.example"}))
    assert [response.status_code for response in responses] == [200, 404, 404, 404, 403]
    for response in responses:
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert "access-control-allow-origin" not in response.headers
    assert responses[1].headers["cache-control"] == "no-store"


class TestHost:
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[", ""]
    )
    def test_other_names_are_refused(self, client: Any, host: str):
        response = client.post("/api/sessions", headers={"Host": host})
        assert response.status_code == 403
        assert "does not answer to the name" in response.json()["error"]

    @pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:8000", "[::1]:8000"])
    def test_names_of_this_machine_are_allowed(self, client: Any, host: str):
        assert client.post("/api/sessions", headers={"Host": host}).status_code == 201

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
    def test_other_sites_are_refused(self, client: Any, headers: dict[str, str]):
        response = client.post("/api/sessions", headers=headers)
        assert response.status_code == 403
        assert "other sites" in response.json()["error"]

    def test_a_form_lacks_the_header(self, matcher: Matcher):
        with testclient.TestClient(make_app(matcher), base_url=BASE_URL) as bare:
            assert bare.post("/api/sessions").status_code == 403
            assert bare.post("/api/sessions", headers={"Origin": BASE_URL}).status_code == 403
            assert bare.post("/api/sessions", headers={"Origin": BASE_URL, **HEADERS}).status_code == 201

    @pytest.mark.parametrize(
        "kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
    )
    def test_bodies_of_forms_are_refused(self, client: Any, kind: str):
        page = PageClient(client)
        error = page.request("POST", "/coco", 415, content=b"x", headers={"Content-Type": kind})["error"]
        assert f"Bodies of type {kind.partition(';')[0]} are refused" in error

    def test_only_the_close_beacon_needs_no_header(self, matcher: Matcher):
        with make_client(matcher) as client:
            page = PageClient(client)
            del client.headers["x-transformatcher"]
            assert client.post(f"{page.root}/close").status_code == 403
            assert client.post(f"{page.root}/close", headers={"Origin": BASE_URL}).status_code == 204
            page.request("GET", "", 404)


class TestBody:
    @pytest.mark.parametrize(("path", "limit"), [("/points", 64_000), ("/coco", 4_000_000), ("/photos", 20_000_000)])
    def test_size_limits(self, client: Any, path: str, limit: int):
        page = PageClient(client)
        for length in (limit + 1, 10**40):
            headers = {"Content-Length": str(length)}
            error = page.request("POST", path, 413, params={"role": "target"}, content=b"", headers=headers)["error"]
            assert f"the limit is {limit / 1e6:g} MB" in error
        assert SecurityMiddleware(no_app, "x", 100).max_body_bytes(path) == 100

    def test_a_body_of_unknown_length(self, client: Any):
        chunks = (b"x" for _ in range(3))
        page = PageClient(client)
        assert "Content-Length" in page.request("POST", "/photos?role=target", 411, content=chunks)["error"]


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

    @pytest.mark.parametrize("path", ["/photos?role=target", "/points"])
    def test_the_page_gets_a_sentence(self, page: PageClient, path: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(security, "UPLOAD_GRACE_S", 0.1)
        status, answer = post_in_part(page, path, {"type": "http.request", "body": b"a", "more_body": True})
        assert (status, answer) == (408, {"error": "The upload was too slow."})
