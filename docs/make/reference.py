"""The command's parser, the config dataclasses → docs/cli.md, docs/config.md.

Usage: python docs/make/reference.py; tests/test_docs.py fails while what it would write differs from what is there.
"""

import argparse
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from transformatcher import config
from transformatcher.cli.main import build_parser
from transformatcher.cli.parser import EXAMPLES, Parser, argument_text
from transformatcher.config.check import describe, fields_of, limits
from transformatcher.run_folder import flatten

DOCS = Path(__file__).parents[1]
MADE = "<!-- Made by docs/make/reference.py; change what it is made from instead. -->"


# ---------------------------------------------------------------- the command line


def cli_page() -> str:
    """All sub-commands, each with its arguments."""
    parser = build_parser()
    lines = [
        "# Command line",
        MADE,
        str(parser.description),
        "`transformatcher COMMAND --help` prints what this page says about a command. Input that cannot be used gets "
        "one sentence that names it.",
        _table(
            ("exit code", "meaning"),
            (
                ("0", "done"),
                (
                    "1",
                    "problems found: `data check` lists some, pairs of `match-pairs` or images of `propagate` failed "
                    "(the others are done), or `export` wrote nothing because the file would differ from the model",
                ),
                ("2", "the input or the command cannot be used"),
                ("70", "an error of transformatcher itself; the same command with `--debug` shows where"),
                ("130", "interrupted with Ctrl-C, SIGTERM or SIGHUP; a command that can continue says how"),
                ("141", "nobody reads standard output any more, as in `… | head -1`"),
            ),
        ),
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
                title = str(group.title)
                rows = [(f"`{argument_text(action)}`", _meaning(action, command)) for action in actions]
                lines += [str(group.description)] * bool(group.description)
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
    """All tables and keys of a config, as the config dataclasses declare them."""
    lines = [
        "# Configuration",
        MADE,
        "A run's config is a TOML file with the tables `[model]`, `[data]` and `[train]`. Each kind of refiner has a "
        "table of its own, such as `[model.match2match]`; only that of the chosen `refiner` may be given. "
        "`transformatcher train CONFIG --set TABLE.KEY=VALUE` changes a key, such as `model.match2match.depth=4`. "
        "`--set KEY=VALUE` of the other commands changes a key of `[model]`, such as `kernel_sigma=1.5`. An unknown "
        "key or a value out of range is refused in one sentence, with the nearest key that exists. The files in "
        "[`configs/`](../configs/default.toml) are examples, each with its command and, where it was run, its time and "
        "its score.",
    ]
    tables: Iterable[tuple[str, type]] = (
        ("model", config.ModelConfig),
        ("model.match2match", config.Match2MatchConfig),
        ("model.nc4d", config.NC4DConfig),
        ("model.cats", config.CATsConfig),
        ("model.coarse_to_fine", config.CoarseToFineConfig),
        ("data", config.DataConfig),
        ("A source of pairs, in `data.train` and `data.validate`", config.PairSource),
        ("train", config.TrainConfig),
    )
    for title, kind in tables:
        rows = [
            (f"`{name}`", _note(field.description or ""), _values(field), _default(field))
            for name, field in fields_of(kind).items()
        ]
        lines += [
            f"## {title}",
            inspect.cleandoc(kind.__doc__ or ""),
            _table(("key", "meaning", "value", "default"), rows),
        ]
    lines += [
        "## Variants",
        "`variant` sets other keys of `[model]`; a key that is given wins over it.",
        _table(("variant", "sets"), ((f"`{name}`", _settings(keys)) for name, keys in config.VARIANTS.items())),
        "## What may be changed in a trained model",
        "These keys say how a model is read out, and how large the images are that it is given. `--set KEY=VALUE` "
        "changes them without training again: "
        + ", ".join(f"`{key}`" for key in (*config.READ_OUT, *config.INPUT))
        + ". With `match2match.attention = linformer` or `refiner = cats`, and no `grid` of its own, `image_size` is "
        "fixed.",
    ]
    return "\n\n".join(lines) + "\n"


def _note(description: str) -> str:
    """A description as users of a TOML file read it: there is no None."""
    return description.replace("None or ", "left out or ").replace("None: ", "if left out, ")


def _values(field: FieldInfo) -> str:
    """What a key takes, with its range."""
    kind = describe(field.annotation, quote="`").removeprefix("one of ")
    between = "; numbers " if "one of" in kind else " "
    return f"{kind}{between if limits(field) else ''}{limits(field)}".removeprefix("a ")


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "must be given"
    if value is None:
        return "left out"
    if is_dataclass(value):
        return "see below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _settings(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in flatten(keys).items()) or "the defaults above"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in line) + " |" for line in lines
    )


PAGES: Mapping[str, Callable[[], str]] = {"cli.md": cli_page, "config.md": config_page}


def main() -> int:
    """Write the pages."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
        print(DOCS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
