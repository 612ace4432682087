"""One text, read: its content words, and which of them a negation has in its scope."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

from mdl_torch.lexicon import ANY, Entry, Kind, Lexicon
from mdl_torch.superlatives import Superlative, find_superlative
from mdl_torch.words import WORD, normalise

MAX_CHARACTERS = 16_384
"""A text is read this far. Its first content words, which alone are compared, come long before in all real texts."""

# The point of "U.S." ends no sentence.
_TOKEN = re.compile(rf"({WORD}|(?<!\.\w)[.!?;:](?=\s|$|[\"')])|[,()\u2013\u2014\n]|--)(?:'s\b)?")
_NONE = -1
_FEW_SUPERLATIVES = 4  # looked at, in a text that may be full of them


class Bears(IntEnum):
    """Which of the words in its scope a negation bears on, so that a text without them is about something else."""

    NEXT = 0
    """The next word: "does not *open* on Sundays"."""
    ALL = 1
    """All it covers: "no *dogs* *bark* at *night*"."""
    LAST = 2
    """The last word of the clause: "it is a myth that the pyramids were built by *slaves*"."""
    NOTHING = 3


@dataclass(slots=True)
class Reading:
    """One text, read.

    Attributes:
        tokens: words and punctuation, normalised.
        words: for each content word its entry.
        cues: for each content word the index of the token that negates it, or -1.
        focus: for each content word whether its negation bears on it.
        places: for each content word the index of its token.
        polarity: 1 for a text that opens with "yes", -1 with "no", else 0.
        negations: indices of all tokens that negate, whether or not another one undoes them.
        superlative: the first superlative whose place the text gives to something, or none.
        comparison: id of the two things compared, the same for both orders but for its sign, or 0.
        cut: whether the text goes on beyond the characters that were read.
    """

    tokens: list[str]
    words: list[Entry] = field(default_factory=list)
    cues: list[int] = field(default_factory=list)
    focus: list[bool] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    polarity: int = 0
    negations: list[int] = field(default_factory=list)
    superlative: Superlative | None = None
    comparison: int = 0
    cut: bool = False


def read(text: str, lexicon: Lexicon) -> Reading:
    """Splits a text into content words and decides which of them are negated.

    Args:
        text: any string; the first ``MAX_CHARACTERS`` characters count.
        lexicon: the language's words.

    Returns:
        The reading. Takes time linear in the length of the text.

    Example:
        >>> from mdl_torch.lexicon import english
        >>> reading = read("Never touch this acid without gloves.", english())
        >>> [reading.tokens[place] for place in reading.places], reading.cues
        (['touch', 'acid', 'gloves'], [-1, -1, -1])
    """
    return _Reader(text, lexicon).run()


class _Reader:
    """A single pass over the tokens that keeps track of the open negation.

    A negation (``cue``) ends with its clause, but not before it has covered a content word: in "does not, however,
    work" it reaches "work"; at the end of a sentence, as in "he saw nobody", it turns back to the words before it. A
    negation within another one, and an exceptive ("without", "unless") after one, undo it.
    """

    __slots__ = (
        "bears",
        "clause",
        "compared",
        "coordinated",
        "covered",
        "cue",
        "degree",
        "denied",
        "lexicon",
        "negation",
        "opening",
        "out",
        "sentence",
        "subclause",
        "superlatives",
        "text",
    )

    def __init__(self, text: str, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.text = text[:MAX_CHARACTERS]
        self.out = Reading(_TOKEN.findall(normalise(self.text)), cut=bool(text[MAX_CHARACTERS:].strip()))
        self.superlatives: list[int] = []  # tokens of the first few
        self.cue = _NONE  # token of the open negation
        self.covered = True  # whether it has reached a content word
        self.bears = Bears.NOTHING
        self.coordinated = False  # "and" or "or" came since the last content word
        self.degree = _NONE  # token of a "too" that waits for its "to"
        self.denied = _NONE  # last token that denied its clause
        # Positions in the list of content words, or none:
        self.sentence = 0  # where the sentence starts
        self.clause = 0  # where the clause starts
        self.negation = _NONE  # where the sentence's last standing negation starts
        self.opening = _NONE  # where the object of a sentence-opening exceptive starts
        self.subclause = _NONE  # where a "that", "who" or "to" since the negation stands
        self.compared = (_NONE, _NONE)  # the two things of the first comparison

    def run(self) -> Reading:
        out, lexicon = self.out, self.lexicon
        tokens, words, cues, focus, places = out.tokens, out.words, out.cues, out.focus, out.places
        entries, phrases, adverb = lexicon.entries, lexicon.phrases, lexicon.adverb_ending
        content, function = Kind.CONTENT, Kind.FUNCTION
        i = self._answer()
        count = len(tokens)
        while i < count:
            token = tokens[i]
            entry = entries.get(token) or lexicon.entry(token)
            after = i + 1
            if token in phrases:
                entry, after = self._phrase(i, entry)
            kind = entry[0]
            if kind is not content and kind is not function:
                entry = _HANDLERS[kind](self, i, after, entry)
                kind = entry[0]
            if kind is content:
                words.append(entry)
                cues.append(self.cue)
                focus.append(self.bears <= Bears.ALL)
                places.append(i)
                if self.bears == Bears.NEXT and not token.endswith(adverb):
                    self.bears = Bears.NOTHING
                elif self.cue >= 0 and len(focus) > 1 and focus[-2] and token.endswith(adverb) and places[-2] == i - 1:
                    focus[-2:] = False, True
                self.covered, self.coordinated = True, False
            i = after
        self._end_clause(final=True)
        if self.denied >= 0:
            self._correct()
        if self.superlatives:
            found = (find_superlative(self.text, out, token, lexicon) for token in self.superlatives)
            out.superlative = next(filter(None, found), None)
        if 0 <= self.compared[1] < len(words):
            one, two = (words[k].id for k in self.compared)
            out.comparison = (one ^ two) * (1 if one < two else -1)
        return out

    def _answer(self) -> int:
        """Reads an opening "yes" or "no" that is an answer of its own; returns where the rest begins."""
        tokens, lexicon = self.out.tokens, self.lexicon
        if not tokens or not (tokens[0] in lexicon.yes or tokens[0] in lexicon.no):
            return 0
        alone = len(tokens) == 1 or self._kind(1) in (Kind.END, Kind.COMMA)
        if not alone and not (tokens[0] in lexicon.plain_answers and tokens[1] in lexicon.answer_followers):
            return 0
        self.out.polarity = 1 if tokens[0] in lexicon.yes else -1
        return 1

    def _phrase(self, i: int, entry: Entry) -> tuple[Entry, int]:
        """The longest phrase that starts at token i and the token after it; its own entry where there is none."""
        tokens, seconds = self.out.tokens, self.lexicon.phrases[self.out.tokens[i]]
        if i + 1 < len(tokens):
            for rest, ending, phrase_entry in seconds.get(tokens[i + 1]) or seconds.get(ANY) or ():
                after = i + 1 + len(rest)
                found = tuple(tokens[i + 1 : after]) == rest
                if found and (not ending or (after < len(tokens) and tokens[after].endswith(ending))):
                    return phrase_entry, after
        return entry, i + 1

    def _kind(self, i: int) -> Kind:
        """Kind of token i; past the end of the text, the end of a sentence."""
        tokens = self.out.tokens
        return self.lexicon.entry(tokens[i]).kind if i < len(tokens) else Kind.END

    # Handlers: each acts on the state, and returns the entry as what the token counts.

    def _negator(self, i: int, after: int, entry: Entry) -> Entry:
        kind, cues = entry.kind, self.out.cues
        self.out.negations.append(i)
        if self.opening >= 0:  # "without a ticket you cannot board"
            self._undo(self.opening)
            self.opening = _NONE
        elif kind is Kind.NOR or self._starts_anew(kind):
            self._open(i, Bears.ALL if kind is not Kind.NEGATOR else Bears.NEXT)
        elif self.cue >= 0:  # "not impossible", "never submit code that is not reviewed", "don't forget to"
            nested = self.subclause >= 0
            self._undo(len(cues) if not nested else self.subclause if kind is Kind.DENIAL else max(self.negation, 0))
        else:
            self._open(i, Bears.ALL if kind is not Kind.NEGATOR else Bears.NEXT)
        return entry

    def _starts_anew(self, kind: Kind) -> bool:
        """Whether a second negation stands for itself: "not hot and not spicy", "who don't smoke don't cough"."""
        second = self.cue >= 0 and self.covered
        return second and (self.coordinated or (kind is not Kind.DENIAL and self.subclause < 0))

    def _deny(self, i: int, after: int, entry: Entry) -> Entry:
        if self._attributive(i, after):
            return self.lexicon.content(self.out.tokens[i])
        self.out.negations.append(i)
        self.denied = i
        if self.cue < 0:
            self._flip(i, focus=False)
            self._open(i, Bears.LAST, start=self.clause)
            self.covered = True
        else:
            if self.covered:
                self._flip(i)
            self.cue = self.negation = _NONE
        return entry

    def _assert(self, i: int, after: int, entry: Entry) -> Entry:
        if entry.kind is Kind.ASSERT and self._attributive(i, after):
            return self.lexicon.content(self.out.tokens[i])
        if self.cue >= 0 and not self.covered:
            self._flip(self.cue)
            self._open(self.cue, Bears.ALL, start=self.clause)
            self.covered = True
        return entry

    def _attributive(self, i: int, after: int) -> bool:
        """Whether a predicate describes the noun after it: "an illegal drug"."""
        single = after == i + 1 and not self.out.tokens[i].endswith(self.lexicon.adverb_ending)
        return single and self._kind(after) is Kind.CONTENT

    def _exceptive(self, i: int, after: int, entry: Entry) -> Entry:
        if self.negation >= 0:
            self._undo(self.negation)
        elif self.cue >= 0:
            self._undo(len(self.out.cues))
        else:
            if len(self.out.words) == self.sentence:
                self.opening = self.sentence
            self.cue, self.covered, self.bears = i, False, Bears.ALL
        return entry

    def _late_exceptive(self, i: int, after: int, entry: Entry) -> Entry:
        if self._kind(after) in (Kind.END, Kind.COMMA):
            return Entry(Kind.FUNCTION)
        if self.negation >= 0:
            return self._exceptive(i, after, entry)
        return self.lexicon.content(self.out.tokens[i])

    def _particle(self, i: int, after: int, entry: Entry) -> Entry:
        last = self._kind(after) in (Kind.END, Kind.COMMA)
        if last or (i and self.out.tokens[i - 1] in self.lexicon.particle_verbs):
            return self.lexicon.content(self.out.tokens[i])
        return entry

    def _coordinator(self, i: int, after: int, entry: Entry) -> Entry:
        self.coordinated = True
        return entry

    def _subordinator(self, i: int, after: int, entry: Entry) -> Entry:
        self.subclause = len(self.out.words)
        if self.degree >= 0 and self.out.tokens[i] == "to":  # "too heavy to fly"
            self.out.negations.append(self.degree)
            if self.cue < 0:
                self._open(self.degree, Bears.NEXT)
            else:
                self._undo(self.subclause)
            self.degree = _NONE
        return entry

    def _degree(self, i: int, after: int, entry: Entry) -> Entry:
        self.degree = i
        return entry

    def _superlative(self, i: int, after: int, entry: Entry) -> Entry:
        if len(self.superlatives) < _FEW_SUPERLATIVES:
            self.superlatives.append(i)
        return Entry(Kind.CONTENT, entry.id, entry.pole) if entry.id else Entry(Kind.FUNCTION)

    def _comparison(self, i: int, after: int, entry: Entry) -> Entry:
        if self.compared[1] < 0:
            self.compared = (self.sentence, len(self.out.words))
        return entry

    def _comma(self, i: int, after: int, entry: Entry) -> Entry:
        self._end_clause(turns_back=len(self.out.words) == self.clause)
        return entry

    def _break(self, i: int, after: int, entry: Entry) -> Entry:
        self._end_clause()
        return entry

    def _end(self, i: int, after: int, entry: Entry) -> Entry:
        self._end_clause(final=True)
        return entry

    def _correct(self) -> None:
        """Lets negations bear on nothing in a text that goes on to what holds instead: "the real director was ..."."""
        tokens, lexicon = self.out.tokens, self.lexicon
        for one, two in pairwise(tokens[self.denied :]):
            if two in lexicon.corrections and one in lexicon.definites:
                self.out.focus = [False] * len(self.out.focus)
                return

    # What handlers do to the state.

    def _open(self, i: int, bears: Bears, start: int | None = None) -> None:
        self.cue, self.covered, self.bears, self.subclause = i, False, bears, _NONE
        self.negation = len(self.out.words) if start is None else start

    def _undo(self, start: int) -> None:
        """Closes the open negation and lifts it from the content words from ``start`` on."""
        cues = self.out.cues
        cues[start:] = [_NONE] * (len(cues) - start)
        self.cue, self.covered, self.negation, self.subclause = _NONE, True, _NONE, _NONE

    def _flip(self, i: int, focus: bool = True) -> None:
        """Negates the content words of the clause so far, or lifts their negation."""
        cues, focused = self.out.cues, self.out.focus
        for k in range(self.clause, len(cues)):
            cues[k], focused[k] = (_NONE if cues[k] >= 0 else i), focus

    def _end_clause(self, turns_back: bool = True, final: bool = False) -> None:
        cues = self.out.cues
        if self.cue >= 0:
            if self.bears == Bears.LAST and cues and cues[-1] >= 0:
                self.out.focus[-1] = True
            if not self.covered and turns_back:
                if all(cue < 0 for cue in cues[self.clause :]):
                    self._flip(self.cue)
                self.covered = True
        if self.covered:
            self.cue, self.clause, self.bears = _NONE, len(cues), Bears.NOTHING
        self.subclause = self.degree = _NONE
        if final:
            self.cue, self.covered, self.negation, self.opening = _NONE, True, _NONE, _NONE
            self.sentence = self.clause = len(cues)


_HANDLERS = {
    Kind.NEGATOR: _Reader._negator,
    Kind.QUANTIFIER: _Reader._negator,
    Kind.DENIAL: _Reader._negator,
    Kind.NOR: _Reader._negator,
    Kind.DENY: _Reader._deny,
    Kind.ASSERT: _Reader._assert,
    Kind.OPINION: _Reader._assert,
    Kind.EXCEPTIVE: _Reader._exceptive,
    Kind.LATE_EXCEPTIVE: _Reader._late_exceptive,
    Kind.COORDINATOR: _Reader._coordinator,
    Kind.SUBORDINATOR: _Reader._subordinator,
    Kind.DEGREE: _Reader._degree,
    Kind.SUPERLATIVE: _Reader._superlative,
    Kind.COMPARISON: _Reader._comparison,
    Kind.PARTICLE: _Reader._particle,
    Kind.BREAK: _Reader._break,
    Kind.COMMA: _Reader._comma,
    Kind.END: _Reader._end,
}
