"""Jobs run one after another; a full queue refuses."""

import threading

import pytest
from helpers.web_client import PageClient, encode_image, make_client, picture

from transformatcher.inference.matcher import Matcher
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


def test_a_full_queue_refuses_photos(matcher: Matcher):
    jobs = JobQueue(threads=1, waiting=0)
    started, finish = threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        finish.wait(10)

    with make_client(matcher, jobs=jobs) as client:
        page = PageClient(client)
        busy = threading.Thread(target=jobs.run, args=(job,))
        busy.start()
        assert started.wait(10)
        response = client.post(f"{page.root}/photos?role=source", content=encode_image(picture()))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
        assert "busy with other photos" in response.json()["error"]
        page.request("POST", "/examples", 503)
        page.request("GET", "")  # light requests are still served
        finish.set()
        busy.join()
        page.upload(encode_image(picture()), "source")


def test_a_full_queue_refuses_annotation_files(matcher: Matcher):
    jobs = JobQueue(threads=1, waiting=0)
    with make_client(matcher, jobs=jobs) as client, jobs.slot():
        assert "busy" in PageClient(client).request("POST", "/coco", 503, content=b"{}")["error"]
