"""Keys and values → a frozen config, or one sentence that names the key, its value and the rule.

Types, ranges and choices are declared at the fields of the config dataclasses; pydantic checks them. This module
turns the first thing it finds into a sentence for the user.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from transformatcher.errors import InputError

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)
LONGEST_VALUE = 100  # characters of a value that a message repeats

UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden", "invalid_key"}
OUT_OF_RANGE = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}

Config = TypeVar("Config")


def broken_rule(config: object, key: str, rule: str) -> PydanticCustomError:
    """What a model validator raises when the value of the dotted ``key`` does not go with other keys."""
    return PydanticCustomError("rule", "{rule}", {"key": key, "value": attrgetter(key)(config), "rule": rule})


def validate(
    kind: type[Config],
    values: Mapping[str, Any],
    source: str,
    *,
    overridden: Collection[str] = (),
    unused: Collection[str] = (),
) -> Config:
    """Nested tables of keys → a config of this kind.

    Args:
        kind: a config dataclass.
        values: its keys; those left out take their defaults.
        source: where the values come from, for messages.
        overridden: dotted keys that come from ``--set`` instead.
        unused: dotted names of tables that no hint should suggest.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
        first = next((item for item in found if item["type"] in UNKNOWN), found[0])
        path, sentence = _explain(kind, first, values, unused)
        if any(f"{key}.".startswith(f"{path}.") for key in overridden):
            source = "--set"
        raise InputError(f"{source}: {sentence}") from error


def check_keys(given: Mapping[str, Any], valid: Sequence[str], source: str) -> None:
    """Refuse the first unknown key, and name the valid one that is nearest to it."""
    for key in given:
        if key not in valid:
            raise InputError(f"{source}: {_unknown(str(key), valid)}")


def describe(annotation: Any, quote: str = "") -> str:
    """What a key of this type takes: "one of soft, bilinear", "2 whole numbers", …; choices between ``quote`` marks."""
    annotation, _ = _unwrap(annotation)
    parts, origin = get_args(annotation), get_origin(annotation)
    if origin is Literal:
        return f"one of {', '.join(f'{quote}{choice}{quote}' for choice in parts)}"
    if origin in (Union, UnionType):
        return " or ".join(describe(part, quote) for part in parts if part is not NoneType)
    if origin is tuple:
        many = {int: "whole numbers", float: "numbers"}.get(_unwrap(parts[0])[0], "tables of keys")
        return f"a list of {many}" if parts[-1] is ... else f"{len(parts)} {many}"
    if is_dataclass(annotation):
        return "a table of keys"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[annotation]


def limits(field: FieldInfo) -> str:
    """The range of a field's numbers, such as "between 1 and 64"; empty if it has none."""
    low, high, above, below = (_limit(field, name) for name in ("ge", "le", "gt", "lt"))
    if low is not None and high is not None:
        return f"between {_number(low)} and {_number(high)}"
    bounds = {"at least": low, "above": above, "at most": high, "below": below}
    return " and ".join(f"{words} {_number(bound)}" for words, bound in bounds.items() if bound is not None)


def fields_of(kind: Any) -> dict[str, FieldInfo]:
    """The fields of a config dataclass by name."""
    return dict(kind.__pydantic_fields__)


def _explain(kind: type, error: ErrorDetails, values: Mapping[str, Any], unused: Collection[str]) -> tuple[str, str]:
    """(dotted key, sentence)"""
    path, table, field, value = _locate(kind, error["loc"], values)
    rules = error.get("ctx", {})
    if error["type"] in UNKNOWN:
        keys = _all_keys(table, path) if path.endswith("]") else _all_keys(kind)  # no table is like an entry of a list
        valid = [key for key in keys if not any(f"{key}.".startswith(f"{name}.") for name in unused)]
        path = _join(path, str(error["loc"][-1]))
        return path, _unknown(path, valid)
    if error["type"] == "missing":
        return path, f"{path} must be given"
    if error["type"] == "rule":
        path, value = _join(path, rules["key"]), rules["value"]
        return path, f"{path}: {rules['rule']}" if value is None else f"{path} = {show(value)}: {rules['rule']}"
    if field is None:
        return path, f"{path + ' = ' if path else ''}{show(value)}: expected a table of keys"
    if limits(field) and (error["type"] in OUT_OF_RANGE or _is_huge(value)):
        each = "each " if isinstance(value, list | tuple) else ""
        return path, f"{path} = {show(value)}: {each}must be {limits(field)}"
    near = difflib.get_close_matches(str(value), _choices(field.annotation), n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return path, f"{path} = {show(value)}: expected {describe(field.annotation)}{hint}"


def _locate(kind: Any, loc: Sequence[int | str], values: Any) -> tuple[str, Any, FieldInfo | None, Any]:
    """An error's location → (dotted key, the config dataclass there, the key's field, its value).

    There is no dataclass at a simple value, and no field at a table or an entry of a list.
    """
    path, field = "", None
    for part in loc:
        if isinstance(part, int) and kind is not None:  # an entry of a list of tables
            path, field, values = f"{path}[{part}]", None, values[part]
        elif is_dataclass(kind) and part in fields_of(kind):
            path, field = _join(path, str(part)), fields_of(kind)[str(part)]
            kind = _table_in(field.annotation)
            values = values.get(part) if isinstance(values, Mapping) else values
        else:  # an unknown key; or inside a value, which is shown as a whole
            break
    is_table = field is not None and is_dataclass(field.annotation)
    return path, kind, None if is_table else field, values


def _table_in(annotation: Any) -> Any:
    """The config dataclass in a field's type, if there is one."""
    if is_dataclass(annotation):
        return annotation
    return next((part for part in get_args(annotation) if is_dataclass(part)), None)


def _all_keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys, a table's own before those of tables in it."""
    tables = []
    for name, field in fields_of(kind).items():
        yield _join(prefix, name)
        if is_dataclass(field.annotation):
            tables.append((field.annotation, _join(prefix, name)))
    for table, path in tables:
        yield from _all_keys(table, path)


def _unknown(path: str, valid: Sequence[str]) -> str:
    """Look for the same name in other tables, then for a similar one in the same table, below it, and anywhere."""
    table, name = _split(path)
    beside = [key for key in valid if _split(key)[0] == table]
    below = [key for key in valid if key.startswith(f"{table}.") or not table]
    for keys, cutoff in ((below, 1.0), (valid, 1.0), (beside, 0.5), (below, 0.5), (valid, 0.8)):
        names = {_split(key)[1]: key for key in reversed(keys)}
        if near := difflib.get_close_matches(name, names, n=1, cutoff=cutoff):
            return f"unknown key {path!r}; did you mean {names[near[0]]!r}?"
    return f"unknown key {path!r}; valid keys: {', '.join(_split(key)[1] for key in beside or valid)}"


def _join(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name


def _split(path: str) -> tuple[str, str]:
    table, _, name = path.rpartition(".")
    return table, name


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Annotated[int, …] → int and what it is annotated with."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        return inner, tuple(notes)
    return annotation, ()


def _choices(annotation: Any) -> list[str]:
    """The strings that a key of this type takes."""
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _limit(field: FieldInfo, name: str) -> int | float | None:
    """One limit of a field's numbers, which may stand at the numbers of a list."""
    notes = [*field.metadata]
    todo = [field.annotation]
    while todo:
        inner, more = _unwrap(todo.pop())
        notes += [deep for note in more for deep in getattr(note, "metadata", (note,))]
        todo += [part for part in get_args(inner) if get_origin(inner) is not Literal]
    return next((getattr(note, name) for note in notes if hasattr(note, name)), None)


def _number(value: int | float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _is_huge(value: Any) -> bool:
    """Whether an integer is too large to become a float."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**1000


def show(value: Any) -> str:
    """A value for a message: tuples as the lists that a file has, and not more of it than can be read."""
    try:
        text = repr(list(value) if isinstance(value, tuple) else value)
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return f"a very long {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
