"""Opening, reading and closing sessions."""

import json
from typing import Any

from helpers.web_client import PageClient, encode_image, make_client, picture

from transformatcher.inference.matcher import Matcher
from transformatcher.web.session import Limits
from transformatcher.web.session_store import SessionStore


def test_what_a_new_session_tells(client: Any):
    state = client.post("/api/sessions").json()
    assert (state["source"], state["photos"], state["points"]) == (None, [], [])
    assert state["local"]
    assert not state["calibrated"]
    assert state["limits"] == {"upload_bytes": 20_000_000, "photos": 12}


def test_state(page: PageClient):
    state = page.request("GET", "")
    assert [(p["name"], p["width"], p["height"], p["ready"]) for p in state["photos"]] == [
        ("src.png", 200, 120, True),
        ("one.png", 160, 160, True),
        ("two.png", 160, 160, True),
    ]
    assert state["source"] == state["photos"][0]["id"]
    assert json.loads(json.dumps(state))["points"] == []


def test_sessions_end(matcher: Matcher):
    now = [0.0]
    limits = Limits(idle_s=100.0, sessions=2)
    with make_client(matcher, limits, session_store=SessionStore(limits, clock=lambda: now[0])) as client:
        page, other = PageClient(client), PageClient(client)
        now[0] = 90
        page.request("GET", "")
        now[0] = 150
        assert "This session has ended" in other.request("GET", "", 404)["error"]
        page.request("GET", "")
        page.request("DELETE", "", 204)
        page.request("GET", "", 404)
        first = PageClient(client)
        PageClient(client), PageClient(client)
        first.request("GET", "", 404)  # the least recently used of three


def test_sessions_are_separate(client: Any):
    one, other = PageClient(client), PageClient(client)
    state = one.upload(encode_image(picture()), "source")
    assert other.request("GET", "")["photos"] == []
    other.request("GET", f"/photos/{state['source']}/image", 404)
