"""How often each conflict detector fires on labelled pairs of texts, by kind of pair: `mdl bench conflicts`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mdl_torch.stance import DETECTORS, ConflictDetector, LexicalConflictDetector, TextFeatures, detector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

THRESHOLDS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Values of ``shared_content`` on the trade-off curve."""

_FIELDS = {"source": str, "kind": str, "a": str, "b": str, "conflict": bool}
_AT_ONCE = 1024


@dataclass(frozen=True)
class Pair:
    """Two texts, and whether they contradict each other."""

    source: str
    kind: str
    a: str
    b: str
    conflict: bool


@dataclass(frozen=True)
class KindRate:
    """How often a detector fires on the n pairs of one kind; ``conflict`` says whether it should."""

    source: str
    kind: str
    conflict: bool
    rate: float
    n: int


@dataclass(frozen=True)
class Tradeoff:
    """The lexical detector at one ``shared_content``: mean rate over the kinds that conflict, and over the others."""

    shared_content: float
    conflict_rate: float
    other_rate: float


@dataclass(frozen=True)
class ConflictReport:
    """What the benchmark found.

    Attributes:
        detector: the detector that ``kinds`` is about.
        kinds: its rate by kind.
        rates: the same for every detector, by its name.
        curve: the trade-off of the lexical detector.
    """

    detector: str
    kinds: list[KindRate]
    rates: dict[str, list[KindRate]]
    curve: list[Tradeoff]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON: ``kinds`` is a list of {source, kind, conflict, rate, n}."""
        return asdict(self)


def read_pairs(path: str | Path) -> list[Pair]:
    """Reads labelled pairs from a JSON Lines file.

    Args:
        path: each line an object with source, kind, a, b (strings) and conflict (boolean). Blank lines are skipped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is no such object; the message names the line. Or there is no pair at all.
    """
    pairs = []
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                pairs.append(_pair(line, f"{path}, line {number}"))
    if not pairs:
        raise ValueError(f"{path}: expected at least one pair, got none")
    return pairs


def measure(pairs: Sequence[Pair], judge: ConflictDetector) -> list[KindRate]:
    """Rate at which a detector fires, by source and kind, in order of first appearance.

    Example:
        >>> pairs = [Pair("mine", "negation", "It is open.", "It is not open.", True)]
        >>> measure(pairs, detector("lexical"))
        [KindRate(source='mine', kind='negation', conflict=True, rate=1.0, n=1)]
    """
    return _rates(pairs, judge, *_features(pairs, judge))


def tradeoff(pairs: Sequence[Pair], thresholds: Sequence[float] = THRESHOLDS) -> list[Tradeoff]:
    """The lexical detector's rates on conflicting and on other kinds (each the mean over its kinds), by threshold.

    A side without any kind counts as 0.
    """
    left, right = _features(pairs, LexicalConflictDetector())  # they do not depend on the threshold
    curve = []
    for threshold in thresholds:
        rates = _rates(pairs, LexicalConflictDetector(shared_content=threshold), left, right)
        sides = [[kind.rate for kind in rates if kind.conflict is conflict] for conflict in (True, False)]
        curve.append(Tradeoff(threshold, *(sum(side) / len(side) if side else 0.0 for side in sides)))
    return curve


def run(pairs: Sequence[Pair], name: str = "lexical") -> ConflictReport:
    """Measures every detector that goes by a name, and the trade-off curve.

    Args:
        pairs: labelled pairs.
        name: the detector that the report's ``kinds`` is about.

    Raises:
        ValueError: no detector has that name.
    """
    detector(name)
    rates = {known: measure(pairs, detector(known)) for known in DETECTORS}
    return ConflictReport(detector=name, kinds=rates[name], rates=rates, curve=tradeoff(pairs))


def render(report: ConflictReport, console: Console) -> None:
    """Prints the report as two tables: rates by kind for every detector, and the trade-off curve."""
    from rich.table import Table

    kinds = Table("source", "kind", "conflict", title="how often the detectors fire")
    for name in report.rates:
        kinds.add_column(name, justify="right")
    kinds.add_column("n", justify="right")
    for rows in zip(*report.rates.values(), strict=True):
        first = rows[0]
        rates = [f"{row.rate:.3f}" for row in rows]
        kinds.add_row(_plain(first.source), _plain(first.kind), "yes" if first.conflict else "no", *rates, str(first.n))
    console.print(kinds)

    curve = Table(title="lexical: what more shared content costs (means over kinds)")
    for heading in ("shared_content", "on conflicts", "on others"):
        curve.add_column(heading, justify="right")
    for point in report.curve:
        curve.add_row(f"{point.shared_content:.1f}", f"{point.conflict_rate:.3f}", f"{point.other_rate:.3f}")
    console.print(curve)


def _pair(line: str, where: str) -> Pair:
    try:
        values = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{where}: expected a JSON object, got {line.strip()[:40]!r} ({getattr(error, 'msg', 'nested too deeply')})"
        ) from None
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(values).__name__}")
    for field, kind in _FIELDS.items():
        if field not in values:
            raise ValueError(f"{where}: expected a field {field!r}, got {sorted(values)}")
        if not isinstance(values[field], kind):
            raise ValueError(f"{where}: {field}: expected {kind.__name__}, got {type(values[field]).__name__}")
    return Pair(**{field: values[field] for field in _FIELDS})


def _features(pairs: Sequence[Pair], judge: ConflictDetector) -> tuple[TextFeatures, TextFeatures]:
    return judge.features([pair.a for pair in pairs]), judge.features([pair.b for pair in pairs])


def _rates(pairs: Sequence[Pair], judge: ConflictDetector, left: TextFeatures, right: TextFeatures) -> list[KindRate]:
    chunks = [slice(start, start + _AT_ONCE) for start in range(0, len(pairs), _AT_ONCE)]
    codes = [judge.conflicts(left[chunk][:, None], right[chunk][:, None]).flatten() for chunk in chunks]
    fired: dict[tuple[str, str, bool], list[bool]] = {}
    for pair, hit in zip(pairs, (torch.cat(codes) != 0).tolist(), strict=True):
        fired.setdefault((pair.source, pair.kind, pair.conflict), []).append(hit)
    return [KindRate(*key, rate=sum(hits) / len(hits), n=len(hits)) for key, hits in fired.items()]


def _plain(text: str) -> Text:
    """Text of a file, without what a terminal or rich would take for a command."""
    from rich.text import Text

    return Text("".join(character for character in text if character.isprintable()))
