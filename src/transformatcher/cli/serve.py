"""``transformatcher serve``: the studio on a temporary project, to try it."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from transformatcher.cli.model_args import add_model, add_run, load_matcher
from transformatcher.cli.page import add_page, check_packages, open_page
from transformatcher.cli.parser import examples, number

CACHE_BYTES = 500_000_000  # of features, in the temporary folder: those of about a hundred photos


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Open the studio in the browser without a folder: drop photos there, or take the example photos; mark the "
        "keypoints of one, have those of the others predicted, export all. Photos and marks are kept only until Ctrl-C "
        "stops it; transformatcher annotate FOLDER keeps them."
    )
    parser.epilog = examples("serve", "serve --port 0 --no-browser", "serve --host 0.0.0.0 --max-upload-mb 5")
    page = add_page(parser)
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
    add_model(parser, try_mirrored=True)
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until interrupted; the photos are in a temporary folder meanwhile."""
    check_packages()
    from transformatcher.annotation.project import Project
    from transformatcher.web.uploads import Limits

    limits = Limits(upload_bytes=args.max_upload_mb * 1_000_000, pixels=args.max_pixels)
    loaded = load_matcher(args)  # first, so that nothing is left behind if it is interrupted
    with TemporaryDirectory(prefix="transformatcher-", ignore_cleanup_errors=True) as folder:
        photos = Path(folder) / "photos"  # exported files are called after it
        photos.mkdir()
        with Project(photos) as project:
            open_page(project, loaded, args, temporary=True, limits=limits, cache_bytes=CACHE_BYTES)
    return 0
