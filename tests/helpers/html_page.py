"""Checks of a whole HTML page."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Elements that close, anchors that exist, images with a description, nothing from outside the page."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.links, self.images, self.headings = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        if tag == "img":
            self.images.append(values)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(text: str) -> Checker:
    page = Checker(text)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert all(image["alt"] and image["src"].startswith("data:image/") for image in page.images)
    assert page.headings[0] == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"\{\{|\{%|https?://|<script", text)
    return page
