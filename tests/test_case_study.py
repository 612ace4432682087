"""The case study: what is picked and why, and that pages show what was said and do nothing else."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from analysis_cases import samples, study
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mdl_torch.analysis import cases
from mdl_torch.analysis.cases import SYSTEMS, CaseStudy, Kind, card, html, kind_of, markdown, pick, write_cases
from mdl_torch.audit import audit
from mdl_torch.evaluation.oracle import injects
from mdl_torch.evaluation.questions import load_questions
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action

HOSTILE = [
    "<script>alert(1)</script>",
    "</div></main><img src=x onerror=alert(1)>",
    "```\n# a heading\n```` and more `ticks`\n| a | b |\n| --- | --- |",
    "a | b || \\| c",
    "one\n\n---\n\n\ttwo\r\nthree\rfour\u2028five",
    "\u202eright to left override, שלום, \u2066isolate",
    "[a link](javascript:alert(1)) ![picture](http://example.com/x.png) <https://example.com>",
    "&lt;b&gt; &amp; \"quoted\" 'so'",
    "\x00\x07\x1b[31mred \ud800 lone, 👩‍👩‍👧 family, {braces} {0} %s",
    "",
    "word " * 3000,
    "x" * 5000,
]

# What B1, B2 and B3 came to and B3's action, one for each kind.
PLAIN = {
    Kind.RESIDUAL_FAILURE: "c h h supp",
    Kind.SAFE_ABSTENTION: "h h a opt_out",
    Kind.OVER_ABSTENTION: "c c a opt_out",
    Kind.SAFE_ADOPTION: "h c c active",
    Kind.WITHHELD: "c h c silent",
    Kind.OTHER: "c c c silent",
}
CODES = {"h": "hallucination", "c": "correct", "a": "abstention", "e": "empty", "o": "other", "?": None}
DECISION = {
    "relevance": 0.7,
    "reliability": 0.3,
    "risk": 0.5,
    "risk_rule": "category: Myths",
    "agreement": 0.6,
    "conflict_rate": 0.25,
    "conflict_count": 3,
    "gain": 1.2,
    "norm": 2.7756328,
    "confidence": 0.75105,
    "consistency": 0.9567259,
    "gated_confidence": 0.728299,
    "thresholds": [0.6, 0.4, 0.2],
    "status": 0,
    "reasons": ["conflicting_memories"],
}


def answers(question_id, code, risk=0.5, seed=0, **changes):
    """The records of B1, B2 and B3 to a question."""
    *outcomes, action = code.split()
    return [
        {
            "system": system,
            "question_id": question_id,
            "seed": seed,
            "question": f"What of {question_id}?",
            "category": "Myths",
            "memories": [{"id": "correct-0", "text": "Tea is a drink."}, {"id": "incorrect-0", "text": "Tea flies."}],
            "decision": {**DECISION, "risk": risk, "action": action},
            "gate": {"preset": "paper", "calibration": "mine:1234"},
            "answer": f"Said by {system}.",
            "outcome": CODES[outcome],
        }
        | changes
        for system, outcome in zip(SYSTEMS, outcomes, strict=True)
    ]


def study_of(*groups, layers=None, data="no-such-data", revision="r1"):
    """A run with these answers; its questions in the order in which they come."""
    records = list(itertools.chain(*groups))
    questions = list(dict.fromkeys(record["question_id"] for record in records))
    made = study(samples(np.empty((0, 3)), []), layers=layers, records=records)
    made.run.description["evaluated_questions"] = questions
    made.run.description["experiment"]["data"] = data
    made.run.description["revision"] = revision
    return made


def one_of_each(**changes):
    return study_of(*(answers(f"q{place}", code, **changes) for place, code in enumerate(PLAIN.values())))


# --------------------------------------------------------------------------------------------------------- the kinds


@pytest.mark.parametrize(("kind", "code"), PLAIN.items())
def test_kinds(kind, code):
    b1, b2, b3, action = code.split()
    outcomes = [Outcome(CODES[letter]) for letter in (b1, b2, b3)]
    assert kind_of(*outcomes, Action[action.upper()]) is kind


@given(*[st.sampled_from([None, *Outcome])] * 3, st.sampled_from(Action))
def test_every_kind_means_what_it_says(b1, b2, b3, action):
    kind = kind_of(b1, b2, b3, action)
    if kind.success:
        assert b3 is not Outcome.HALLUCINATION
    if kind in (Kind.SAFE_ABSTENTION, Kind.WITHHELD):
        assert b2 is Outcome.HALLUCINATION
    assert (kind is Kind.RESIDUAL_FAILURE) == (injects(action) and b3 is Outcome.HALLUCINATION)
    if kind is Kind.SAFE_ADOPTION:
        assert injects(action)
        assert b3 is Outcome.CORRECT
    if b2 is Outcome.HALLUCINATION:
        assert kind is not Kind.OVER_ABSTENTION


def test_an_answer_that_was_not_scored_shows_nothing():
    assert kind_of(Outcome.CORRECT, Outcome.HALLUCINATION, None, Action.SILENT) is Kind.OTHER
    assert kind_of(None, None, None, Action.OPT_OUT) is Kind.OTHER


# ------------------------------------------------------------------------------------------------------- what is picked


def test_each_kind_has_its_turn_failures_first():
    picked = pick(one_of_each())
    assert [case.kind for case in picked] == [kind for kind in Kind if kind is not Kind.OTHER]
    assert [case.kind.success for case in picked] == [False, True, False, True, True]
    assert "none of:" not in picked.note
    assert "none of the kinds 1" in picked.note  # fewer than six: what shows nothing is no case


@pytest.mark.parametrize("count", [2, 3, 4, 6, 9])
def test_never_only_successes(count):
    groups = [answers(f"s{n}", PLAIN[Kind.SAFE_ABSTENTION]) for n in range(20)]
    groups += [answers(f"f{n}", PLAIN[Kind.RESIDUAL_FAILURE]) for n in range(20)]
    picked = pick(study_of(*groups), count)
    failures = sum(not case.kind.success for case in picked)
    assert len(picked) == count
    assert failures == count - count // 2


def test_without_failures_the_note_says_so():
    picked = pick(study_of(*(answers(f"s{n}", PLAIN[Kind.SAFE_ABSTENTION]) for n in range(3))))
    assert [case.kind for case in picked] == [Kind.SAFE_ABSTENTION] * 3
    assert "The run has none of: residual failure, over-abstention, safe adoption, memories withheld." in picked.note
    assert "safe abstention 3." in picked.note


def test_risks_are_spread_the_highest_first():
    risks = [0.2, 0.2, 0.5, 0.85, 0.2, 0.75]
    groups = [answers(f"q{n}", PLAIN[Kind.SAFE_ABSTENTION], risk) for n, risk in enumerate(risks)]
    assert [case.risk for case in pick(study_of(*groups), 5)] == [0.85, 0.75, 0.5, 0.2, 0.2]
    assert [case.question_id for case in pick(study_of(*groups), 5)][3:] == ["q0", "q1"]  # the order of the run


def test_a_question_is_shown_once():
    groups = [answers("q", PLAIN[Kind.RESIDUAL_FAILURE], seed=0), answers("q", PLAIN[Kind.SAFE_ADOPTION], seed=1)]
    picked = pick(study_of(*groups))
    assert [(case.question_id, case.seed) for case in picked] == [("q", 0)]


def test_the_order_of_the_records_does_not_matter():
    groups = [answers(f"q{n}", code, 0.2) for n, code in enumerate([*PLAIN.values()] * 3)]
    made = study_of(*groups)
    shuffled = list(made.run.records)
    np.random.default_rng(0).shuffle(shuffled)
    object.__setattr__(made.run, "records", tuple(shuffled))
    assert pick(made) == pick(study_of(*groups))


def test_what_lacks_an_answer_is_no_case():
    half = answers("q", PLAIN[Kind.RESIDUAL_FAILURE])[:2]
    picked = pick(study_of(half))
    assert len(picked) == 0
    assert picked.note == "No question has answers of B1, B2 and B3 at one seed, so there is no case."
    assert "no case" in markdown(picked)
    assert "no case" in html(picked)


def test_chosen_questions_in_their_order_each_once():
    picked = pick(one_of_each(), 1, ["q5", "q0", "q5"])
    assert [(case.question_id, case.kind) for case in picked] == [("q5", Kind.OTHER), ("q0", Kind.RESIDUAL_FAILURE)]
    assert "asked for by name" in picked.note


def test_chosen_takes_the_first_seed_that_is_whole():
    groups = [answers("q", PLAIN[Kind.SAFE_ADOPTION], seed=0)[:2], answers("q", PLAIN[Kind.RESIDUAL_FAILURE], seed=1)]
    assert [case.seed for case in pick(study_of(*groups), chosen=["q"])] == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chosen": ["q0", "no", "nor"]}, r"evaluated questions of the run, such as 'q0' .*, got 'no', 'nor'"),
        ({"chosen": []}, "must be ids"),
        ({"chosen": "q0"}, "must be ids of questions, got 'q0'"),
        ({"count": 0}, "count must be at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        pick(one_of_each(), **arguments)


def test_a_chosen_question_without_answers_is_named():
    with pytest.raises(ValueError, match="B1, B2 and B3 have answered at one seed, got 'q'"):
        pick(study_of(answers("q", PLAIN[Kind.SAFE_ADOPTION])[:2]), chosen=["q"])


# ---------------------------------------------------------------------------------------------------- what a case holds


def test_a_case_is_what_the_records_say():
    (case,) = pick(study_of(answers("q", "h c c active")))
    assert [(one.system, one.text, one.outcome) for one in case.answers] == [
        ("b1", "Said by b1.", Outcome.HALLUCINATION),
        ("b2", "Said by b2.", Outcome.CORRECT),
        ("b3", "Said by b3.", Outcome.CORRECT),
    ]
    assert case.memories == (("correct-0", "Tea is a drink."), ("incorrect-0", "Tea flies."))
    assert (case.relevance, case.reliability, case.risk) == (0.7, 0.3, 0.5)
    assert (case.confidence, case.consistency, case.gated_confidence) == (0.75105, 0.9567259, 0.728299)
    assert case.thresholds == (0.6, 0.4, 0.2)
    assert (case.action, case.reasons, case.conflict_count) == (Action.ACTIVE, ("conflicting_memories",), 3)
    assert (case.shares, case.changes, case.correct) == (None, None, None)


def test_with_the_layer_the_card_says_what_was_weighed():
    layer = MemoryDecisionLayer()
    (case,) = pick(study_of(answers("q", "h c c active"), layers={"paper": layer}))
    account = audit(layer, *torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64))
    assert list(case.shares.values()) == account.contribution.tolist()
    said = dict(card(case))
    assert said["Next action"] == "supp, by relevance -0.408 or reliability -0.249 or risk +0.306 alone"
    assert said["Weighed"].startswith("relevance ")
    assert said["Gate"] == "preset paper, calibration mine:1234"
    assert said["Reasons"] == "Relevant memories contradict each other. [conflicting_memories]"
    assert said["Risk A"] == "0.500, medium tier; from category: Myths"


def test_a_rule_of_the_gate_is_told_apart_from_the_thresholds():
    (case,) = pick(study_of(answers("q", "c h c silent")))  # its C_final is 0.728
    assert dict(card(case))["Action"].endswith("by the thresholds alone it would be active")
    (case,) = pick(study_of(answers("q", "h c c active")))
    assert dict(card(case))["Action"] == "ACTIVE: the memories go into the prompt"


def own_data(folder):
    path = folder / "mine.jsonl"
    line = {"id": "q", "question": "What?", "correct_answers": ["<Right>"], "incorrect_answers": ["Wrong", "Worse"]}
    path.write_text(json.dumps(line) + "\n")
    return path


def test_references_come_from_the_data(tmp_path):
    path = own_data(tmp_path)
    revision = load_questions(path).revision
    picked = pick(study_of(answers("q", "h c c active"), data=str(path), revision=revision))
    (case,) = picked
    assert (case.correct, case.incorrect) == (("<Right>",), ("Wrong", "Worse"))
    assert "reference answers" not in picked.note
    assert "<Right>" in markdown(picked)
    assert "&lt;Right&gt;" in html(picked)


def test_other_or_missing_data_give_no_references(tmp_path):
    path = own_data(tmp_path)
    changed = pick(study_of(answers("q", "h c c active"), data=str(path), revision="another"))
    gone = pick(study_of(answers("q", "h c c active"), data=str(tmp_path / "gone.csv")))
    assert [case.correct for case in (*changed, *gone)] == [None, None]
    assert "has changed since the run" in changed.note
    assert "could not be read" in gone.note


# ----------------------------------------------------------------------------------------------------------- the pages


class Page(HTMLParser):
    """What a page consists of: its tags and attributes, whether they close, and the text of its quotes."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.quotes, self.headings = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))
        if dict(attrs).get("class") in ("said", "question"):
            self.quotes.append("")
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][1].get("class") in ("said", "question"):
            self.quotes[-1] += data


TAGS = re.findall(
    r"\w+", "html head meta title style body main h1 h2 h3 p article section div bdi table tr th td dl dt dd ul li"
)


def hostile(text):
    """A case in which everything that comes from outside is this text."""
    changes = {"question": text, "category": text, "memories": [{"id": text, "text": text}]}
    changes["decision"] = {**DECISION, "action": "active", "risk_rule": text, "reasons": [text]}
    changes["gate"] = {"preset": text, "calibration": text}
    return pick(study_of(answers(text, "h c c active", answer=text, **changes)))


@pytest.mark.parametrize("text", HOSTILE)
def test_the_page_shows_hostile_text_and_nothing_of_it_acts(text):
    made = html(hostile(text))
    page = Page(made)
    assert not page.open
    assert set(page.tags) <= set(TAGS)
    assert set(page.attributes) <= {"lang", "charset", "http-equiv", "content", "name", "class", "dir", "scope"}
    assert page.tags.count("article") == 1
    plain = cases._plain(text)
    assert page.quotes == [plain] * 5  # the question, three answers, the memory
    made.encode("utf-8")


def blocks(text):
    """The fenced blocks of a Markdown text, and the lines outside of them, by CommonMark's rule for fences."""
    inside, fence, outside, block = [], None, [], []
    for line in text.split("\n"):
        if fence is None and line.startswith("```"):
            fence, block = line[: len(line) - len(line.lstrip("`"))], []
        elif fence is not None and set(line) == {"`"} and len(line) >= len(fence):
            inside.append("\n".join(block))
            fence = None
        elif fence is not None:
            block.append(line)
        else:
            outside.append(line)
    assert fence is None
    return inside, outside


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_hostile_text_and_nothing_of_it_acts(text):
    made = markdown(hostile(text))
    inside, outside = blocks(made)
    assert inside == [cases._plain(text)] * 5
    kept = [line.replace("\\|", "") for line in outside]
    assert [line.count("|") for line in kept if line.startswith("|")] == [3] * (
        len(card(next(iter(hostile(text))))) + 2
    )
    assert not any("<" in line for line in outside)
    assert all(line.count("|") == 0 for line in kept if not line.startswith("|"))
    assert [line.split(" ")[0] for line in outside if line.startswith("#")] == ["#", "##", *["###"] * 5]
    assert not any("](" in line.replace("\\]", "").replace("\\(", "") for line in outside)
    made.encode("utf-8")


ACTING = {"html_block", "html_inline", "link_open", "image", "hr", "blockquote_open", "code_inline", "em_open"}


@given(st.sampled_from(HOSTILE) | st.text(st.sampled_from("`|<>*_#-[]()!&;~\\\n\r\t a1.:/"), max_size=40))
def test_a_markdown_parser_reads_the_same(text):
    """By a parser of CommonMark with tables, which ``rich`` brings along."""
    made = hostile(text)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown(made))
    found = [*tokens, *itertools.chain.from_iterable(token.children or () for token in tokens)]
    kinds = [token.type for token in found]
    assert not ACTING & set(kinds)
    fences = [token.content.removesuffix("\n") for token in found if token.type == "fence"]
    assert fences == [cases._plain(text)] * 5
    assert kinds.count("table_open") == 1
    assert kinds.count("td_open") == 2 * len(card(made.cases[0]))
    assert kinds.count("heading_open") == 7


@given(st.text(st.characters(codec=None), max_size=60))
def test_any_text_comes_back_out_of_both(text):
    study = hostile(text)
    plain = cases._plain(text)
    assert blocks(markdown(study))[0] == [plain] * 5
    assert Page(html(study)).quotes == [plain] * 5
    if text.isprintable():
        assert plain == text


def test_the_page_is_whole_by_itself():
    made = html(pick(one_of_each()))
    page = Page(made)
    assert not set(page.tags) & {"script", "link", "img", "iframe", "object"}
    for outside in ("http:", "https:", "url(", "@import", "src=", "href="):
        assert outside not in made
    assert "default-src 'none'" in made
    assert page.headings == ["h1", *["h2", *["h3"] * 5] * 5]
    assert "@media print" in made
    for number, kind in enumerate((kind for kind in Kind if kind is not Kind.OTHER), 1):
        assert f"<h2>Case {number}: {kind.verdict}</h2>" in made


def test_outcomes_stand_in_words_beside_who_said_it():
    made = pick(study_of(answers("q", "h c c active")))
    for page in (markdown(made), html(made)):
        assert "B1, without memories: hallucination" in page
        assert "B3, the memory decision layer: correct" in page
    unscored = pick(study_of(answers("q", "? c c silent")), chosen=["q"])
    assert "B1, without memories: not scored" in markdown(unscored)


def test_both_are_written(tmp_path):
    made = pick(one_of_each())
    files = write_cases(made, tmp_path / "new")
    assert [path.read_text("utf-8") for path in files] == [markdown(made), html(made)]
    assert CaseStudy((), "none").cases == ()
