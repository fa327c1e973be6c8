"""Name of a benchmark → all facts about it, and its pairs.

A new benchmark is one file with its loader and one record in ``BENCHMARKS``. This module is imported by the command
line before torch is, so loaders are named here and imported when they are called.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformatcher.errors import InputError

if TYPE_CHECKING:
    import transformatcher.schema

SPLITS = ("trn", "val", "test")
DRAWN_PAIRS = 1000  # how many pairs are drawn from annotated objects if no number is given
PckThreshold = Literal["img", "bbox", "bbox-kp", "bbox-padded"]  # see evaluation.metrics.reference_length


@dataclass(frozen=True)
class Benchmark:
    """All facts about one benchmark.

    Args:
        name: in commands and configs.
        title: in tables and plots.
        loader: ``module:function``, called as ``function(root, split, on_problem=…)``. It returns what ``content``
            says; a loader of objects also takes ``inside_only``.
        content: ``pairs`` (of :class:`transformatcher.schema.ImagePair`), or annotated ``objects``
            (:class:`transformatcher.data.coco_keypoints.AnnotatedObject`), from which pairs are drawn.
        pck_threshold: the threshold of its published PCK.
        pair_lists: the file that lists the pairs of a split, as a glob pattern in its folder with ``{split}`` in it.
        n_pairs: how many pairs each published split has (None: not known here); the splits are the keys.
        citation: where it was published.
        url: where it comes from.
        options: of the loader, where one loader reads several benchmarks.
        folder: its usual name; empty: the title.
    """

    name: str
    title: str
    loader: str
    content: Literal["pairs", "objects"]
    pck_threshold: PckThreshold
    citation: str
    url: str = ""
    pair_lists: str = ""
    n_pairs: Mapping[str, int | None] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""

    def load(self, root: Path, split: str = "test", **options: Any) -> list[Any]:
        """The pairs or the annotated objects of a split; ``options`` are those of the loader."""
        module, function = self.loader.split(":")
        loaded: list[Any] = getattr(import_module(module), function)(root, split, **self.options, **options)
        return loaded


_RECORDS = [
    Benchmark(
        name="spair",
        title="SPair-71k",
        loader="transformatcher.data.spair:load_spair",
        content="pairs",
        pck_threshold="bbox",
        url="http://cvlab.postech.ac.kr/research/SPair-71k/",
        pair_lists="Layout/large/{split}.txt",
        n_pairs={"trn": 53_340, "val": 5_384, "test": 12_234},
        citation="Min et al., SPair-71k: a large-scale benchmark for semantic correspondence, 2019",
    ),
    Benchmark(
        name="spair-u",
        title="SPair-U",
        loader="transformatcher.data.spair:load_spair_u",
        content="pairs",
        pck_threshold="bbox",
        url="https://github.com/VICO-UoE/JamaisVu",
        pair_lists="*PairAnnotation/{split}",
        n_pairs={"test": None},
        citation="Mariotti et al., Jamais Vu: exposing the generalization gap in supervised semantic correspondence, "
        "NeurIPS 2025; photos of SPair-71k",
    ),
    Benchmark(
        name="pfpascal",
        title="PF-PASCAL",
        loader="transformatcher.data.pf:load_pfpascal",
        content="pairs",
        pck_threshold="img",
        url="https://www.di.ens.fr/willow/research/proposalflow/ and the lists of https://github.com/ignacio-rocco/ncnet",
        pair_lists="{split}_pairs.csv",
        n_pairs={"trn": 2_940, "val": 308, "test": 299},
        citation="Ham et al., Proposal Flow: semantic correspondences from object proposals, TPAMI 2018; "
        "pair lists of Rocco et al., Neighbourhood consensus networks, NeurIPS 2018",
    ),
    Benchmark(
        name="pfwillow",
        title="PF-WILLOW",
        loader="transformatcher.data.pf:load_pfwillow",
        content="pairs",
        pck_threshold="bbox-kp",
        url="https://www.di.ens.fr/willow/research/proposalflow/",
        pair_lists="{split}_pairs*.csv",
        n_pairs={"test": 900},
        citation="Ham et al., Proposal Flow, CVPR 2016",
    ),
    *(
        Benchmark(
            name=f"ap10k-{subset}",
            title=f"AP-10K {subset}",
            loader="transformatcher.data.ap10k:load_ap10k",
            content="pairs",
            pck_threshold="bbox",
            url="https://github.com/AlexTheBad/AP-10K and prepare_ap10k.ipynb of https://github.com/Junyi42/GeoAware-SC",
            pair_lists=f"PairAnnotation/{{split}}{suffix}",
            n_pairs=dict.fromkeys(splits),
            options={"suffix": suffix},
            folder="ap-10k",
            citation="Yu et al., AP-10K: a benchmark for animal pose estimation in the wild, NeurIPS 2021; pairs of "
            "Zhang et al., Telling left from right, CVPR 2024",
        )
        for subset, suffix, splits in (
            ("intra-species", "", SPLITS),
            ("cross-species", "_cross_species", SPLITS[1:]),
            ("cross-family", "_cross_family", SPLITS[1:]),
        )
    ),
    Benchmark(
        name="coco",
        title="COCO",
        loader="transformatcher.data.coco_keypoints:load_coco",
        content="objects",
        pck_threshold="bbox",
        citation="Lin et al., Microsoft COCO: common objects in context, ECCV 2014; or your own data in its format",
    ),
]
BENCHMARKS: dict[str, Benchmark] = {record.name: record for record in _RECORDS}


def find_benchmark(name: str) -> Benchmark:
    """The record of this name, or an error that lists the names."""
    if name not in BENCHMARKS:
        close = get_close_matches(name, BENCHMARKS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"benchmark {name!r} is none of {', '.join(BENCHMARKS)}{hint}")
    return BENCHMARKS[name]


def benchmark_title(name: str, split: str | None = None) -> str:
    """``"pfwillow", "test"`` → ``PF-WILLOW test``; a name that is not known stays as it is."""
    title = BENCHMARKS[name].title if name in BENCHMARKS else name
    return f"{title} {split or ''}".strip()


def benchmark_folder(name: str) -> str:
    """The usual name of a benchmark's folder, for commands in documents."""
    return (BENCHMARKS[name].folder or BENCHMARKS[name].title) if name in BENCHMARKS else name


def with_training_pairs() -> list[str]:
    """The names of the benchmarks that have a list of pairs for training."""
    return [name for name, benchmark in BENCHMARKS.items() if "trn" in benchmark.n_pairs]


def find_split(split: str) -> str:
    """The usual spellings of a split → trn, val or test."""
    name = {"train": "trn", "training": "trn", "validation": "val"}.get(split, split)
    if name not in SPLITS:
        raise InputError(f"split {split!r} is none of {', '.join(SPLITS)}")
    return name


def load_benchmark(
    name: str,
    root: Path,
    split: str = "test",
    *,
    limit: int | None = None,
    seed: int = 0,
    facing: Literal["same", "opposite"] | None = None,
    unrelated: bool = False,
) -> "list[transformatcher.schema.ImagePair]":
    """The pairs of a split.

    Args:
        name: of the benchmark.
        root: its folder.
        split: trn, val or test.
        limit: at most so many pairs, evenly spaced in the list and so spread over its categories. Where pairs are drawn
            from annotated objects: how many (``DRAWN_PAIRS`` if None).
        seed: of pairs that are drawn.
        facing: draw only pairs that show the same sides of their objects, or opposite sides.
        unrelated: give every source the target of a pair of another category.
    """
    from transformatcher.data.coco_pairs import draw_facing_pairs, draw_pairs
    from transformatcher.data.pairs import subsample_evenly
    from transformatcher.data.unrelated import unrelated_pairs

    benchmark = find_benchmark(name)
    loaded = benchmark.load(root, split)
    if benchmark.content == "pairs":
        if facing is not None:
            raise InputError(
                f"--facing {facing}: pairs are drawn from annotated objects (coco); {name} lists its pairs"
            )
        pairs = subsample_evenly(loaded, limit)
    else:
        count = DRAWN_PAIRS if limit is None else limit
        pairs = draw_pairs(loaded, count, seed) if facing is None else draw_facing_pairs(loaded, count, facing, seed)
    return unrelated_pairs(pairs, seed) if unrelated else pairs
