"""The tokeniser: words as words, whatever the typography."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.words import normalise, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("... — !", []),
        ("The law, not the lawn.", ["the", "law", "not", "the", "lawn"]),
        ("NON-toxic paint", ["non-toxic", "paint"]),
        ("non\u2011toxic", ["non-toxic"]),
        ("don\u2019t DON'T don`t don\u00b4t don\u02bct", ["don't"] * 5),
        ("the patient\u2019s dogs' food; it's", ["the", "patient", "dogs", "food", "it"]),
        ("$1,000.50 and 3.5%", ["1,000.50", "and", "3.5"]),
        ("end.Start 1.2.", ["end", "start", "1.2"]),
        ("cafe\u0301 \u00e9t\u00e9", ["caf\u00e9", "\u00e9t\u00e9"]),
        ("soft\u00adware zero\u200bwidth", ["software", "zerowidth"]),
        ("lone \ud800 surrogate\udfff", ["lone", "surrogate"]),
        ("nul\x00l tab\tbell\x07", ["nul", "l", "tab", "bell"]),
        ("'quoted' -dash- a--b", ["quoted", "dash", "a", "b"]),
        ("银行 bank", ["银行", "bank"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_gives_lower_case_words_without_spaces(text: str) -> None:
    for word in words(text):
        assert word
        assert word[0].isalnum()
        assert not any(character.isspace() for character in word)


@given(st.text())
def test_normalising_twice_changes_no_word(text: str) -> None:
    assert words(normalise(text)) == words(text)


@pytest.mark.parametrize("unit", ["a", "a'", "a-", "1,", "x\u0301", "don't ", "'s", "a's ", "\u0301\u0316", "\ud800"])
def test_a_megabyte_takes_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.perf_counter()
        words(text)
        return time.perf_counter() - start

    small = min(seconds(100_000) for _ in range(3))
    assert seconds(1_000_000) < 60 * small + 0.5  # ten times the text; quadratic time would be a hundred
