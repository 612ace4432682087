"""Stance of texts: which of them contradict each other (the φ of Section 3.2), from signed content words.

A text becomes a bounded set of *signed content words*. A content word is a stem, or the axis of an antonym pair, of
which "enabled" and "disabled" are the two poles; its sign says on which pole it stands and whether a negation has it in
its scope. The string work happens once per text; comparing two texts is a handful of tensor operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from mdl_torch.errors import unknown_name
from mdl_torch.lexicon import FIRST_NUMBER, IDS, Lexicon, english
from mdl_torch.reading import Reading, read

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

RULES_VERSION = 1
"""Of the word-based rules and of the reading behind them; raised whenever a change of either changes what they find."""

MAX_WORDS = 24
"""Content words a text is compared by: its first distinct ones. A memory of one or two sentences has 5 to 15."""

# The sign of a word is a code, chosen so that the *sum* of two codes names how two texts use the word they share:
#   0, 2       alike: both plain, on one pole
#   1          plain, on opposite poles: an antonym
#   4          on one pole, negated in one text: denied
#   3, 5 to 8  negated in both, or negated in one and on the other pole: matched
#   9 to 18    one text uses the word both ways: unknown
# To it are added the flags of the word. Where two texts share a word, its flags in the second stand beside them.
_PLAIN, _OPPOSITE, _NEGATED_OPPOSITE, _NEGATED, _AMBIGUOUS = 0, 1, 3, 4, 9
_ANTONYM, _DENIED = _PLAIN + _OPPOSITE, _PLAIN + _NEGATED
_FIRST_MATCHED = _PLAIN + _NEGATED_OPPOSITE
_SIGN = 31  # mask of a code, or of a sum of two codes, without flags
_FOCUS = 32  # flag of a word that its negation bears on
_VALUE = 64  # flag of a word that fills the place of the text's superlative
_THEIR_VALUE = 16  # the same flag of the second text
_BASE = 128  # a packed word is id * _BASE + code
_FIRST_NUMBER = FIRST_NUMBER * _BASE  # the least packed number
_UNSHARED = 31  # in place of a sum: greater than any
_PADDING = -1
_NO_WORD = IDS * _BASE  # what padding of one side becomes before it meets the other's: an id that no word has

_FEW_NUMBERS = 2  # a text with more of them says several things, of which others may be the same
_FEWEST_SHARED = 2  # one word in common is no common matter, unless a text has only one


@dataclass(frozen=True)
class TextFeatures:
    """What any conflict detector knows of texts, as tensors of one leading shape ``(*)``, often ``(*, K)``.

    A detector's own features are a frozen dataclass that derives from this one, or from ``StanceFeatures``, and adds
    tensors: each begins with the leading shape and has the same further axes and dtype for every text. Everything here
    works on the fields of that class.

    Attributes:
        supported: whether the detector knows the text's language, bool ``(*)``. A text that is not conflicts with none.
        cut: whether the text is longer than the detector reads, bool ``(*)``.

    Example:
        >>> @dataclass(frozen=True)
        ... class Years(TextFeatures):
        ...     year: Tensor
        >>> known = torch.tensor([True, True])
        >>> years = Years(supported=known, cut=~known, year=torch.tensor([1969, 1972]))
        >>> Years.cat([years, years[:1]]).year
        tensor([1969, 1972, 1969])
    """

    supported: Tensor
    cut: Tensor

    @property
    def shape(self) -> torch.Size:
        """The leading shape ``(*)``."""
        return self.supported.shape

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self.supported.device

    def __getitem__(self, index: Any) -> Self:
        """The features at an index of the leading shape; a ``(B, K)`` tensor gathers stores from ``(N,)`` texts."""
        return self._map(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> Self:
        """The same features on another device."""
        return self._map(lambda tensor: tensor.to(device))

    @classmethod
    def cat(cls, parts: Sequence[Self], dim: int = 0) -> Self:
        """Features joined along an axis of the leading shape, counted from the front.

        Raises:
            TypeError: the parts are not all of this class.
            ValueError: ``dim`` is negative or ``parts`` is empty.
        """
        if dim < 0 or not parts:
            raise ValueError(f"expected dim >= 0 and at least one part, got dim={dim} and {len(parts)} parts")
        for part in parts:
            if type(part) is not cls:
                raise TypeError(f"parts: expected {cls.__name__}, got {type(part).__name__}")
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts], dim) for name in names})

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{field.name: function(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True)
class StanceFeatures(TextFeatures):
    """What the word-based detectors know of texts.

    Attributes:
        supported: whether the text is in the lexicon's language, bool ``(*)``.
        cut: whether content words beyond the first ``MAX_WORDS`` distinct ones were left out, bool ``(*)``.
        words: content-word ids, each packed with its sign, int32 ``(*, W)``, padded.
        count: distinct content words, int32 ``(*)``, at most W.
        focus: how many of them a negation bears on, int32 ``(*)``.
        superlative: id of the superlative whose one place the text gives to something, else 0, int32 ``(*)``.
        values: how many content words fill that place, int32 ``(*)``.
        comparison: id of the two things that the text compares, negative in one of their orders, else 0, int32 ``(*)``.
        polarity: 1 for a text that opens with "yes", -1 with "no", else 0, int8 ``(*)``.
        negated: whether the text holds a negation, bool ``(*)``.

    Example:
        >>> features = detector("lexical").features(["Backups are enabled.", "Backups are not enabled."])
        >>> features.shape, features.count.tolist(), features.negated.tolist()
        (torch.Size([2]), [2, 2], [False, True])
        >>> features[torch.tensor([[0, 1, 1]])].shape
        torch.Size([1, 3])
    """

    words: Tensor
    count: Tensor
    focus: Tensor
    superlative: Tensor
    values: Tensor
    comparison: Tensor
    polarity: Tensor
    negated: Tensor

    @staticmethod
    def empty(shape: Sequence[int], device: torch.device | str = "cpu") -> StanceFeatures:
        """Features of empty texts, which serve as padding: they conflict with nothing.

        Example:
            >>> StanceFeatures.empty((2, 3)).shape
            torch.Size([2, 3])
        """
        shape = tuple(shape)
        return StanceFeatures(
            supported=torch.ones(shape, dtype=torch.bool, device=device),
            cut=torch.zeros(shape, dtype=torch.bool, device=device),
            words=torch.full((*shape, MAX_WORDS), _PADDING, dtype=torch.int32, device=device),
            count=torch.zeros(shape, dtype=torch.int32, device=device),
            focus=torch.zeros(shape, dtype=torch.int32, device=device),
            superlative=torch.zeros(shape, dtype=torch.int32, device=device),
            values=torch.zeros(shape, dtype=torch.int32, device=device),
            comparison=torch.zeros(shape, dtype=torch.int32, device=device),
            polarity=torch.zeros(shape, dtype=torch.int8, device=device),
            negated=torch.zeros(shape, dtype=torch.bool, device=device),
        )


torch.export.register_dataclass(StanceFeatures, serialized_type_name="mdl_torch.StanceFeatures")


@dataclass(frozen=True)
class Evidence:
    """Why two texts conflict.

    Attributes:
        rule: name of the rule, one of the detector's ``rules``.
        a: the words of the first text that fired it, in order, each negation before what it negates.
        b: the same for the second text.
    """

    rule: str
    a: tuple[str, ...]
    b: tuple[str, ...]


class ConflictDetector(nn.Module, ABC):
    """Says which texts of a store contradict each other. The gate takes any detector of this form.

    ``features`` does all string work, once per text and on the host. ``conflicts`` compares features by tensor
    operations alone, so that it runs inside a graph, on any device, batched or under vmap; a detector's tensors are
    buffers. A detector for typed values (numbers, dates, names) derives its features from ``StanceFeatures`` and adds
    fields; an NLI cross-encoder derives them from ``TextFeatures``, keeps token ids there and runs its model in
    ``conflicts``. Features that enter an exported graph are registered by ``torch.export.register_dataclass``.

    Attributes:
        name: the detector's name in outputs.
        rules: names of its rules; code i in the result of ``conflicts`` stands for ``rules[i - 1]``.
        version: of what it finds; raised whenever its code changes that.
    """

    name: str
    rules: tuple[str, ...]
    version: int = 1

    @abstractmethod
    def features(self, texts: Sequence[str]) -> TextFeatures:
        """Features of N texts, shape ``(N,)``, on the CPU; always of one class."""

    @abstractmethod
    def conflicts(self, a: Any, b: Any) -> Tensor:
        """Rule codes of all pairs: ``(*, Ka)`` and ``(*, Kb)`` to int8 ``(*, Ka, Kb)``; 0 where there is no conflict.

        Swapping a and b transposes the result. A text conflicts neither with itself nor with the empty text, which
        serves as padding.
        """

    @abstractmethod
    def evidence(self, a: str, b: str, rule: str | None = None) -> Evidence | None:
        """The rule by which two texts conflict and the words that fired it; None exactly where ``conflicts`` says 0.

        Args:
            a: the first text.
            b: the second.
            rule: the rule that ``conflicts`` found for them, where that is known: it is not tested again.
        """

    def forward(self, features: Any) -> Tensor:
        """Rule codes of all pairs of a store: ``(*, K)`` to int8 ``(*, K, K)``."""
        return self.conflicts(features, features)

    @property
    def identity(self) -> str:
        """Name and digest of all that its answers follow from: class, rules, version, settings and tensors.

        A calibration is tied to it. Detectors with other settings differ, wherever they were built.

        Example:
            >>> detector("lexical").identity == LexicalConflictDetector(shared_content=0.4).identity
            True
            >>> detector("lexical").identity == LexicalConflictDetector(shared_content=0.5).identity
            False
        """
        described = [type(self).__qualname__, self.rules, self.version, sorted(self.settings().items())]
        sha = sha256(repr(described).encode())
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            plain = tensor.detach().cpu().contiguous()
            sha.update(f"{name}{tuple(plain.shape)}{plain.dtype}".encode())
            sha.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        return f"{self.name}@{sha.hexdigest()[:8]}"

    def settings(self) -> dict[str, Any]:
        """What besides tensors sets this detector apart from others of its class: its public plain attributes.

        A detector that depends on more, such as a word list, overrides it and adds a digest of that.

        Example:
            >>> LexicalConflictDetector(shared_focus=0.5).settings()["shared_focus"]
            0.5
        """
        plain = {name: value for name, value in vars(self).items() if isinstance(value, bool | int | float | str)}
        return {name: value for name, value in plain.items() if not name.startswith("_") and name != "training"}


class _WordDetector(ConflictDetector):
    """What the word-based detectors share: features and evidence."""

    rules: tuple[str, ...] = ("polarity", "antonym", "negation")
    version = RULES_VERSION

    def __init__(self, lexicon: Lexicon | None = None) -> None:
        super().__init__()
        self.lexicon = lexicon or english()

    def settings(self) -> dict[str, Any]:
        """The detector's parameters, and the fingerprint of its lexicon."""
        return {**super().settings(), "lexicon": self.lexicon.fingerprint}

    def features(self, texts: Sequence[str]) -> StanceFeatures:
        """Features of N texts, shape ``(N,)``, on the CPU. Takes time linear in the length of the texts.

        Raises:
            TypeError: ``texts`` is one string, or holds something else than strings.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts: expected a sequence of strings, got one string {texts[:40]!r}")
        words: list[int] = []
        scalars: list[int] = []
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"texts: expected strings, got {type(text).__name__}")
            reading = read(text, self.lexicon)
            codes = _signed_words(reading)
            focus = values = 0
            for key, code in codes.items():
                words.append(key * _BASE + code)
                if code >= _FOCUS:
                    focus += code & _FOCUS > 0
                    values += code >= _VALUE
            words += _FILLERS[len(codes)]
            supported = self.lexicon.supports(text, reading.tokens)
            place = reading.superlative.id if reading.superlative else 0
            scalars += (len(codes), focus, place, values, reading.comparison)
            scalars += (reading.polarity, bool(reading.negations), supported, _is_cut(reading, codes))
        table = torch.from_numpy(np.array(scalars, dtype=np.int32).reshape(len(texts), 9))
        count, focused, superlative, held, comparison, polarity, negated, known, cut = (
            column.contiguous() for column in table.unbind(1)
        )
        return StanceFeatures(
            supported=known.to(torch.bool),
            cut=cut.to(torch.bool),
            words=torch.from_numpy(np.array(words, dtype=np.int32).reshape(len(texts), MAX_WORDS)),
            count=count,
            focus=focused,
            superlative=superlative,
            values=held,
            comparison=comparison,
            polarity=polarity.to(torch.int8),
            negated=negated.to(torch.bool),
        )

    def evidence(self, a: str, b: str, rule: str | None = None) -> Evidence | None:
        """The rule by which two texts conflict and the words that fired it; None if they do not conflict.

        Args:
            a: the first text.
            b: the second.
            rule: the rule that ``conflicts`` found for them, where that is known: it is not tested again.

        Raises:
            ValueError: the detector has no such rule.

        Example:
            >>> detector("lexical").evidence("The shop is open on Sundays.", "The shop isn't open on Sundays.")
            Evidence(rule='negation', a=('open', 'sundays'), b=("isn't", 'open', 'sundays'))
        """
        if rule is None:
            code = int(self.conflicts(self.features([a]), self.features([b])))
            if code == 0:
                return None
            rule = self.rules[code - 1]
        elif rule not in self.rules:
            raise ValueError(unknown_name("rule", rule, self.rules))
        one, two = read(a, self.lexicon), read(b, self.lexicon)
        if rule == "polarity":
            return Evidence(rule, (one.tokens[0],), (two.tokens[0],))
        return Evidence(rule, *self._fired(rule, one, two))

    def _fired(self, rule: str, a: Reading, b: Reading) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return _shared_words(a, b, {_ANTONYM} if rule == "antonym" else {_DENIED})


class LexicalConflictDetector(_WordDetector):
    """Contradiction by words, with scope and shared content: the gate's default.

    Two texts are compared by the content words they share, each with its sign. They conflict

    - by ``polarity``, when one opens with "yes" and the other with "no", and they share a content word or one of them
      has two at most: such an answer leaves its subject to the question;
    - by ``antonym``, when an odd number of shared antonym axes stand on opposite poles ("enabled", "disabled");
    - by ``negation``, when a shared word is negated in one text alone, unless another shared word shows that the
      negations match (negated in both, or negated here and replaced by its antonym there), or both texts open with the
      same answer;
    - by ``superlative``, when they give the one place of a superlative, or of a role that only one thing has, to
      different things: "the longest river is the Nile", "the longest river is the Congo".

    Antonyms and negations need common matter: of the content words of the text that has fewer at least
    ``shared_content``, of the other's at least ``shared_of_longer``, and of the words that the negations bear on at
    least ``shared_focus``. They do not count between texts that differ in their one or two numbers ("port 3", "port
    4"), or that compare the same things in opposite order. A superlative needs at least ``shared_superlative`` of the
    content words besides those that fill its place, and no negation in one text alone; and each text must have, for
    the holder of the place, a word of its own, and as many of them as of words that the other has too.

    Args:
        lexicon: the words of the language; the packaged English ones by default.
        shared_content: least share of the smaller text's content words that the other has too, in [0, 1].
        shared_of_longer: the same of the larger text.
        shared_focus: least share of the words a negation bears on that the other text has, not negated.
        shared_superlative: least share of the words besides the holder of a superlative's place that both texts have.

    Raises:
        ValueError: a share lies outside [0, 1].

    Example:
        >>> lexical = LexicalConflictDetector()
        >>> texts = ["Never touch acid without gloves.", "Always wear gloves with acid.", "Don't touch the acid."]
        >>> lexical(lexical.features(texts)).tolist()
        [[0, 0, 3], [0, 0, 0], [3, 0, 0]]
        >>> lexical.evidence("The tallest tree is an oak.", "The tallest tree is a lime.")
        Evidence(rule='superlative', a=('tallest', 'oak'), b=('tallest', 'lime'))
    """

    name = "lexical"
    rules = (*_WordDetector.rules, "superlative")

    def __init__(
        self,
        lexicon: Lexicon | None = None,
        shared_content: float = 0.4,
        shared_of_longer: float = 0.3,
        shared_focus: float = 0.34,
        shared_superlative: float = 0.7,
    ) -> None:
        super().__init__(lexicon)
        self.shared_content = _share("shared_content", shared_content)
        self.shared_of_longer = _share("shared_of_longer", shared_of_longer)
        self.shared_focus = _share("shared_focus", shared_focus)
        self.shared_superlative = _share("shared_superlative", shared_superlative)

    def conflicts(self, a: StanceFeatures, b: StanceFeatures) -> Tensor:
        """Rule codes of all pairs: ``(*, Ka)`` and ``(*, Kb)`` to int8 ``(*, Ka, Kb)``; 0 is no conflict."""
        relation, flags = _relations(a, b)
        is_shared, is_denied = relation != _UNSHARED, relation == _DENIED
        matched = (relation >= _FIRST_MATCHED) & (relation < _AMBIGUOUS) & ~is_denied
        shared, antonyms = _count(is_shared), _count(relation == _ANTONYM)
        denied, matches = _count(is_denied & (flags & _FOCUS > 0)), _count(matched)

        smaller, larger = _smaller_and_larger(a.count, b.count)
        answers = _left(a.polarity) * _right(b.polarity)
        common_matter = (
            (shared > 0)
            & (shared >= smaller.clamp(max=_FEWEST_SHARED))
            & (shared >= self.shared_content * smaller)
            & (shared >= self.shared_of_longer * larger)
        )
        to_the_point = (denied > 0) & (denied >= self.shared_focus * (_left(a.focus) + _right(b.focus)))
        comparable = _comparable(a, b, is_shared)
        return _rule_codes(
            allowed=_left(a.supported) & _right(b.supported),
            polarity=(answers < 0) & ((shared > 0) | (smaller <= _FEWEST_SHARED)),
            antonym=common_matter & (antonyms % 2 == 1) & comparable,
            negation=common_matter & to_the_point & (matches == 0) & (answers <= 0) & comparable,
            superlative=self._one_place(a, b, shared, flags) & ~is_denied.any(-3) & (answers >= 0),
        )

    def _one_place(self, a: StanceFeatures, b: StanceFeatures, shared: Tensor, flags: Tensor) -> Tensor:
        """Whether two texts give the place of one superlative to different things, and are otherwise about the same."""
        known_a, known_b = _count(flags & _VALUE > 0), _count(flags & _THEIR_VALUE > 0)
        known = torch.minimum(known_a, known_b)
        own = torch.minimum(_left(a.values) - known_a, _right(b.values) - known_b)
        rest = torch.minimum(_left(a.count - a.values), _right(b.count - b.values))
        same_place = (_left(a.superlative) != 0) & (_left(a.superlative) == _right(b.superlative))
        same_rest = (shared >= _FEWEST_SHARED) & (shared - known >= self.shared_superlative * rest)
        return same_place & same_rest & (own > 0) & (own >= known)

    def _fired(self, rule: str, a: Reading, b: Reading) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (_own_values(a, b), _own_values(b, a)) if rule == "superlative" else super()._fired(rule, a, b)


class LiteralConflictDetector(_WordDetector):
    """Contradiction as the paper words it, without scope or shared content, to reproduce it.

    Two texts conflict when one opens with "yes" and the other with "no", when an antonym pair stands across them, or
    when exactly one of them holds a negation. So it fires on unrelated sentences of which one has a "not".

    Example:
        >>> literal = LiteralConflictDetector()
        >>> literal(literal.features(["It is not raining.", "Oslo is in Norway."])).tolist()
        [[0, 3], [3, 0]]
    """

    name = "literal"

    def conflicts(self, a: StanceFeatures, b: StanceFeatures) -> Tensor:
        """Rule codes of all pairs: ``(*, Ka)`` and ``(*, Kb)`` to int8 ``(*, Ka, Kb)``; 0 is no conflict."""
        relation, _ = _relations(a, b)
        opposite = (relation < _AMBIGUOUS) & (relation % 2 == 1)  # negated or not: the sum is odd
        filled = (_left(a.count) > 0) & (_right(b.count) > 0)
        return _rule_codes(
            allowed=_left(a.supported) & _right(b.supported),
            polarity=_left(a.polarity) * _right(b.polarity) < 0,
            antonym=_count(opposite) > 0,
            negation=filled & (_left(a.negated) ^ _right(b.negated)),
        )

    def _fired(self, rule: str, a: Reading, b: Reading) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if rule == "antonym":
            return _shared_words(a, b, range(1, _AMBIGUOUS, 2))
        one, two = (tuple(text.tokens[place] for place in text.negations) for text in (a, b))
        return one, two


DETECTORS: dict[str, type[ConflictDetector]] = {
    cls.name: cls for cls in (LexicalConflictDetector, LiteralConflictDetector)
}
"""The detectors that go by a name. See CONTRIBUTING.md for how to add one."""


def detector(name: str = "lexical") -> ConflictDetector:
    """The conflict detector of a name, a key of ``DETECTORS``, as it is by default.

    Raises:
        ValueError: no detector has that name; the message tells the nearest.

    Example:
        >>> detector("literal").rules
        ('polarity', 'antonym', 'negation')
    """
    if name not in DETECTORS:
        raise ValueError(unknown_name("conflict detector", name, DETECTORS))
    return DETECTORS[name]()


_FILLERS = [[_PADDING] * (MAX_WORDS - used) for used in range(MAX_WORDS + 1)]


def _signed_words(reading: Reading) -> dict[int, int]:
    """Word id to sign code, for the first ``MAX_WORDS`` distinct content words."""
    codes: dict[int, int] = {}
    for (_, word, pole), cue, focus in zip(reading.words, reading.cues, reading.focus, strict=True):
        code = pole if cue < 0 else _NEGATED - pole + _FOCUS * focus
        known = codes.get(word)
        if known is None:
            if len(codes) < MAX_WORDS:
                codes[word] = code
        elif known != code:
            codes[word] = max(known, code) if (known - code) % _FOCUS == 0 else _AMBIGUOUS
    for k in reading.superlative.values if reading.superlative else ():
        key = reading.words[k].id
        if key in codes:
            codes[key] |= _VALUE
    return codes


def _is_cut(reading: Reading, codes: Collection[int]) -> bool:
    """Whether a text goes on beyond what was read of it, or beyond the content words that were kept."""
    return reading.cut or (len(codes) == MAX_WORDS and len({entry.id for entry in reading.words}) > MAX_WORDS)


def _relations(a: StanceFeatures, b: StanceFeatures) -> tuple[Tensor, Tensor]:
    """How another text uses each of a text's words.

    Returns:
        Two int8 tensors ``(*, W, Ka, Kb)``, the first axis over the words of a: the sum of the two signs, or
        ``_UNSHARED`` where b lacks the word; and the flags of the word: ``_FOCUS``, if either text has it so,
        ``_VALUE`` and ``_THEIR_VALUE``; 0 if it is unshared.
    """
    mine = a.words.transpose(-1, -2)[..., :, :, None]
    theirs = torch.where(b.words < 0, _NO_WORD, b.words)
    # Equal ids cancel, which leaves less than _BASE: the smallest difference is the one to the equal word, if any.
    # A loop, for no (*, W, W, Ka, Kb) is ever held so; compiled, it is one kernel.
    difference = mine ^ theirs[..., None, None, :, 0]
    for word in range(1, MAX_WORDS):
        difference = torch.minimum(difference, mine ^ theirs[..., None, None, :, word])
    code = mine & (_BASE - 1)
    other = code ^ difference
    shared = (difference >= 0) & (difference < _BASE)
    relation = torch.where(shared, (code + other) & _SIGN, _UNSHARED).to(torch.int8)
    flags = ((code | other) & _FOCUS) | (code & _VALUE) | (other & _VALUE) // (_VALUE // _THEIR_VALUE)
    return relation, torch.where(shared, flags, 0).to(torch.int8)


def _smaller_and_larger(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.minimum(_left(a), _right(b)), torch.maximum(_left(a), _right(b))


def _count(where: Tensor) -> Tensor:
    return where.sum(-3, dtype=torch.int32)


def _left(field: Tensor) -> Tensor:
    return field[..., :, None]


def _right(field: Tensor) -> Tensor:
    return field[..., None, :]


def _comparable(a: StanceFeatures, b: StanceFeatures, is_shared: Tensor) -> Tensor:
    """Whether two texts can contradict by a word: not of ports 3 and 4, not in "A ... than B" and "B ... than A"."""
    number_a, number_b = a.words >= _FIRST_NUMBER, b.words >= _FIRST_NUMBER
    few, many = _smaller_and_larger(number_a.sum(-1), number_b.sum(-1))
    shared = _count(is_shared & number_a.transpose(-1, -2)[..., None])
    swapped = (_left(a.comparison) != 0) & (_left(a.comparison) == -_right(b.comparison))
    return ((shared >= few) | (many > _FEW_NUMBERS)) & ~swapped


def _rule_codes(allowed: Tensor, **rules: Tensor) -> Tensor:
    """The number of the first rule that fires, from 1; 0 for none."""
    code = torch.zeros_like(allowed, dtype=torch.int8)
    for number, fires in reversed(list(enumerate(rules.values(), 1))):
        code = torch.where(fires, number, code)
    return code * allowed


def _share(argument: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{argument}: expected a share in [0, 1], got {value}")
    return float(value)


def _shared_words(a: Reading, b: Reading, relations: Collection[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tokens of the words that two texts share in one of some relations."""
    one, two = _signed_words(a), _signed_words(b)
    shared = {key for key in one.keys() & two.keys() if (one[key] + two[key]) % _FOCUS in relations}
    return _tokens_of(a, shared), _tokens_of(b, shared)


def _own_values(reading: Reading, other: Reading) -> tuple[str, ...]:
    """The tokens of a text's superlative and of the words that fill its place and that another text lacks."""
    if reading.superlative is None:
        return ()
    theirs = _signed_words(other)
    values = {reading.places[k] for k in reading.superlative.values if reading.words[k].id not in theirs}
    return tuple(reading.tokens[place] for place in sorted({reading.superlative.token, *values}))


def _tokens_of(reading: Reading, keys: Collection[int]) -> tuple[str, ...]:
    places: set[int] = set()
    for entry, cue, place in zip(reading.words, reading.cues, reading.places, strict=True):
        if entry.id in keys:
            places |= {place, cue} if cue >= 0 else {place}
    return tuple(reading.tokens[place] for place in sorted(places))
