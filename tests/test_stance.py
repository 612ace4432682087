"""Conflict detectors: labelled sentences of every kind of fault, and the contract of tensors."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mdl_torch import stance
from mdl_torch.benchmarks.conflicts import Pair, measure, read_pairs, render, run, tradeoff
from mdl_torch.lexicon import FIRST_NUMBER, Kind, Lexicon, english, stem
from mdl_torch.reading import MAX_CHARACTERS, Reading, read
from mdl_torch.stance import (
    MAX_WORDS,
    ConflictDetector,
    Evidence,
    LexicalConflictDetector,
    LiteralConflictDetector,
    StanceFeatures,
    TextFeatures,
    detector,
)

HERE = Path(__file__).parent
DATA = HERE.parent / "mdl_torch" / "data" / "stance"


def rows(name: str) -> list[list[str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as lines:
        return [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if not row[0].startswith("#")]


CASES = rows("stance_cases.tsv")
LANGUAGES = rows("stance_languages.tsv")
TEXTS = sorted({text for case in CASES for text in case[2:]})
DETECTORS = [LexicalConflictDetector(), LiteralConflictDetector()]
both = pytest.mark.parametrize("judge", DETECTORS, ids=lambda judge: judge.name)


@pytest.fixture(scope="module")
def lexical() -> LexicalConflictDetector:
    return LexicalConflictDetector()


def code(judge: ConflictDetector, a: str, b: str) -> int:
    return int(judge.conflicts(judge.features([a]), judge.features([b])))


# Sentences ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "label", "a", "b"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_labelled_pair(lexical: LexicalConflictDetector, kind: str, label: str, a: str, b: str) -> None:
    found = lexical.evidence(a, b)
    assert (found is not None) == (label == "conflict"), (kind, found)


def test_there_are_cases_of_every_kind_and_label() -> None:
    assert len(CASES) >= 150
    kinds = {case[0] for case in CASES}
    assert kinds >= {"negated_copy", "antonym", "double_negation", "reminder", "prefix", "apostrophe", "not_only"}
    assert {case[1] for case in CASES if case[0] == "unrelated"} == {"agree"}


@pytest.mark.parametrize("sentence", ["The library opens {} Sundays", "The nurse {} give the second dose"])
@pytest.mark.parametrize(
    "cue", ["don't", "don\u2019t", "dont", "DON'T", "does not", "doesn\u2019t", "never", "cannot", "cant"]
)
def test_one_negated_copy_conflicts(lexical: LexicalConflictDetector, sentence: str, cue: str) -> None:
    plain, negated = sentence.format(""), sentence.replace("{}", cue)
    if "opens" in sentence:
        plain, negated = "The library opens on Sundays", f"The library {cue} open on Sundays"
    assert lexical.rules[code(lexical, plain, negated) - 1] == "negation"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("The shop is open.", "The shop is closed.", Evidence("antonym", ("open",), ("closed",))),
        ("It is safe.", "It is not safe.", Evidence("negation", ("safe",), ("not", "safe"))),
        ("Yes, it is.", "No, it isn't.", Evidence("polarity", ("yes",), ("no",))),
        (
            "Ulm is the oldest town.",
            "Bonn is the oldest town.",
            Evidence("superlative", ("ulm", "oldest"), ("bonn", "oldest")),
        ),
        ("The shop is open.", "The shop opens at nine.", None),
    ],
)
def test_evidence_names_rule_and_words(
    lexical: LexicalConflictDetector, a: str, b: str, expected: Evidence | None
) -> None:
    assert lexical.evidence(a, b) == expected


def test_literal_keeps_to_the_three_rules_of_the_paper() -> None:
    literal = LiteralConflictDetector()
    assert literal.rules == LexicalConflictDetector.rules[:3] == ("polarity", "antonym", "negation")
    assert LexicalConflictDetector.rules[3:] == ("superlative",)
    assert code(literal, "The longest river is the Nile.", "The longest river is the Congo.") == 0


@pytest.mark.parametrize(
    ("text", "holder"),
    [
        ("Sirius is the brightest star", {"sirius"}),
        ("The brightest star that is not a planet is Sirius", {"sirius"}),
        ("The largest city in the U.S. is New York", {"york"}),
        ("Japan's first capital was Nara, near Osaka", {"nara"}),
        ("Astronomers know that Sirius is the brightest star", {"sirius"}),
        ("The first goal was scored by Kane", {"kane"}),
        ("The capital of Peru is Lima", {"lima"}),
        ("My first dog was hungry", None),
        ("Sirius may be the brightest star", None),
        ("Sirius is one of the brightest stars", None),
        ("Sirius is not the brightest star", None),
        ("Anna sang for the first time", None),
        ("He is the best", None),
        ("The forest is green", None),
    ],
)
def test_holder_of_a_superlative(text: str, holder: set[str] | None) -> None:
    reading = read(text, english())
    found = reading.superlative and {reading.tokens[reading.places[k]] for k in reading.superlative.values}
    assert found == holder


def test_a_comparison_has_the_opposite_sign_in_the_opposite_order() -> None:
    one, two, other = (
        read(text, english()).comparison
        for text in ("Anna is taller than Ben", "Ben is shorter than Anna", "Anna is tall")
    )
    assert one == -two != 0
    assert other == 0


def test_literal_fires_where_the_paper_says() -> None:
    literal = LiteralConflictDetector()
    unrelated = ("The server runs Debian.", "The printer does not print in colour.")
    assert literal.evidence(*unrelated) == Evidence("negation", (), ("not",))
    assert literal.evidence("It is hot.", "Soup can be cold.") == Evidence("antonym", ("hot",), ("cold",))
    assert literal.evidence("Yes, always.", "No, I am late.").rule == "polarity"  # type: ignore[union-attr]
    assert literal.evidence("The server runs Debian.", "Paris is in France.") is None


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("The lamp is not lit", {"lit"}),
        ("Smoking is forbidden here", {"smoking"}),
        ("He saw nobody", {"saw"}),
        ("Dogs do not, however, bark", {"bark"}),
        ("He is not tall but strong", {"tall"}),
        ("Never eat mushrooms without cooking them", set()),
        ("It is not impossible to win", set()),
        ("Not only cats purr", set()),
        ("People who don't smoke don't cough", {"smoke", "cough"}),
        ("The case is too heavy to carry", {"carry"}),
        ("He sells an illegal drug", set()),
        ("Use oil instead of butter", {"butter"}),
    ],
)
def test_scope(text: str, negated: set[str]) -> None:
    reading = read(text, english())
    assert {reading.tokens[p] for p, cue in zip(reading.places, reading.cues, strict=True) if cue >= 0} == negated


# Lexicon --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["open opens opened opening", "stop stops stopped", "use used uses", "carry carried"])
def test_inflections_share_a_stem(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


def antonym_pairs() -> list[tuple[str, str]]:
    lines = [line for line in (DATA / "antonyms_wordnet.txt").read_text().splitlines() if not line.startswith("#")]
    return [(line.split()[0], line.split()[1]) for line in lines]


def test_antonyms_are_many_and_none_is_its_own() -> None:
    pairs = antonym_pairs()
    assert len(pairs) > 1000
    assert all(a != b for a, b in pairs)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)


def test_each_antonym_pair_that_the_lexicon_took_works_in_both_directions(lexical: LexicalConflictDetector) -> None:
    lexicon = english()
    plain = [[lexicon.entry(word) for word in pair] for pair in antonym_pairs()]
    taken = [(a, b) for a, b in plain if a.kind is Kind.CONTENT and a.id == b.id]
    opposed = [(a, b) for a, b in taken if a.pole != b.pole]
    assert len(opposed) > 2000
    assert len(opposed) == len([(b, a) for a, b in opposed if b.pole == 1 - a.pole])


def test_every_curated_axis_conflicts_across_and_never_within() -> None:
    lexicon = english()
    for line in (DATA / "antonyms_en.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        left, right = ([word for word in pole.split() if "_" not in word] for pole in line.split("|"))
        entries = {word: lexicon.content(word) for word in (*left, *right)}
        for a, b in itertools.product(left, right):
            assert entries[a].id == entries[b].id, (a, b)
            assert entries[a].pole != entries[b].pole, (a, b)
        for side in (left, right):
            assert len({entries[word] for word in side}) <= 1, side


def test_a_lexicon_of_another_language_can_be_plugged_in(tmp_path: Path) -> None:
    (tmp_path / "cues_de.yaml").write_text("language: de\nnegators: [nicht, nie]\nfunction_words: [ist, die, der]\n")
    (tmp_path / "antonyms_de.txt").write_text("offen | geschlossen zu\n")
    german = LexicalConflictDetector(Lexicon.from_folder(tmp_path, "de"))
    assert code(german, "Die Tür ist offen.", "Die Tür ist nicht offen.") == 3
    assert code(german, "Die Tür ist offen.", "Die Tür ist geschlossen.") == 2
    assert code(german, "Die Tür ist nicht offen.", "Die Tür ist zu.") == 0


def test_mistakes_in_a_lexicon_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'negators'"):
        Lexicon({"language": "en", "negator": ["not"]})
    (tmp_path / "cues_en.yaml").write_text("language: en\n")
    (tmp_path / "antonyms_en.txt").write_text("hot cold warm\n")
    with pytest.raises(ValueError, match=r"antonyms_en\.txt: expected 'words \| words'"):
        Lexicon.from_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        Lexicon.from_folder(tmp_path, "fr")


def test_an_answer_without_a_comma_is_one_of_the_plain_ones(lexical: LexicalConflictDetector) -> None:
    polarity = lexical.features(["No it is not.", "Yes they are.", "Wrong the sky is.", "No dogs bark."]).polarity
    assert polarity.tolist() == [-1, 1, 0, 0]
    cues = {"language": "de", "yes": ["ja"], "no": ["nein", "falsch"], "answer_followers": ["es"]}
    german = LexicalConflictDetector(Lexicon({**cues, "plain_answers": ["ja", "nein"]}))
    assert german.features(["Ja es geht", "Nein es ist", "Falsch es ist"]).polarity.tolist() == [1, -1, 0]


def test_a_lexicon_is_known_by_its_words() -> None:
    cues = {"language": "en", "negators": ["not"]}
    axes = [(["hot"], ["cold"])]
    same = {Lexicon(cues, axes).fingerprint, Lexicon(dict(cues), iter(axes)).fingerprint}
    others = {
        Lexicon(cues).fingerprint,
        Lexicon({**cues, "negators": ["not", "never"]}, axes).fingerprint,
        Lexicon(cues, axes, {"ran": "run"}).fingerprint,
        Lexicon(cues, axes, None, {"de": ["ist"]}).fingerprint,
        Lexicon(cues, axes, stemmer=str.lower).fingerprint,
    }
    assert len(same) == 1
    assert len(same | others) == 6
    assert Lexicon.from_folder(DATA).fingerprint == english().fingerprint


# Identity -------------------------------------------------------------------------------------------------------------


class Model(LexicalConflictDetector):
    """A detector with weights and a setting of its own."""

    def __init__(self, weight: float = 1.0, threshold: float = 0.5) -> None:
        super().__init__()
        self.score = nn.Linear(1, 1, dtype=torch.bfloat16)
        nn.init.constant_(self.score.weight, weight)
        nn.init.zeros_(self.score.bias)
        self.threshold = threshold


def test_an_identity_is_a_name_and_a_digest_of_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, digest = LexicalConflictDetector().identity.partition("@")
    assert name == "lexical"
    assert len(digest) == 8
    assert int(digest, 16) >= 0
    assert LexicalConflictDetector().identity == detector("lexical").identity
    assert Model().identity == Model().identity
    distinct = [
        LexicalConflictDetector(),
        LiteralConflictDetector(),
        LexicalConflictDetector(shared_content=0.55),
        LexicalConflictDetector(shared_of_longer=0.55),
        LexicalConflictDetector(shared_focus=0.55),
        LexicalConflictDetector(shared_superlative=0.55),
        LexicalConflictDetector(Lexicon({"language": "en", "negators": ["not"]})),
        Model(),
        Model(weight=2.0),
        Model(threshold=0.6),
    ]
    assert len({judge.identity for judge in distinct}) == len(distinct)
    before = LexicalConflictDetector().identity
    monkeypatch.setattr(LexicalConflictDetector, "version", 2)
    assert LexicalConflictDetector().identity != before


def test_an_identity_does_not_change_with_use(lexical: LexicalConflictDetector) -> None:
    before = lexical.identity
    lexical.features(["A word that was never seen: qwertyuiop."])
    assert lexical.eval().identity == before == lexical.train().identity


# Language -------------------------------------------------------------------------------------------------------------


def test_languages_are_told_apart(lexical: LexicalConflictDetector) -> None:
    supported = lexical.features([text for _, text in LANGUAGES]).supported.tolist()
    english_ones = [known for (name, _), known in zip(LANGUAGES, supported, strict=True) if name == "en"]
    foreign = [known for (name, _), known in zip(LANGUAGES, supported, strict=True) if name != "en"]
    assert len({name for name, _ in LANGUAGES}) > 8
    assert english_ones.count(False) / len(english_ones) <= 0.05
    assert foreign.count(True) / len(foreign) <= 0.15


@pytest.mark.parametrize(
    "text", ["Paris, France", "42 km", "", "Yes", "Rio de Janeiro", "Los Angeles traffic", "dentist tuesday"]
)
def test_english_fragments_are_supported(lexical: LexicalConflictDetector, text: str) -> None:
    assert lexical.features([text]).supported.item()


@both
def test_an_unsupported_text_conflicts_with_none(judge: ConflictDetector) -> None:
    features = judge.features(["Das ist nicht wahr und auch nicht gut.", "Yes.", "No.", "The lamp is lit."])
    assert not features.supported[0].item()
    assert judge.conflicts(features[:1], features).count_nonzero() == 0


# Tensors --------------------------------------------------------------------------------------------------------------


@both
def test_symmetric_and_never_with_itself_or_padding(judge: ConflictDetector) -> None:
    features = judge.features(TEXTS)
    codes = judge.conflicts(features[:120], features)
    assert torch.equal(codes, judge.conflicts(features, features[:120]).T)
    assert codes.dtype == torch.int8
    assert codes.diagonal().count_nonzero() == 0
    assert judge.conflicts(features, StanceFeatures.empty((3,))).count_nonzero() == 0
    assert judge.conflicts(StanceFeatures.empty((3,)), StanceFeatures.empty((2,))).tolist() == [[0, 0]] * 3


VOCABULARY = """
the shop door is are open closed closes not never don't no without unless only but and because , . ! yes it safe unsafe
forbidden allowed gloves nobody too heavy to carry that who before on off myth neither nor eight 8 9 non-toxic
than larger the largest the largest shop door is my only perhaps real
"""
WORDS = st.sampled_from(VOCABULARY.split())
SENTENCES = st.lists(WORDS, max_size=14).map(" ".join)


@both
@given(a=SENTENCES, b=SENTENCES)
@settings(max_examples=300)
def test_evidence_agrees_with_the_tensors(judge: ConflictDetector, a: str, b: str) -> None:
    found, fired = judge.evidence(a, b), code(judge, a, b)
    assert (found is None) == (fired == 0)
    assert fired == code(judge, b, a)
    assert code(judge, a, a) == 0
    if found is not None:
        assert found.rule == judge.rules[fired - 1]
        assert found.a or found.b


@both
def test_with_a_known_rule_evidence_is_the_same_and_costs_no_test(judge: ConflictDetector) -> None:
    class Blind(type(judge)):  # type: ignore[misc]
        def features(self, texts: object) -> StanceFeatures:
            raise AssertionError("the rule was known")

    blind, found = Blind(), set()
    for _, _, a, b in CASES:
        expected = judge.evidence(a, b)
        if expected is not None:
            assert blind.evidence(a, b, expected.rule) == expected
            found.add(expected.rule)
    assert found == set(judge.rules)
    with pytest.raises(ValueError, match="unknown rule 'negaton'; did you mean 'negation'"):
        judge.evidence("It is hot.", "It is not hot.", "negaton")


@given(a=SENTENCES, b=SENTENCES)
@settings(max_examples=300)
def test_rules_written_plainly_give_the_same(a: str, b: str) -> None:
    judge = DETECTORS[0]
    assert code(judge, a, b) == plain_lexical(a, b)


def plain_lexical(a: str, b: str) -> int:
    """The lexical rules, written from their description over sets of words."""
    readings = [read(text, english()) for text in (a, b)]
    signs: list[dict[int, tuple[int, bool] | None]] = []
    focus: list[set[int]] = []
    for reading in readings:
        sign: dict[int, tuple[int, bool] | None] = {}
        for entry, cue in zip(reading.words, reading.cues, strict=True):
            here = (entry.pole, cue >= 0)
            sign[entry.id] = here if sign.get(entry.id, here) == here else None
        signs.append(sign)
        bearing = {e.id for e, cue, f in zip(reading.words, reading.cues, reading.focus, strict=True) if cue >= 0 and f}
        focus.append({word for word in bearing if sign[word] is not None})
    shared = signs[0].keys() & signs[1].keys()
    smaller, larger = sorted(len(sign) for sign in signs)
    answers = readings[0].polarity * readings[1].polarity
    if answers < 0 and (shared or smaller <= 2):
        return 1
    places = [plain_place(reading, sign) for reading, sign in zip(readings, signs, strict=True)]
    known = [(word, one, two) for word in shared if (one := signs[0][word]) and (two := signs[1][word])]
    numbers = [{word for word in sign if word >= FIRST_NUMBER} for sign in signs]
    same_numbers = max(map(len, numbers)) > 2 or numbers[0] <= numbers[1] or numbers[1] <= numbers[0]
    comparisons = readings[0].comparison, readings[1].comparison
    swapped = comparisons[0] == -comparisons[1] != 0
    common = shared and len(shared) >= max(min(smaller, 2), 0.4 * smaller, 0.3 * larger)
    comparable = common and same_numbers and not swapped
    if comparable and sum(one[0] != two[0] and not one[1] and not two[1] for _, one, two in known) % 2:
        return 2
    denied = [w for w, one, two in known if one[0] == two[0] and one[1] != two[1] and w in focus[0] | focus[1]]
    matched = any((one[1] and two[1]) or (one[1] != two[1] and one[0] != two[0]) for _, one, two in known)
    enough = denied and len(denied) >= 0.34 * (len(focus[0]) + len(focus[1]))
    if comparable and enough and not matched and answers <= 0:
        return 3
    mismatch = any(one[0] == two[0] and one[1] != two[1] for _, one, two in known)
    return 4 if one_place(places, signs) and not mismatch and answers >= 0 else 0


def plain_place(reading: Reading, sign: dict[int, tuple[int, bool] | None]) -> tuple[int, set[int]]:
    if reading.superlative is None:
        return 0, set()
    return reading.superlative.id, {reading.words[k].id for k in reading.superlative.values} & sign.keys()


def one_place(places: list[tuple[int, set[int]]], signs: list[dict[int, tuple[int, bool] | None]]) -> bool:
    (place, holder), (other_place, other_holder) = places
    shared = signs[0].keys() & signs[1].keys()
    own = min(len(holder - shared), len(other_holder - shared))
    known = min(len(holder & shared), len(other_holder & shared))
    rest = min(len(sign) - len(values) for sign, (_, values) in zip(signs, places, strict=True))
    same = 0 != place == other_place and len(shared) >= 2 and len(shared) - known >= 0.7 * rest
    return same and own >= max(1, known)


@both
def test_batches_and_vmap_equal_the_loop(judge: ConflictDetector) -> None:
    stores = judge.features(TEXTS[:24])[torch.arange(24).reshape(2, 3, 4)]
    codes = judge(stores)
    assert codes.shape == (2, 3, 4, 4)
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(codes[i, j], judge(stores[i, j]))
    flat = stores._map(lambda tensor: tensor.flatten(0, 1))
    assert torch.equal(torch.vmap(judge)(flat), codes.flatten(0, 1))
    assert judge(StanceFeatures.empty((0, 5))).shape == (0, 5, 5)


class Store(nn.Module):
    def __init__(self, judge: ConflictDetector) -> None:
        super().__init__()
        self.judge = judge

    def forward(self, features: StanceFeatures) -> Tensor:
        return self.judge(features)


@both
def test_export_with_dynamic_batch_and_memories(judge: ConflictDetector) -> None:
    features = judge.features(TEXTS[:60])
    batch, memories = torch.export.Dim("batch", min=2), torch.export.Dim("memories", min=2)
    shapes = StanceFeatures(*({0: batch, 1: memories} for _ in fields(StanceFeatures)))  # type: ignore[arg-type]
    program = torch.export.export(
        Store(judge), (features[torch.arange(20).reshape(4, 5)],), dynamic_shapes=(list(vars(shapes).values()),)
    )
    other = features[torch.arange(60).reshape(6, 10)]
    assert torch.equal(program.module()(other), judge(other))


@both
def test_runs_without_values(judge: ConflictDetector) -> None:
    assert judge(StanceFeatures.empty((2, 3), device="meta")).shape == (2, 3, 3)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert judge(StanceFeatures.empty((2, 3))).shape == (2, 3, 3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@both
def test_cuda_equals_cpu(judge: ConflictDetector) -> None:
    features = judge.features(TEXTS)
    assert torch.equal(judge(features.to("cuda")).cpu(), judge(features))


@both
def test_compiles_without_a_graph_break(judge: ConflictDetector) -> None:
    features = judge.features(TEXTS[:12])[torch.arange(12).reshape(2, 6)]
    assert torch.equal(torch.compile(judge, fullgraph=True, backend="aot_eager")(features), judge(features))


def test_features_join_and_move(lexical: LexicalConflictDetector) -> None:
    features = lexical.features(TEXTS[:4])
    joined = StanceFeatures.cat([features[:1], features[1:]]).to("cpu")
    assert torch.equal(joined.words, features.words)
    assert StanceFeatures.cat([features[None], StanceFeatures.empty((1, 4))], dim=1).shape == (1, 8)
    with pytest.raises(ValueError, match="dim >= 0"):
        StanceFeatures.cat([features], dim=-1)
    bare = TextFeatures(supported=features.supported, cut=features.cut)
    with pytest.raises(TypeError, match="parts: expected StanceFeatures, got TextFeatures"):
        StanceFeatures.cat([features, bare])  # type: ignore[list-item]
    assert TextFeatures.cat([bare, bare[:1]]).shape == (5,)


def test_the_features_of_the_empty_text_are_padding(lexical: LexicalConflictDetector) -> None:
    empty, padding = lexical.features([""]), StanceFeatures.empty((1,))
    for field in fields(StanceFeatures):
        assert torch.equal(getattr(empty, field.name), getattr(padding, field.name)), field.name
        assert getattr(empty, field.name).dtype == getattr(padding, field.name).dtype


def test_texts_that_are_read_in_part_are_said(lexical: LexicalConflictDetector) -> None:
    words = [f"item{n}x" for n in range(MAX_WORDS + 1)]
    fits, over = " ".join(words[:-1]), " ".join(words)
    again, blank = f"{fits} {fits}, and it is not {fits}", fits + " " * MAX_CHARACTERS
    far = "word " * MAX_CHARACTERS
    assert lexical.features([fits, over, again, blank, far, "", "The lamp is lit."]).cut.tolist() == [
        *(False, True, False, False, True, False, False)
    ]


# Bad input ------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "text", ["", " ", "\ud800\udfff", "\x00\x01", "!!!", "not", "never not never", "without", "don t", "\u0301" * 50]
)
def test_odd_texts_are_harmless(judge: ConflictDetector, text: str) -> None:
    features = judge.features([text, "The lamp is lit."])
    assert features.shape == (2,)
    assert code(judge, text, text) == 0
    judge.evidence(text, "The lamp is not lit.")


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_has_bounded_features(text: str) -> None:
    features = DETECTORS[0].features([text])
    assert features.words.shape == (1, MAX_WORDS)
    assert 0 <= features.focus.item() <= features.count.item() <= MAX_WORDS


def test_a_megabyte_is_read_by_its_beginning(lexical: LexicalConflictDetector) -> None:
    long = "Backups are enabled. " + "The archive holds further words that nobody needs. " * 20_000
    assert code(lexical, long, long.replace("enabled", "disabled")) == 2


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="unknown conflict detector 'lexcal'; did you mean 'lexical'"):
        detector("lexcal")
    with pytest.raises(ValueError, match=r"shared_content: expected a share in \[0, 1\], got 1.5"):
        LexicalConflictDetector(shared_content=1.5)
    with pytest.raises(TypeError, match="expected a sequence of strings, got one string"):
        detector().features("one text")
    with pytest.raises(TypeError, match="expected strings, got int"):
        detector().features([3])  # type: ignore[list-item]


def test_five_thousand_memories_in_row_blocks(lexical: LexicalConflictDetector) -> None:
    store = lexical.features((TEXTS * 20)[:5000])
    fired = lexical.conflicts(store[:8], store).count_nonzero(dim=1)
    assert (
        fired.tolist()
        == (lexical.conflicts(store[:8], store[: len(TEXTS)]) != 0)
        .float()
        .repeat(1, 13)[:, :5000]
        .sum(1)
        .long()
        .tolist()
    )


# Measured -------------------------------------------------------------------------------------------------------------


def test_rates_on_labelled_pairs(shared_data: Callable[[str], Path]) -> None:
    pairs = read_pairs(shared_data("conflict_pairs.jsonl"))
    rates = {(kind.source, kind.kind): kind.rate for kind in measure(pairs, detector("lexical"))}
    assert rates["conflictqa", "short_negation"] >= 0.97
    assert rates["conflictqa", "short_vs_own_evidence"] <= 0.06
    assert rates["truthfulqa", "correct_incorrect"] >= 0.24
    assert rates["truthfulqa", "correct_correct"] <= 0.06


PAIRS = [
    Pair("mine", "negation", "It is open.", "It is not open.", True),
    Pair("mine", "negation", "The cat sleeps.", "The dog barks.", True),
    Pair("mine", "same", "It is open.", "It opens.", False),
]


def test_the_benchmark_counts_by_kind() -> None:
    report = run(PAIRS, "literal")
    assert report.detector == "literal"
    assert [(k.kind, k.conflict, k.rate, k.n) for k in report.kinds] == [
        ("negation", True, 0.5, 2),
        ("same", False, 0.0, 1),
    ]
    assert set(report.rates) == {"lexical", "literal"}
    assert set(json.loads(json.dumps(report.to_dict()))["kinds"][0]) == {"source", "kind", "conflict", "rate", "n"}
    assert [(p.shared_content, p.conflict_rate, p.other_rate) for p in tradeoff(PAIRS, [0.5])] == [(0.5, 0.5, 0.0)]


def test_the_curve_reads_each_text_once_and_its_thresholds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = LexicalConflictDetector.features

    def features(self: LexicalConflictDetector, texts: list[str]) -> StanceFeatures:
        calls.append(len(texts))
        return original(self, texts)

    monkeypatch.setattr(LexicalConflictDetector, "features", features)
    pair = Pair("mine", "far", "The shop in Rome is open on Sundays.", "The shop of Anna is not open late.", True)
    curve = tradeoff([pair], [0.1, 0.9])
    assert [point.conflict_rate for point in curve] == [1.0, 0.0]
    assert calls == [1, 1]


def test_a_detector_that_is_added_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(LiteralConflictDetector):
        name = "mine"

    monkeypatch.setitem(stance.DETECTORS, "mine", Mine)
    report = run(PAIRS, "mine")
    assert isinstance(detector("mine"), Mine)
    assert list(report.rates) == ["lexical", "literal", "mine"]
    assert report.kinds == report.rates["mine"] == report.rates["literal"]


def test_the_benchmark_prints_both_detectors() -> None:
    from rich.console import Console

    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as shown:
        render(run(PAIRS), console)
    assert all(word in shown.get() for word in ("lexical", "literal", "negation", "shared_content", "0.500"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: expected a JSON object"),
        ("[1]", "line 2: expected a JSON object, got list"),
        ('{"source": "s"}', "line 2: expected a field 'kind'"),
        ('{"source": "s", "kind": "k", "a": 1, "b": "", "conflict": true}', "line 2: a: expected str, got int"),
        ('{"source": "s", "kind": "k", "a": "", "b": "", "conflict": 1}', "line 2: conflict: expected bool, got int"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(vars(PAIRS[0])) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_pairs(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="at least one pair"):
        read_pairs(tmp_path / "pairs.jsonl")
