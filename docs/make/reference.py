"""The command's parser, the config dataclasses, the README → docs/cli.md, docs/config.md, docs/speed.md.

Usage: python docs/make/reference.py; tests/test_docs.py fails while what it would write differs from what is there.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from transformatcher import config
from transformatcher.cli.main import build_parser
from transformatcher.cli.parser import EXAMPLES, Parser, argument_text

DOCS = Path(__file__).parents[1]
README = DOCS.parent / "README.md"
MADE = "<!-- Made by docs/make/reference.py; change what it is made from instead. -->"
# What a user wants to know of keys that say nothing of themselves where they are defined.
KEYS = {
    "ModelConfig.variant": "a set of values for other keys, see [Variants](#variants)",
    "ModelConfig.correlation": "what is interpolated to the common grid: the 4-D maps, or the features before them",
    "ModelConfig.attention": "how matches listen to each other, see [the architecture](architecture.md#attention)",
    "ModelConfig.rotary_base": "frequency f of F turns by this to the power of −f/F, in radians a cell",
    "ModelConfig.heads": "of an attention layer",
    "ModelConfig.head_dim": "channels of a head",
    "ModelConfig.ffn_ratio": "hidden channels of a block's MLP, as a multiple of `dim`",
    "ModelConfig.upsample": "factor for each axis of the refined map, before it is read out",
    "ModelConfig.gaussian": "what the Gaussian at the peak multiplies",
    "ModelConfig.temperature": "divides the scores before the softmax",
    "ModelConfig.sampler": "how a keypoint is read from the flow",
    "ModelConfig.sampler_threshold_train": "the same, in training",
    "DataConfig.train": "what is trained on",
    "DataConfig.validate": "what the best checkpoint is chosen on",
    "DataConfig.root": "the folder that the sources' folders lie in",
    "SourceConfig.benchmark": "the layout of the folder; `coco` for your own",
    "SourceConfig.split": "`trn`, `val` or `test`",
    "TrainConfig.seed": "of everything that is random",
    "TrainConfig.epochs": "passes over the pairs",
    "TrainConfig.schedule": "of both learning rates",
    "TrainConfig.weight_decay": "of the optimiser",
    "TrainConfig.batch_norm": "`frozen` keeps the statistics of the backbone's batch norms",
}


# ---------------------------------------------------------------- the command line


def cli_page() -> str:
    """All sub-commands, each with its arguments."""
    parser = build_parser()
    lines = [
        "# Command line",
        MADE,
        str(parser.description),
        "Every command prints one sentence and ends with exit code 2 if it cannot use what it was given. "
        "`transformatcher COMMAND --help` prints what this page says of a command.",
        _table(
            ("command", "what it does"),
            ((f"[`{' '.join(words)}`](#{'-'.join(words)})", summary) for words, summary, _ in _commands(parser)),
        ),
    ]
    for words, _, command in _commands(parser):
        lines += [f"## {' '.join(words)}", str(command.description)]
        lines.append(f"```text\n{command.short_usage()}\n```")
        for group in command._action_groups:
            actions = [action for action in group._group_actions if action.dest != "help"]
            if actions:
                title = str(group.title).removeprefix("positional ")
                rows = [(f"`{argument_text(action)}`", _meaning(action, command)) for action in actions]
                lines.append(_table((title, "meaning"), rows))
        if command.epilog:
            lines.append(f"```text\n{textwrap.dedent(command.epilog.removeprefix(EXAMPLES))}\n```")
    return "\n\n".join(lines) + "\n"


Command = tuple[tuple[str, ...], str, Parser]


def _commands(parser: Parser, above: tuple[str, ...] = ()) -> list[Command]:
    """The words, the summary and the parser of every sub-command that can be called."""
    found: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                words = (*above, name)
                found += _commands(child, words) or [(words, summaries.get(name, ""), child)]
    return found


def _meaning(action: argparse.Action, command: argparse.ArgumentParser) -> str:
    """The argument's help; its default, where the help does not say it."""
    text = (action.help or "").strip()
    named = "%(default)s" in text
    text = text % {**vars(action), "prog": command.prog} if text else ""
    default = action.default
    if not named and action.nargs != 0 and default not in (None, [], argparse.SUPPRESS) and not action.required:
        value = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
        text = f"{text} ({value})" if f"({value})" not in text else text
    return text.strip()


# ---------------------------------------------------------------- configuration


def config_page() -> str:
    """All tables and keys of a config, from the dataclasses and the comments beside their fields."""
    source = inspect.getsource(config)
    notes = field_comments(source)
    lines = [
        "# Configuration",
        MADE,
        "A run's config is a TOML file with the tables `[model]`, `[data]` and `[train]`. "
        "`transformatcher train CONFIG --set TABLE.KEY=VALUE` changes a key. `--set KEY=VALUE` of the other commands "
        "changes a key of `[model]`. A key that does not exist, or a value that cannot be, is refused with the nearest "
        "that would do. The files in [`configs/`](../configs/default.toml) are examples, each with its command and, "
        "where it was run, its time and its score.",
    ]
    tables: Iterable[tuple[str, type]] = (
        ("[model]", config.ModelConfig),
        ("[data]", config.DataConfig),
        ("A source of pairs, in `data.train` and `data.validate`", config.SourceConfig),
        ("[train]", config.TrainConfig),
    )
    for title, kind in tables:
        lines += [f"## {title.replace('[', '').replace(']', '')}" if title[0] == "[" else f"## {title}"]
        lines.append(
            inspect.cleandoc(kind.__doc__ or "").replace("``", "`").replace("VARIANTS has", "[Variants](#variants) has")
        )
        rows = [
            (
                f"`{key.name}`",
                _note(notes[kind.__name__].get(key.name) or KEYS.get(f"{kind.__name__}.{key.name}", "")),
                _values(hints),
                _default(key),
            )
            for key, hints in _keys(kind)
        ]
        lines.append(_table(("key", "meaning", "value", "default"), rows))
    lines += [
        "## Variants",
        "`variant` sets other keys of `[model]`; a key that is given wins over it.",
        _table(("variant", "sets"), ((f"`{name}`", _settings(keys)) for name, keys in config.VARIANTS.items())),
        "So does `matcher`, so that the other matchers are of about the size of match-to-match attention.",
        _table(("matcher", "sets"), ((f"`{name}`", _settings(keys)) for name, keys in config.MATCHERS.items())),
        "## What may be changed in a trained model",
        "These keys say how a model is read out, and how large the images are that it is given. `--set KEY=VALUE` "
        "changes them without training again: "
        + ", ".join(f"`{key}`" for key in (*config.READ_OUT, *config.INPUT))
        + ". With `attention = linformer` or `matcher = cats`, and no `grid` of its own, `image_size` is fixed.",
    ]
    return "\n\n".join(lines) + "\n"


def field_comments(source: str) -> dict[str, dict[str, str]]:
    """Class → field → the comment behind it, after those on the lines right above it."""
    lines = source.splitlines()
    notes: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            words, above = [], item.lineno - 2  # lines count from 1
            while lines[above].strip().startswith("#"):
                words.insert(0, lines[above].strip("# "))
                above -= 1
            assert item.end_lineno is not None
            end = lines[item.end_lineno - 1][item.end_col_offset :].strip()
            words += [end.strip("# ")] if end.startswith("#") else []
            notes.setdefault(node.name, {})[item.target.id] = " ".join(words)
    return notes


def _note(comment: str) -> str:
    """A comment as users of a TOML file read it: there is no None."""
    return comment.replace("None: ", "if left out, ").replace("``", "`")


def _keys(kind: type) -> list[tuple[Field[Any], Any]]:
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    return [(key, hints[key.name]) for key in fields(kind)]


def _values(hint: Any) -> str:
    """What a key takes, in words."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_values(part) for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if is_dataclass(parts[0]):
            return "list of sources"
        one = {int: "whole number", float: "number", str: "word"}[parts[0]]
        return f"list of {one}s" if parts[-1] is ... else f"{len(parts)} {one}s"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(hint, str(hint))


def _default(key: Field[Any]) -> str:
    if key.default is MISSING:
        return "must be given" if key.default_factory is MISSING else ""
    value = key.default
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _settings(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in keys.items()) or "the defaults above"


# ---------------------------------------------------------------- speed


def speed_page() -> str:
    """The README's section on speed, whose numbers have one home."""
    section = README.read_text(encoding="utf-8").partition("\n## Speed\n")[2].partition("\n## ")[0]
    assert section, "the README has no section on speed"

    def moved(link: re.Match[str]) -> str:
        path = link[1]
        if "://" in path or path.startswith("#"):
            return link[0]
        return f"]({path.removeprefix('docs/')})" if path.startswith("docs/") else f"](../{path})"

    text = re.sub(r"\]\(([^)]+)\)", moved, section)
    return f"# Speed\n\n{MADE}\n{text.rstrip()}\n"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in line) + " |" for line in lines
    )


PAGES: Mapping[str, Callable[[], str]] = {"cli.md": cli_page, "config.md": config_page, "speed.md": speed_page}


def main() -> int:
    """Write the pages."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
        print(DOCS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
