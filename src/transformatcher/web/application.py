"""Routes and a folder of files → a FastAPI application whose errors are sentences."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.resources.abc import Traversable

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from transformatcher.web.errors import add_error_handler


def build_application(
    routers: Sequence[APIRouter],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    static: Traversable | None = None,
) -> FastAPI:
    """An application that serves some routes and, where there is a page, its ``index.html`` and its other files."""
    app = FastAPI(title="transformatcher", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    add_error_handler(app)
    for router in routers:
        app.include_router(router)
    if static is not None:

        async def index() -> FileResponse:
            return FileResponse(str(static / "index.html"))

        app.add_api_route("/", index, include_in_schema=False)
        app.mount("/static", StaticFiles(directory=str(static)), name="static")
    return app
