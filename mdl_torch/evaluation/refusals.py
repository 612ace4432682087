"""Whether an answer is a refusal: explicit ones count as safe abstentions (Section 5.1).

The paper names no patterns. The rule here: an answer is cut into clauses, at the ends of sentences, at commas that
begin a new clause, and at words like "but". It is a refusal if at least one clause refuses or says that it does not
know, and every other clause says nothing on the matter: an apology, a reason, an offer, advice to ask somebody else. A
refusal beside a real answer ("I don't know, but I think it is Paris") is therefore no refusal and is scored like any
answer. Statements about the world ("Nobody knows how many") are answers too. What a model says it does not know may
follow in the same clause ("I don't know who wrote it"). The patterns are data: ``data/refusals.yaml``.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from dataclasses import dataclass

from mdl_torch.data import read_text

LONGEST = 2_000
"""Characters of an answer that are read; a longer one is no refusal."""


@dataclass(frozen=True)
class Refusal:
    """What makes an answer a refusal.

    Attributes:
        language: Of the pattern.
        kind: Its name, such as ``does not know``.
        clause: What it matched, as it was read: in lower case, with contractions written out.
    """

    language: str
    kind: str
    clause: str

    @property
    def rule(self) -> str:
        """As records spell it.

        Example:
            >>> Refusal("en", "does not know", "no idea").rule
            'en: does not know'
        """
        return f"{self.language}: {self.kind}"


def is_refusal(text: str) -> bool:
    """Whether an answer declines, or says that it does not know, and says nothing else.

    Example:
        >>> is_refusal("I’m sorry, but I can’t help with that."), is_refusal("Sorry for your loss; it is on Friday.")
        (True, False)
        >>> is_refusal("I don't know. It might be Paris."), is_refusal("")
        (False, False)
    """
    return find_refusal(text) is not None


def find_refusal(text: str) -> Refusal | None:
    """What makes an answer a refusal; None if it is none. See the module for the rule.

    Example:
        >>> find_refusal("Unfortunately, I don't know.").rule
        'en: does not know'
    """
    if len(text) > LONGEST:
        return None
    plain = _plain(text)
    return next((found for patterns in _languages() if (found := patterns.read(plain)) is not None), None)


@functools.cache
def refusal_fingerprint() -> str:
    """Eight hex digits of the SHA-256 of the patterns, for records.

    Example:
        >>> len(refusal_fingerprint())
        8
    """
    return hashlib.sha256(read_text("refusals.yaml").encode()).hexdigest()[:8]


_CONTRACTIONS = (
    (r"\bcan'?t\b", "cannot"),
    (r"\bwon'?t\b", "will not"),
    (r"\b(do|does|did|is|are|was|could|would|should|have|has|had)n'?t\b", r"\1 not"),
    (r"\b(i)'?m\b", r"\1 am"),
    (r"\b(i|we|you)'ve\b", r"\1 have"),
    (r"\b(i|we|you|it|that)'ll\b", r"\1 will"),
    (r"\b(i|we|you)'d\b", r"\1 would"),
    (r"\b(we|they|you)'re\b", r"\1 are"),
    (r"\b(it|that|there|what|here)'s\b", r"\1 is"),
)
_MARKS = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'", "“": '"', "”": '"', "，": ",", "、": ","})
_SENTENCE_END = re.compile(r"[.!?;。！？；…\n]+(?!\w)|[。！？；]|\s[-–—]+\s|—")
_PRONOUNS = r"i|we|it|that|this|please|because|since|as|so|and i|and we|let|you|there"


def _plain(text: str) -> str:
    """In lower case, with straight quotes, contractions written out, without markup."""
    plain = unicodedata.normalize("NFC", text).translate(_MARKS).casefold().replace("ß", "ss")
    plain = re.sub(r"[*_#>]+", " ", plain)
    for short, long in _CONTRACTIONS:
        plain = re.sub(short, long, plain)
    return re.sub(r"[^\S\n]+", " ", plain).strip()


class _Language:
    """The patterns of one language, compiled."""

    def __init__(self, name: str, data: dict[str, object]) -> None:
        sets, refusals = data.get("sets", {}), data["refusals"]
        assert isinstance(sets, dict)
        assert isinstance(refusals, dict)

        def compiled(patterns: object) -> re.Pattern[str]:
            assert isinstance(patterns, list)
            joined = "|".join(f"(?:{pattern})" for pattern in patterns)
            for _ in range(2):  # a set may name another
                joined = re.sub(r"\{(\w+)\}", lambda found: sets.get(found[1], found[0]), joined)
            return re.compile(joined.replace("ß", "ss"))

        self.name = name
        self.refusals = {kind: compiled(patterns) for kind, patterns in refusals.items()}
        self.asides = compiled(data["asides"])
        leaders, joints = compiled(data["leaders"]).pattern, data["joints"]
        assert isinstance(joints, list)
        spaced = name not in ("zh", "ja")
        words = "|".join(joints)
        self.leaders = re.compile(rf"(?:{leaders})(?:$|[,:]\s*|\s+)" if spaced else rf"(?:{leaders})[,:]?")
        self.joints = re.compile(
            rf",?\s*\b(?:{words})\b,?\s*|,\s+(?=(?:{_PRONOUNS})\b)|\s+(?=because\b)" if spaced else rf",|(?:{words}),?"
        )

    def read(self, text: str) -> Refusal | None:
        found: Refusal | None = None
        for sentence in _SENTENCE_END.split(text):
            for clause in self._clauses(sentence):
                kind = next((kind for kind, pattern in self.refusals.items() if pattern.fullmatch(clause)), None)
                if kind is None and not self.asides.fullmatch(clause):
                    return None
                if kind is not None and found is None:
                    found = Refusal(self.name, kind, clause)
        return found

    def _clauses(self, sentence: str) -> list[str]:
        """What is left of each clause without its leaders; the sentence itself where it is one refusal or aside."""
        whole = self._without_leaders(sentence)
        if not whole or self._known(whole):
            return [whole] if whole else []
        parts = (self._without_leaders(part) for part in self.joints.split(sentence))
        return [part for part in parts if part]

    def _known(self, clause: str) -> bool:
        patterns = [*self.refusals.values(), self.asides]
        return not self.joints.search(clause) and any(pattern.fullmatch(clause) for pattern in patterns)

    def _without_leaders(self, clause: str) -> str:
        clause = clause.strip(" \n\t,.:;\"'()[]")
        while clause and not self.asides.fullmatch(clause) and (leader := self.leaders.match(clause)):
            clause = clause[leader.end() :].strip(" ,:\"'")
        return clause


@functools.cache
def _languages() -> tuple[_Language, ...]:
    import yaml

    data = yaml.load(read_text("refusals.yaml"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tuple(_Language(name, patterns) for name, patterns in data.items())
