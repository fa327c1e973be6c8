"""Every failure is a status and one sentence."""

import logging
from typing import Any

import pytest
from helpers.web_client import PageClient, encode_image, make_client, picture, post_in_part

from transformatcher.inference.matcher import Matcher
from transformatcher.web.errors import RequestError, error_response


def test_status_and_headers():
    assert error_response(RequestError(503, "Busy.")).headers["retry-after"] == "2"
    assert error_response(RequestError(408, "Slow.")).headers["connection"] == "close"
    assert error_response(MemoryError()).status_code == 507


def test_unexpected_errors(matcher: Matcher, monkeypatch: pytest.MonkeyPatch):
    with make_client(matcher, raise_server_exceptions=False) as client:
        page = PageClient(client)
        monkeypatch.setattr(matcher, "encode", lambda _: 1 / 0)
        assert "The server failed" in page.upload(encode_image(picture()), status=500)["error"]

        def out_of_memory(_: Any) -> None:
            raise RuntimeError("CUDA out of memory")

        monkeypatch.setattr(matcher, "encode", out_of_memory)
        assert "out of memory" in page.upload(encode_image(picture()), status=507)["error"]


DISCONNECT = {"type": "http.disconnect"}


@pytest.mark.parametrize("path", ["/photos?role=target", "/coco", "/points"])
def test_a_client_that_leaves_during_an_upload(page: PageClient, path: str, caplog: pytest.LogCaptureFixture):
    """The application answers nobody and raises nothing, so the server prints no traceback."""
    with caplog.at_level(logging.WARNING):
        status, _ = post_in_part(page, path, {"type": "http.request", "body": b"a", "more_body": True}, DISCONNECT)
    assert status in (400, 499)
    assert caplog.records == []
    page.request("GET", "")  # the queue's slot is free again
    page.upload(encode_image(picture()))
