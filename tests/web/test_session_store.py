"""Which sessions are dropped, and when."""

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from transformatcher.web.errors import RequestError
from transformatcher.web.session import Limits
from transformatcher.web.session_store import SessionStore


def test_the_least_recently_used_is_dropped_first():
    store = SessionStore(Limits(sessions=2))
    a, b = store.create(), store.create()
    store.get(a.id)
    c = store.create()
    assert len(store) == 2
    assert store.get(a.id) is a
    assert store.get(c.id) is c
    with pytest.raises(RequestError, match="This session has ended"):
        store.get(b.id)


def test_idle_sessions_are_dropped():
    now = [0.0]
    store = SessionStore(Limits(idle_s=100.0), clock=lambda: now[0])
    a, b = store.create(), store.create()
    now[0] = 90
    store.get(a.id)
    now[0] = 150
    store.drop_idle()
    assert len(store) == 1
    with pytest.raises(RequestError):
        store.get(b.id)
    store.close(a.id)
    store.close(a.id)  # twice does no harm
    assert len(store) == 0
