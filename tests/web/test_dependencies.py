"""What routes get for a request."""

import asyncio

import pytest
from helpers.web_client import encode_image, picture
from helpers.web_session import fake_session

from transformatcher.inference.matcher import Matcher
from transformatcher.web.dependencies import Services, get_photo, get_session
from transformatcher.web.errors import RequestError
from transformatcher.web.job_queue import JobQueue
from transformatcher.web.session import XY, Limits
from transformatcher.web.session_store import SessionStore


@pytest.fixture
def services(matcher: Matcher) -> Services:
    return Services(matcher, Limits(), SessionStore(Limits()), JobQueue(threads=1, waiting=0), is_local=True)


def test_sessions_and_photos_are_found_by_id(services: Services):
    session = services.sessions.create()
    assert asyncio.run(get_session(session.id, services)) is session
    with pytest.raises(RequestError, match="session has ended"):
        asyncio.run(get_session("other", services))
    assert asyncio.run(get_photo("one", fake_session())).name == "one.jpg"
    with pytest.raises(RequestError, match="photo has been removed"):
        asyncio.run(get_photo("other", fake_session()))


def test_a_job_runs_only_where_pairs_are_missing(services: Services):
    session = services.sessions.create()
    for seed, name in enumerate(("src.png", "one.png", "two.png")):
        services.add_photo(session, encode_image(picture(seed)), name, as_source=seed == 0)
    services.match_missing(session)
    assert len(session.pairs) == 2
    with services.jobs.slot():  # the queue is full
        services.match_missing(session)
        point, target = session.add_point(XY(9, 9)), session.targets[0]
        session.pin(point.id, target.id, XY(5, 5))
        with pytest.raises(RequestError, match="busy"):
            services.match_missing(session)
