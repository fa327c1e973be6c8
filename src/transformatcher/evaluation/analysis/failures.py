"""Predictions and their photos → a gallery of the pairs with the lowest PCK, as one HTML page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from transformatcher.data.pairs import file_names, read_pair
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.html import (
    Article,
    Commands,
    EmbeddedImage,
    Link,
    PageSection,
    Paragraph,
    embed_photos,
    render_page,
)
from transformatcher.evaluation.analysis.run_folders import EvalRun, pairs_of
from transformatcher.evaluation.metrics import point_errors
from transformatcher.evaluation.predict import LEVELS, Prediction
from transformatcher.evaluation.scores import pair_scores, rank_by_error, tolerance_px
from transformatcher.schema import ImagePair
from transformatcher.viz.pictures import draw_errors

PAGE = "failures.html"


@dataclass(frozen=True)
class Failure:
    """One pair with a low PCK, in pixels of the original images."""

    prediction: Prediction
    pair: ImagePair
    pck: float  # percent
    error: float  # mean distance from the true points, in percent of the threshold's reference length
    radius_px: float  # within which a prediction is correct


@dataclass(frozen=True)
class GalleryItem:
    """A failure as text and picture, ready for a page."""

    title: str
    facts: str
    image: EmbeddedImage


@dataclass(frozen=True)
class Gallery:
    """The failures of one run, and the commands that made them."""

    items: Sequence[GalleryItem]
    commands: Sequence[str]


def worst_pairs(run: EvalRun, root: Path, most: int, alpha: float = 0.1) -> list[Failure]:
    """The ``most`` pairs with the lowest PCK at ``alpha``; pairs of equal PCK are ordered by their mean error."""
    pairs = pairs_of(run, root)
    scores = pair_scores(run.predictions, run.pck_threshold, alpha, frame=None)
    failures = []
    for index in rank_by_error(run.predictions, run.pck_threshold, alpha, frame=None)[:most]:
        prediction = run.predictions[index]
        if prediction.name not in pairs:
            raise InputError(
                f"{run.folder}: pair {prediction.name} is not in {root}; name the folder that these predictions are of"
            )
        radius_px, _ = tolerance_px(prediction, run.pck_threshold, alpha, frame=None)
        error_px = point_errors(np.array(prediction.pred_kps), np.array(prediction.trg_kps)).mean()
        error = 100 * alpha * error_px / radius_px
        failures.append(Failure(prediction, pairs[prediction.name], float(scores[index]), float(error), radius_px))
    return failures


def gallery_page(
    run: EvalRun,
    failures: Sequence[Failure],
    command: str,
    alpha: float = 0.1,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """The gallery as a page; :func:`read_gallery` reads it back."""
    items = []
    for rank, failure in enumerate(failures, 1):
        track(rank - 1, len(failures))
        items.append(_gallery_item(rank, failure))
    track(len(failures), len(failures))
    lead = Paragraph(
        f"The {len(failures)} pairs with the lowest PCK of {len(run.predictions)} pairs of {run.data}, by {run.model}. "
        f"A prediction is correct within {alpha:g} of the target's {run.pck_threshold} length, in pixels of the "
        "original; a circle of this radius is drawn around each true point."
    )
    blocks = gallery_blocks(Gallery(items, [run.command, command]), "pair")
    articles = [block for block in blocks if isinstance(block, Article)]
    contents = [
        Link(article.anchor, f"{failure.prediction.category}, PCK {failure.pck:.0f}")
        for article, failure in zip(articles, failures, strict=True)
    ]
    section = PageSection("pairs", "The pairs", blocks)
    return render_page(f"Failures: {run.folder.name}", [lead], [section], contents)


def gallery_blocks(gallery: Gallery, prefix: str) -> list[Article | Commands]:
    """The blocks of a gallery; anchors begin with ``prefix``, and each article links to its neighbours."""
    anchors = ["", *(f"{prefix}-{rank}" for rank in range(1, len(gallery.items) + 1)), ""]
    articles = [
        Article(anchors[rank], item.title, item.facts, item.image, previous=anchors[rank - 1], next=anchors[rank + 1])
        for rank, item in enumerate(gallery.items, 1)
    ]
    return [*articles, Commands(gallery.commands)]


def _gallery_item(rank: int, failure: Failure) -> GalleryItem:
    prediction = failure.prediction
    src, trg = read_pair(failure.pair)
    predicted, true = np.array(prediction.pred_kps), np.array(prediction.trg_kps)
    src_kps, names = np.array(prediction.src_kps), file_names(failure.pair)
    figure = draw_errors(src, trg, src_kps, predicted, true, names=names, radius_px=failure.radius_px)
    correct = int((point_errors(predicted, true) <= failure.radius_px).sum())
    alt = (
        f"Two photos of the category {prediction.category}: keypoints on the first; on the second the true points, "
        f"the predictions and the errors between them. {correct} of {len(true)} are correct."
    )
    facts = [
        f"PCK {failure.pck:.1f}",
        f"{correct} of {len(true)} keypoints correct",
        f"mean error {failure.error:.0f} % of the reference length",
        *(f"{factor} {LEVELS[level]}" for factor, level in prediction.difficulty.items()),
    ]
    title = f"{rank}. {prediction.category}: {prediction.name}"
    return GalleryItem(title, ", ".join(facts), embed_photos(figure, alt))


# ---------------------------------------------------------------- reading a page again


def read_gallery(path: Path) -> Gallery | None:
    """The gallery of a page that ``analyse failures`` wrote; None for any other page.

    Only text and image data are taken out of the page, never its markup.
    """
    parser = _GalleryParser()
    parser.feed(path.read_text(encoding="utf-8", errors="replace"))
    parser.close()
    if not parser.items:
        return None
    items = []
    for rank, item in enumerate(parser.items, 1):
        try:
            image = EmbeddedImage(item["uri"], item["alt"])
        except ValueError as error:
            raise InputError(f"{path}: pair {rank} of this gallery has no image; run analyse failures again") from error
        items.append(GalleryItem(item["title"], item["facts"], image))
    return Gallery(items, parser.commands)


class _GalleryParser(HTMLParser):
    """Collects the text of articles and of commands, and the images of articles (see blocks.html.jinja)."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, str]] = []
        self.commands: list[str] = []
        self._inside = ""  # the element whose text is collected

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "article" and values.get("class") == "failure":
            self.items.append(dict.fromkeys(("title", "facts", "uri", "alt"), ""))
        elif tag == "code":
            self._inside = "command"
            self.commands.append("")
        elif not self.items:
            return
        elif tag == "h3":
            self._inside = "title"
        elif tag == "p" and values.get("class") == "facts":
            self._inside = "facts"
        elif tag == "img":
            self.items[-1].update(uri=values.get("src", ""), alt=values.get("alt", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("h3", "p", "code"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "command":
            self.commands[-1] += data
        elif self._inside:
            self.items[-1][self._inside] += data
