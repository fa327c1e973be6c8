"""Figures of nonlocality."""

from helpers.analysis import measured

from transformatcher.evaluation.analysis.nonlocality_figures import plot_difficulty, plot_nonlocality
from transformatcher.evaluation.analysis.nonlocality_run import PairNonlocality, summarise


def test_figures():
    summary = summarise([measured(str(i), phi=float(i), level=i % 3) for i in range(6)])
    assert len(plot_nonlocality(summary, "a model").axes) == 3
    assert len(plot_difficulty(summary).axes) == 12
    bare = [PairNonlocality(**{**vars(measured("a", 1.0, 0)), "difficulty": {}})]
    assert plot_difficulty(summarise(bare)) is None
