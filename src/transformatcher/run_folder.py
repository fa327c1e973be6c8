"""A run and a folder → whether the folder is new, holds results of the same run, or belongs to another run.

A run folder holds ``run.json``, which says what made the results beside it: the command and its arguments as data.
Results that come item by item go into a :class:`LineFile`, which an interrupted run continues.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from transformatcher.errors import InputError
from transformatcher.files import append_lines, complete_lines, exclusive_lock, read_json, write_text

RUN = "run.json"
MAX_VALUE_CHARS = 40  # longer values are not printed in a message, only their keys
MAX_KEYS = 6  # that a message names
Line = TypeVar("Line")


@dataclass(frozen=True)
class Run:
    """What made the results of a folder.

    Args:
        command: that wrote the folder, such as ``"eval"``.
        arguments: all that the results depend on, as JSON values: benchmark, model config, hash of the weights, …
        info: what is good to know and changes no result, such as versions; it is never compared.
    """

    command: str
    arguments: Mapping[str, Any]
    info: Mapping[str, Any] = field(default_factory=dict)


class Difference(NamedTuple):
    """A value in which two runs differ; None where a run does not have the key."""

    key: str  # nested keys are dotted: model.image_size
    there: Any
    here: Any


def read_run(folder: Path) -> Run | None:
    """The run that wrote a folder, or None where ``run.json`` is missing or damaged."""
    try:
        return parse_run(read_json(folder / RUN))
    except InputError:
        return None


def parse_run(data: Any) -> Run | None:
    """The content of ``run.json`` → the run, or None if it is none."""
    if not isinstance(data, dict) or not isinstance(data.get("command"), str):
        return None
    arguments, info = data.get("arguments"), data.get("info", {})
    return Run(data["command"], arguments, info) if isinstance(arguments, dict) and isinstance(info, dict) else None


def format_run(run: Run) -> str:
    """A run → the content of ``run.json``."""
    return json.dumps(asdict(run), indent=2) + "\n"


def read_arguments(folder: Path) -> Mapping[str, Any]:
    """The arguments of the run that wrote a folder; empty where ``run.json`` is missing or damaged."""
    run = read_run(folder)
    return {} if run is None else run.arguments


def write_run(folder: Path, run: Run) -> None:
    """Write ``run.json``."""
    write_text(folder / RUN, format_run(run))


def hash_json(values: object) -> str:
    """A short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- what differs between two runs


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings → one with dotted keys: ``{"model": {"depth": 6}}`` → ``{"model.depth": 6}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": item for inner, item in flatten(value).items()}
        else:
            flat[str(key)] = value
    return flat


def differences(there: Mapping[str, Any], here: Mapping[str, Any], ignore: Collection[str] = ()) -> list[Difference]:
    """The values in which two sets of arguments differ, as JSON would store them.

    Args:
        there: of the earlier run.
        here: of this run.
        ignore: dotted keys that may differ; a key stands for all below it, too.
    """
    before, now = (flatten(json.loads(json.dumps(values))) for values in (there, here))
    keys = [key for key in dict.fromkeys([*now, *before]) if before.get(key) != now.get(key)]
    return [
        Difference(key, before.get(key), now.get(key))
        for key in keys
        if not any(key == free or key.startswith(f"{free}.") for free in ignore)
    ]


def describe_differences(found: Sequence[Difference]) -> str:
    """Differences → ``train.lr (0.1 there, 0.2 here), model.stages``; values too long for a sentence are left out."""
    parts = []
    for key, there, here in found[:MAX_KEYS]:
        values = [json.dumps(value, ensure_ascii=False) for value in (there, here)]
        short = all(len(value) <= MAX_VALUE_CHARS for value in values)
        parts.append(f"{key} ({values[0]} there, {values[1]} here)" if short else key)
    rest = len(found) - MAX_KEYS
    return ", ".join(parts) + (f" and {rest} more" if rest > 0 else "")


# ---------------------------------------------------------------- whose folder this is


def check_run_folder(
    folder: Path,
    run: Run,
    results: Collection[str],
    *,
    overwrite: bool = False,
    way_out: str = "choose another --out, or give --overwrite",
    ignore: Collection[str] = (),
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> bool:
    """Whether a folder holds results of this run to continue (True), or none (False); InputError if of another run.

    Args:
        folder: need not exist. Nothing is written there.
        run: that wants to write there.
        results: names or glob patterns of its result files; without any of them there is nothing to continue.
        overwrite: accept results of another run of the same command; the caller removes them.
        way_out: the end of the error message: what the user can do.
        ignore: arguments that may differ, as in :func:`differences`.
        upgrade: stored arguments → the same with the defaults of keys that did not exist when they were stored.
    """
    has_results = any(next(folder.glob(pattern), None) is not None for pattern in results)
    options: dict[str, Any] = {"overwrite": overwrite, "way_out": way_out, "ignore": ignore, "upgrade": upgrade}
    return check_run(folder, run, read_run(folder), has_results, **options)


def check_run(
    where: object,
    run: Run,
    before: Run | None,
    has_results: bool,
    *,
    overwrite: bool = False,
    way_out: str = "choose another --out, or give --overwrite",
    ignore: Collection[str] = (),
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    name: str = RUN,
) -> bool:
    """What :func:`check_run_folder` says of a folder anywhere.

    Args:
        where: the folder, for messages.
        run: that wants to write there.
        before: what its ``run.json`` says; None if there is none.
        has_results: whether there are results.
        overwrite, way_out, ignore, upgrade: as there.
        name: of its ``run.json``.
    """
    if before is not None and before.command != run.command:
        raise InputError(
            f"{where}: holds the results of transformatcher {before.command}, "
            f"not of transformatcher {run.command}; choose another --out"
        )
    if overwrite or not has_results:
        return False
    if before is None:
        raise InputError(f"{where}: holds results, but no valid {name} that says which run made them; {way_out}")
    if found := differences(upgrade(before.arguments), run.arguments, ignore):
        raise InputError(f"{where}: holds another run, which differs in {describe_differences(found)}; {way_out}")
    return True


@contextmanager
def open_run_folder(folder: Path, run: Run, results: Collection[str], **options: Any) -> Iterator[bool]:
    """Lock a folder for this run, write ``run.json``, and yield whether there are results to continue.

    Arguments are those of :func:`check_run_folder`; with ``overwrite``, results that are there are removed.
    """
    with exclusive_lock(folder):
        resumes = check_run_folder(folder, run, results, **options)
        if options.get("overwrite"):
            for path in [path for pattern in results for path in folder.glob(pattern)]:
                path.unlink()
        write_run(folder, run)
        yield resumes


@dataclass(frozen=True)
class LineFile(Generic[Line]):
    """A file of JSON lines, one for each finished item; a last line that was cut off is ignored and done again.

    Args:
        path: need not exist.
        parse: one line's JSON value → an item; raises ValueError, TypeError or KeyError if it is none.
        what: an item is called in messages, such as ``"a prediction"``.
        way_out: what the user can do about a damaged line.
        key: the name of an item; no two are the same.
        dump: an item → its JSON value.
    """

    path: Path
    parse: Callable[[Any], Line]
    what: str
    way_out: str = "delete the file to start again"
    key: Callable[[Line], str] = attrgetter("name")
    dump: Callable[[Any], Any] = asdict

    def read(self) -> dict[str, Line]:
        """All finished items by name, in the order of the file; empty if there is no file."""
        items: dict[str, Line] = {}
        for number, line in enumerate(complete_lines(self.path) if self.path.exists() else [], 1):
            try:
                item = self.parse(json.loads(line))
                name = self.key(item)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise InputError(f"{self.path}, line {number}: not {self.what} ({error}); {self.way_out}") from error
            if name in items:
                raise InputError(f"{self.path}, line {number}: a second line for {name}; {self.way_out}")
            items[name] = item
        return items

    def complete(
        self,
        names: Sequence[str],
        compute: Callable[[Sequence[str]], Iterable[Line]],
        track: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> dict[str, Line]:
        """Compute the items that are missing and append each to the file as it comes.

        Args:
            names: of all items.
            compute: names of those that are missing → the items, in any order.
            track: called with the numbers of items done and in all.

        Returns:
            All items of the file by name, those that were there already included.
        """
        items = self.read()
        todo = [name for name in names if name not in items]
        done = len(names) - len(todo)
        track(done, len(names))
        with append_lines(self.path) as write:
            for count, item in enumerate(compute(todo), 1):
                write(json.dumps(self.dump(item)))
                items[self.key(item)] = item
                track(done + count, len(names))
        return items


# ---------------------------------------------------------------- arguments → command


def format_command(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """Arguments as data → a command to copy, quoted for a shell.

    None, False and empty values are left out, True is an option without a value, a list follows its option, and a
    mapping repeats its option: ``{"set": {"a": 1, "b": [2, 3]}}`` → ``--set a=1 --set 'b=[2, 3]'``.

    >>> format_command(["eval"], {"benchmark": "spair", "split": None, "limit": 20})
    'transformatcher eval --benchmark spair --limit 20'
    """
    parts = ["transformatcher", *words]
    for key, value in options.items():
        option = f"--{key.replace('_', '-')}"
        if value is None or value is False or (isinstance(value, str | Sequence | Mapping) and not value):
            continue
        if value is True:
            parts.append(option)
        elif isinstance(value, Mapping):
            for inner, item in flatten(value).items():
                bare = isinstance(item, str) and item.isidentifier()
                parts += [option, f"{inner}={item if bare else json.dumps(item)}"]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            parts += [option, *map(str, value)]
        else:
            parts += [option, str(value)]
    return shlex.join(parts)
