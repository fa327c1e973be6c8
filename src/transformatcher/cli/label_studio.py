"""``transformatcher label-studio``: a machine-learning backend that predicts keypoints in Label Studio."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.inputs import set_threads
from transformatcher.cli.model_args import THREADS, add_model, add_run, add_voting, load_matcher
from transformatcher.cli.parser import examples, number
from transformatcher.errors import InputError, missing_package

if TYPE_CHECKING:
    from transformatcher.inference.propagate_inputs import References

MAX_PASSWORD_FILE_BYTES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Predict keypoints in Label Studio: connect it to this server, as a model of a project. References are the "
        "annotated photos of a file, and annotations that Label Studio sends while this runs. It runs until Ctrl-C."
    )
    parser.epilog = examples(
        "label-studio --images-root photos",
        "label-studio marked.json --images-root photos --uploads label-studio/media/upload",
        "label-studio marked.json --images-root photos --host 0.0.0.0 --basic-auth password.txt",
    )
    parser.add_argument(
        "annotations",
        nargs="?",
        metavar="REFERENCES.json",
        help="a COCO-keypoint file of annotated photos; without one, only annotations that Label Studio sends are "
        "references",
    )
    images = parser.add_argument_group("images")
    images.add_argument(
        "--images-root",
        metavar="DIR",
        help="the folder that Label Studio's LOCAL_FILES_DOCUMENT_ROOT names; those of REFERENCES.json are looked up "
        "there, too, before its own folder",
    )
    images.add_argument("--uploads", metavar="DIR", help="Label Studio's folder of uploaded images, media/upload")
    group = parser.add_argument_group("prediction")
    group.add_argument("--category", metavar="NAME", help="only this category of REFERENCES.json")
    add_voting(group)
    server = parser.add_argument_group("server")
    server.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 lets other machines in (%(default)s)"
    )
    server.add_argument("--port", type=number(int, 0, 65535), default=9090, help="0 takes any free port (%(default)s)")
    server.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name that Label Studio calls this machine by, such as that of a container; may be repeated",
    )
    server.add_argument(
        "--basic-auth", metavar="FILE", help="a text file with USER:PASSWORD, which Label Studio must send"
    )
    add_model(parser, try_mirrored=True)
    add_run(parser).add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        from transformatcher.web.label_studio import serve_label_studio
        from transformatcher.web.label_studio_backend import LabelStudioBackend
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("transformatcher"):
            raise
        raise missing_package("the server for Label Studio", error.name or "fastapi", "serve") from error
    from transformatcher.inference.interfaces.label_studio import ImageFolders
    from transformatcher.inference.interfaces.threshold import choose_threshold

    folders = ImageFolders(_folder("--images-root", args.images_root), _folder("--uploads", args.uploads))
    if folders == ImageFolders():
        raise InputError(
            "name the folder of the images by --images-root or --uploads; nothing is fetched from elsewhere"
        )
    if args.category and not args.annotations:
        raise InputError("--category goes with REFERENCES.json")
    credentials = _read_credentials(Path(args.basic_auth)) if args.basic_auth else None
    references = _read_references(Path(args.annotations), folders.root, args.category) if args.annotations else {}
    set_threads(args.threads)
    matcher, description = load_matcher(args)
    threshold = choose_threshold(args.threshold, matcher)
    backend = LabelStudioBackend(matcher, references, folders, threshold, args.references)
    given = f", references: {sum(map(len, references.values()))}" if references else ""
    print(f"matching with {description}{given}", flush=True)
    serve_label_studio(backend, args.host, args.port, args.allow_host, credentials)
    return 0


def _folder(option: str, given: str | None) -> Path | None:
    if given is None:
        return None
    if not Path(given).is_dir():
        raise InputError(f"{option} {given}: no such folder")
    return Path(given)


def _read_references(path: Path, root: Path | None, category: str | None) -> References:
    """The references of a file; its images are below ``root``, or else where the file itself says or is."""
    from transformatcher.inference.propagate_inputs import read_annotations

    if root is not None:
        below = read_annotations(path, root, category)
        if all(image.is_file() for image in below.reference_images):
            return below.references
    return read_annotations(path, None, category).references


def _read_credentials(path: Path) -> str:
    """The line USER:PASSWORD of a file."""
    if not path.is_file():
        raise InputError(f"--basic-auth {path}: no such file")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_PASSWORD_FILE_BYTES).strip()
    except ValueError as error:
        raise InputError(f"--basic-auth {path}: not text in UTF-8") from error
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise InputError(f"--basic-auth {path}: expected one line, USER:PASSWORD")
    return text
