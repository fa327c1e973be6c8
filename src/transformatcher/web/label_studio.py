"""Predictions for Label Studio → a machine-learning backend that it connects to, served over HTTP."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Request

from transformatcher.errors import InputError
from transformatcher.inference.interfaces.label_studio import parse_label_config, printable
from transformatcher.web.application import build_application
from transformatcher.web.errors import RequestError
from transformatcher.web.job_queue import JobQueue
from transformatcher.web.label_studio_backend import LabelStudioBackend
from transformatcher.web.label_studio_security import LabelStudioSecurity
from transformatcher.web.listen import address_of, bind, print_line, run_server
from transformatcher.web.security import is_local_host

LEARNED_FROM = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")

router = APIRouter()
JsonBody = Annotated[dict[str, Any], Body()]


async def get_backend(request: Request) -> LabelStudioBackend:
    """What predicts."""
    backend: LabelStudioBackend = request.app.state.backend
    return backend


async def get_jobs(request: Request) -> JobQueue:
    """Predictions wait for each other here."""
    jobs: JobQueue = request.app.state.jobs
    return jobs


CurrentBackend = Annotated[LabelStudioBackend, Depends(get_backend)]
CurrentJobs = Annotated[JobQueue, Depends(get_jobs)]


@router.get("/")
@router.get("/health")
def health() -> dict[str, str]:
    """The server runs."""
    return {"status": "UP", "model_class": "transformatcher"}


@router.post("/setup")
def setup(body: JsonBody, backend: CurrentBackend) -> dict[str, str]:
    """A project connects, or asks for the version. Its label config must have keypoints; its token is not used."""
    with _logged(backend, "setup"):
        parse_label_config(_text(body, "schema"))
    return {"model_version": backend.model_version(body.get("project"))}


@router.post("/predict")
def predict(body: JsonBody, backend: CurrentBackend, jobs: CurrentJobs) -> dict[str, Any]:
    """Predictions for tasks. It answers when all are there."""
    tasks, label_config = body.get("tasks"), _text(body, "label_config")
    if not isinstance(tasks, list):
        raise RequestError(422, "The request is malformed: tasks is not a list.")
    with _logged(backend, "predict"):
        return jobs.run(lambda: backend.predict(tasks, label_config, body.get("project")))


@router.post("/webhook", status_code=201)
def webhook(body: JsonBody, backend: CurrentBackend) -> dict[str, Any]:
    """Something happened in Label Studio: annotations become references, or are none any more."""
    action = body.get("action")
    if action in LEARNED_FROM:
        annotation, task, project = (_record(body, key) for key in ("annotation", "task", "project"))
        with _logged(backend, f"annotation {annotation.get('id')} is no reference"):
            count = backend.learn(annotation, task, project)
        backend.log(
            f"annotation {annotation.get('id')} has arrived; annotations of this project that are references: {count}"
        )
        return {"status": "learned", "references": count}
    if action == "ANNOTATIONS_DELETED":
        deleted = body.get("annotations")
        keys = (
            [printable(str(item.get("id"))) for item in deleted if isinstance(item, dict)]
            if isinstance(deleted, list)
            else []
        )
        backend.forget(keys)
        return {"status": "forgotten"}
    return {"status": "ignored"}


@contextlib.contextmanager
def _logged(backend: LabelStudioBackend, what: str) -> Any:
    """Label Studio shows the status of an error, not its sentence; so that is logged."""
    try:
        yield
    except InputError as error:
        backend.log(f"{what}: {error}")
        raise


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise RequestError(422, f"The request is malformed: {key} is not a text.")
    return value


def _record(body: dict[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        raise RequestError(422, f"The request is malformed: {key} is not an object; let the webhook send its payload.")
    return value


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.jobs.close()


def make_label_studio_app(
    backend: LabelStudioBackend,
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
    credentials: str | None = None,
) -> LabelStudioSecurity:
    """Build the ASGI application; for the arguments see :class:`LabelStudioSecurity`."""
    app = build_application([router], _lifespan)
    app.state.backend, app.state.jobs = backend, JobQueue()
    return LabelStudioSecurity(app, host, names, credentials)


def serve_label_studio(
    backend: LabelStudioBackend,
    host: str = "127.0.0.1",
    port: int = 9090,
    names: Sequence[str] = (),
    credentials: str | None = None,
    *,
    log: Callable[[str], None] = print_line,
) -> None:
    """Serve until interrupted.

    Args:
        backend: what predicts.
        host, port: where to listen; port 0 takes a free one.
        names: further names that Label Studio may call this server by.
        credentials: ``user:password`` that Label Studio must send; None: not asked for.
        log: called with each line of output, such as the address.
    """
    bound = bind(host, port)
    address = address_of(host, bound)
    if not is_local_host(host) and credentials is None:
        log(
            f"warning: other machines on the network can use this server, as it is bound to {host} without a password; "
            "--basic-auth asks for one"
        )
    announce = f"Label Studio can connect to {address} (Ctrl-C stops the server)"
    app = make_label_studio_app(backend, host, names, credentials)
    run_server(app, bound, address, announce, browser=False, log=log)
