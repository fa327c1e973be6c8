"""A server, and a session with three photos on it. The helpers are imported late, as they skip without FastAPI."""

from collections.abc import Iterator
from typing import Any

import pytest

from transformatcher.inference.matcher import Matcher


@pytest.fixture
def client(matcher: Matcher) -> Iterator[Any]:
    from helpers.web_client import make_client

    with make_client(matcher) as client:
        yield client


@pytest.fixture
def page(client: Any) -> Any:
    """A source, and two targets that are the same photo."""
    from helpers.web_client import PageClient, encode_image, picture

    page = PageClient(client)
    page.upload(encode_image(picture(3)), "source", "src.png")
    page.upload(encode_image(picture(7, (160, 160))), name="one.png")
    page.upload(encode_image(picture(7, (160, 160))), name="two.png")
    return page


@pytest.fixture
def session() -> Any:
    """See :func:`helpers.web_session.fake_session`."""
    from helpers.web_session import fake_session

    return fake_session()
