"""Requests that wait for a change of the project."""

import asyncio
import time
from pathlib import Path

from helpers.studio_client import open_project

from transformatcher.annotation.edits import add_category
from transformatcher.web.studio.changes import ChangeFeed


async def timed(feed: ChangeFeed, revision: int, timeout_s: float = 5.0) -> float:
    start = time.monotonic()
    await feed.wait(revision, timeout_s)
    return time.monotonic() - start


def test_it_ends_with_a_change_or_with_time(folder: Path):
    async def scene() -> None:
        feed = ChangeFeed(project, lambda: None)
        feed.start()
        revision = project.revision
        assert await timed(feed, revision - 1) < 0.1
        assert 0.05 < await timed(feed, revision, 0.1) < 0.4
        waiting = asyncio.create_task(timed(feed, revision))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(add_category, project, "cat", ["nose"])
        assert await waiting < 0.5
        feed.stop()

    with open_project(folder) as project:
        asyncio.run(scene())


def test_a_window_that_missed_a_change_of_state_asks_again_soon(folder: Path):
    async def scene() -> None:
        states = ["idle"]
        feed = ChangeFeed(project, lambda: states[-1])
        feed.start()
        waiting = asyncio.create_task(timed(feed, project.revision))
        await asyncio.sleep(0.05)
        states.append("paused")
        assert await waiting < 1
        assert await timed(feed, project.revision) < 1.5  # it may have been busy when the state changed
        assert await timed(feed, project.revision, 1.3) > 1.2
        feed.stop()

    with open_project(folder) as project:
        asyncio.run(scene())


def test_stop_lets_all_go_at_once(folder: Path):
    async def scene() -> None:
        feed = ChangeFeed(project, lambda: None)
        feed.start()
        waiting = [asyncio.create_task(timed(feed, project.revision)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(feed.stop)
        assert max(await asyncio.gather(*waiting)) < 0.3
        assert await timed(feed, project.revision) < 0.1

    with open_project(folder) as project:
        asyncio.run(scene())


def test_a_project_closed_while_it_is_watched(folder: Path):
    async def scene() -> ChangeFeed:
        feed = ChangeFeed(project, lambda: None)
        feed.start()
        await asyncio.sleep(0.05)
        feed.stop()
        return feed

    with open_project(folder) as project:
        feed = asyncio.run(scene())
    feed._thread.join(5)
    assert not feed._thread.is_alive()
