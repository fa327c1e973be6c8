"""A project and a matcher → the studio and its API, served over HTTP."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from transformatcher.annotation.database import NotWrittenError
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.worker import PredictionWorker
from transformatcher.inference.matcher import Matcher
from transformatcher.web.application import build_application
from transformatcher.web.listen import address_of, bind, print_line, run_server
from transformatcher.web.security import MAX_IMPORT_BYTES, SecurityMiddleware, is_local_host
from transformatcher.web.studio.dependencies import Studio
from transformatcher.web.studio.routes import categories, files_in_and_out, objects, photos, uploads
from transformatcher.web.studio.routes import project as project_routes
from transformatcher.web.uploads import Limits

STATIC = files("transformatcher") / "web" / "studio" / "static"
ROUTES = (project_routes, photos, objects, categories, files_in_and_out, uploads)


def make_studio(
    project: Project,
    worker: PredictionWorker,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    temporary: bool = False,
    limits: Limits | None = None,
) -> SecurityMiddleware:
    """Build the ASGI application.

    Args:
        project: open for writing.
        worker: predicts in the background; whoever started it stops it.
        host: the host that the server is bound to; requests that name another are refused.
        token: what a client must know; None: everybody who reaches the server may use it.
        temporary: the project's folder is ours: photos may be uploaded into it.
        limits: size limits of uploads.
    """
    return _application(Studio(project, worker, temporary, limits or Limits()), host, token)


def _application(studio: Studio, host: str, token: str | None) -> SecurityMiddleware:
    app = build_application([routes.router for routes in ROUTES], _lifespan, STATIC)
    app.add_exception_handler(NotWrittenError, _not_written)
    app.state.studio = studio
    # Around the application, not inside by add_middleware: so responses to unexpected errors get the headers, too.
    import_bytes = studio.limits.import_bytes if studio.temporary else MAX_IMPORT_BYTES
    return SecurityMiddleware(app, host, studio.limits.upload_bytes, import_bytes, token)


async def _not_written(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 507)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    studio: Studio = app.state.studio
    studio.feed.start()
    try:
        yield
    finally:
        studio.feed.stop()
        studio.jobs.close()
        studio.pictures.close()


def serve_studio(
    project: Project,
    matcher: Matcher,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    browser: bool = True,
    temporary: bool = False,
    limits: Limits | None = None,
    cache_bytes: int = 4_000_000_000,
    batch: int = 4,
    log: Callable[[str], None] = print_line,
) -> None:
    """Serve the studio until interrupted.

    Args:
        project: open for writing.
        matcher: predicts the points.
        host, port: where to listen; port 0 takes a free one. If other machines can reach the host, whoever opens the
            page needs the token in the address that is logged.
        browser: open the page in a browser.
        temporary: the project's folder is ours: photos may be uploaded into it.
        limits: size limits of uploads.
        cache_bytes: limit of the features on disk.
        batch: photos that are predicted at a time.
        log: called with each line of output, such as the page's address.
    """
    bound = bind(host, port)
    with contextlib.ExitStack() as stack:
        stack.callback(bound.close)
        token = None if is_local_host(host) else secrets.token_urlsafe(24)
        page = address_of(host, bound) + ("" if token is None else f"?token={token}")
        kept = f"Ctrl-C stops the server; everything is kept in {project.file}"
        if temporary:
            kept = "Ctrl-C stops the server, and photos and marks are gone; transformatcher annotate FOLDER keeps them"
        announce = f"the studio is at {page} ({kept})"
        if token is not None:
            log("other machines on the network can use this server if they know the token in its address")
        worker = PredictionWorker(Predictor(project, matcher, batch=batch, cache_bytes=cache_bytes))
        studio = Studio(project, worker, temporary, limits or Limits())
        app = _application(studio, host, token)
        worker.start()
        stack.callback(worker.stop)
        run_server(app, bound, page, announce, browser=browser, log=log, on_stop=studio.feed.stop)
