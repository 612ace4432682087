"""Task risk A: from an explicit value, a category or the words of the query (Section 3.2 of the paper).

The numbers and the words are data (``data/risk.yaml``); a file of the same form replaces them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, overload

from mdl_torch.data import read_text
from mdl_torch.errors import unknown_name
from mdl_torch.words import words

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import yaml
    from torch import Tensor

Tier = Literal["low", "medium", "high"]
"""Risk as reports group it."""

MEDIUM_RISK = 0.45
"""Smallest A of the tier "medium"."""
HIGH_RISK = 0.70
"""Smallest A of the tier "high" (Section 3.2)."""
RISK_TOLERANCE = 5e-7
"""How far below a tier's smallest A still belongs to it: float32 may round it down."""

_ADD_A_CATEGORY = (
    "To add it, list it under `categories` in a copy of mdl_torch/data/risk.yaml (RiskPolicy.from_yaml), "
    "or give the risk itself"
)


@overload
def reaches(risk: float, smallest: float) -> bool: ...


@overload
def reaches(risk: Tensor, smallest: float) -> Tensor: ...


def reaches(risk: float | Tensor, smallest: float) -> bool | Tensor:
    """Whether a risk, or each of a tensor ``(*)``, is in the tier with this smallest A or above it.

    Example:
        >>> reaches(0.6999999, HIGH_RISK), reaches(0.699, HIGH_RISK)
        (True, False)
    """
    return risk >= smallest - RISK_TOLERANCE


def tier(risk: float) -> Tier:
    """The tier of a risk: low below 0.45, medium below 0.70, high from there on; see ``reaches``.

    Args:
        risk: A, in [0, 1].

    Raises:
        TypeError: ``risk`` is not a number.
        ValueError: ``risk`` is NaN or outside [0, 1].

    Example:
        >>> [tier(a) for a in (0.2, 0.5, 0.85)]
        ['low', 'medium', 'high']
    """
    value = _risk_value("risk", risk)
    if reaches(value, HIGH_RISK):
        return "high"
    return "medium" if reaches(value, MEDIUM_RISK) else "low"


class RiskAssessment(NamedTuple):
    """A risk and where it comes from.

    Attributes:
        value: A, in [0, 1].
        rule: What decided: ``explicit``, ``category: NAME``, ``keyword: TIER (KEYWORD)`` or ``default``.
        tier: ``low``, ``medium`` or ``high``.
    """

    value: float
    rule: str
    tier: Tier


@dataclass(frozen=True)
class KeywordTier:
    """Keywords that give a query one risk.

    Attributes:
        risk: A, in [0, 1].
        words: Keywords: single words or phrases, in any case. Regular plurals match too; other inflections are listed.
            A hyphen counts as a space, so "x-ray" and "X ray" are the same keyword.
    """

    risk: float
    words: tuple[str, ...]


class _Keyword(NamedTuple):
    """A keyword ready for matching: one of its forms, word by word."""

    form: tuple[str, ...]
    risk: float
    rule: str


@dataclass(frozen=True)
class RiskPolicy:
    """Assigns risk: explicit value, then category, then keywords of the query, then a default.

    Attributes:
        default_risk: A where nothing else applies, in [0, 1].
        categories: A of each category. Names match in any case.
        keywords: Tiers of keywords by name. Of several keywords in a query the riskiest counts; at equal risk the one
            that comes first in the query, and of those that start at one word the longest.

    Raises:
        TypeError: A risk is not a number, or a keyword not a string.
        ValueError: A risk is outside [0, 1], a keyword holds no word, or two categories differ by case only.

    Example:
        >>> policy = RiskPolicy.default()
        >>> policy.assess("What dosage of ibuprofen is safe?")
        RiskAssessment(value=0.85, rule='keyword: health (dosage)', tier='high')
        >>> policy.assess("Who mowed the lawn?", category="sociology").rule
        'category: Sociology'
    """

    default_risk: float
    categories: Mapping[str, float] = field(default_factory=dict)
    keywords: Mapping[str, KeywordTier] = field(default_factory=dict)
    _category_by_key: dict[str, str] = field(init=False, repr=False, compare=False)
    _keywords_by_word: dict[str, list[_Keyword]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _risk_value("default_risk", self.default_risk)
        by_key: dict[str, str] = {}
        for name, risk in self.categories.items():
            _risk_value(f"risk of category {name!r}", risk)
            other = by_key.setdefault(_category_key(name), name)
            if other != name:
                raise ValueError(f"categories {other!r} and {name!r} differ by case or spaces only")
        object.__setattr__(self, "_category_by_key", by_key)
        object.__setattr__(self, "_keywords_by_word", _keyword_index(self.keywords))

    @property
    def fingerprint(self) -> str:
        """Eight hex digits of the SHA-256 of its risks and words: equal policies share it.

        Example:
            >>> RiskPolicy(0.2).fingerprint == RiskPolicy(0.2).fingerprint != RiskPolicy(0.3).fingerprint
            True
        """
        content = {
            "default": float(self.default_risk),
            "categories": {name: float(risk) for name, risk in self.categories.items()},
            "keywords": {name: [float(one.risk), list(one.words)] for name, one in self.keywords.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]

    @classmethod
    def default(cls) -> RiskPolicy:
        """The policy that ships with the package: TruthfulQA's categories; health, legal, finance and science words.

        Example:
            >>> RiskPolicy.default().default_risk
            0.2
        """
        return _default_policy()

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Self:
        r"""A policy from a file of the form of ``mdl_torch/data/risk.yaml``; it replaces the default policy whole.

        Args:
            path: YAML with ``default`` and, where wanted, ``categories`` and ``keywords``.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is no valid policy; the message names the line, the key and what was expected.

        Example:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "risk.yaml"
            >>> _ = path.write_text("default: 0.3\ncategories: {Aviation: 0.9}\n")
            >>> RiskPolicy.from_yaml(path).assess("When was the engine checked?", category="aviation").value
            0.9
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: expected UTF-8 text, got {error}") from error
        return cls._parse(text, str(path))

    @classmethod
    def _parse(cls, text: str, source: str) -> Self:
        reader = _PolicyReader(source)
        top = reader.mapping(reader.root(text), "policy", known=("default", "categories", "keywords"))
        if "default" not in top:
            raise ValueError(f"{source}: expected the key 'default', got {', '.join(top) or 'none'}")
        categories = reader.mapping(top["categories"], "categories") if "categories" in top else {}
        tiers = reader.mapping(top["keywords"], "keywords") if "keywords" in top else {}
        return cls(
            default_risk=reader.risk(top["default"], "default"),
            categories={name: reader.risk(node, f"categories.{name}") for name, node in categories.items()},
            keywords={name: reader.tier(node, f"keywords.{name}") for name, node in tiers.items()},
        )

    def assess(self, query: str | None, *, category: str | None = None, risk: float | None = None) -> RiskAssessment:
        """The risk of one query.

        Args:
            query: The query's text; None where there is none, as with ready embeddings.
            category: Name of a category of the policy. Without a say where ``risk`` is given.
            risk: An explicit A, in [0, 1]; wins over everything.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: ``risk`` is NaN or outside [0, 1], or the category is unknown (the nearest is named).

        Example:
            >>> RiskPolicy.default().assess("Is it safe?", risk=0.9)
            RiskAssessment(value=0.9, rule='explicit', tier='high')
        """
        if query is not None and not isinstance(query, str):
            raise TypeError(f"query must be a string or None, got {type(query).__name__}")
        if risk is not None:
            return _assessment(_risk_value("risk", risk), "explicit")
        if category is not None:
            name = self._category(category)
            return _assessment(self.categories[name], f"category: {name}")
        found = self._riskiest_keyword(query or "")
        return _assessment(found.risk, found.rule) if found else _assessment(self.default_risk, "default")

    def _category(self, category: str) -> str:
        if not isinstance(category, str):
            raise TypeError(f"category must be a string, got {type(category).__name__}")
        name = self._category_by_key.get(_category_key(category))
        if name is None:
            message = unknown_name("category", _category_key(category), self._category_by_key)
            raise ValueError(f"{message}. {_ADD_A_CATEGORY}")
        return name

    def _riskiest_keyword(self, query: str) -> _Keyword | None:
        best: _Keyword | None = None
        text = _word_parts(query)
        for start, word in enumerate(text):
            for keyword in self._keywords_by_word.get(word, ()):
                riskier = best is None or keyword.risk > best.risk
                if riskier and text[start : start + len(keyword.form)] == keyword.form:
                    best = keyword
        return best


@functools.cache
def _default_policy() -> RiskPolicy:
    return RiskPolicy._parse(read_text("risk.yaml"), "mdl_torch/data/risk.yaml")


def _assessment(value: float, rule: str) -> RiskAssessment:
    return RiskAssessment(float(value), rule, tier(value))


def _risk_value(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number in [0, 1], got {value!r}")
    number = float(value)
    if not 0 <= number <= 1:  # also false for NaN
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
    return number


def _category_key(name: str) -> str:
    return " ".join(name.split()).casefold()


def _word_parts(text: str) -> tuple[str, ...]:
    """The words of a text, hyphenated ones apart."""
    return tuple(part for word in words(text) for part in word.split("-"))


def _keyword_index(tiers: Mapping[str, KeywordTier]) -> dict[str, list[_Keyword]]:
    """The keywords by their first word, longest first; ties keep the order of the policy."""
    index: dict[str, list[_Keyword]] = {}
    for name, keyword_tier in tiers.items():
        _risk_value(f"risk of keyword tier {name!r}", keyword_tier.risk)
        for keyword in keyword_tier.words:
            for form in _forms(keyword):
                entry = _Keyword(form, float(keyword_tier.risk), f"keyword: {name} ({keyword})")
                index.setdefault(form[0], []).append(entry)
    for entries in index.values():
        entries.sort(key=lambda entry: -len(entry.form))
    return index


def _forms(keyword: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A keyword word by word, as it stands and with the regular plural of its last word."""
    if not isinstance(keyword, str):
        raise TypeError(f"a keyword must be a string, got {keyword!r}")
    parts = _word_parts(keyword)
    if not parts:
        raise ValueError(f"a keyword must hold a word, got {keyword!r}")
    return parts, (*parts[:-1], _plural(parts[-1]))


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return word[:-1] + "ies"
    return word + "s"


def _kind(node: yaml.Node) -> str:
    """``mapping``, ``sequence`` or ``scalar``."""
    return type(node).__name__.removesuffix("Node").lower()


class _PolicyReader:
    """Reads the nodes of a policy's YAML, so that every error names its line."""

    def __init__(self, source: str) -> None:
        self.source = source

    def root(self, text: str) -> yaml.Node:
        import yaml

        try:
            node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # C where it is built
        except yaml.YAMLError as error:
            raise ValueError(f"{self.source}: expected YAML, got {error}") from error
        if node is None:
            raise ValueError(f"{self.source}: expected a risk policy, got an empty file")
        return node

    def mapping(self, node: yaml.Node, name: str, known: Sequence[str] | None = None) -> dict[str, yaml.Node]:
        if _kind(node) != "mapping":
            raise self._error(node, name, "a mapping")
        values: dict[str, yaml.Node] = {}
        seen: dict[str, int] = {}
        for key, value in node.value:
            label = self._text(key, f"a key of {name}")
            if known is not None and label not in known:
                raise ValueError(f"{self._place(key)}: {unknown_name('key', label, known)}")
            if (same := _category_key(label)) in seen:
                raise ValueError(f"{self._place(key)}: {label!r} is already on line {seen[same]}")
            seen[same] = self._line(key)
            values[label] = value
        return values

    def risk(self, node: yaml.Node, name: str) -> float:
        try:
            return _risk_value(name, float(node.value))
        except (TypeError, ValueError):
            raise self._error(node, name, "a number in [0, 1]") from None

    def tier(self, node: yaml.Node, name: str) -> KeywordTier:
        values = self.mapping(node, name, known=("risk", "words"))
        for key in ("risk", "words"):
            if key not in values:
                raise ValueError(f"{self._place(node)}: {name} needs the key {key!r}")
        if _kind(values["words"]) != "sequence":
            raise self._error(values["words"], f"{name}.words", "a list of words and phrases")
        keywords = tuple(self._keyword(item, f"{name}.words") for item in values["words"].value)
        return KeywordTier(self.risk(values["risk"], f"{name}.risk"), keywords)

    def _keyword(self, node: yaml.Node, name: str) -> str:
        keyword = self._text(node, f"an entry of {name}")
        if not _word_parts(keyword):
            raise self._error(node, f"an entry of {name}", "a word or phrase")
        return keyword

    def _text(self, node: yaml.Node, name: str) -> str:
        # YAML reads a bare `no` or `on` as a truth value; the node still holds the word that was written.
        if _kind(node) != "scalar" or not node.value.strip():
            raise self._error(node, name, "text")
        return str(node.value)

    def _line(self, node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1

    def _place(self, node: yaml.Node) -> str:
        return f"{self.source}, line {self._line(node)}"

    def _error(self, node: yaml.Node, name: str, expected: str) -> ValueError:
        got = repr(node.value) if _kind(node) == "scalar" else f"a {_kind(node)}"
        return ValueError(f"{self._place(node)}: {name}: expected {expected}, got {got}")
