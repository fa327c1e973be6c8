"""``transformatcher serve``: a page in the browser to match, correct and export keypoints."""

import argparse

from transformatcher.cli.model_args import add_model, add_run, load_matcher
from transformatcher.cli.parser import examples, number
from transformatcher.errors import missing_package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Open a page in the browser: mark points on one photo, correct them on the others, export all as COCO "
        "keypoints. It runs until Ctrl-C."
    )
    parser.epilog = examples("serve", "serve --port 0 --no-browser", "serve --host 0.0.0.0 --max-sessions 20")
    page = parser.add_argument_group("page")
    page.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 lets other machines in (%(default)s)"
    )
    page.add_argument("--port", type=number(int, 0, 65535), default=8000, help="0 takes any free port (%(default)s)")
    page.add_argument("--no-browser", action="store_true", help="only print the address")
    page.add_argument(
        "--max-upload-mb", type=number(int, 1, 10_000), default=20, metavar="MB", help="largest file (%(default)s)"
    )
    page.add_argument(
        "--max-pixels",
        type=number(int, 1, 1_000_000_000),
        default=50_000_000,
        metavar="N",
        help="largest photo, width × height (%(default)s)",
    )
    page.add_argument(
        "--max-sessions",
        type=number(int, 1, 10_000),
        default=4,
        metavar="N",
        help="open pages whose photos are kept; the least recently used goes first (%(default)s)",
    )
    add_model(parser)
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    try:
        from transformatcher.web.server import serve
        from transformatcher.web.session import Limits
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("transformatcher"):
            raise
        raise missing_package("the page", error.name or "fastapi", "serve") from error
    limits = Limits(upload_bytes=args.max_upload_mb * 1_000_000, pixels=args.max_pixels, sessions=args.max_sessions)
    matcher, description = load_matcher(args)
    print(f"matching with {description}", flush=True)
    serve(matcher, args.host, args.port, limits, browser=not args.no_browser)
    return 0
