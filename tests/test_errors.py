"""Messages: always one printable line; what is said where an optional package is missing."""

import pytest

from transformatcher.errors import InputError, missing_package, printable, require_packages


def test_the_way_out_works_without_an_index_of_ours():
    message = str(missing_package("the page", "fastapi", "serve"))
    assert message == "the page needs the package fastapi: pip install fastapi (part of the extra 'serve')"


def test_the_first_that_is_missing_is_named():
    require_packages("all", "json", "torch", extra="none")
    with pytest.raises(InputError, match="it needs the package no_such_package: pip install no_such_package"):
        require_packages("it", "json", "no_such_package", "nor_this", extra="some")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain café ☃ 日本.jpg", "plain café ☃ 日本.jpg"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred\x00\x7f", r"\x1b[31mred\x00\x7f"),
        ("half \ud800, latin-1 \udce9", r"half \ud800, latin-1 \udce9"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
    ],
)
def test_a_message_is_one_printable_line(text, shown):
    assert str(InputError(text)) == printable(text) == shown
    shown.encode()


def test_what_is_long_is_shortened_in_its_middle():
    assert printable("x" * 500) == "x" * 500
    shown = printable(f"{'a' * 5000}{'b' * 5000}.jpg: no such file")
    assert shown.startswith("aaa")
    assert shown.endswith("bbb.jpg: no such file")
    assert "a…b" in shown
    assert len(shown) < 530
    assert len(printable("word " * 10_000)) == 4000
