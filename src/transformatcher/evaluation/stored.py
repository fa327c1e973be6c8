"""Files that other commands wrote, perhaps elsewhere → checked data: nobody knows who has changed them since."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, StrictBool, StrictStr, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from transformatcher.data.benchmarks import BENCHMARKS
from transformatcher.errors import InputError
from transformatcher.run_folder import RUN, read_arguments

Name = Annotated[StrictStr, Field(max_length=1000)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Side = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Number = Annotated[FiniteFloat, Field(ge=-1e12, le=1e12)]
Positive = Annotated[FiniteFloat, Field(gt=0, le=1e18)]

_OPEN = ConfigDict(extra="allow")  # what else is there may stay, and is never used


class _CoarseToFine(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    region: Name


class _Model(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    image_size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    backbone: Name
    coarse_to_fine: _CoarseToFine


class EvalArguments(TypedDict, total=False):
    """The arguments in ``run.json`` of a folder that eval wrote; every one may be missing."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    benchmark: Name
    split: Name | None
    limit: Count | None
    seed: Count | None
    weights: Name | None
    refiner: Name | None
    backbone: Name | None
    backbone_weights: Name | None
    set: dict[Name, Any]
    precision: Name | None
    n_pairs: Count
    pairs: Name
    model: _Model
    weights_hash: Name
    facing: Literal["same", "opposite"] | None
    unrelated: StrictBool
    all_points: StrictBool
    try_mirrored: StrictBool


class BenchRow(TypedDict):
    """A timed combination."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    backend: Name
    batch: Side
    size: Side
    backbone: Name
    variant: Name
    mode: Name
    matches: Positive
    ms_per_pair: Positive
    peak_gib: Positive
    gflops: Number
    floor_ms: Positive


class BenchReport(TypedDict):
    """What ``bench --json`` prints."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    device: Name
    rows: Annotated[list[BenchRow], Field(min_length=1, max_length=10_000)]


class MeanAndSpread(TypedDict):
    """A number of a study, over its seeds."""

    mean: Number
    spread: Annotated[Number, Field(ge=0)]


def _is_row(row: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for a row of a study whose values are not what their keys say."""
    for key, value in row.items():
        wanted = {"label": str, "seeds": int}.get(key, dict if " @ " in key else dict | float | int | None)
        if not isinstance(value, wanted):
            raise ValueError(f"{key} = {value!r}")
    if not {"label", "seeds"} <= row.keys():
        raise ValueError("it has no label, or no number of seeds")
    return row


AblationRow = Annotated[dict[Name, MeanAndSpread | Count | Number | Name | None], AfterValidator(_is_row)]


class Ablation(TypedDict):
    """``ablation.json``."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    name: Name
    columns: list[Name]
    pck_thresholds: NotRequired[dict[Name, Name]]
    rows: list[AblationRow]


class _Layer(TypedDict):
    mean: Annotated[Number, Field(ge=0)]
    heads: Annotated[list[Annotated[Number, Field(ge=0)]], Field(min_length=1)]
    quantiles: Annotated[list[Annotated[Number, Field(ge=0)]], Field(min_length=5, max_length=5)]


class _Convolution(TypedDict):
    dims: Side
    kernel: Side
    phi: Annotated[Number, Field(ge=0)]
    phi_bounded: Annotated[Number, Field(ge=0)]
    quantiles: Annotated[list[Annotated[Number, Field(ge=0)]], Field(min_length=5, max_length=5)]


class _Trend(TypedDict):
    phi: list[Number]
    shares: list[Annotated[list[Number], Field(min_length=3, max_length=3)]]
    rank_correlation: Number | None
    p_value: Number | None


_Layers = Annotated[list[_Layer], Field(min_length=1)]
_Trends = dict[Name, _Trend]


class _ByForm(TypedDict):
    pairwise: _Layers
    query: _Layers
    key: _Layers


class _TrendsByForm(TypedDict):
    pairwise: _Trends
    query: _Trends
    key: _Trends


class _Nonlocality(TypedDict):
    """``nonlocality.json``."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    n_pairs: Count
    grid: Annotated[list[Side], Field(min_length=4, max_length=4)]
    uniform: Positive
    layers: _ByForm
    convolutions: Annotated[list[_Convolution], Field(min_length=1)]
    difficulty: _TrendsByForm


def _is_consistent(summary: Any) -> Any:
    """Raise ValueError unless all forms have the same layers and the same factors of difficulty."""
    layers, trends = list(summary["layers"].values()), list(summary["difficulty"].values())
    if any(len(rows) != len(layers[0]) for rows in layers) or any(by.keys() != trends[0].keys() for by in trends):
        raise ValueError("its forms of nonlocality do not have the same layers and factors")
    for trend in (trend for by in trends for trend in by.values()):
        same = (trend["p_value"] is None) == (trend["rank_correlation"] is None)
        if len(trend["phi"]) != len(trend["shares"]) or not trend["phi"] or not same:
            raise ValueError("a factor of difficulty lacks numbers")
    return summary


Nonlocality = Annotated[_Nonlocality, AfterValidator(_is_consistent)]


def checked(kind: Any, data: Any, source: Path | str, way_out: str) -> Any:
    """Data of a file as it is declared, or an InputError that names the first key that is not.

    Args:
        kind: a TypedDict or dataclass.
        data: from JSON.
        source: the file, for the message.
        way_out: what the user can do.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except (ValidationError, RecursionError) as error:
        raise InputError(f"{source}: {first_problem(error)}; {way_out}") from error


def first_problem(error: ValidationError | RecursionError) -> str:
    """The first thing that pydantic has found, as ``rows.0.batch: Input should be …``."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def read_eval_arguments(folder: Path) -> Mapping[str, Any]:
    """The arguments of the eval that wrote a folder; empty where ``run.json`` is missing or damaged."""
    arguments = read_arguments(folder)
    if arguments.get("benchmark", "") not in [*BENCHMARKS, ""]:
        raise InputError(
            f"{folder / RUN}: {arguments['benchmark']!r} is no benchmark that is known here; run eval again"
        )
    return checked(EvalArguments, arguments, folder / RUN, "not what eval writes; run eval again with --overwrite")
