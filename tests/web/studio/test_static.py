"""The page's own files."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from helpers.studio_client import StudioClient

STATIC = Path(str(files("transformatcher") / "web" / "studio" / "static"))
NAMES = sorted(path.name for path in STATIC.iterdir())
REFERENCES = {
    ".html": r"(?:src|href)=\"([^\"#]+)\"",
    ".css": r"(?:url\(|@import )[\"']?([^\"')]+)",
    ".js": r"(?:\bfrom |\bimport[ (])\"(\.[^\"]+)\"",
}


def test_index(studio: StudioClient):
    index = studio.client.get("/")
    assert index.headers["content-type"].startswith("text/html")
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", NAMES)
def test_they_load_nothing_from_elsewhere(studio: StudioClient, name: str):
    response = studio.client.get(f"/static/{name}").raise_for_status()
    assert "http" not in response.text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", response.text)
    if name.endswith(".js"):
        assert response.headers["content-type"].startswith("text/javascript")


def test_every_file_that_is_named_is_there_and_all_are_used():
    named = {"index.html"}
    for path in STATIC.iterdir():
        pattern = REFERENCES.get(path.suffix)
        found = re.findall(pattern, path.read_text(encoding="utf-8")) if pattern else []
        for reference in found:
            name = reference.removeprefix("/static/").removeprefix("./")
            assert (STATIC / name).is_file(), f"{path.name} names {reference}"
            named.add(name)
    assert named == set(NAMES)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/static/../server.py", "/static/%2e%2e/server.py"])
def test_nothing_else_is_served(studio: StudioClient, path: str):
    assert studio.client.get(path).status_code == 404
