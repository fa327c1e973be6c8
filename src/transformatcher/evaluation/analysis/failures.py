"""Predictions and their photos → the worst pairs with their errors drawn, as one HTML page."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformatcher.data.pairs import read_pair
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.html import heading, page, paragraph, photo_plot, slug
from transformatcher.evaluation.analysis.run_folders import EvalRun, pairs_of
from transformatcher.evaluation.analysis.tables import commands_html
from transformatcher.evaluation.metrics import point_errors
from transformatcher.evaluation.predict import LEVELS, Prediction
from transformatcher.evaluation.scores import pair_scores, tolerance_px, worst_first
from transformatcher.schema import ImagePair
from transformatcher.viz.pictures import draw_errors

PAGE = "failures.html"
BEGIN, END = "<!-- gallery -->", "<!-- end of gallery -->"


@dataclass(frozen=True)
class Failure:
    """One pair that went wrong, in pixels of the original images."""

    prediction: Prediction
    pair: ImagePair
    pck: float  # percent
    error: float  # mean, in percent of the length that the threshold is a fraction of
    radius_px: float


def worst_pairs(run: EvalRun, root: Path, most: int, alpha: float = 0.1) -> list[Failure]:
    """The pairs with the lowest PCK, and of those with the same, the largest errors first."""
    pairs = pairs_of(run, root)
    scores = pair_scores(run.predictions, run.kind, alpha, frame=None)
    failures = []
    for index in worst_first(run.predictions, run.kind, alpha, frame=None)[:most]:
        prediction = run.predictions[index]
        if prediction.name not in pairs:
            raise InputError(
                f"{run.folder}: pair {prediction.name} is not in {root}; name the folder that these predictions are of"
            )
        radius_px, _ = tolerance_px(prediction, run.kind, alpha, frame=None)
        error_px = point_errors(np.array(prediction.pred_kps), np.array(prediction.trg_kps)).mean()
        error = 100 * alpha * error_px / radius_px
        failures.append(Failure(prediction, pairs[prediction.name], float(scores[index]), float(error), radius_px))
    return failures


def gallery(
    run: EvalRun,
    failures: Sequence[Failure],
    command: str,
    alpha: float = 0.1,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """The page; what lies between BEGIN and END may be taken over into another."""
    prefix = slug(run.folder.name)
    anchors = [f"{prefix}-{rank}" for rank in range(1, len(failures) + 1)]
    titles = [
        f"{rank}. {failure.prediction.category}: {failure.prediction.name}" for rank, failure in enumerate(failures, 1)
    ]
    articles = []
    track(0, len(failures))
    for rank, failure in enumerate(failures):
        neighbours = {"previous": anchors[rank - 1] if rank else "", "next": (*anchors[rank + 1 : rank + 2], "")[0]}
        articles.append(_article(failure, anchors[rank], titles[rank], neighbours))
        track(rank + 1, len(failures))
    lead = paragraph(
        f"The {len(failures)} pairs with the lowest PCK of {len(run.predictions)} of {run.data}, by {run.model}. "
        f"A prediction is right within {alpha:g} of the target's {run.kind} length, in pixels of the original; "
        "that circle is drawn around each true point."
    )
    body = "\n".join([heading(2, "The pairs", prefix), BEGIN, *articles, commands_html([run.command, command]), END])
    short = [f"{failure.prediction.category}, PCK {failure.pck:.0f}" for failure in failures]
    return page(f"What goes wrong: {run.folder.name}", lead, list(zip(anchors, short, strict=True)), body)


def _article(failure: Failure, anchor: str, title: str, neighbours: Mapping[str, str]) -> str:
    prediction = failure.prediction
    src, trg = read_pair(failure.pair)
    predicted, true = np.array(prediction.pred_kps), np.array(prediction.trg_kps)
    figure = draw_errors(src, trg, np.array(prediction.src_kps), predicted, true, radius_px=failure.radius_px)
    right = int((point_errors(predicted, true) <= failure.radius_px).sum())
    alt = (
        f"Two photos of the category {prediction.category}: keypoints on the first; on the second their true places, "
        f"the predictions and the errors between them. {right} of {len(true)} are right."
    )
    levels = [f"{factor} {LEVELS[level]}" for factor, level in prediction.difficulty.items()]
    facts = [f"PCK {failure.pck:.1f}", f"{right} of {len(true)} keypoints right",
             f"mean error {failure.error:.0f} % of the reference length", *levels]  # fmt: skip
    links = " ".join(f'<a href="#{target}">{word}</a>' for word, target in neighbours.items() if target)
    return (
        f'<article aria-labelledby="{anchor}"><h3 id="{anchor}"><a href="#{anchor}">{html.escape(title)}</a></h3>'
        f'{paragraph(", ".join(facts))}{photo_plot(figure, alt)}<p class="steps">{links}</p></article>'
    )
