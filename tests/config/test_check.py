"""What is wrong with a value → one sentence; the same declarations → docs/config.md."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, StrictFloat, StrictInt, model_validator
from pydantic.dataclasses import dataclass

from transformatcher.config.check import CHECKED, broken_rule, check_keys, describe, fields_of, limits, validate
from transformatcher.errors import InputError


@dataclass(frozen=True, config=CHECKED)
class Inner:
    width: StrictInt = Field(default=1, ge=1, le=2000)
    rate: StrictFloat | None = Field(default=None, gt=0, lt=0.5)

    @model_validator(mode="after")
    def _check(self) -> "Inner":
        if self.width == 13:
            raise broken_rule(self, "width", "is unlucky")
        return self


@dataclass(frozen=True, config=CHECKED)
class Outer:
    kind: Literal["soft", "hard"]
    cells: tuple[Annotated[StrictInt, Field(ge=0, le=9)], ...] | Literal["all"] = "all"
    inner: Inner = Inner()
    entries: tuple[Inner, ...] = ()
    any_number: StrictFloat = 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "here: kind must be given"),
        ({"kind": "sotf"}, "here: kind = 'sotf': expected one of soft, hard; did you mean 'soft'?"),
        ({"kind": "soft", "inner": 3}, "here: inner = 3: expected a table of keys"),
        ({"kind": "soft", "inner": {"width": 13}}, "here: inner.width = 13: is unlucky"),
        ({"kind": "soft", "inner": {"width": 0}}, "here: inner.width = 0: must be between 1 and 2,000"),
        ({"kind": "soft", "inner": {"rate": 0.5}}, "here: inner.rate = 0.5: must be above 0 and below 0.5"),
        ({"kind": "soft", "entries": [{}, {"width": 13}]}, "here: entries[1].width = 13: is unlucky"),
        ({"kind": "soft", "entries": [{}, 3]}, "here: entries[1] = 3: expected a table of keys"),
        ({"kind": "soft", "entries": [{"zzz": 3}]}, "here: unknown key 'entries[0].zzz'; valid keys: width, rate"),
        ({"kind": "soft", "cells": [3, 10]}, "here: cells = [3, 10]: each must be between 0 and 9"),
        ({"kind": "soft", "cells": "none"}, "here: cells = 'none': expected a list of whole numbers or one of all"),
        ({"kind": 3, "widht": 4}, "here: unknown key 'widht'; did you mean 'inner.width'?"),  # unknown keys first
        ({"kind": "soft", "any_number": float("nan")}, "here: any_number = nan: expected a number"),
        ({"kind": "x" * 500}, f"here: kind = '{'x' * 99}…: expected one of soft, hard"),
    ],
)
def test_one_sentence_names_key_value_and_rule(values, message):
    with pytest.raises(InputError) as caught:
        validate(Outer, values, "here")
    assert str(caught.value) == message


def test_the_source_of_an_overridden_key_is_the_command_line():
    values = {"kind": "soft", "inner": {"width": 0}}
    for overridden, source in (({"inner.width"}, "--set"), ({"inner.rate"}, "here")):
        with pytest.raises(InputError, match=f"^{source}: inner"):
            validate(Outer, values, "here", overridden=overridden)


def test_unused_tables_are_not_suggested():
    with pytest.raises(InputError, match="unknown key 'width'; valid keys: kind, cells, entries, any_number"):
        validate(Outer, {"kind": "soft", "width": 3}, "here", unused=["inner"])


def test_check_keys():
    check_keys({"grid": 1}, ["grid", "layers"], "here")
    with pytest.raises(InputError, match=r"here: unknown key 'gird'; did you mean 'grid'\?"):
        check_keys({"gird": 1}, ["grid", "layers"], "here")


def test_what_the_reference_says_of_a_key():
    fields = fields_of(Outer)
    assert describe(fields["kind"].annotation, quote="`") == "one of `soft`, `hard`"
    assert describe(fields["inner"].annotation) == "a table of keys"
    assert describe(tuple[int, int]) == "2 whole numbers"
    assert limits(fields["cells"]) == "between 0 and 9"
    assert limits(fields["any_number"]) == ""
    assert limits(fields_of(Inner)["rate"]) == "above 0 and below 0.5"
