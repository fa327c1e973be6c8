"""Name, folder and split → the pairs of a benchmark."""

from pathlib import Path
from typing import Literal, get_args

from transformatcher.data.coco_keypoints import find_coco, load_coco_objects
from transformatcher.data.coco_pairs import CocoPairs
from transformatcher.data.pairs import find_split
from transformatcher.data.pf import load_pfpascal, load_pfwillow
from transformatcher.data.spair import load_spair
from transformatcher.schema import ImagePair

Benchmark = Literal["spair", "pfpascal", "pfwillow", "coco"]
BENCHMARKS: tuple[Benchmark, ...] = get_args(Benchmark)


def load_benchmark(
    benchmark: Benchmark, root: Path, split: str = "test", *, n_pairs: int = 1000, seed: int = 0
) -> list[ImagePair]:
    """All pairs of a split; for ``coco``, the first ``n_pairs`` different ones of the sequence that ``seed`` draws."""
    if benchmark == "spair":
        return load_spair(root, split)
    if benchmark == "pfpascal":
        return load_pfpascal(root, split)
    if benchmark == "pfwillow":
        return load_pfwillow(root, split)
    sampler = CocoPairs(load_coco_objects(*find_coco(root, find_split(split))), seed=seed)
    drawn: dict[str, ImagePair] = {}
    for index in range(10 * n_pairs):  # a small file may not have as many different pairs
        pair = sampler[index]
        drawn.setdefault(pair.name, pair)
        if len(drawn) == n_pairs:
            break
    return list(drawn.values())
