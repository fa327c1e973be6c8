"""An argparse parser whose help is short to read and whose errors name the likely typo."""

import argparse
import difflib
import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from transformatcher.errors import printable

EXAMPLES = "examples:\n"  # an epilog that begins with this keeps its line breaks


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, but leaves the line breaks of examples as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 23  # room for the longest command; argparse forgets that commands are indented

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        if isinstance(action, argparse._SubParsersAction):
            return text.partition("\n")[2]  # the commands alone, without a line that says COMMAND
        return text

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser with a usage of one line, exact option names and a suggestion for each mistyped name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **kwargs})
        self._positionals.title = "arguments"

    def add_subparsers(self, **kwargs: Any) -> Any:
        """As argparse does, under the heading "commands"."""
        self._positionals.title = "commands"
        return super().add_subparsers(**{"metavar": "COMMAND", **kwargs})

    def format_usage(self) -> str:
        """The usage in one line: files, required options, and a placeholder for the others."""
        return f"usage: {self.short_usage()}\n"

    def format_help(self) -> str:
        """The help, with the usage of one line on top."""
        self.usage = self.short_usage().replace("%", "%%")
        return super().format_help()

    def short_usage(self) -> str:
        """``transformatcher match SOURCE TARGET [TARGET …] [options]``: everything that must be given."""
        options = [action for action in self._actions if action.option_strings]
        needed = [action for action in self._actions if not action.option_strings]
        needed += [action for action in options if action.required]
        return " ".join([self.prog, *map(argument_text, needed), "[options]"])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a parser without sub-commands refuses what it does not know."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:
            self._check_option_names(itertools.takewhile(lambda word: word.startswith("-"), words))
            return super().parse_known_args(args, namespace)
        self._check_option_names(words)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = "; files and folders go before the options" if self._takes_files() else ""
            self.error(f"unexpected argument: {unknown[0]}{hint}")
        return found, unknown

    def _takes_files(self) -> bool:
        return any(not action.option_strings for action in self._actions)

    def error(self, message: str) -> NoReturn:
        """Print the usage, one sentence and where to find help; exit with code 2."""
        self.exit(2, f"{self.format_usage()}{self.prog}: {printable(message)}\nSee '{self.prog} --help'.\n")

    def _check_option_names(self, args: Iterable[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for text in args:
            name = text.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and " " not in name and name not in known:
                self.error(f"unknown option {name}{did_you_mean(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        what = "unknown command" if isinstance(action, argparse._SubParsersAction) else "not a choice:"
        hint = did_you_mean(str(value), choices) or f"; choose from {', '.join(choices)}"
        message = f"{what} {str(value)!r}{hint}"
        if isinstance(action, argparse._SubParsersAction):
            self.error(message)
        raise argparse.ArgumentError(action, message)


def argument_text(action: argparse.Action) -> str:
    """How an argument is written on the command line: ``--batch N``, ``TARGET [TARGET …]``."""
    value = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    many = {"+": f"{value} [{value} …]", "*": f"[{value} …]", "?": f"[{value}]"}
    value = "" if action.nargs == 0 else many.get(str(action.nargs), value)
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``"; did you mean 'match'?"`` if something known is spelled nearly so, else nothing."""
    names = list(known)
    shortened = [name for name in names if len(name.lstrip("-")) > 2 and given.startswith(name)]  # evaluate → eval
    near = shortened or difflib.get_close_matches(given, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def number(kind: type[int] | type[float], ge: float, le: float) -> Callable[[str], int | float]:
    """A ``type=`` for argparse: text → a number of this kind from ``ge`` to ``le``, both included."""
    noun = "a whole number" if kind is int else "a number"

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not ge <= value <= le:  # NaN, too
            raise argparse.ArgumentTypeError(f"{_shortened(text)} is not {noun} from {ge} to {le}")
        return value

    return parse


def _shortened(text: str) -> str:
    """The text in quotes; of a very long one, its beginning."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def examples(*lines: str) -> str:
    """An epilog of examples, one in each line; ``transformatcher`` is put in front of each."""
    return EXAMPLES + "\n".join(f"  transformatcher {line}" for line in lines)
