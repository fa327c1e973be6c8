"""Matches of pairs → a pyarrow table with a row for each point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from transformatcher.inference.bulk.pair_batches import PairMatches

if TYPE_CHECKING:
    import pyarrow


def match_schema() -> "pyarrow.Schema":
    """The columns of what ``match-pairs`` writes."""
    import pyarrow as pa

    names = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("pair", pa.int64()), ("src", names), ("trg", names), ("x0", pa.float32()), ("y0", pa.float32()),
            ("x1", pa.float32()), ("y1", pa.float32()), ("confidence", pa.float32()), ("is_match", pa.bool_()),
            ("same_kind", pa.float32()), ("mirrored", pa.bool_()), ("error", pa.string()),
        ]
    )  # fmt: skip


def match_table(matches: Sequence[PairMatches]) -> "pyarrow.Table":
    """One row for each point. A pair without points has one row with empty numbers, so that no pair is missing."""
    import pyarrow as pa

    rows = np.array([max(1, len(one.confidence)) for one in matches], dtype=np.int64)
    numbers = np.concatenate([np.zeros((0, 5)), *map(_numbers, matches)])  # (rows, 5)
    empty = np.isnan(numbers[:, 0])
    pair_of_row = pa.array(np.arange(len(matches)).repeat(rows), pa.int32())

    def column(values: Sequence[object], kind: "pyarrow.DataType") -> "pyarrow.Array":
        return pa.array(values, kind).take(pair_of_row)

    is_match = [np.zeros(0, dtype=bool)]
    is_match += [one.is_match if len(one.is_match) else np.zeros(1, dtype=bool) for one in matches]
    columns = {
        "pair": column([one.pair.index for one in matches], pa.int64()),
        "src": column([one.pair.src for one in matches], pa.string()).dictionary_encode(),
        "trg": column([one.pair.trg for one in matches], pa.string()).dictionary_encode(),
        **{
            name: pa.array(numbers[:, number].astype(np.float32), pa.float32(), mask=empty)
            for number, name in enumerate(("x0", "y0", "x1", "y1", "confidence"))
        },
        "is_match": pa.array(np.concatenate(is_match), pa.bool_()),
        "same_kind": column([one.same_kind for one in matches], pa.float32()),
        "mirrored": column([one.mirrored for one in matches], pa.bool_()),
        "error": column([one.error or None for one in matches], pa.string()),
    }
    return pa.table(columns, schema=match_schema())


def _numbers(one: PairMatches) -> Float[np.ndarray, "n 5"]:
    if not len(one.confidence):
        return np.full((1, 5), np.nan)
    return np.concatenate([one.src_px, one.trg_px, one.confidence[:, None]], axis=1)
