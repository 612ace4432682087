"""The words of a language that carry stance: negators, clause breaks, function words, antonyms. All of it is data."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum, auto
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mdl_torch.errors import unknown_name

Axis = tuple[Sequence[str], Sequence[str]]
"""An antonym axis: the words of one pole, the words of the other."""

IDS = (1 << 24) - 8
"""How many different word ids there are; an id and its sign code share 31 bits."""

FIRST_NUMBER = IDS - (1 << 20)
"""The least id of a number; ids of all other words are less."""

_VOWEL = re.compile(r"[aeiouy]")
_FOREIGN_LETTER = re.compile(r"[^\W\d_a-z\u00aa\u00ba\u00c0-\u024f\u0250-\u02af\u1e00-\u1eff]")
_FORGET_ABOVE = 200_000  # tokens remembered; texts bring new ones without end


ANY = "*"
"""Stands for the second word of a phrase that names only its ending: "stop ...ing"."""


class Kind(IntEnum):
    """What a word does in a sentence."""

    CONTENT = 0
    FUNCTION = auto()
    NEGATOR = auto()
    """Negates what follows, bearing on the next word: "not", "never"."""
    QUANTIFIER = auto()
    """Negates what follows, bearing on all of it: "no", "nobody"."""
    DENIAL = auto()
    """A verb or noun that negates its object: "avoid", "fail to", "lack of"."""
    NOR = auto()
    DENY = auto()
    """Denies the clause it stands in, bearing on its last word: "forbidden", "myth"."""
    ASSERT = auto()
    """Asserts the clause it stands in, or denies it when negated: "allowed", "true"."""
    OPINION = auto()
    """The same as a verb: "think", "believe"."""
    EXCEPTIVE = auto()
    """Undoes a negation of its sentence, or negates what follows: "without", "unless"."""
    LATE_EXCEPTIVE = auto()
    """Undoes a negation, or is an ordinary word: "until", "before"."""
    COORDINATOR = auto()
    SUBORDINATOR = auto()
    DEGREE = auto()
    SUPERLATIVE = auto()
    """A word of the first or last place, content besides: "largest", "main"; with id 0 a function word, "only"."""
    COMPARISON = auto()
    """Comes between two things compared: "than"."""
    PARTICLE = auto()
    """Content only beside its verb or at the end of a clause: "on", "off"."""
    BREAK = auto()
    COMMA = auto()
    END = auto()


class Entry(NamedTuple):
    """A word's kind; for content also its id, and its pole: 0, or 1 for the opposite side of an antonym axis."""

    kind: Kind
    id: int = 0
    pole: int = 0


class Phrase(NamedTuple):
    """A phrase after its first word: further words, the ending of the word after them, the entry it stands for."""

    rest: tuple[str, ...]
    ending: str
    entry: Entry


# The cue lists of a file, weakest first: a word in two lists keeps the later one.
_LISTS = {
    "function_words": Kind.FUNCTION,
    "subordinators": Kind.SUBORDINATOR,
    "coordinators": Kind.COORDINATOR,
    "particles": Kind.PARTICLE,
    "degrees": Kind.DEGREE,
    "comparisons": Kind.COMPARISON,
    "breaks": Kind.BREAK,
    "exceptives_when_negated": Kind.LATE_EXCEPTIVE,
    "exceptives": Kind.EXCEPTIVE,
    "opinion_verbs": Kind.OPINION,
    "assert_clause": Kind.ASSERT,
    "deny_clause": Kind.DENY,
    "denials": Kind.DENIAL,
    "quantifiers": Kind.QUANTIFIER,
    "negators": Kind.NEGATOR,
    "nor": Kind.NOR,
    "neutral": Kind.FUNCTION,
}
_OTHER_KEYS = (
    *("language", "contracted", "adverb_ending", "particle_verbs"),
    *("yes", "no", "plain_answers", "answer_followers"),
    *("superlatives", "superlative_ending", "not_superlatives", "definites", "possessives", "prepositions"),
    *("hedges", "copulas", "agents", "corrections"),
)
_PUNCTUATION = dict.fromkeys(".!?;:\n", Entry(Kind.END)) | dict.fromkeys(
    (",", "(", ")", "\u2013", "\u2014", "--"), Entry(Kind.COMMA)
)


def stem(word: str) -> str:
    """A regular English word without its inflection: plural, third person, -ed, -ing, final -e and doubled letters.

    Words that differ in inflection get equal stems; a stem need not be a word.

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
        elif word.endswith("ed") and not word.endswith("eed") and _VOWEL.search(word[:-2]):
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


class Lexicon:
    """The stance words of one language, read from lists that a user may replace.

    Content words become ids: equal for all inflections of a word, and equal for both poles of an antonym axis, which
    ``Entry.pole`` tells apart. An id is a hash, so features of different sessions can be compared.

    Args:
        cues: the lists of ``data/stance/cues_en.yaml``: negators, exceptives, clause breaks, function words and so on.
        antonyms: axes. The first axis of a word wins; phrases are joined by ``_``.
        irregular: irregular inflected forms and their bases.
        other_languages: function words of other languages, by which a text in them is recognised, and
            ``name_particles``, which count for little, and ``shared_words``, which count for no language.
        stemmer: strips regular inflection.

    Raises:
        ValueError: ``cues`` holds an unknown list or lacks ``language``.

    Example:
        >>> lexicon = Lexicon({"language": "de", "negators": ["nicht"], "function_words": ["ist", "die"]})
        >>> lexicon.entry("nicht").kind.name, lexicon.entry("ist").kind.name, lexicon.entry("offen").kind.name
        ('NEGATOR', 'FUNCTION', 'CONTENT')
    """

    def __init__(
        self,
        cues: Mapping[str, Any],
        antonyms: Iterable[Axis] = (),
        irregular: Mapping[str, str] | None = None,
        other_languages: Mapping[str, Sequence[str]] | None = None,
        stemmer: Callable[[str], str] = stem,
    ) -> None:
        for key in cues:
            if key not in _LISTS and key not in _OTHER_KEYS:
                raise ValueError(unknown_name("cue list", key, [*_LISTS, *_OTHER_KEYS]))
        if "language" not in cues:
            raise ValueError("cues: expected a 'language', got none")
        antonyms = list(antonyms)
        self.fingerprint = _fingerprint(cues, antonyms, irregular or {}, other_languages or {}, stemmer)
        """Digest of all words and of the stemmer's name: lexicons that differ in a word have different ones."""
        self.language: str = cues["language"]
        self.adverb_ending: str = cues.get("adverb_ending", "\0")
        self.superlative_ending: str = cues.get("superlative_ending", "\0")
        self.yes = frozenset(cues.get("yes", ()))
        self.no = frozenset(cues.get("no", ()))
        self.plain_answers = frozenset(cues.get("plain_answers", ()))
        self.answer_followers = frozenset(cues.get("answer_followers", ()))
        self.particle_verbs = frozenset(cues.get("particle_verbs", ()))
        self.not_superlatives = frozenset(cues.get("not_superlatives", ()))
        self.definites = frozenset(cues.get("definites", ()))
        self.possessives = frozenset(cues.get("possessives", ()))
        self.prepositions = frozenset(cues.get("prepositions", ()))
        self.hedges = frozenset(cues.get("hedges", ()))
        self.copulas = frozenset(cues.get("copulas", ()))
        self.corrections = frozenset(cues.get("corrections", ()))
        self.agents = frozenset(cues.get("agents", ()))
        self.entries: dict[str, Entry] = dict(_PUNCTUATION)
        self.phrases: dict[str, dict[str, list[Phrase]]] = {}  # by first, then by second word
        self._irregular = irregular or {}
        self._stemmer = stemmer
        self._poles: dict[str, tuple[int, int]] = {}
        self._add_antonyms(antonyms)
        self._axes = frozenset(axis for axis, _ in self._poles.values())
        self._add_cues(cues)
        self._listed = len(self.entries)
        self._own = frozenset(word for word, entry in self.entries.items() if entry.kind and word.isalpha())
        self._latin = not any(_FOREIGN_LETTER.search(word) for word in self._own)
        others = {key: words for key, words in (other_languages or {}).items() if key != self.language}
        self._particles = frozenset(others.pop("name_particles", ())) - self._own
        self._telling = self._own - frozenset(others.pop("shared_words", ()))
        self._foreign = frozenset(word for words in others.values() for word in words) - self._own
        self._suspicious = self._foreign | self._particles

    @classmethod
    def from_folder(cls, folder: str | Path, language: str = "en") -> Lexicon:
        """Reads a lexicon from the files of a folder.

        ``cues_{language}.yaml`` is required; ``antonyms_{language}.txt``, ``antonyms_wordnet.txt``, ``irregular.txt``,
        ``irregular_{language}.txt`` and ``other_languages.yaml`` are read where they exist. See ``data/stance``.

        Raises:
            FileNotFoundError: the cue file is missing.
            ValueError: a line of an antonym file has no two poles, or the cue file an unknown list.
        """
        root = Path(folder)
        axes = [
            _axis(line, path)
            for path in (root / f"antonyms_{language}.txt", root / "antonyms_wordnet.txt")
            for line in _lines(path)
        ]
        irregular: dict[str, str] = {}
        for path in (root / "irregular.txt", root / f"irregular_{language}.txt"):
            irregular |= dict(line.split() for line in _lines(path))
        others = root / "other_languages.yaml"
        cues = _yaml(root / f"cues_{language}.yaml")
        return cls(cues, axes, irregular, _yaml(others) if others.is_file() else None)

    def entry(self, token: str) -> Entry:
        """What a single token is; remembered, so that a text costs one look-up a token."""
        found = self.entries.get(token)
        if found is None:
            if len(self.entries) > _FORGET_ABOVE:
                for key in list(self.entries)[self._listed :]:
                    del self.entries[key]
            superlative = token.endswith(self.superlative_ending) and token not in self.not_superlatives
            found = self.entries[token] = self._superlative(token) if superlative else self.content(token)
        return found

    def content(self, token: str) -> Entry:
        """A token read as a content word, whatever the lists say."""
        pole = self._find_pole(token)
        if pole is not None:
            return Entry(Kind.CONTENT, *pole)
        head, hyphen, tail = token.partition("-")
        if hyphen and head == "non":
            return self._opposite(tail)
        if hyphen and token.endswith("-free"):
            return self._opposite(token[:-5])
        if token.startswith("non") and len(token) > 7:
            return self._opposite(token[3:])
        return Entry(Kind.CONTENT, self._hash(self._key(token)))

    def supports(self, text: str, tokens: Sequence[str]) -> bool:
        """Whether a text is in the lexicon's language, as far as its script and function words tell.

        A text counts as foreign when it has more function words of other languages than of this one. Fragments without
        any ("42 km", "Rio de Janeiro") count as supported.

        Args:
            text: the text as it came; capitals tell names.
            tokens: its tokens, normalised.
        """
        ascii_only = text.isascii()
        if self._latin and ascii_only and self._suspicious.isdisjoint(tokens):
            return True
        words = [token for token in tokens if token[0].isalnum()]
        foreign_script = sum(1 for word in words if _FOREIGN_LETTER.search(word))
        if self._latin == (2 * foreign_script > len(words)):
            return False
        if not self._latin:
            return True
        hints: float = sum(1 for word in words if word in self._foreign)
        hints += 0.5 * (not ascii_only and any(not word.isascii() for word in words))
        hints += 0.5 * min(2, sum(1 for word in words if word in self._particles))
        own = sum(1 for word in words if word in self._telling)
        return hints < 1 or hints <= own or self._is_name(text)

    def _is_name(self, text: str) -> bool:
        """Whether every word that is not a particle of names starts with a capital or digit."""
        return all(not word[0].islower() or word in self._particles for word in text.split())

    def _superlative(self, word: str) -> Entry:
        return self.content(word)._replace(kind=Kind.SUPERLATIVE)

    def on_axis(self, entry: Entry) -> bool:
        """Whether a content word has an opposite."""
        return entry.id in self._axes

    def superlative_id(self, owner: str, rank: str, head: Entry) -> int:
        """The id, at least 1, of a superlative: whose it is, if a pronoun says so, its word, and what it ranks."""
        return 1 + self._hash(f"{owner} {self.content(rank)[1:]} {head[1:]}")

    def _opposite(self, word: str) -> Entry:
        entry = self.content(word)
        return entry._replace(pole=1 - entry.pole)

    def _find_pole(self, token: str) -> tuple[int, int] | None:
        """Axis and pole of a word, also of its comparative, superlative or adverb."""
        found = self._poles.get(self._key(token))
        for ending in ("er", "est", "ly"):
            if found is None and token.endswith(ending) and len(token) > len(ending) + 2:
                found = self._poles.get(self._key(token[: -len(ending)]))
        return found

    def _key(self, word: str) -> str:
        return word if "_" in word else self._stemmer(self._irregular.get(word, word))

    def _hash(self, key: str) -> int:
        code = zlib.crc32(key.encode("utf-8", "surrogatepass"))
        return FIRST_NUMBER + code % (IDS - FIRST_NUMBER) if key[:1].isdigit() else code % FIRST_NUMBER

    def _add_antonyms(self, axes: Iterable[Axis]) -> None:
        """Gives each word one axis. A pair joins the axis of one of its words, unless that word has only joined it."""
        joined: set[str] = set()
        for poles in axes:
            keys = [[self._key(word) for word in pole] for pole in poles]
            placed = [key for pole in keys for key in pole if key in self._poles]
            if not placed:
                axis = self._hash(keys[0][0])
                for side in (0, 1):
                    self._poles.update(dict.fromkeys(keys[side], (axis, side)))
            elif len(placed) == 1 and len(keys[0]) == len(keys[1]) == 1 and placed[0] not in joined:
                new = keys[0][0] if keys[1][0] == placed[0] else keys[1][0]
                axis, side = self._poles[placed[0]]
                self._poles[new] = (axis, 1 - side)
                joined.add(new)
            for word in (*poles[0], *poles[1]):
                if self._key(word) in self._poles:
                    self._add(word.replace("_", " "), Entry(Kind.CONTENT, *self._poles[self._key(word)]))

    def _add_cues(self, cues: Mapping[str, Any]) -> None:
        for name, kind in _LISTS.items():
            for phrase in cues.get(name, ()):
                self._add(phrase, Entry(kind))
        for word in cues.get("superlatives", ()):
            here = self.entries.get(word)
            self._add(word, Entry(Kind.SUPERLATIVE) if here == Entry(Kind.FUNCTION) else self._superlative(word))
        for base in cues.get("contracted", ()):
            for form in (f"{base}n't", f"{base}nt", f"{base}n t"):
                self._add(form, Entry(Kind.NEGATOR))
        for seconds in self.phrases.values():
            for options in seconds.values():
                options.sort(key=lambda phrase: -len(phrase.rest))

    def _add(self, phrase: str, entry: Entry) -> None:
        first, *rest = phrase.split()
        if not rest:
            self.entries[first] = entry
            return
        ending = rest.pop()[1:] if rest[-1].startswith("*") else ""
        options = self.phrases.setdefault(first, {}).setdefault(rest[0] if rest else ANY, [])
        if all((option.rest, option.ending) != (tuple(rest), ending) for option in options):
            options.append(Phrase(tuple(rest), ending, entry))


def _fingerprint(*data: object) -> str:
    """Eight hex digits of lists and mappings; of a function, its name counts."""

    def plain(value: object) -> object:
        return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else sorted(value)  # type: ignore[call-overload]

    return sha256(json.dumps(data, sort_keys=True, default=plain).encode()).hexdigest()[:8]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _axis(line: str, path: Path) -> Axis:
    poles = [pole.split() for pole in line.split("|")] if "|" in line else [[word] for word in line.split()]
    if len(poles) != 2 or not all(poles):
        raise ValueError(f"{path}: expected 'words | words' or two words, got {line!r}")
    return poles[0], poles[1]


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    # The base loader leaves every value a string, also yes, no, on and off; the C one is ten times as fast.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: expected a mapping of lists, got {type(loaded).__name__}")
    return loaded


@cache
def english() -> Lexicon:
    """The lexicon that ships with the package, read once."""
    with resources.as_file(resources.files("mdl_torch") / "data" / "stance") as folder:
        return Lexicon.from_folder(folder)
