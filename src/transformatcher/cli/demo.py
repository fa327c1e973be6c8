"""``transformatcher demo``: the example photos of the package → matches, pictures and what to type next."""

import argparse
import json
import shlex
import shutil
import sys
from importlib.resources import as_file, files
from pathlib import Path

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import add_run
from transformatcher.errors import printable
from transformatcher.files import copy_file, make_folder

PHOTOS = ("cat_a.jpg", "cat_b.jpg", "cat_c.jpg")
POINTS = "cat_a.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    output = parser.add_argument_group("output")
    output.add_argument("--out", default="out/demo", metavar="DIR", help="pictures and photos go here (%(default)s)")
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Find named points of one example photo on two others, and draw them."""
    from transformatcher.cli.tables import print_matches
    from transformatcher.inference.matcher import Matcher

    out = named_folder(args.out)
    make_folder(out)
    matcher = Matcher.from_pretrained(device=args.device)
    with as_file(files("transformatcher") / "examples") as folder:
        for name in (*PHOTOS, POINTS):
            copy_file(folder / name, out / name)
    points = json.loads((out / POINTS).read_text(encoding="utf-8"))
    src = out / PHOTOS[0]
    for target in PHOTOS[1:]:
        matches = matcher.match(src, out / target, list(points.values()))
        picture = out / f"{src.stem}-{Path(target).stem}.png"
        print_matches(matches, src.name, target, list(points))
        matches.draw(picture, point_names=list(points))
        print(f"picture: {printable(picture)}\n")
    print(f"photos: {printable(out)}\n\n{next_steps(out)}")
    return 0


def next_steps(out: Path) -> str:
    """What to type next, with the photos that the demo wrote, in a form that works in the same terminal."""
    program = program_name()
    source, target = shlex.quote(str(out / PHOTOS[0])), shlex.quote(str(out / PHOTOS[1]))
    picture = shlex.quote(str(out / "my.png"))
    return (
        "Next, match two photos of your own, or these:\n"
        f"  {program} match {source} {target} --out {picture}\n"
        f"All commands:\n  {program} --help"
    )


def program_name() -> str:
    """How to call this program from the same terminal: ``transformatcher`` only if the shell finds it."""
    found = shutil.which("transformatcher")
    own = shutil.which("transformatcher", path=str(Path(sys.executable).parent))  # a virtual environment's
    if found is not None and (own is None or Path(found).samefile(own)):
        return "transformatcher"
    if own is not None:
        return shlex.quote(_relative(Path(own)))
    return f"{shlex.quote(_relative(Path(sys.executable)))} -m transformatcher"


def _relative(path: Path) -> str:
    """The path from the current folder, if it lies in there."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
