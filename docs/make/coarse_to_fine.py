"""Two passes with one choice changed at a time → PCK of each: the table in docs/ablations.md.

Usage: python docs/make/coarse_to_fine.py SPair-71k PF-PASCAL [PAIRS]: of PAIRS pairs of SPair-71k val (90), and two
thirds as many of PF-PASCAL val. Rows that match the same crops share their passes.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from transformatcher import Matcher
from transformatcher.coords import norm_to_px, rescale_px
from transformatcher.data.benchmarks import find_benchmark, load_benchmark
from transformatcher.data.pairs import LoadedPair, collate, load_pair
from transformatcher.evaluation.metrics import correct_points, point_errors, reference_length
from transformatcher.evaluation.scores import PUBLISHED_FRAME
from transformatcher.inference.coarse_to_fine import CoarseToFine
from transformatcher.inference.crops import Box, enlargement
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.passes import Passes, QueryPoints
from transformatcher.inference.readout import read_points

ALPHAS = (0.05, 0.1)
LARGER = 352  # pixels, where the model was trained with 272


class TrustedBoxes(CoarseToFine):
    """The target's crop is made around the points with small cycle errors, at least half of them."""

    def _boxes(self, passes: Passes, src: Any, trg: Any, query: QueryPoints | None, shrink: float) -> Any:
        assert query is not None
        cycle = passes.read(query.norm).cycle_error.masked_fill(~query.given, torch.inf)
        half = cycle <= cycle[query.given].median().clamp(min=0.15)
        src_boxes, _ = super()._boxes(passes, src, trg, query, shrink)
        return src_boxes, super()._boxes(passes, src, trg, QueryPoints(query.norm, half), shrink)[1]


class AgreedBoxes(CoarseToFine):
    """Outliers among the first matches are corrected by the others before the target's crop is made around them."""

    def _boxes(
        self, passes: Passes, src: Sequence[EncodedPhoto], trg: Sequence[EncodedPhoto], query: Any, shrink: float
    ) -> tuple[list[Box], list[Box]]:
        twice = passes.followed_by(passes.last)  # of several passes, points that are given agree
        return super()._boxes(twice, src, trg, query, shrink)


class Mixture(Passes):
    """The distributions of both passes are averaged, instead of adding their scores."""

    def _added(self, total: Tensor, *args: Any) -> Tensor:
        fine, both = (
            replace(Passes(**vars(self)), settings=replace(self.settings, coarse_weight=weight))._added(total, *args)
            for weight in (0.0, 1.0)
        )
        weights = torch.tensor([1.0, self.settings.coarse_weight]).log()
        logs = [
            scores.flatten(2).log_softmax(dim=2) + weight
            for scores, weight in zip((fine, both - fine), weights, strict=True)
        ]
        return torch.logaddexp(*logs).reshape(total.shape)


def answers(matcher: Matcher, larger: Matcher, loaded: LoadedPair) -> Iterator[tuple[str, Tensor]]:
    """The name of a row, and where it finds the points, (1, n, 2) in [-1, 1]²."""
    assert loaded.src_pixels is not None
    assert loaded.trg_pixels is not None
    batch = collate([loaded])
    query = QueryPoints(batch.src_kps_norm, batch.visible)
    src, trg = ([photo] for photo in matcher.encode([loaded.src_pixels, loaded.trg_pixels]))
    matching = matcher.coarse_to_fine
    assert matching is not None

    def run(kind: type[CoarseToFine] = CoarseToFine, **changes: Any) -> Passes:
        settings = (
            replace(matching.settings, min_enlargement=1.0) if not changes else replace(matching.settings, **changes)
        )
        return kind(matcher.model, matching.image_size, settings).run(src, trg, query)

    def read(passes: Passes, **changes: Any) -> Tensor:
        changed = replace(passes, settings=replace(passes.settings, **changes))
        return changed.read(query.norm, query.given, positions_only=True).trg_norm

    two = run()
    first = replace(two, passes=two.passes[:1])
    factor = float(enlargement(two.last.src_frame, two.last.trg_frame))
    enough = factor >= matching.settings.min_enlargement

    def kept(passes: Passes, **changes: Any) -> Tensor:
        return read(passes if enough else first, **changes)

    yield "one pass", read_points(first.flows, query.norm, transfer=matcher.model.transfer).trg_norm
    yield "one pass, scores interpolated at the point", read(first, agreement=False)
    yield "… and agreement", read(first)
    yield "**two passes, as shipped**", kept(two)
    yield "without agreement", kept(two, agreement=False)
    yield "the second pass alone (`coarse_weight=0`)", kept(two, coarse_weight=0.0)
    yield "`coarse_weight=1`", kept(two, coarse_weight=1.0)
    yield "distributions averaged, not scores added", kept(Mixture(**vars(two)))
    fine = replace(two, settings=replace(two.settings, coarse_weight=0.0))
    cycles = [float(one.read(query.norm, query.given).cycle_error[query.given].mean()) for one in (first, fine)]
    yield "the pass with the smaller mean cycle error", read(first if cycles[0] < cycles[1] else fine)
    yield "a second pass for every pair (`min_enlargement=1`)", read(two)
    yield "only where crops enlarge by 1.3 (`min_enlargement=1.3`)", read(two if factor >= 1.3 else first)
    yield "`kernel_sigma=1.5`", kept(two, kernel_sigma=1.5)
    yield "`kernel_sigma=4`", kept(two, kernel_sigma=4.0)
    yield "narrow crops (`src_margin=0.2`, `trg_margin=0.35`)", read(run(src_margin=0.2, trg_margin=0.35))
    yield "wide crops (`src_margin=0.5`, `trg_margin=0.75`)", read(run(src_margin=0.5, trg_margin=0.75))
    yield "target's crop around points with small cycle errors", read(run(TrustedBoxes, passes=2))
    yield "target's crop around first matches that were corrected by agreement", read(run(AgreedBoxes, passes=2))
    yield "three passes (`passes=3`)", read(run(passes=3))
    yield "averaged with the mirrored pair (`mirror_average=true`)", read(run(mirror_average=True))
    without = CoarseToFine(matcher.model, matching.image_size, matching.settings).run(src, trg)
    yield "crops without points (`region=object`)", without.read(query.norm, positions_only=True).trg_norm
    assert larger.coarse_to_fine is not None
    photos = ([photo] for photo in larger.encode([loaded.src_pixels, loaded.trg_pixels]))
    yield (
        f"both passes at {LARGER} × {LARGER} pixels",
        larger.coarse_to_fine.run(*photos, query).read(query.norm, query.given).trg_norm,
    )


def correct(loaded: LoadedPair, found: Tensor, benchmark: str) -> list[float]:
    """The share of the pair's points within each α of the benchmark's threshold, in the published frame."""
    visible, size = loaded.pair.visible, loaded.trg_size
    px = norm_to_px(found[0, : len(visible)].double().numpy(), size)[visible]
    found_px, true_px = (rescale_px(points, size, PUBLISHED_FRAME) for points in (px, loaded.trg_kps_px[visible]))
    box = None if loaded.trg_bbox_px is None else rescale_px(loaded.trg_bbox_px.reshape(2, 2), size, PUBLISHED_FRAME)
    threshold = find_benchmark(benchmark).pck_threshold
    length = reference_length(
        threshold, size=PUBLISHED_FRAME, kps=true_px, bbox=None if box is None else box.reshape(4)
    )
    assert length is not None
    errors = point_errors(found_px, true_px)
    return [float(correct_points(errors, length, alpha).mean()) for alpha in ALPHAS]


@torch.inference_mode()
def main(spair: Path, pfpascal: Path, count: int) -> None:
    """Print a row of the table for each way to match."""
    matcher = Matcher.from_pretrained(device="cpu", try_mirrored=False)
    larger = Matcher.from_pretrained(device="cpu", try_mirrored=False, settings={"image_size": LARGER})
    shares: dict[str, list[list[list[float]]]] = {}
    for column, (benchmark, root, limit) in enumerate(
        (("spair", spair, count), ("pfpascal", pfpascal, count * 2 // 3))
    ):
        for pair in track(load_benchmark(benchmark, root, "val", limit=limit), benchmark):
            loaded = load_pair(pair, matcher.config.image_size, detail=4.0)
            for name, found in answers(matcher, larger, loaded):
                shares.setdefault(name, [[], []])[column].append(correct(loaded, found, benchmark))
    print("| | SPair-71k val | PF-PASCAL val |\n|---|---|---|")
    for name, columns in shares.items():
        cells = (" / ".join(f"{100 * value:.1f}" for value in np.mean(column, axis=0)) for column in columns)
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 90)
