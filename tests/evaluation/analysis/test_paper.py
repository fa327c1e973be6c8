"""The paper's numbers."""

from transformatcher.evaluation.analysis.paper import SHORT_NAMES, TABLE_1, class_wise


def test_tables_agree_where_they_overlap():
    """All of Table A1 is SPair-71k in Table 1; two methods were rounded or trained otherwise there."""
    both = {name: (row["all"], TABLE_1[name].spair_f) for name, row in class_wise().items() if name in TABLE_1}
    assert both.pop("CATs") == (42.4, 43.5)
    assert both.pop("CHMNet") == (46.4, 46.3)
    assert all(a == b for a, b in both.values())


def test_every_category_has_a_number():
    assert all(list(row) == [*SHORT_NAMES, "all"] for row in class_wise().values())
