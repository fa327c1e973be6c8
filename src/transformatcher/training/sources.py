"""Data config → the pairs to train on."""

import hashlib
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TypeVar

import numpy as np

from transformatcher.config import DataConfig, PairSource
from transformatcher.data.benchmarks import find_benchmark, load_benchmark
from transformatcher.data.coco_pairs import CocoPairs, SelfPairs, relative_size, unique_objects
from transformatcher.data.loader import WeightedPairs
from transformatcher.data.pairs import image_stems
from transformatcher.errors import InputError

Item = TypeVar("Item")


def load_source(item: PairSource, data: DataConfig, seed: int) -> WeightedPairs:
    """One entry of ``data.train`` → its pairs, without those that show an image of ``data.exclude_images_of``.

    Args:
        item: the entry.
        data: the table it is in, with the rules for all sources.
        seed: of pairs that are drawn at random.
    """
    root = Path(data.root) / item.folder
    excluded = _excluded_images(data)
    benchmark = find_benchmark(item.benchmark)
    if benchmark.content == "pairs":
        listed = load_benchmark(item.benchmark, root, item.split, limit=item.limit)
        listed = _exclude(listed, image_stems, excluded, f"{root}, {item.split}: pair")
        return WeightedPairs(SelfPairs(unique_objects(listed), seed=seed) if item.self_pairs else listed, item.weight)
    objects = benchmark.load(root, item.split)
    objects = _exclude(objects, lambda annotated: {annotated.image.stem}, excluded, f"{root}: object")
    large = [annotated for annotated in objects if relative_size(annotated) >= data.min_object_scale]
    if objects and not large:
        raise InputError(
            f"{root}: none of the {len(objects)} objects is as large as data.min_object_scale = "
            f"{data.min_object_scale:g}"
        )
    if item.self_pairs:
        return WeightedPairs(SelfPairs(large, seed=seed), item.weight)
    pairs = CocoPairs(
        large,
        seed=seed,
        min_shared=data.min_shared,
        min_overlap=data.min_overlap,
        balanced=data.balance_categories,
        mirror=data.p_flip_target,
    )
    return WeightedPairs(pairs, item.weight)


def _excluded_images(data: DataConfig) -> set[str]:
    """File names, without suffixes, of the images that must not be trained on."""
    names: set[str] = set()
    for item in data.exclude_images_of:
        root = Path(data.root) / item.folder
        try:
            benchmark = find_benchmark(item.benchmark)
            loaded = benchmark.load(root, item.split)
            if benchmark.content == "pairs":
                names = names.union(*map(image_stems, loaded))
            else:
                names |= {annotated.image.stem for annotated in loaded}
        except InputError as error:
            raise InputError(f"data.exclude_images_of: {error}") from error
    return names


def _exclude(items: list[Item], image_names: Callable[[Item], Set[str]], excluded: Set[str], what: str) -> list[Item]:
    """The items that show no excluded image; an error where none is left."""
    left = [item for item in items if not image_names(item) & excluded]
    if items and not left:
        raise InputError(
            f"{what}s: all {len(items)} show images that data.exclude_images_of names; "
            "does it name another split than trn?"
        )
    return left


def fingerprint_sources(sources: Sequence[WeightedPairs]) -> str:
    """A short hash of what is trained on: pairs or objects, their annotations, and the names of their images."""
    digest = hashlib.sha256()
    for source in sources:
        items = source.pairs.objects if isinstance(source.pairs, CocoPairs | SelfPairs) else source.pairs
        digest.update(f"{type(source.pairs).__name__} {len(items)} ".encode())
        for item in items:
            for key, value in sorted(vars(item).items()):
                if isinstance(value, np.ndarray):
                    described = value.tobytes().hex()
                else:
                    described = value.name if isinstance(value, Path) else repr(value)
                digest.update(f"{key}={described};".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
