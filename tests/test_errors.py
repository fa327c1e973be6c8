"""What is said where an optional package is missing."""

import pytest

from transformatcher.errors import InputError, missing_package, require_packages


def test_the_way_out_works_without_an_index_of_ours():
    message = str(missing_package("the page", "fastapi", "serve"))
    assert message == "the page needs the package fastapi: pip install fastapi (part of the extra 'serve')"


def test_the_first_that_is_missing_is_named():
    require_packages("all", "json", "torch", extra="none")
    with pytest.raises(InputError, match="it needs the package no_such_package: pip install no_such_package"):
        require_packages("it", "json", "no_such_package", "nor_this", extra="some")
