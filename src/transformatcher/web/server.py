"""Requests → sessions → JSON and pictures: the server behind the page."""

import asyncio
import base64
import contextlib
import json
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from transformatcher import __version__
from transformatcher.errors import InputError
from transformatcher.files import parse_json
from transformatcher.inference.matcher import MATCH_THRESHOLD, Matcher
from transformatcher.web.coco import category_of, from_coco, to_coco
from transformatcher.web.job_queue import Workers
from transformatcher.web.listening import bind
from transformatcher.web.refusal import RefusedError
from transformatcher.web.security import Guard, is_local
from transformatcher.web.session import LONGEST_LABEL, XY, Limits, Photo, Session, Store, to_plain
from transformatcher.web.timeouts import MOST, PatientProtocol
from transformatcher.web.uploads import clean_name, give_memory_back, read_upload, to_png

SWEEP_S = 60.0
ANSWER_HEADERS = {503: {"Retry-After": "2"}, 408: {"Connection": "close"}}
EXAMPLES = ("cat_a.jpg", "cat_b.jpg", "cat_c.jpg")  # the first is the source

Name = Annotated[str, Field(max_length=LONGEST_LABEL)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewPoint(_Body):
    """A click on the source."""

    x: FiniteFloat
    y: FiniteFloat
    name: Name = ""


class ChangedPoint(_Body):
    """A point moved (x and y) or renamed."""

    x: FiniteFloat | None = None
    y: FiniteFloat | None = None
    name: Name | None = None


class Pin(_Body):
    """The true place of a point on a target; without x and y: it is not there."""

    x: FiniteFloat | None = None
    y: FiniteFloat | None = None


def make_app(
    matcher: Matcher,
    limits: Limits | None = None,
    host: str = "127.0.0.1",
    *,
    store: Store | None = None,
    workers: Workers | None = None,
) -> Guard:
    """The page and its API as an ASGI application.

    Args:
        matcher: finds the points.
        limits: what a session may hold, and how many there may be.
        host: that the server is bound to; requests under other names are refused.
        store, workers: others than the usual, for tests.
    """
    limits = limits or Limits()
    sessions = Store(limits) if store is None else store  # an empty one is false
    work = workers or Workers(waiting=limits.waiting)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_S)
                sessions.sweep()

        task = asyncio.create_task(sweep())
        yield
        task.cancel()
        work.close()

    app = FastAPI(title="transformatcher", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _answer_errors(app)
    static = files("transformatcher") / "web" / "static"

    def state(session: Session, /, **more: Any) -> dict[str, Any]:
        with session.lock:
            return session.state() | more

    def take(session: Session, data: bytes, name: str, *, as_source: bool) -> None:
        photo = Photo.of(read_upload(data, name, limits.pixels), matcher)
        with session.lock:
            session.add_photo(photo, as_source=as_source)

    def complete(session: Session) -> dict[str, Any]:
        """Match what a change made necessary; most changes make nothing necessary."""
        with session.lock:
            wanted = session.missing()
        if wanted:
            work.run(lambda: session.complete(matcher))
        return state(session)

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(str(static / "index.html"))

    @app.post("/api/sessions", status_code=201)
    def create_session() -> dict[str, Any]:
        session = sessions.create()
        return state(
            session,
            session=session.id,
            version=__version__,
            local=is_local(host),
            calibrated=matcher.calibration is not None,
            no_match=MATCH_THRESHOLD,
            limits={"upload_bytes": limits.upload_bytes, "photos": limits.photos},
        )

    @app.get("/api/sessions/{sid}")
    def read_session(sid: str) -> dict[str, Any]:
        return state(sessions.get(sid))

    @app.delete("/api/sessions/{sid}", status_code=204)
    @app.post("/api/sessions/{sid}/close", status_code=204)
    def close_session(sid: str) -> None:
        sessions.close(sid)

    # ------------------------------------------------------------ photos

    @app.post("/api/sessions/{sid}/photos", status_code=201)
    async def add_photo(
        sid: str, request: Request, role: Literal["source", "target"], name: Annotated[str, Query(max_length=1000)] = ""
    ) -> dict[str, Any]:
        """The body is the file itself: a multipart form would be spooled to the disk."""
        session, as_source = sessions.get(sid), role == "source"
        with work.place() as run:
            session.need_room(as_source=as_source)
            data = await request.body()

            def heavy() -> None:
                take(session, data, name, as_source=as_source)
                session.complete(matcher)

            await run_in_threadpool(run, heavy)
        return await run_in_threadpool(state, session)

    @app.post("/api/sessions/{sid}/examples", status_code=201)
    def add_examples(sid: str) -> dict[str, Any]:
        """Three cats, and six points on the first."""
        session, folder = sessions.get(sid), files("transformatcher") / "examples"

        def heavy() -> None:
            with session.lock:
                for photo in list(session.photos):
                    session.remove_photo(photo)
            for index, name in enumerate(EXAMPLES):
                take(session, (folder / name).read_bytes(), name, as_source=index == 0)
            with session.lock:
                for label, place in json.loads((folder / "cat_a.json").read_text(encoding="utf-8")).items():
                    session.add_point(XY(*place), label)
            session.complete(matcher)

        work.run(heavy)
        return state(session)

    @app.delete("/api/sessions/{sid}/photos/{photo}")
    def remove_photo(sid: str, photo: str) -> dict[str, Any]:
        session = sessions.get(sid)
        with session.lock:
            session.remove_photo(photo)
        return state(session)

    @app.get("/api/sessions/{sid}/photos/{photo}/image")
    def image(sid: str, photo: str) -> Response:
        jpeg = sessions.get(sid).photo(photo).jpeg
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    @app.get("/api/sessions/{sid}/photos/{photo}/warp")
    def warp(sid: str, photo: str, through: Literal["auto", "points", "matches"] = "auto") -> Response:
        session = sessions.get(sid)
        pixels, alpha, words = work.run(lambda: session.warp(photo, through))
        return Response(to_png(pixels, alpha), media_type="image/png", headers={"X-Through": words})

    # ------------------------------------------------------------ points

    @app.get("/api/sessions/{sid}/match")
    def match(sid: str, x: FiniteFloat, y: FiniteFloat, heat: bool = False) -> dict[str, Any]:
        """Any point of the source on all targets: what follows the pointer."""
        session = sessions.get(sid)
        with session.lock:
            on = {target: to_plain(placement) for target, placement in session.match(XY(x, y)).items()}
            heats = session.heat(XY(x, y)) if heat else {}
        return {"on": on, "heat": _plain_heats(heats)}

    @app.get("/api/sessions/{sid}/points/{point}/heat")
    def heat_of_point(sid: str, point: int) -> dict[str, Any]:
        session = sessions.get(sid)
        with session.lock:
            return {"heat": _plain_heats(session.heat_of(point))}

    @app.post("/api/sessions/{sid}/points", status_code=201)
    def add_point(sid: str, body: NewPoint) -> dict[str, Any]:
        session = sessions.get(sid)
        with session.lock:
            added = session.add_point(XY(body.x, body.y), body.name)
        return state(session, added=added.id)

    @app.patch("/api/sessions/{sid}/points/{point}")
    def change_point(sid: str, point: int, body: ChangedPoint) -> dict[str, Any]:
        session = sessions.get(sid)
        with session.lock:
            session.change_point(point, _place(body.x, body.y), body.name)
        return state(session)

    @app.delete("/api/sessions/{sid}/points/{point}")
    def remove_point(sid: str, point: int) -> dict[str, Any]:
        session = sessions.get(sid)
        with session.lock:
            session.remove_point(point)
        return state(session)

    @app.put("/api/sessions/{sid}/points/{point}/on/{photo}")
    def pin(sid: str, point: int, photo: str, body: Pin) -> dict[str, Any]:
        """Correct a prediction; the photo then serves as a reference for the others."""
        session = sessions.get(sid)
        with session.lock:
            session.pin(point, photo, _place(body.x, body.y))
        return complete(session)

    @app.delete("/api/sessions/{sid}/points/{point}/on/{photo}")
    def unpin(sid: str, point: int, photo: str) -> dict[str, Any]:
        session = sessions.get(sid)
        with session.lock:
            session.unpin(point, photo)
        return complete(session)

    # ------------------------------------------------------------ files

    @app.get("/api/sessions/{sid}/coco")
    def export(sid: str, category: Annotated[str, Query(min_length=1, max_length=80)] = "object") -> Response:
        session = sessions.get(sid)
        with session.lock:
            text = json.dumps(to_coco(session, category), indent=1)
        headers = {"Content-Disposition": 'attachment; filename="keypoints.json"'}
        return Response(text, media_type="application/json", headers=headers)

    @app.post("/api/sessions/{sid}/coco")
    async def import_(sid: str, request: Request, name: Annotated[str, Query(max_length=1000)] = "") -> dict[str, Any]:
        session, where = sessions.get(sid), clean_name(name) if name else "the file"

        def read(text: bytes) -> dict[str, Any]:
            try:
                data = parse_json(text.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not a JSON file.") from error
            with session.lock:
                remarks = from_coco(data, session, where)
            session.complete(matcher)
            return state(session) | {"remarks": remarks, "category": category_of(data)}

        with work.place() as run:  # JSON takes many times its own size: one at a time
            text = await request.body()
            return await run_in_threadpool(run, lambda: read(text))

    app.mount("/static", StaticFiles(directory=str(static)), name="static")
    return Guard(app, host, limits.upload_bytes)


def _print(line: str) -> None:
    print(line, flush=True)  # whoever reads from a pipe waits for the address


def serve(
    matcher: Matcher,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    *,
    browser: bool = True,
    say: Callable[[str], None] = _print,
) -> None:
    """Serve the page until interrupted.

    Args:
        matcher: finds the points.
        host, port: to bind to; port 0 takes a free one.
        limits: see :class:`Limits`.
        browser: open the page in one.
        say: where the address goes.
    """
    give_memory_back()
    listening = bind(host, port)
    port = listening.getsockname()[1]
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    if not is_local(host):
        say(f"warning: bound to {host}, so others on the network can use this server; nothing asks for a password")
    config = uvicorn.Config(
        make_app(matcher, limits, host),
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST,
        http=PatientProtocol,
        ws="none",
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(f"the page is at {address} (Ctrl-C ends it; photos are kept in memory only)")
            if browser:
                webbrowser.open(address)

    try:
        Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has shut down in order, and passes the signal on
        say("stopped")
    finally:
        listening.close()


def _answer_errors(app: FastAPI) -> None:
    """Every failure as ``{"error": sentence}``."""

    def answer(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": sentence}, status, headers=headers)

    @app.exception_handler(RefusedError)
    def refused(_: Request, error: RefusedError) -> JSONResponse:
        return answer(error.status, str(error), ANSWER_HEADERS.get(error.status))

    @app.exception_handler(InputError)
    def unusable(_: Request, error: InputError) -> JSONResponse:
        return answer(422, str(error))

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return answer(422, f"The request is malformed: {where or 'body'}: {first['msg']}.")

    @app.exception_handler(HTTPException)
    def plain(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, f"{error.detail}.")

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, MemoryError) or "memory" in str(error):
            return answer(507, "The server ran out of memory; remove a photo or use smaller ones.")
        return answer(500, "Something went wrong in the server; its terminal says what.")


def _place(x: float | None, y: float | None) -> XY | None:
    if (x is None) != (y is None):
        raise InputError("A place has both x and y.")
    return None if x is None or y is None else XY(x, y)


def _plain_heats(heats: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        target: {"width": h.shape[1], "height": h.shape[0], "values": base64.b64encode(h.tobytes()).decode()}
        for target, h in heats.items()
    }
