"""A table or figure of the paper → what it takes, and its numbers beside ours.

Models are rows of the studies ``paper-spair`` and ``paper-pfpascal``. Tables and figures share them, so each is trained
and evaluated once, in one folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transformatcher.evaluation.analysis.paper import (
    SHORT_NAMES,
    SPAIR_05,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_3_PCK,
    TABLE_A2,
    class_wise,
)

# Name of a model → the row of the study that trains it.
MODELS: Mapping[str, tuple[str, str]] = {
    "spair-rotary": ("paper-spair", "rotary, augmented"),
    "spair-rotary-plain": ("paper-spair", "rotary, not augmented"),
    "spair-absolute": ("paper-spair", "absolute, augmented"),
    "spair-absolute-plain": ("paper-spair", "absolute, not augmented"),
    "spair-linformer": ("paper-spair", "Linformer"),
    "spair-performer": ("paper-spair", "Performer"),
    "spair-concat": ("paper-spair", "one channel: features concatenated"),
    "spair-mean": ("paper-spair", "one channel: mean of the maps"),
    "pfpascal-rotary": ("paper-pfpascal", "rotary, augmented"),
    "pfpascal-rotary-plain": ("paper-pfpascal", "rotary, not augmented"),
    "pfpascal-absolute": ("paper-pfpascal", "absolute, augmented"),
    "pfpascal-absolute-plain": ("paper-pfpascal", "absolute, not augmented"),
}
CATS = "CATs' own predictions (its weights: https://github.com/SunghwanHong/CATs)"
EXACT = "exact attention between 15⁴ matches, which is out of memory in the paper, too; `ablate attention` has 6⁴"


@dataclass(frozen=True)
class PaperNumber:
    """A PCK that the paper prints, and which of our models it is to be compared with."""

    row: str
    model: str  # a key of MODELS
    benchmark: str
    pck_threshold: str
    alpha: str
    value: float
    category: str = ""  # empty: all pairs


@dataclass(frozen=True)
class PaperCost:
    """Milliseconds, GB and GFLOP of a pair that the paper prints."""

    row: str
    model: str
    value: tuple[int | None, float | None, float | None]


@dataclass(frozen=True)
class PictureOf:
    """Pictures of a model on SPair-71k: ``errors`` of its pairs, ``warps`` of its best ones, ``nonlocality``."""

    kind: str
    model: str
    factor: str = ""  # warps: only pairs that are hard in this factor, where there are any


@dataclass(frozen=True)
class PaperItem:
    """A table or figure of the paper."""

    name: str
    title: str
    numbers: Sequence[PaperNumber] = ()
    costs: Sequence[PaperCost] = ()
    pictures: Sequence[PictureOf] = ()
    missing: Sequence[str] = field(default_factory=tuple)  # what nobody can have from here

    @property
    def models(self) -> list[str]:
        """The models that it takes, each once."""
        parts: list[PaperNumber | PaperCost | PictureOf] = [*self.numbers, *self.costs, *self.pictures]
        return list(dict.fromkeys(part.model for part in parts))

    def benchmarks_of(self, model: str) -> list[str]:
        """The benchmarks that a model is evaluated on."""
        named = [number.benchmark for number in self.numbers if number.model == model]
        needs_predictions = any(picture.model == model and picture.kind != "nonlocality" for picture in self.pictures)
        return list(dict.fromkeys([*named, *["spair"] * needs_predictions]))


def _table_1() -> PaperItem:
    numbers, costs = [], []
    for row, suffix in (("TransforMatcher", "-plain"), ("TransforMatcher†", "")):
        printed = TABLE_1[row]
        spair, pascal = f"spair-rotary{suffix}", f"pfpascal-rotary{suffix}"
        for model, benchmark, threshold, alpha, value, trained in (
            (spair, "spair", "bbox", "0.05", SPAIR_05[row], "SPair-71k"),
            (spair, "spair", "bbox", "0.1", printed.spair_f, "SPair-71k"),
            (pascal, "spair", "bbox", "0.1", printed.spair_t, "PF-PASCAL"),
            (pascal, "pfpascal", "img", "0.05", printed.pascal_05, "PF-PASCAL"),
            (pascal, "pfpascal", "img", "0.1", printed.pascal_10, "PF-PASCAL"),
            (pascal, "pfwillow", "bbox-kp", "0.1", printed.willow_kp, "PF-PASCAL"),
            (pascal, "pfwillow", "bbox-padded", "0.1", printed.willow_padded, "PF-PASCAL"),
        ):
            assert value is not None
            numbers.append(PaperNumber(f"{row}, trained on {trained}", model, benchmark, threshold, alpha, value))
    costs.append(PaperCost("TransforMatcher", "spair-rotary", TABLE_3["additive attention"]))
    return PaperItem("table1", "Table 1: standard benchmarks", numbers, costs)


def _table_2() -> PaperItem:
    numbers = []
    for row, values in TABLE_2.items():
        suffix = row.partition(",")[0] + "-plain" * ("not" in row)
        cells = (
            ("spair", "bbox", "0.05"),
            ("spair", "bbox", "0.1"),
            ("pfpascal", "img", "0.05"),
            ("pfpascal", "img", "0.1"),
        )
        for (benchmark, threshold, alpha), value in zip(cells, values, strict=True):
            numbers.append(PaperNumber(row, f"{benchmark}-{suffix}", benchmark, threshold, alpha, value))
    return PaperItem("table2", "Table 2: augmentation and position embedding", numbers)


def _spair_rows(models: Mapping[str, str], printed: Mapping[str, tuple[float, float]]) -> list[PaperNumber]:
    return [
        PaperNumber(row, models[row], "spair", "bbox", alpha, value)
        for row, values in printed.items()
        for alpha, value in zip(("0.05", "0.1"), values, strict=True)
    ]


def _table_3() -> PaperItem:
    models = {"Linformer": "spair-linformer", "Performer": "spair-performer", "additive attention": "spair-absolute"}
    costs = [PaperCost(row, model, TABLE_3[row]) for row, model in models.items()]
    numbers = _spair_rows(models, TABLE_3_PCK)
    return PaperItem("table3", "Table 3: kinds of attention", numbers, costs, missing=[EXACT])


def _table_a1() -> PaperItem:
    numbers = [
        PaperNumber(row, model, "spair", "bbox", "0.1", value, "" if category == "all" else category)
        for row, model in (("TransforMatcher", "spair-rotary-plain"), ("TransforMatcher†", "spair-rotary"))
        for category, value in class_wise()[row].items()
    ]
    assert len(numbers) == 2 * (len(SHORT_NAMES) + 1)
    return PaperItem("tableA1", "Table A1: SPair-71k by category", numbers)


def _table_a2() -> PaperItem:
    models = dict(zip(TABLE_A2, ("spair-concat", "spair-mean", "spair-rotary"), strict=True))
    return PaperItem("tableA2", "Table A2: channels of the correlation", _spair_rows(models, TABLE_A2))


def _figure(name: str, title: str, *pictures: PictureOf, missing: Sequence[str] = ()) -> PaperItem:
    return PaperItem(name, title, pictures=pictures, missing=missing)


_BEST = "spair-rotary"
_ITEMS = (
    _table_1(), _table_2(), _table_3(), _table_a1(), _table_a2(),
    _figure("figure5", "Figure 5: sources warped onto targets", PictureOf("warps", _BEST)),
    _figure("figure6", "Figure 6: nonlocality of kernels and of layers", PictureOf("nonlocality", _BEST)),
    _figure("figure7", "Figure 7: difficulty of pairs by nonlocality", PictureOf("nonlocality", _BEST)),
    _figure("figureA1", "Figure A1: keypoint errors, ours and CATs'", PictureOf("errors", _BEST), missing=[CATS]),
    _figure("figureA2", "Figure A2: large changes of scale", PictureOf("warps", _BEST, "scale")),
    _figure("figureA3", "Figure A3: large changes of viewpoint", PictureOf("warps", _BEST, "viewpoint")),
    _figure("figureA4", "Figure A4: more examples", PictureOf("warps", _BEST)),
)  # fmt: skip
ITEMS: Mapping[str, PaperItem] = {item.name: item for item in _ITEMS}
