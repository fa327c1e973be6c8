"""A .toml file → a study: rows of settings that are trained and evaluated alike.

A study file has the tables of a run ([model], [data], [train]), ``title``, ``question``, ``measure`` (the sets of pairs
to evaluate on), ``seeds``, and ``[[row]]`` entries: a ``label`` and the settings (``set``) in which the row differs.
``base`` names another file for everything that is left out. The studies of the package are in ``studies/``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformatcher.config import (
    REFINERS,
    PairSource,
    RunConfig,
    check_keys,
    chosen_refiner,
    merged,
    nested,
    pair_source,
    read_tables,
    run_config,
)
from transformatcher.errors import InputError
from transformatcher.training.validation import set_name

STUDIES = Path(__file__).parent / "studies"
TABLES = ("model", "data", "train")


@dataclass(frozen=True)
class StudyRow:
    """One row of a study's table: its label, and the config of its runs."""

    label: str
    config: RunConfig

    @property
    def folder(self) -> str:
        """The label as the name of a folder."""
        return "".join(c if c.isalnum() else "-" for c in self.label.lower()).strip("-")


@dataclass(frozen=True)
class Study:
    """Rows to compare, each trained with every seed and evaluated on the same sets."""

    name: str
    title: str
    question: str
    rows: Sequence[StudyRow]
    measure: Sequence[PairSource]
    seeds: Sequence[int]


def known_studies() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.toml") if path.stem != "base")


def read_study(name: str, settings: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None) -> Study:
    """Read a study file and check the configs of all its rows.

    Args:
        name: one of :func:`known_studies`, or a .toml file.
        settings: dotted keys (``table.key``) that change all rows; a row's own settings win.
        seeds: in place of the study's own.
    """
    path = Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"{name}: no such study; there are {', '.join(known_studies())}, or name a .toml file")
    data = read_tables(path)
    if "base" in data:
        data = merged(read_tables(_find_base(data.pop("base"), path)), data)
    check_keys(data, ["title", "question", "measure", "seeds", "row", *TABLES], str(path))
    for key, kind in {"title": str, "question": str, **dict.fromkeys(TABLES, dict)}.items():
        if not isinstance(data.get(key, kind()), kind):
            raise InputError(f"{path}: {key} = {data[key]!r} is not {'text' if kind is str else 'a table of keys'}")
    return Study(
        name=path.stem,
        title=data.get("title", path.stem),
        question=data.get("question", ""),
        rows=_read_rows(data, settings or {}, path),
        measure=_read_sets(data.get("measure"), path),
        seeds=_check_seeds(seeds or data.get("seeds", [0]), path),
    )


def _find_base(name: object, path: Path) -> Path:
    """The base file: beside the study, or among the studies of the package."""
    if not isinstance(name, str):
        raise InputError(f"{path}: base = {name!r}: expected the name of a .toml file")
    beside = path.parent / name
    return beside if beside.is_file() or not (STUDIES / name).is_file() else STUDIES / name


def _list_of_tables(value: object, error: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise InputError(error)
    return value


def _read_rows(data: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> list[StudyRow]:
    entries = _list_of_tables(data.get("row"), f"{path}: no [[row]]; a study needs at least one")
    tables = {key: data.get(key, {}) for key in TABLES}
    rows: dict[str, StudyRow] = {}
    for number, entry in enumerate(entries, 1):
        source = f"{path}, row {number}"
        check_keys(entry, ["label", "set"], source)
        label, changes = entry.get("label"), entry.get("set", {})
        if not isinstance(label, str) or not isinstance(changes, dict):
            raise InputError(f'{source}: expected label = "…" and set = {{ "table.key" = … }}')
        row = StudyRow(label, _row_config(tables, changes, settings, source))
        if row.folder in rows:
            raise InputError(f"{source}: {label!r} and {rows[row.folder].label!r} have the same folder, {row.folder}")
        rows[row.folder] = row
    for key in settings:
        refiner = key.removeprefix("model.").partition(".")[0]
        if refiner in REFINERS and all(row.config.model.refiner != refiner for row in rows.values()):
            raise InputError(f"--set {key}: no row of {path.stem} has the refiner {refiner!r}")
    return list(rows.values())


def _row_config(
    tables: Mapping[str, Any], changes: Mapping[str, Any], settings: Mapping[str, Any], source: str
) -> RunConfig:
    """The config of one row: its ``changes`` win over ``settings``; settings of other refiners are left out."""
    model = nested({**tables, **settings, **changes}, source)["model"]
    refiner = chosen_refiner(model) if isinstance(model, Mapping) else None
    unused = tuple(f"model.{name}." for name in REFINERS if name != refiner)
    wanted = {key: value for key, value in settings.items() if key not in changes and not key.startswith(unused)}
    return run_config({**tables, **changes}, source, wanted)


def _read_sets(value: object, path: Path) -> list[PairSource]:
    error = f"{path}: no measure = [{{ benchmark = …, folder = …, split = … }}]; a study needs at least one set"
    entries = _list_of_tables(value, error)
    sets = [pair_source(entry, f"{path}, measure") for entry in entries]
    if len({set_name(item) for item in sets}) < len(sets):
        raise InputError(f"{path}: measure names a set twice")
    return sets


def _check_seeds(seeds: Any, path: Path) -> list[int]:
    if not isinstance(seeds, Sequence) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"{path}: seeds = {seeds}: expected a list of whole numbers from 0")
    return list(dict.fromkeys(seeds))
