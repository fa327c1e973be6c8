"""Rows that name two photos → rows of matched points: a callable for Ray Data, Spark, Dask, Daft, or a process pool."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from transformatcher.config import to_plain
from transformatcher.errors import InputError, require_packages
from transformatcher.inference.bulk.match_table import match_table
from transformatcher.inference.bulk.pair_batches import PairMatches, match_shard
from transformatcher.inference.bulk.pair_list import ListedPair, parse_pair
from transformatcher.inference.feature_store import FeatureStore
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photo_encoder import Decoder, Encoder, FeatureCache
from transformatcher.models.weights_io import hash_tensors
from transformatcher.run_folder import hash_json
from transformatcher.storage import ImageRoot, absolute

if TYPE_CHECKING:
    import pandas
    import pyarrow

CACHE_BYTES = 2 * 2**30
STORE_BYTES = 50 * 10**9
Rows = TypeVar("Rows", dict[str, Any], "pandas.DataFrame", "pyarrow.Table")


class PairMatcher:
    """Matches batches of pairs; loads its model when it is called first, in the process that calls it.

    It can be pickled, without its model unless that was given as a ``Matcher``. Copies that come to one process, as
    with every task of an engine, share one model there.

    Args:
        matcher: a matcher; or a checkpoint folder, None for the model in the package.
        device: "auto" takes a GPU where there is one, in the process that matches.
        root: the folder or URL that names of photos are relative to; none may lie outside of it.
        anywhere: unless this is true.
        batch: pairs at a time.
        threads: that read and decode photos.
        cache_bytes: of features of photos that come again, in memory.
        store: a folder for features of photos, shared by all processes of a machine; None: they are not kept.
        store_bytes: at most so many there.
        settings: of the model, as for :meth:`Matcher.from_pretrained`; only without a ``Matcher``.

    Example:
        >>> match = PairMatcher(root="photos")
        >>> match({"src": ["cat_a.jpg"], "trg": ["cat_b.jpg"], "keypoints": ["168,115;262,241"]})["x1"]
        array([208.2, 293.9], dtype=float32)
    """

    def __init__(
        self,
        matcher: Matcher | str | Path | None = None,
        *,
        device: str = "auto",
        root: str | Path = ".",
        anywhere: bool = False,
        batch: int = 4,
        threads: int = 2,
        cache_bytes: int = CACHE_BYTES,
        store: str | Path | None = None,
        store_bytes: int = STORE_BYTES,
        **settings: Any,
    ) -> None:
        if batch < 1 or threads < 1:
            raise InputError(f"batch {batch}, threads {threads}: both must be at least 1")
        self.matcher, self.device, self.settings = matcher, device, settings
        self.root = ImageRoot(str(root), anywhere)
        self.batch, self.threads, self.cache_bytes = batch, threads, cache_bytes
        self.store, self.store_bytes = store, store_bytes
        self.key = token_hex(8)  # copies that come to one process share a model
        self._encoder: Encoder | None = None
        self._copied = False

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what it was made from."""
        return vars(self) | {"_encoder": None, "_copied": True}

    def __eq__(self, other: object) -> bool:
        """Whether both are copies of one."""
        return isinstance(other, PairMatcher) and self.key == other.key

    def __hash__(self) -> int:
        """Copies of one have the same."""
        return hash(self.key)

    def absolute(self) -> "PairMatcher":
        """The same with absolute paths, for workers in other folders."""
        other = copy(self)
        other.key, other._encoder = token_hex(8), None
        other.root = ImageRoot(absolute(self.root.name), self.root.anywhere)
        other.store = None if self.store is None else absolute(self.store)
        return other

    @property
    def encoder(self) -> Encoder:
        """The model with its cache of features, loaded once it is needed."""
        if self._encoder is None:
            self._encoder = _shared_encoder(self) if self._copied else self.load()
        return self._encoder

    def load(self) -> Encoder:
        """Load the model."""
        if isinstance(self.matcher, Matcher):
            matcher = self.matcher.to(self.device)
        else:
            matcher = Matcher.from_pretrained(self.matcher, self.device, **self.settings)
        store = None
        if self.store is not None:
            store = FeatureStore(Path(self.store) / features_name(matcher), self.store_bytes)
        detail = 0.0 if matcher.coarse_to_fine is None else matcher.coarse_to_fine.detail
        decoder = Decoder(self.root, matcher.config.image_size, detail, store)
        return Encoder(matcher, FeatureCache(self.cache_bytes), decoder, self.threads)

    def match(
        self, pairs: Sequence[ListedPair], track: Callable[[int], None] = lambda _done: None
    ) -> list[PairMatches]:
        """Match pairs, in the order of the list; ``track`` is called with the number done after each batch."""
        matches: list[PairMatches] = []
        for results in match_shard(self.encoder, pairs, self.batch):
            matches += results
            track(len(matches))
        return sorted(matches, key=lambda one: one.pair.index)

    def __call__(self, rows: Rows) -> Rows:
        """A batch of pairs → a row for each point; a pair that cannot be matched has one row, with its ``error``.

        Args:
            rows: with the columns ``src``, ``trg`` and perhaps ``keypoints`` ([[x, y], …] or 'x,y;x,y'), and ``pair``,
                a number for each pair (else its place in the batch): a mapping of columns, a pandas DataFrame or a
                pyarrow Table.

        Returns:
            The columns of ``match-pairs``, in the same form; a mapping has NumPy arrays.
        """
        require_packages("a batch of pairs", "pyarrow", extra="bulk")
        import pyarrow as pa

        form, columns = _columns(rows)
        pairs = list(_pairs(columns))
        table = match_table(self.match(pairs))
        if "pair" in columns:
            numbers = pa.array([columns["pair"][i] for i in table["pair"].to_pylist()])
            table = table.set_column(0, "pair", numbers)
        if form == "table":
            return table
        for number, name in ((1, "src"), (2, "trg")):
            table = table.set_column(number, name, table[name].cast(pa.string()))
        if form == "frame":
            return table.to_pandas()
        return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


@lru_cache(maxsize=1)
def _shared_encoder(matcher: PairMatcher) -> Encoder:
    """The encoder of all copies of one matcher in this process: engines send a copy with every task."""
    return matcher.load()


def _columns(rows: Any) -> tuple[str, dict[str, Sequence[Any]]]:
    """The form of a batch (mapping, frame or table), and its columns."""
    names = rows.column_names if hasattr(rows, "column_names") else list(rows)
    if missing := [name for name in ("src", "trg") if name not in names]:
        raise InputError(f"a batch of pairs has the columns src and trg; {' and '.join(missing)} are missing")
    wanted = [name for name in ("pair", "src", "trg", "keypoints") if name in names]
    if hasattr(rows, "column_names"):
        return "table", {name: rows[name].to_pylist() for name in wanted}
    return ("frame" if hasattr(rows, "iloc") else "mapping"), {name: list(rows[name]) for name in wanted}


def _pairs(columns: dict[str, Sequence[Any]]) -> Iterator[ListedPair]:
    for index, src in enumerate(columns["src"]):
        keypoints = columns["keypoints"][index] if "keypoints" in columns else None
        if isinstance(keypoints, float):  # pandas' NaN for nothing
            keypoints = None
        yield parse_pair(index, {"src": src, "trg": columns["trg"][index], "keypoints": keypoints})


def features_name(matcher: Matcher) -> str:
    """A short hash of all that the features of a photo depend on."""
    described = {
        "weights": hash_tensors(matcher.model.backbone.state_dict()),
        "config": to_plain(matcher.config),
        "precision": [matcher.precision, str(matcher.device.type)],
    }
    return hash_json(described)
