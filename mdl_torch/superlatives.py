"""What a text gives a superlative's one place to: Sirius, in "Sirius is the brightest star"."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple, Protocol

from mdl_torch.lexicon import Entry, Kind, Lexicon
from mdl_torch.words import normalise

_BOUNDARIES = frozenset((Kind.COMMA, Kind.END, Kind.BREAK))
_BEFORE_SUBJECT = _BOUNDARIES | {Kind.SUBORDINATOR}


class Words(Protocol):
    """What is needed of a ``Reading``: the tokens, and entry, negating token or -1, and token of each content word."""

    tokens: list[str]
    words: list[Entry]
    cues: list[int]
    places: list[int]


class Superlative(NamedTuple):
    """A place that only one thing can have, and the words of the thing that a text gives it to."""

    id: int
    """Id of the place: whose it is, its superlative and what it ranks; at least 1."""
    token: int
    """Index of the superlative's token."""
    values: list[int]
    """Positions, among the content words, of those that fill the place; at least one."""


def find_superlative(text: str, reading: Words, token: int, lexicon: Lexicon) -> Superlative | None:
    """Reads who or what a definite superlative belongs to.

    That is the subject in "Sirius is the brightest star" and "Finland has the most lakes", and the complement in "the
    largest city of Peru is Lima". A text that hedges ("may be the largest"), shares the place out ("one of the
    largest"), denies it, or only describes its holder ("my oldest cat is hungry") gives it to nothing.

    Args:
        text: the text as it came; capitals tell names.
        reading: the text, read.
        token: index of the superlative's token.
        lexicon: the language's words.

    Returns:
        The place and its holder; None where the text gives it to nothing.

    Example:
        >>> from mdl_torch.lexicon import english
        >>> from mdl_torch.reading import read
        >>> reading = read("The largest city of Peru is Lima, on the coast.", english())
        >>> [reading.tokens[reading.places[k]] for k in reading.superlative.values]
        ['lima']
    """
    tokens, places = reading.tokens, reading.places
    owned = _owner(text, tokens, token, lexicon)
    head = bisect_left(places, token + 1)
    if owned is None or head == len(places) or not lexicon.hedges.isdisjoint(tokens):
        return None
    if reading.cues[bisect_left(places, token)] >= 0:
        return None
    owner, start = owned
    values = _values(text, reading, start, token, lexicon)
    if not values or any(_denied(reading, k, token, lexicon) for k in values):
        return None
    return Superlative(lexicon.superlative_id(owner, tokens[token], reading.words[head]), token, values)


def _owner(text: str, tokens: list[str], token: int, lexicon: Lexicon) -> tuple[str, int] | None:
    """Whose place it is and where its phrase starts: "" after "the", "my", "japan" in "Japan's"; None if indefinite."""
    before = tokens[token - 1] if token else ""
    start = token - 1
    if before in lexicon.definites:
        before = ""
    elif before not in lexicon.possessives:
        if not before or f"{before}'s {tokens[token]}" not in normalise(text):
            return None
        start -= start > 0 and tokens[start - 1] in lexicon.definites
    return None if start > 0 and tokens[start - 1] in lexicon.prepositions else (before, start)


def _denied(reading: Words, value: int, token: int, lexicon: Lexicon) -> bool:
    """Whether a negation covers a value; one within "the largest that is not ..." does not."""
    cue = reading.cues[value]
    between = reading.tokens[token:cue] if token < cue < reading.places[value] else ()
    return cue >= 0 and all(_kind(word, lexicon) is not Kind.SUBORDINATOR for word in between)


def _values(text: str, reading: Words, subject_end: int, token: int, lexicon: Lexicon) -> list[int]:
    """Positions of the content words that fill the place: the subject's, unless a copula comes after it only."""
    tokens = reading.tokens
    start, end = subject_end, token
    while start and _kind(tokens[start - 1], lexicon) not in _BEFORE_SUBJECT:
        start -= 1
    while end < len(tokens) and _kind(tokens[end], lexicon) not in _BOUNDARIES:
        end += 1
    if lexicon.copulas.isdisjoint(tokens[start:subject_end]):
        for k in range(token + 1, end):
            if tokens[k] in lexicon.copulas and _kind(tokens[k - 1], lexicon) is not Kind.SUBORDINATOR:
                return _complement(text, reading, k + 1, end, lexicon)
    return _run(reading, start, subject_end, lexicon)


def _complement(text: str, reading: Words, start: int, end: int, lexicon: Lexicon) -> list[int]:
    """The last word of what follows a copula; nothing where that is a mere description, which an opposite tells."""
    values = _run(reading, start, end, lexicon)
    if values and reading.places[values[0]] == start and lexicon.on_axis(reading.words[values[0]]):
        is_name = reading.tokens[start].capitalize() in text
        return values[-1:] if is_name else []
    return values[-1:]


def _run(reading: Words, start: int, end: int, lexicon: Lexicon) -> list[int]:
    """The first content words that stand side by side, adverbs left out; instead those of an agent, if one follows."""
    tokens, places = reading.tokens, reading.places
    values: list[int] = []
    last = end
    for k in range(bisect_left(places, start), bisect_left(places, end)):
        if places[k] > last + 1:
            if tokens[last + 1] not in lexicon.agents:
                break
            values = []
        last = places[k]
        if not tokens[last].endswith(lexicon.adverb_ending):
            values.append(k)
    return values


def _kind(token: str, lexicon: Lexicon) -> Kind:
    return lexicon.entry(token).kind
