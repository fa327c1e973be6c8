"""What ``annotate`` and ``serve`` share: the options of the page, and the studio that is opened."""

import argparse
from typing import TYPE_CHECKING, Any

from transformatcher.cli.parser import number
from transformatcher.errors import missing_package

if TYPE_CHECKING:
    from transformatcher.annotation.project import Project
    from transformatcher.inference.matcher import Matcher

# Setting of a project: whether the model of its predictions is calibrated, for an export without a model.
CALIBRATED = "calibrated"


def add_page(parser: argparse.ArgumentParser) -> Any:
    """Declare where the page is served; returns the group, for further options."""
    page = parser.add_argument_group("page")
    page.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at; 0.0.0.0 lets other machines in that know the token in the address (%(default)s)",
    )
    page.add_argument("--port", type=number(int, 0, 65535), default=8000, help="0 takes any free port (%(default)s)")
    page.add_argument("--no-browser", action="store_true", help="only print the address")
    return page


def check_packages() -> None:
    """Raise InputError if a package that the page needs is not installed."""
    try:
        import transformatcher.web.studio.server  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("transformatcher"):
            raise
        raise missing_package("the page", error.name or "fastapi", "serve") from error


def use_matcher(project: "Project", loaded: "tuple[Matcher, str]") -> "Matcher":
    """Say which model predicts in a project, and note there whether it is calibrated."""
    matcher, description = loaded
    print(f"matching with {description}", flush=True)
    project.set_setting(CALIBRATED, matcher.calibrated)
    return matcher


def open_page(project: "Project", loaded: "tuple[Matcher, str]", args: argparse.Namespace, **options: Any) -> None:
    """Serve the studio until interrupted; for the further options see :func:`serve_studio`."""
    from transformatcher.web.studio.server import serve_studio

    matcher = use_matcher(project, loaded)
    serve_studio(project, matcher, args.host, args.port, browser=not args.no_browser, **options)
