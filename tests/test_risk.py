"""Risk A: precedence, words as words, tiers, the shipped policy, and a user's policy with its error messages."""

from __future__ import annotations

import copy
import csv
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.data import read_text
from mdl_torch.risk import HIGH_RISK, KeywordTier, RiskPolicy, reaches, tier

POLICY = RiskPolicy.default()
DATA = Path(os.environ.get("MDL_DATA", Path(__file__).parents[2] / "shared" / "data"))

# The categories of TruthfulQA's release of 790 questions.
TRUTHFULQA_2025 = """
    Advertising / Confusion: Other / Confusion: People / Confusion: Places / Conspiracies / Distraction / Economics /
    Education / Fiction / Finance / Health / History / Indexical Error: Identity / Indexical Error: Location /
    Indexical Error: Other / Language / Law / Logical Falsehood / Mandela Effect / Misconceptions /
    Misconceptions: Topical / Misinformation / Misquotations / Myths and Fairytales / Nutrition / Paranormal /
    Politics / Proverbs / Psychology / Religion / Science / Sociology / Statistics / Stereotypes /
    Subjective / Superstitions / Weather
"""
CATEGORIES = [" ".join(name.split()) for name in TRUTHFULQA_2025.split("/")]


# --- categories


def test_every_truthfulqa_category_has_a_grade():
    assert len(CATEGORIES) == 37
    assert set(POLICY.categories) == {*CATEGORIES, "Indexical Error: Time"}
    fixed = {"Health": 0.85, "Law": 0.85, "Finance": 0.85, "Conspiracies": 0.75}
    for name in CATEGORIES:
        assessed = POLICY.assess("", category=name)
        assert assessed.value == fixed[name] if name in fixed else assessed.value in (0.2, 0.5)
        assert assessed.rule == f"category: {name}"


def test_every_category_of_the_data_is_known():
    path = DATA / "TruthfulQA.csv"
    if not path.exists():
        pytest.skip(f"no TruthfulQA.csv in {DATA}")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    values = [POLICY.assess(r["Question"], category=r["Category"]).value for r in rows]
    assert values.count(0.85) == sum(r["Category"] in ("Health", "Law", "Finance") for r in rows) > 0


@pytest.mark.parametrize("name", ["health", "HEALTH", "  Health ", "hEalth"])
def test_categories_match_in_any_case(name):
    assert POLICY.assess("Is it?", category=name) == (0.85, "category: Health", "high")


def test_unknown_category_names_the_nearest_and_how_to_add_one():
    with pytest.raises(ValueError, match="unknown category 'helth'; did you mean 'health'") as caught:
        POLICY.assess("Is it?", category="Helth")
    assert "list it under `categories`" in str(caught.value)
    assert "risk.yaml" in str(caught.value)


# --- precedence


def test_explicit_wins_over_category_over_keyword_over_default():
    query = "Which drug interacts with warfarin?"
    assert POLICY.assess(query, category="Fiction", risk=0.33) == (0.33, "explicit", "low")
    assert POLICY.assess(query, category="Fiction") == (0.2, "category: Fiction", "low")
    assert POLICY.assess(query) == (0.85, "keyword: health (drug)", "high")
    assert POLICY.assess("Who wrote it?") == (0.2, "default", "low")


def test_explicit_zero_is_a_value():
    assert POLICY.assess("Which drug?", risk=0) == (0.0, "explicit", "low")


@pytest.mark.parametrize("query", ["", None, "\ud800", "¿Qué?", "?!", "a" * 100_000])
def test_a_query_without_keywords_gets_the_default(query):
    assert POLICY.assess(query) == (0.2, "default", "low")


@pytest.mark.parametrize("risk", [-1e-9, 1.0000001, float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_risk_outside_the_unit_interval_is_refused(risk):
    with pytest.raises(ValueError, match=r"risk must be in \[0, 1\], got"):
        POLICY.assess("Is it?", risk=risk)


@pytest.mark.parametrize("risk", [True, "0.5", [0.5], 0.5 + 0j, np.bool_(True)])
def test_risk_that_is_no_number_is_refused(risk):
    with pytest.raises(TypeError, match=r"risk must be a number in \[0, 1\], got"):
        POLICY.assess("Is it?", risk=risk)


@pytest.mark.parametrize("risk", [np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_numpy_numbers_are_numbers(risk):
    value = POLICY.assess("Is it?", risk=risk).value
    assert type(value) is float
    assert value == 0.5


@pytest.mark.parametrize(("query", "category"), [(5, None), (b"text", None), ("text", 5)])
def test_wrong_types_are_named(query, category):
    with pytest.raises(TypeError, match=r"(query|category) must be a string"):
        POLICY.assess(query, category=category)


# --- keywords


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        # one a tier, in any case, beside punctuation
        ("What DOSAGE, exactly?", "health (dosage)"),
        ("Is that legal?", "legal (legal)"),
        ("Where do I invest?", "finance (invest)"),
        ("Why is the black hole black?", "science (black hole)"),
        # regular plurals, possessives
        ("Which vaccines are needed?", "health (vaccine)"),
        ("Are two biopsies needed?", "health (biopsy)"),
        ("The patient’s wish", "health (patient)"),
        ("Do interest rates fall?", "finance (interest rate)"),
        ("Are taxes due?", "finance (tax)"),
        # British and American spelling
        ("Is the tumour benign?", "health (tumour)"),
        ("Is the tumor benign?", "health (tumor)"),
        ("Is leukaemia curable?", "health (leukaemia)"),
        ("Who pays for immunization?", "health (immunization)"),
        ("Is it a misdemeanour?", "legal (misdemeanour)"),
        ("Is it a misdemeanor?", "legal (misdemeanor)"),
        ("Where is palaeontology taught?", "science (palaeontology)"),
        # hyphens count as spaces on both sides
        ("Do I need an X-ray?", "health (x-ray)"),
        ("Do I need an X ray?", "health (x-ray)"),
        ("Is the gift tax-free?", "finance (tax)"),
        ("Do people self harm?", "health (self-harm)"),
        ("Does COVID-19 spread outdoors?", "health (covid)"),
        # words with an apostrophe, or signs
        ("What is Parkinson's?", "health (Parkinson's)"),
        ("Where do I renew a driver's license?", "legal (driver's license)"),
        ("What is a 401(k)?", "finance (401(k))"),
    ],
)
def test_keywords_match(query, rule):
    assert POLICY.assess(query).rule == f"keyword: {rule}"


@pytest.mark.parametrize(
    "query",
    [
        "Who mowed the lawn?",
        "How do I outlaw-proof a western?",
        "Who is Bill?",
        "Which castle stands on the bank of the river?",
        "Who plays James Bond?",
        "How long is a tennis court?",
        "Will you share the stock for the soup?",
        "What is the judge called in the novel?",
        "Which swimming stroke is fastest?",
        "Which tablet has the best screen?",
        "Is my cell phone on?",
        "Does class B inherit from class A?",
        "How is SQL injection prevented?",
        "How do I configure the message broker?",
        "What are the interests and rates of the club?",
        "Is the syntax correct?",
        "Who was the pilgrim?",
        "Which drugstore cowboy?",
        "Is it a fine day for a medicinally named pub?",
        "Is the software illegible?",
        "Is she impatient?",
    ],
)
def test_false_friends_do_not_match(query):
    assert POLICY.assess(query).rule == "default"


@pytest.mark.parametrize("query", ["Please be patient with me", "Who is Doctor Who?", "When was the Great Depression?"])
def test_words_too_important_to_miss_err_on_the_side_of_caution(query):
    assert POLICY.assess(query).tier == "high"


def test_the_riskiest_keyword_wins_wherever_it_stands():
    assert POLICY.assess("Which science covers the disease?").rule == "keyword: health (disease)"
    assert POLICY.assess("Which disease does science cover?").rule == "keyword: health (disease)"


def test_at_equal_risk_the_first_keyword_of_the_query_wins():
    assert POLICY.assess("Is the loan legal?").rule == "keyword: finance (loan)"
    assert POLICY.assess("Is it legal to refuse a loan?").rule == "keyword: legal (legal)"


def test_of_keywords_that_start_at_one_word_the_longest_wins():
    assert POLICY.assess("What causes climate change?").rule == "keyword: science (climate change)"
    assert POLICY.assess("What causes the climate?").rule == "keyword: science (climate)"


def test_the_order_of_tiers_decides_where_they_share_a_keyword():
    shared = {
        "first": KeywordTier(0.5, ("seal",)),
        "second": KeywordTier(0.5, ("seal",)),
        "risky": KeywordTier(0.6, ("x",)),
    }
    assert RiskPolicy(0.1, {}, shared).assess("A seal").rule == "keyword: first (seal)"
    risky_last = {**shared, "third": KeywordTier(0.9, ("Seal",))}
    assert RiskPolicy(0.1, {}, risky_last).assess("A seal").rule == "keyword: third (Seal)"


def test_every_shipped_keyword_finds_itself_in_its_tier():
    for name, keywords in POLICY.keywords.items():
        assert len(keywords.words) >= 60, name
        assert len({word.lower() for word in keywords.words}) == len(keywords.words), name
        for word in keywords.words:
            assert POLICY.assess(f"So, {word}?").value == keywords.risk, word


def test_shipped_tiers_have_the_risks_of_the_paper():
    risks = {name: keywords.risk for name, keywords in POLICY.keywords.items()}
    assert risks == {"health": 0.85, "legal": 0.85, "finance": 0.85, "science": 0.5}
    assert POLICY.default_risk == 0.2


@given(st.text(), st.sampled_from(["Who?", "Why the lawn?", ""]))
def test_any_text_has_a_risk_that_more_text_does_not_lower(text, more):
    alone = POLICY.assess(text)
    assert alone.value in (0.2, 0.5, 0.85)
    assert alone == POLICY.assess(text)
    assert POLICY.assess(f"{text} . {more}").value >= alone.value


# --- tiers


@pytest.mark.parametrize(
    ("risk", "name"),
    [
        (0, "low"),
        (0.2, "low"),
        (0.449, "low"),
        (0.45, "medium"),
        (0.5, "medium"),
        (0.699, "medium"),
        (0.7, "high"),
        (1, "high"),
    ],
)
def test_tier(risk, name):
    assert tier(risk) == name


def test_tier_survives_float32():
    assert tier(float(torch.tensor(0.7))) == "high"
    assert tier(float(torch.tensor(0.45))) == "medium"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_of_risks_reaches_the_tier_that_each_has(dtype):
    risks = torch.tensor([0.0, 0.45, 0.699, 0.6999989, 0.6999999, 0.7, 0.85, 1.0], dtype=dtype)
    assert reaches(risks, HIGH_RISK).tolist() == [False] * 4 + [True] * 4
    assert [tier(a) == "high" for a in risks.tolist()] == [False] * 4 + [True] * 4


@pytest.mark.parametrize("risk", [float("nan"), 1.1])
def test_tier_of_no_risk_is_refused(risk):
    with pytest.raises(ValueError, match="risk must be in"):
        tier(risk)


# --- a policy of one's own


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return RiskPolicy.from_yaml(path)

    return load


def test_a_users_file_replaces_the_default_whole(load):
    mine = load(
        """
        default: 0.35
        categories:
          Aviation: 0.9
          no: 0.1
        keywords:
          flight:
            risk: 0.95
            words: [wing flap, yes]
        """
    )
    assert mine.assess("Which drug?") == (0.35, "default", "low")
    assert mine.assess("Are the wing-flaps down?") == (0.95, "keyword: flight (wing flap)", "high")
    assert mine.assess("Yes.").rule == "keyword: flight (yes)"
    assert mine.assess("", category="NO").value == 0.1
    with pytest.raises(ValueError, match="unknown category 'health'"):
        mine.assess("", category="Health")


def test_only_the_default_is_required(load):
    assert load("default: 0\n").assess("Which drug?") == (0.0, "default", "low")


def test_the_shipped_file_loads_as_a_users_file(load):
    assert load(read_text("risk.yaml")) == POLICY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a risk policy, got an empty file"),
        ("- 1\n", "line 1: policy: expected a mapping, got a sequence"),
        ("categories: {}\n", "expected the key 'default', got categories"),
        ("default: 0.2\ncategorys: {}\n", "line 2: unknown key 'categorys'; did you mean 'categories'"),
        ("default: high\n", r"line 1: default: expected a number in \[0, 1\], got 'high'"),
        ("default: .nan\n", r"line 1: default: expected a number in \[0, 1\], got '.nan'"),
        ("default: true\n", r"line 1: default: expected a number in \[0, 1\], got 'true'"),
        ("default: [1]\n", r"line 1: default: expected a number in \[0, 1\], got a sequence"),
        ("default: 0\ndefault: 1\n", "line 2: 'default' is already on line 1"),
        ("default: 0\ncategories:\n  Law: 8.5\n", r"line 3: categories.Law: expected a number in \[0, 1\], got '8.5'"),
        ("default: 0\ncategories:\n  Law: 1\n  law: 0\n", "line 4: 'law' is already on line 3"),
        ("default: 0\ncategories:\n", "line 2: categories: expected a mapping, got ''"),
        ("default: 0\ncategories:\n  ? [1]\n  : 1\n", "line 3: a key of categories: expected text, got a sequence"),
        ("default: 0\nkeywords:\n  a:\n    risk: 1\n", "line 4: keywords.a needs the key 'words'"),
        ("default: 0\nkeywords:\n  a:\n    words: [b]\n", "line 4: keywords.a needs the key 'risk'"),
        (
            "default: 0\nkeywords:\n  a:\n    risk: 1\n    word: [b]\n",
            "line 5: unknown key 'word'; did you mean 'words'",
        ),
        (
            "default: 0\nkeywords:\n  a:\n    risk: 1\n    words: b\n",
            "line 5: keywords.a.words: expected a list of words",
        ),
        (
            "default: 0\nkeywords:\n  a: {risk: 1, words:\n    [b, '?!']}\n",
            "line 4: an entry of keywords.a.words: expected a word",
        ),
        (
            "default: 0\nkeywords:\n  a: {risk: 2, words: [b]}\n",
            r"line 3: keywords.a.risk: expected a number in \[0, 1\], got '2'",
        ),
        ("default: [0\n", "expected YAML, got"),
        (b"default: 0 # \xff\n", "expected UTF-8 text, got"),
    ],
)
def test_errors_name_file_line_key_and_expectation(load, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(text)
    assert "mine.yaml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        RiskPolicy.from_yaml(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.5,), ValueError, "default_risk must be in"),
        (("high",), TypeError, "default_risk must be a number"),
        ((0.2, {"Law": -1}), ValueError, "risk of category 'Law' must be in"),
        ((0.2, {"Law": 1, "LAW": 1}), ValueError, "categories 'Law' and 'LAW' differ by case or spaces only"),
        ((0.2, {}, {"a": KeywordTier(2, ())}), ValueError, "risk of keyword tier 'a' must be in"),
        ((0.2, {}, {"a": KeywordTier(1, ("…",))}), ValueError, "a keyword must hold a word, got '…'"),
        ((0.2, {}, {"a": KeywordTier(1, (5,))}), TypeError, "a keyword must be a string, got 5"),
    ],
)
def test_a_policy_built_in_code_is_checked_too(arguments, error, message):
    with pytest.raises(error, match=message):
        RiskPolicy(*arguments)


def test_a_policy_travels_to_other_processes():
    for twin in (copy.deepcopy(POLICY), pickle.loads(pickle.dumps(POLICY))):
        assert twin == POLICY
        assert twin.assess("Which drug?") == POLICY.assess("Which drug?")
