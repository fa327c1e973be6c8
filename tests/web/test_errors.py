"""Every failure is a status and one sentence."""

import logging
from typing import Any

import pytest
from helpers.studio_client import BASE_URL, HEADERS, StudioClient, testclient
from helpers.web_client import encode_image, picture, post_in_part

from transformatcher.web.errors import RequestError, error_response


def test_status_and_headers():
    assert error_response(RequestError(503, "Busy.")).headers["retry-after"] == "2"
    assert error_response(RequestError(408, "Slow.")).headers["connection"] == "close"
    assert error_response(MemoryError()).status_code == 507


def test_unexpected_errors(studio: StudioClient, monkeypatch: pytest.MonkeyPatch):
    client = testclient.TestClient(studio.app, base_url=BASE_URL, headers=HEADERS, raise_server_exceptions=False)
    monkeypatch.setattr(studio.project, "undo", lambda: 1 / 0)
    response = client.post("/api/undo")
    assert response.status_code == 500
    assert "The server failed" in response.json()["error"]
    assert response.headers["x-content-type-options"] == "nosniff"

    def out_of_memory() -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(studio.project, "undo", out_of_memory)
    response = client.post("/api/undo")
    assert response.status_code == 507
    assert "out of memory" in response.json()["error"]


DISCONNECT = {"type": "http.disconnect"}


@pytest.mark.parametrize("path", ["/photos", "/import", "/categories"])
def test_a_client_that_leaves_during_an_upload(temporary: StudioClient, path: str, caplog: pytest.LogCaptureFixture):
    """The application answers nobody and raises nothing, so the server prints no traceback."""
    with caplog.at_level(logging.WARNING):
        for _ in range(12):  # more than the queue has slots
            message = {"type": "http.request", "body": b"a", "more_body": True}
            status, _ = post_in_part(temporary.app, path, message, DISCONNECT)
            assert status in (400, 499)
    assert caplog.records == []
    temporary.post("/photos?name=a.png", content=encode_image(picture()), status=201)
