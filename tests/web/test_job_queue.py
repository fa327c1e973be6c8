"""Jobs run one after another; a full queue refuses."""

import threading
import weakref
from contextlib import ExitStack
from typing import Any

import pytest
from helpers.studio_client import StudioClient
from helpers.web_client import encode_image, picture

from transformatcher.web.errors import RequestError
from transformatcher.web.job_queue import JobQueue


def test_results_and_errors_come_back():
    jobs = JobQueue(threads=1, waiting=0)
    assert jobs.run(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        jobs.run(lambda: 1 / 0)
    with jobs.slot(), pytest.raises(RequestError, match="busy") as caught, jobs.slot():
        pass
    assert caught.value.status_code == 503
    assert jobs.run(lambda: 4) == 4  # all slots are free again
    jobs.close()


def test_an_error_keeps_nothing_of_its_job_alive():
    class ParsedFile:
        """Can be referred to weakly, unlike a list."""

    held: list[weakref.ref[ParsedFile]] = []

    def job() -> None:
        parsed = ParsedFile()
        held.append(weakref.ref(parsed))
        try:
            raise ValueError(str(parsed))
        except ValueError as error:
            raise TypeError("of another kind") from error

    jobs = JobQueue()
    with pytest.raises(TypeError, match="of another kind") as caught:
        jobs.run(job)
    assert caught.value.__cause__ is not None
    assert held[0]() is None
    jobs.close()


def full(jobs: JobQueue) -> tuple[threading.Thread, threading.Event]:
    """Keep the only thread of a queue busy, until the event."""
    started, finish = threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        finish.wait(10)

    busy = threading.Thread(target=jobs.run, args=(job,))
    busy.start()
    assert started.wait(10)
    return busy, finish


def test_a_full_queue_refuses_files(temporary: StudioClient):
    services: Any = temporary.app.app.state.studio  # type: ignore[attr-defined]
    services.jobs = JobQueue(threads=1, waiting=0)
    busy, finish = full(services.jobs)
    response = temporary.client.post("/api/photos?name=a.png", content=encode_image(picture()))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert "busy with other photos" in response.json()["error"]
    temporary.post("/import", content=b"{}", status=503)
    temporary.get("/project")  # light requests are still served
    finish.set()
    busy.join()
    temporary.post("/photos?name=a.png", content=encode_image(picture()), status=201)


def test_too_many_pictures_at_once(studio: StudioClient):
    pictures: Any = studio.app.app.state.studio.pictures  # type: ignore[attr-defined]
    pictures._decoders = JobQueue(threads=1, waiting=0)
    photo = studio.photo_ids()["in/the-last.png"]
    studio.get(f"/photos/{photo}/thumbnail")
    busy, finish = full(pictures._decoders)
    assert "busy" in studio.error("GET", f"/photos/{photo}/image", 503)
    studio.get(f"/photos/{photo}/thumbnail")  # it was made before
    studio.get(f"/photos/{studio.photo_ids()['0.jpg']}/image")  # nothing has to be made of it
    finish.set()
    busy.join()
    studio.get(f"/photos/{photo}/image")
    assert studio.get("/project")["counts"]["failed"] == 0


def test_one_client_gets_half_of_the_slots():
    queue = JobQueue(threads=1, waiting=8)
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(queue.slot("slow"))
        with pytest.raises(RequestError, match="still receiving other files from you"), queue.slot("slow"):
            pass
        with queue.slot("other") as run:
            assert run(lambda: 7) == 7
        for number in range(5):
            held.enter_context(queue.slot(f"client {number}"))
        with pytest.raises(RequestError, match="busy with other photos"), queue.slot("one more"):
            pass
    with queue.slot("slow"):
        pass
    assert queue._clients == {}
    queue.close()
