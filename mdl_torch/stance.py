"""Stance of texts: which of them contradict each other, from signed content words (Section 3.2, φ).

A text becomes a bounded set of *signed content words*. A content word is an inflection-free stem, or the axis of an
antonym pair ("enabled" and "disabled" are the two poles of one axis); its sign says on which pole it stands and whether
a negation has it in scope. All string work happens once per text; comparing two texts is a handful of tensor operations.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mdl_torch.errors import unknown_name
from mdl_torch.words import WORD, normalise

MAX_WORDS = 24
"""Content words a text is compared by: its first ones. A memory of one or two sentences has 5 to 15."""

MAX_CHARACTERS = 16_384
"""A text is read this far; 24 content words come long before, in all but degenerate texts."""

# The code of a word: its pole and whether it is negated. Codes are chosen so that the *sum* of two codes, which does not
# depend on the order of the texts, names the relation of the two words (see ``_relations``).
_PLAIN, _PLAIN_OPPOSITE, _NEGATED_OPPOSITE, _NEGATED, _AMBIGUOUS = 0, 1, 3, 4, 9
_FEWEST_SHARED = 2  # one word in common is no common matter, unless a text has no more than one
_FOCUS = 32  # added to the code of a word that a negation bears on, not merely covers
_CODE_BITS = 7
_CODES = 1 << _CODE_BITS
_IDS = (1 << 24) - 8
_PAD = _CODES // 2 - 2 * _CODES  # id -2, half a code: matches neither a word nor another padding


@dataclass(frozen=True)
class StanceFeatures:
    """What a conflict detector knows of texts, as tensors of one leading shape ``(*)`` (often ``(*, K)``).

    Attributes:
        words: content-word ids with their sign codes, int32 ``(*, W)``, padded.
        count: distinct content words, int32 ``(*)``.
        focus: how many of them a negation bears on, int32 ``(*)``.
        polarity: 1 for a text that opens with "yes", -1 with "no", else 0, int8 ``(*)``.
        negated: whether a negation occurs at all, bool ``(*)``.
        supported: whether the text is in the lexicon's language, bool ``(*)``. An unsupported text conflicts with none.

    Example:
        >>> features = detector("lexical").features(["Backups are enabled.", "Backups are not enabled."])
        >>> features.shape, features.count.tolist(), features.negated.tolist()
        (torch.Size([2]), [2, 2], [False, True])
    """

    words: Tensor
    count: Tensor
    focus: Tensor
    polarity: Tensor
    negated: Tensor
    supported: Tensor

    @property
    def shape(self) -> torch.Size:
        """The leading shape ``(*)``."""
        return self.count.shape

    def __getitem__(self, index: Any) -> StanceFeatures:
        """The features at an index of the leading shape; a long tensor ``(B, K)`` gathers stores from ``(N,)`` texts."""
        return self._map(lambda field: field[index])

    def to(self, device: torch.device | str) -> StanceFeatures:
        """The same features on another device."""
        return self._map(lambda field: field.to(device))

    @staticmethod
    def empty(shape: Sequence[int], device: torch.device | str = "cpu") -> StanceFeatures:
        """Padding: features that conflict with nothing.

        Example:
            >>> StanceFeatures.empty((2, 3)).shape
            torch.Size([2, 3])
        """
        shape = tuple(shape)
        return StanceFeatures(
            words=torch.full((*shape, MAX_WORDS), _PAD, dtype=torch.int32, device=device),
            count=torch.zeros(shape, dtype=torch.int32, device=device),
            focus=torch.zeros(shape, dtype=torch.int32, device=device),
            polarity=torch.zeros(shape, dtype=torch.int8, device=device),
            negated=torch.zeros(shape, dtype=torch.bool, device=device),
            supported=torch.ones(shape, dtype=torch.bool, device=device),
        )

    @staticmethod
    def cat(parts: Sequence[StanceFeatures], dim: int = 0) -> StanceFeatures:
        """Several features joined along an axis of the leading shape (``dim >= 0``)."""
        return StanceFeatures(
            **{field.name: torch.cat([getattr(part, field.name) for part in parts], dim) for field in fields(parts[0])}
        )

    def _map(self, function: Callable[[Tensor], Tensor]) -> StanceFeatures:
        return StanceFeatures(**{field.name: function(getattr(self, field.name)) for field in fields(self)})


torch.export.register_dataclass(StanceFeatures, serialized_type_name="mdl_torch.StanceFeatures")


@dataclass(frozen=True)
class Evidence:
    """Why two texts conflict.

    Attributes:
        rule: name of the rule, one of the detector's ``rules``.
        a: the words of the first text that fired it; of a negation, the cue first.
        b: the same for the second text.
    """

    rule: str
    a: tuple[str, ...]
    b: tuple[str, ...]


# ---------------------------------------------------------------------------------------------------------- lexicon

_WORD_KIND, _FUNCTION, _NEGATOR, _DENIAL, _NOR, _DENY, _ASSERT, _EXCEPT, _EXCEPT_LATE, _BREAK, _COMMA, _END = range(12)
_COORDINATOR, _SUBORDINATOR, _PARTICLE, _DEGREE, _QUANTIFIER = range(12, 17)
_Entry = tuple[int, int]  # kind; for content: (id << 5 | pole)

_TOKEN = re.compile(rf"({WORD}|[.!?;:](?=\s|$|[\"')])|[,()\u2013\u2014\n\"]|--)(?:'s\b)?")
_ENDS, _COMMAS = frozenset(".!?;:\n"), frozenset((",", "(", ")", "\u2013", "\u2014", "--", '"'))
_VOWEL = re.compile(r"[aeiouy]")
_KINDS = {
    "function_words": _FUNCTION,
    "subordinators": _SUBORDINATOR,
    "coordinators": _COORDINATOR,
    "particles": _PARTICLE,
    "degrees": _DEGREE,
    "breaks": _BREAK,
    "exceptives_when_negated": _EXCEPT_LATE,
    "exceptives": _EXCEPT,
    "assert_clause": _ASSERT,
    "opinion_verbs": _ASSERT,
    "deny_clause": _DENY,
    "denials": _DENIAL,
    "quantifiers": _QUANTIFIER,
    "negators": _NEGATOR,
    "nor": _NOR,
    "neutral": _FUNCTION,
}


def stem(word: str) -> str:
    """A regular English word without its inflection: plural, third person, -ed, -ing, final -e and doubled letters.

    Equal words of different inflection get equal stems; a stem need not be a word.

    Example:
        >>> [stem(word) for word in ("opens", "stopped", "closing", "carried", "boxes")]
        ['open', 'stop', 'clos', 'carri', 'box']
    """
    if len(word) > 3:
        if word.endswith("ies"):
            word = word[:-3] + "y"
        elif word.endswith(("sses", "xes", "ches", "shes", "zes", "oes")):
            word = word[:-2]
        elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
            word = word[:-1]
        if word.endswith("ied"):
            word = word[:-3] + "y"
        elif word.endswith("ed") and _VOWEL.search(word[:-2]) and not word.endswith("eed"):
            word = word[:-2]
        elif word.endswith("ing") and len(word) > 4 and _VOWEL.search(word[:-3]):
            word = word[:-3]
    if len(word) > 2 and word[-1] == "e":
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    if len(word) > 2 and word[-1] == "y":
        word = word[:-1] + "i"
    return word


def _word_id(key: str) -> int:
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % _IDS


class Lexicon:
    """The words of a language that carry stance, read from data files that a user may replace.

    Args:
        cues: the lists of ``data/stance/cues_en.yaml``: negators, exceptives, clause breaks, function words and so on.
        antonyms: axes, each a pair of poles, each a list of words; phrases are joined by ``_``. The first axis of a
            word wins.
        irregular: irregular inflected forms and their bases.
        other_languages: for each other language, function words by which a text in it is recognised.
        stemmer: strips regular inflection.

    Example:
        >>> german = Lexicon({"language": "de", "negators": ["nicht"], "function_words": ["ist", "die"]})
        >>> LexicalConflictDetector(lexicon=german).evidence("Die Tür ist offen", "Die Tür ist nicht offen").rule
        'negation'
    """

    def __init__(
        self,
        cues: dict[str, Any],
        antonyms: Iterable[tuple[Sequence[str], Sequence[str]]] = (),
        irregular: dict[str, str] | None = None,
        stemmer: Callable[[str], str] = stem,
    ) -> None:
        unknown = set(cues) - set(_KINDS) - {"language", "contracted", "adverb_ending", "particle_verbs", "yes", "no", "answer_followers"}
        for key in sorted(unknown):
            raise ValueError(unknown_name("cue list", key, [*_KINDS, "contracted", "particle_verbs", "yes", "no"]))
        self.language: str = cues["language"]
        self._irregular = irregular or {}
        self._stemmer = stemmer
        self.yes, self.no = frozenset(cues.get("yes", ())), frozenset(cues.get("no", ()))
        self.answer_followers = frozenset(cues.get("answer_followers", ()))
        self.adverb_ending: str = cues.get("adverb_ending", "\0")
        self.particle_verbs = frozenset(cues.get("particle_verbs", ()))
        self.phrases: dict[str, list[tuple[tuple[str, ...], str, _Entry]]] = {}
        self.entries: dict[str, _Entry] = dict.fromkeys(_ENDS, (_END, 0)) | dict.fromkeys(_COMMAS, (_COMMA, 0))
        self.simple_negators: set[str] = set()
        self._poles: dict[str, tuple[int, int]] = {}
        self._add_antonyms(antonyms)
        for name, kind in _KINDS.items():
            for phrase in cues.get(name, ()):
                self._add(phrase, (kind, int(name == "opinion_verbs")))
        for base in cues.get("contracted", ()):
            for form in (f"{base}n't", f"{base}nt", f"{base}n t"):
                self._add(form, (_NEGATOR, 0))
        for options in self.phrases.values():
            options.sort(key=lambda option: -len(option[0]))
        self.simple_negators = {word for word, entry in self.entries.items() if entry[0] in (_NEGATOR, _QUANTIFIER, _NOR)}

    @classmethod
    def from_folder(cls, folder: str | Path, language: str = "en") -> Lexicon:
        """Reads ``cues_{language}.yaml``, ``antonyms_*.txt`` and ``irregular.txt`` from a folder; the last two may lack.

        Raises:
            FileNotFoundError: the folder has no ``cues_{language}.yaml``.
            ValueError: a line of an antonym file has no two poles.
        """
        import yaml

        root = Path(folder)
        # BaseLoader: every value stays a string, also yes, no, on and off
        cues = yaml.load((root / f"cues_{language}.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
        axes: list[tuple[list[str], list[str]]] = []
        for path in (root / f"antonyms_{language}.txt", root / "antonyms_wordnet.txt"):
            if path.is_file():
                axes += [_axis(line, path) for line in _lines(path)]
        irregular: dict[str, str] = {}
        for path in (root / "irregular.txt", root / f"irregular_{language}.txt"):
            if path.is_file():
                irregular |= dict(line.split() for line in _lines(path))
        return cls(cues, axes, irregular)

    def entry(self, token: str) -> _Entry:
        """Kind and signed id of a single token, remembered."""
        found = self.entries.get(token)
        if found is None:
            if len(self.entries) > 200_000:  # bounded: forget what texts brought, keep what the lists say
                for key in list(self.entries)[100_000:]:
                    del self.entries[key]
            found = self.entries[token] = (_WORD_KIND, self._content(token))
        return found

    def _add(self, phrase: str, entry: _Entry) -> None:
        first, *rest = phrase.split()
        ending = rest.pop()[1:] if rest and rest[-1].startswith("*") else ""
        if rest or ending:
            options = self.phrases.setdefault(first, [])
            if all((tuple(rest), ending) != option[:2] for option in options):
                options.append((tuple(rest), ending, entry))
        else:
            self.entries[first] = entry

    def _add_antonyms(self, axes: Iterable[tuple[Sequence[str], Sequence[str]]]) -> None:
        joined: set[str] = set()  # words that joined an axis as antonym of one of its words; none joins through them
        for left, right in axes:
            keys = [[self._key(word) for word in pole] for pole in (left, right)]
            fresh = [all(key not in self._poles for key in pole) for pole in keys]
            if all(fresh):
                axis = _word_id(keys[0][0])
                for pole in (0, 1):
                    self._poles.update(dict.fromkeys(keys[pole], (axis, pole)))
            elif len(left) == len(right) == 1 and any(fresh):
                old, new = (keys[1][0], keys[0][0]) if fresh[0] else (keys[0][0], keys[1][0])
                if old in joined:
                    continue
                axis, pole = self._poles[old]
                self._poles[new] = (axis, 1 - pole)
                joined.add(new)
            for word in (*left, *right):
                if self._key(word) in self._poles:
                    axis, pole = self._poles[self._key(word)]
                    self._add(word.replace("_", " "), (_WORD_KIND, axis << _CODE_BITS | pole))

    def _key(self, word: str) -> str:
        return word if "_" in word else self._stemmer(self._irregular.get(word, word))

    def _content(self, token: str) -> int:
        pole = self._pole(token)
        if pole is not None:
            return pole[0] << _CODE_BITS | pole[1]
        head, hyphen, tail = token.partition("-")
        if hyphen and head == "non":
            return self._content(tail) ^ 1
        if hyphen and token.endswith("-free"):
            return self._content(token[:-5]) ^ 1
        if token.startswith("non") and len(token) > 7:
            return self._content(token[3:]) ^ 1
        return _word_id(self._key(token)) << _CODE_BITS

    def _pole(self, token: str) -> tuple[int, int] | None:
        """Axis and pole of a word, also through its comparative, superlative or adverb."""
        found = self._poles.get(self._key(token))
        for ending in ("er", "est", "ly"):
            if found is None and token.endswith(ending) and len(token) > len(ending) + 2:
                found = self._poles.get(self._key(token[: -len(ending)]))
        return found


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _axis(line: str, path: Path) -> tuple[list[str], list[str]]:
    left, bar, right = line.partition("|")
    if not bar and len(line.split()) == 2:
        left, right = line.split()
    if not left.split() or not right.split():
        raise ValueError(f"{path}: expected 'words | words' or two words, got {line!r}")
    return left.split(), right.split()


@cache
def english() -> Lexicon:
    """The lexicon that ships with the package, read once."""
    with resources.as_file(resources.files("mdl_torch") / "data" / "stance") as folder:
        return Lexicon.from_folder(folder)


# ---------------------------------------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Reading:
    """One text, read: tokens, and per content word its signed id, the token that negates it (or -1), its own token."""

    tokens: list[str]
    values: list[int]
    cues: list[int]
    focus: list[bool]
    places: list[int]
    polarity: int
    negated: bool


def _flip(cues: list[int], focus: list[bool], start: int, cue: int, whole: bool = True) -> None:
    for k in range(start, len(cues)):
        cues[k], focus[k] = -1 if cues[k] >= 0 else cue, whole


def read(text: str, lexicon: Lexicon) -> _Reading:
    """Splits a text into content words and decides which of them stand in the scope of a negation.

    One pass over the tokens. ``cue`` is the token whose negation is open (-1: none), ``covered`` says whether it has
    reached a content word yet: a negation ends with its clause, but never before it has negated something.
    """
    tokens = _TOKEN.findall(normalise(text[:MAX_CHARACTERS]))
    entries, phrases = lexicon.entries, lexicon.phrases
    values: list[int] = []
    cues: list[int] = []
    focus: list[bool] = []
    places: list[int] = []
    polarity, negated = 0, False
    cue, covered, subordinate, coordinated = -1, True, False, False
    clause = sentence_negation = 0  # first content word of the clause; of the sentence's last negation (-1: none)
    sentence_negation = -1
    opening = -1  # first content word after an exceptive that opened the sentence (-1: none)
    sentence, degree, inner = 0, -1, 0
    last_word = False
    pointed, wide = False, False  # whether the open negation bears on the next word; on all it covers
    i, n = 0, len(tokens)
    if n and (tokens[0] in lexicon.yes or tokens[0] in lexicon.no):
        follower = tokens[1] if n > 1 else "."
        answers = tokens[0] in ("yes", "no") and follower in lexicon.answer_followers
        if answers or follower in _ENDS or follower in _COMMAS:
            polarity = 1 if tokens[0] in lexicon.yes else -1
            i = 1
    while i < n:
        token = tokens[i]
        entry = entries.get(token) or lexicon.entry(token)
        step = 1
        if token in phrases:
            for rest, ending, phrase_entry in phrases[token]:
                after = i + 1 + len(rest)
                if tuple(tokens[i + 1 : after]) == rest and (not ending or (after < n and tokens[after].endswith(ending))):
                    entry, step = phrase_entry, 1 + len(rest)
                    break
        kind = entry[0]
        if kind == _PARTICLE:
            last = i + 1 == n or entries.get(tokens[i + 1], (0,))[0] in (_END, _COMMA)
            if last or (i and tokens[i - 1] in lexicon.particle_verbs):
                kind, entry = _WORD_KIND, (_WORD_KIND, lexicon._content(token))
            else:
                kind = _FUNCTION
        elif kind == _EXCEPT_LATE:
            last = i + step == n or entries.get(tokens[i + step], (0,))[0] in (_END, _COMMA)
            kind = _FUNCTION if last else _EXCEPT if sentence_negation >= 0 else _WORD_KIND
            if kind == _WORD_KIND:
                entry = (_WORD_KIND, lexicon._content(token))

        elif kind in (_DENY, _ASSERT) and i + step < n and not token.endswith(lexicon.adverb_ending):
            following = tokens[i + step]  # "an illegal drug": the drug is, not the clause
            if step == 1 and entry[1] == 0 and (entries.get(following) or lexicon.entry(following))[0] == _WORD_KIND:
                kind, entry = _WORD_KIND, (_WORD_KIND, lexicon._content(token))

        if kind == _WORD_KIND:
            values.append(entry[1])
            cues.append(cue)
            focus.append(pointed)
            if not wide and not token.endswith(lexicon.adverb_ending):
                pointed = False
            places.append(i)
            covered, coordinated = True, False
        elif kind == _FUNCTION:
            pass
        elif kind in (_NEGATOR, _QUANTIFIER, _DENIAL, _NOR):
            negated, pointed, wide, last_word = True, True, kind != _NEGATOR, False
            if opening >= 0:
                for k in range(opening, len(cues)):
                    cues[k] = -1
                opening = -1
            elif kind == _NOR or (cue >= 0 and covered and (coordinated or (kind != _DENIAL and not subordinate))):
                cue, covered = i, False
            elif cue >= 0:  # a negation within a negation undoes it: "never submit code that is not reviewed"
                undone = len(cues) if not subordinate else inner if kind == _DENIAL else max(sentence_negation, 0)
                for k in range(undone, len(cues)):
                    cues[k] = -1
                cue, covered = -1, True
            else:
                cue, covered = i, False
            subordinate = False
            sentence_negation = len(values) if cue >= 0 else -1
        elif kind == _DENY:
            negated = True
            if cue >= 0:
                if covered:
                    _flip(cues, focus, clause, i)
                cue, sentence_negation = -1, -1
            else:
                _flip(cues, focus, clause, i, whole=False)
                cue, covered, sentence_negation, pointed, wide, last_word = i, True, clause, False, False, True
        elif kind == _ASSERT:
            if cue >= 0 and not covered:
                _flip(cues, focus, clause, cue)
                covered, sentence_negation, pointed, wide = True, clause, True, True
        elif kind == _EXCEPT:
            if sentence_negation >= 0:
                for k in range(sentence_negation, len(cues)):
                    cues[k] = -1
                cue, sentence_negation = -1, -1
            else:
                if len(values) == sentence:
                    opening = len(values)
                cue, covered, pointed, wide = (i, False, True, True) if cue < 0 else (-1, True, False, False)
        elif kind == _COORDINATOR:
            coordinated = True
        elif kind == _SUBORDINATOR:
            subordinate, inner = True, len(values)
            if degree >= 0 and token == "to":
                cue, covered, degree, negated = (degree, False, -1, True) if cue < 0 else (-1, True, -1, True)
                pointed, wide = True, False
                sentence_negation = len(values) if cue >= 0 else -1
        elif kind == _DEGREE:
            degree = i
        else:  # a clause ends
            if last_word and cue >= 0 and cues and cues[-1] >= 0:
                focus[-1], last_word = True, False
            if cue >= 0 and not covered and (kind != _COMMA or len(values) == clause):
                if max(cues[clause:], default=-1) < 0:
                    _flip(cues, focus, clause, cue)
                covered = True
            if kind == _END:
                cue, covered, opening, sentence_negation, sentence = -1, True, -1, -1, len(values)
            elif covered:
                cue = -1
            subordinate, degree = False, -1
            if covered:
                clause = len(values)
        i += step
    if last_word and cue >= 0 and cues and cues[-1] >= 0:
        focus[-1] = True
    if cue >= 0 and not covered and max(cues[clause:], default=-1) < 0:
        _flip(cues, focus, clause, cue)
    return _Reading(tokens, values, cues, focus, places, polarity, negated)


def _signed_words(reading: _Reading) -> dict[int, int]:
    """Content-word id to code, for the first ``MAX_WORDS`` distinct ones; seen with two signs, a word is ambiguous."""
    codes: dict[int, int] = {}
    for value, cue, focus in zip(reading.values, reading.cues, reading.focus, strict=True):
        pole = value & 1
        code = pole if cue < 0 else _NEGATED - pole + _FOCUS * focus
        known = codes.setdefault(value >> _CODE_BITS, code)
        if known != code:
            same = (known - code) % _FOCUS == 0
            codes[value >> _CODE_BITS] = max(known, code) if same else _AMBIGUOUS
    if len(codes) > MAX_WORDS:
        return dict(list(codes.items())[:MAX_WORDS])
    return codes


# --------------------------------------------------------------------------------------------------------- detectors


class ConflictDetector(nn.Module, ABC):
    """Says which texts of a store contradict each other. The gate takes any detector of this form.

    ``features`` does all string work, once per text and on the host. ``conflicts`` compares features and is made of
    tensor operations only, so that it runs inside a graph, on any device. A detector of typed values (numbers, dates,
    names) adds fields to its own features; an NLI cross-encoder keeps token ids as features and runs its model in
    ``conflicts``. Tensors that a detector holds are buffers.

    Attributes:
        name: the detector's name in outputs.
        rules: names of the rules; code i in the result of ``conflicts`` is ``rules[i - 1]``.
    """

    name: str
    rules: tuple[str, ...]

    @abstractmethod
    def features(self, texts: Sequence[str]) -> StanceFeatures:
        """Features of N texts, shape ``(N,)``, on the CPU."""

    @abstractmethod
    def conflicts(self, a: StanceFeatures, b: StanceFeatures) -> Tensor:
        """Rule codes of all pairs: ``(*, Ka)`` and ``(*, Kb)`` to int8 ``(*, Ka, Kb)``; 0 is no conflict.

        Symmetric: swapping a and b transposes the result. A text never conflicts with itself.
        """

    @abstractmethod
    def evidence(self, a: str, b: str) -> Evidence | None:
        """The rule and the words by which two texts conflict, in agreement with ``conflicts``; None if they do not."""

    def forward(self, features: StanceFeatures) -> Tensor:
        """Rule codes of all pairs of a store, ``(*, K)`` to int8 ``(*, K, K)``."""
        return self.conflicts(features, features)


class _WordConflictDetector(ConflictDetector):
    """What the two word-based detectors share: features and evidence."""

    rules = ("polarity", "antonym", "negation")

    def __init__(self, lexicon: Lexicon | None = None) -> None:
        super().__init__()
        self.lexicon = lexicon or english()

    def features(self, texts: Sequence[str]) -> StanceFeatures:
        """Features of N texts, shape ``(N,)``, on the CPU. Time is linear in the length of the texts.

        Raises:
            TypeError: ``texts`` is a single string.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts: expected a sequence of strings, got one string {texts[:40]!r}")
        words: list[int] = []
        counts: list[tuple[int, int]] = []
        rest: list[tuple[int, bool, bool]] = []
        for text in texts:
            reading = read(text, self.lexicon)
            codes = _signed_words(reading)
            words += [key << _CODE_BITS | code for key, code in codes.items()]
            words += _PADDING[len(codes)]
            counts.append((len(codes), sum(code >= _FOCUS for code in codes.values())))
            rest.append((reading.polarity, reading.negated, True))
        sizes = np.array(counts, dtype=np.int32).reshape(len(texts), 2)
        flags = np.array(rest, dtype=np.int8).reshape(len(texts), 3)
        return StanceFeatures(
            words=torch.from_numpy(np.array(words, dtype=np.int32).reshape(len(texts), MAX_WORDS)),
            count=torch.from_numpy(sizes[:, 0].copy()),
            focus=torch.from_numpy(sizes[:, 1].copy()),
            polarity=torch.from_numpy(flags[:, 0].copy()),
            negated=torch.from_numpy(flags[:, 1] != 0),
            supported=torch.from_numpy(flags[:, 2] != 0),
        )

    def evidence(self, a: str, b: str) -> Evidence | None:
        """The rule by which two texts conflict and the words that fired it; None if they do not conflict.

        Example:
            >>> detector("lexical").evidence("The shop is open.", "The shop is closed.")
            Evidence(rule='antonym', a=('open',), b=('closed',))
        """
        code = int(self.conflicts(self.features([a]), self.features([b])))
        if code == 0:
            return None
        rule = self.rules[code - 1]
        one, two = read(a, self.lexicon), read(b, self.lexicon)
        if rule == "polarity":
            return Evidence(rule, (one.tokens[0],), (two.tokens[0],))
        wanted = self._fires(rule)
        codes_a, codes_b = _signed_words(one), _signed_words(two)
        shared = [key for key in codes_a if key in codes_b and (codes_a[key] + codes_b[key]) % _FOCUS in wanted]
        return Evidence(rule, _surface(one, shared), _surface(two, shared))

    def _fires(self, rule: str) -> frozenset[int]:
        """The code sums by which a rule fires."""
        return frozenset({1}) if rule == "antonym" else frozenset({4})


_PADDING = [[_PAD] * (MAX_WORDS - used) for used in range(MAX_WORDS + 1)]


def _surface(reading: _Reading, keys: Sequence[int]) -> tuple[str, ...]:
    """The tokens by which a text shows some content words, each negation cue before the words it negates."""
    places: dict[int, None] = {}
    for value, cue, place in zip(reading.values, reading.cues, reading.places, strict=True):
        if value >> _CODE_BITS in keys:
            if cue >= 0:
                places[cue] = None
            places[place] = None
    return tuple(reading.tokens[place] for place in sorted(places))


def _sums(a: StanceFeatures, b: StanceFeatures) -> Tensor:
    """Sum of the codes of each shared word, int32 ``(*, Ka, Kb, W, W)``; outside [0, 128) for words that differ.

    With keys id·128 + code, subtracting b's key with its code negated leaves 128·(id_a − id_b) + code_a + code_b.
    """
    mirrored = b.words - 2 * (b.words & (_CODES - 1))
    return a.words[..., :, None, :, None] - mirrored[..., None, :, None, :]


def _opposed(a: StanceFeatures, b: StanceFeatures) -> Tensor:
    return a.polarity[..., :, None] * b.polarity[..., None, :] < 0


def _both_supported(a: StanceFeatures, b: StanceFeatures) -> Tensor:
    return a.supported[..., :, None] & b.supported[..., None, :]


def _share(argument: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{argument}: expected a share in [0, 1], got {value}")
    return float(value)


def _rule_codes(polarity: Tensor, antonym: Tensor, negation: Tensor, allowed: Tensor) -> Tensor:
    """The first rule that fires: 1 polarity, 2 antonym, 3 negation, 0 none."""
    code = torch.where(polarity, 1, torch.where(antonym, 2, torch.where(negation, 3, 0)))
    return (code * allowed).to(torch.int8)


class LexicalConflictDetector(_WordConflictDetector):
    """Contradiction by words, with scope and shared content: the gate's default.

    Two texts are compared by the content words they share, each with its sign. They conflict

    - by ``polarity``, when one opens with "yes", the other with "no", and they share some content;
    - by ``antonym``, when an odd number of shared axes show opposite poles ("enabled", "disabled");
    - by ``negation``, when a shared word is negated in exactly one text, and no shared word shows that the negations
      match (negated in both, or negated in one and replaced by its antonym in the other).

    The last two need enough shared content: at least ``shared_content`` of the content words of the text that has fewer.

    Args:
        lexicon: the language's words; the packaged English ones by default.
        shared_content: share of the smaller text's content words that both must have, in [0, 1].
        shared_answer: the same, for ``polarity``.

    Raises:
        ValueError: a share lies outside [0, 1].

    Example:
        >>> texts = ["Never touch this acid without gloves.", "Always wear gloves with this acid.", "Gloves are not needed."]
        >>> lexical = LexicalConflictDetector()
        >>> lexical(lexical.features(texts)).tolist()
        [[0, 0, 3], [0, 0, 3], [3, 3, 0]]
    """

    name = "lexical"

    def __init__(
        self,
        lexicon: Lexicon | None = None,
        shared_content: float = 0.4,
        shared_of_longer: float = 0.2,
        shared_focus: float = 0.34,
    ) -> None:
        super().__init__(lexicon)
        self.shared_content = _share("shared_content", shared_content)
        self.shared_of_longer = _share("shared_of_longer", shared_of_longer)
        self.shared_focus = _share("shared_focus", shared_focus)

    def conflicts(self, a: StanceFeatures, b: StanceFeatures) -> Tensor:
        """Rule codes of all pairs: ``(*, Ka)`` and ``(*, Kb)`` to int8 ``(*, Ka, Kb)``; 0 is no conflict."""
        sums = _sums(a, b)
        related = (sums >= 0) & (sums < _CODES)
        relation = sums & (_FOCUS - 1)
        shared = related.sum((-2, -1), dtype=torch.int32)
        opposite = (sums == _PLAIN + _PLAIN_OPPOSITE).sum((-2, -1), dtype=torch.int32)
        denied = (sums == _PLAIN + _NEGATED + _FOCUS).sum((-2, -1), dtype=torch.int32)
        matched = (related & (relation >= 3) & (relation < _AMBIGUOUS) & (relation != _PLAIN + _NEGATED)).any(-1).any(-1)
        smaller = torch.minimum(a.count[..., :, None], b.count[..., None, :])
        larger = torch.maximum(a.count[..., :, None], b.count[..., None, :])
        focus = a.focus[..., :, None] + b.focus[..., None, :]
        answers = a.polarity[..., :, None] * b.polarity[..., None, :]
        same_matter = (
            (shared > 0)
            & (shared >= smaller.clamp(max=_FEWEST_SHARED))
            & (shared >= self.shared_content * smaller)
            & (shared >= self.shared_of_longer * larger)
        )
        return _rule_codes(
            polarity=(answers < 0) & ((shared > 0) | (smaller <= _FEWEST_SHARED)),
            antonym=same_matter & (opposite % 2 == 1),
            negation=same_matter & (denied > 0) & (denied >= self.shared_focus * focus) & ~matched & (answers <= 0),
            allowed=_both_supported(a, b),
        )


class LiteralConflictDetector(_WordConflictDetector):
    """Contradiction as the paper words it, without scope or shared content.

    Two texts conflict when their yes/no polarity is opposed, when an antonym pair stands across them, or when exactly
    one of them holds a negation. Kept to reproduce the paper: it fires on two unrelated sentences of which one has a
    "not".

    Example:
        >>> literal = LiteralConflictDetector()
        >>> literal(literal.features(["It is not raining.", "Oslo is in Norway."])).tolist()
        [[0, 3], [3, 0]]
    """

    name = "literal"

    def conflicts(self, a: StanceFeatures, b: StanceFeatures) -> Tensor:
        """Rule codes of all pairs: ``(*, Ka)`` and ``(*, Kb)`` to int8 ``(*, Ka, Kb)``; 0 is no conflict."""
        sums = _sums(a, b)
        relation = sums & (_FOCUS - 1)
        odd = (sums >= 0) & (sums < _CODES) & (relation < _AMBIGUOUS) & (relation % 2 == 1)
        some = (a.count[..., :, None] > 0) & (b.count[..., None, :] > 0)
        return _rule_codes(
            polarity=_opposed(a, b),
            antonym=odd.any(-1).any(-1),
            negation=some & (a.negated[..., :, None] ^ b.negated[..., None, :]),
            allowed=_both_supported(a, b),
        )

    def _fires(self, rule: str) -> frozenset[int]:
        return frozenset({1, 3, 5, 7}) if rule == "antonym" else frozenset()


_DETECTORS: dict[str, type[_WordConflictDetector]] = {
    "lexical": LexicalConflictDetector,
    "literal": LiteralConflictDetector,
}


def detector(name: Literal["lexical", "literal"] | str = "lexical") -> ConflictDetector:
    """The conflict detector of a name, with the packaged English lexicon.

    Raises:
        ValueError: no detector has that name; the message tells the nearest.

    Example:
        >>> detector("literal").rules
        ('polarity', 'antonym', 'negation')
    """
    if name not in _DETECTORS:
        raise ValueError(unknown_name("conflict detector", name, _DETECTORS))
    return _DETECTORS[name]()
