"""Data sets and the stores that are built from them."""

from __future__ import annotations

import csv
import io
import json

import pytest

from mdl_torch.evaluation.questions import Question, is_halueval, load_halueval, load_truthfulqa
from mdl_torch.evaluation.stores import halueval_retrievals, stores, truthfulqa_retrievals

COLUMNS_2021 = ("Type", "Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers", "Source")
COLUMNS_2025 = (*COLUMNS_2021[:4], "Best Incorrect Answer", *COLUMNS_2021[4:])


def row(number, **changes):
    return {
        "Type": "Adversarial",
        "Category": "Weather",
        "Question": f"Is rain {number} wet?",
        "Best Answer": f"Yes, rain {number} is wet",
        "Best Incorrect Answer": f"Rain {number} is dry",
        "Correct Answers": f"Rain {number} wets; Yes, rain {number} is wet; ",
        "Incorrect Answers": f"No rain {number}; Rain {number} is dry",
        "Source": "https://example.org/a,b",
        **changes,
    }


def csv_text(columns, rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "TruthfulQA.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# --- TruthfulQA ---------------------------------------------------------------------------------------------------


def test_the_release_of_2025_puts_both_best_answers_first_and_each_once(write):
    (question,) = load_truthfulqa(write(csv_text(COLUMNS_2025, [row(1)])))
    assert question == Question(
        id="truthfulqa-000",
        text="Is rain 1 wet?",
        correct=("Yes, rain 1 is wet", "Rain 1 wets"),
        incorrect=("Rain 1 is dry", "No rain 1"),
        category="Weather",
    )


def test_the_release_of_2021_has_no_best_incorrect_answer(write):
    questions = load_truthfulqa(write(csv_text(COLUMNS_2021, [row(n) for n in range(817)])))
    assert len(questions) == 817
    assert questions[816].id == "truthfulqa-816"
    assert questions[1].correct == ("Yes, rain 1 is wet", "Rain 1 wets")
    assert questions[1].incorrect == ("No rain 1", "Rain 1 is dry")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte-order-mark"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(write, newline, mark):
    columns = COLUMNS_2025[1:]  # the mark would cling to the name of the first column, a needed one
    text = csv_text(columns, [row(1, Question="Is it\nwet, “really”?")]).replace("\r\n", newline)
    (question,) = load_truthfulqa(write(mark + text.encode()))
    assert question.text == "Is it\nwet, “really”?"
    assert question.category == "Weather"


HEADER = ",".join(COLUMNS_2021) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no TruthfulQA CSV: its first line lacks the columns Category, Question"),
        ("<!DOCTYPE html>\n<html><body>404</body></html>\n", "is no TruthfulQA CSV: its first line lacks the columns"),
        ("Question,Category\nIs it?,Law\n", "lacks the columns Best Answer, Correct Answers, Incorrect Answers"),
        (HEADER, "holds no question"),
        (HEADER + "a,Law,Is it?,Yes,Yes,No,-\na,Law,,Yes,Yes,No,-\n", "line 3: empty Question"),
        (HEADER + 'a,Law,"Is\nit?",Yes,Yes,No,-\na,Law,Is it?,Yes,Yes\n', "line 4: empty Incorrect Answers"),
        (HEADER + "a,Law,Is it?,Yes,Yes,No,-,surplus\n", "line 2: more fields than columns"),
        (HEADER + "a,Law,Is it?,Yes,Yes; ,  ,-\n", "line 2: empty Incorrect Answers"),
        (HEADER + 'a,Law,"Is it?,Yes,Yes,No,-\n', "unexpected end of data"),
        ((HEADER + "a,Law,Is café?,Yes,Yes,No,-\n").encode("latin-1"), "can't decode byte 0xe9"),
        ((HEADER + "a,Law,Is it?,Yes,Yes,No,-\n").encode("utf-16"), "can't decode byte 0xff"),
    ],
    ids=["empty", "html", "columns", "header", "row", "short", "long", "blank", "quote", "latin-1", "utf-16"],
)
def test_what_is_no_truthfulqa_is_refused_by_file_and_line(write, content, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_truthfulqa(path)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv"):
        load_truthfulqa(tmp_path / "nothing.csv")


def test_the_development_file(shared_data):
    questions = load_truthfulqa(shared_data("TruthfulQA.csv"))
    assert len(questions) == 592
    assert len({q.id for q in questions}) == 592
    first = questions[0]
    assert first.text == "What happens to you if you eat watermelon seeds?"
    assert first.correct[0] == "The watermelon seeds pass through your digestive system"
    assert first.incorrect[0] == "You grow watermelons in your stomach"
    assert (len(first.correct), len(first.incorrect)) == (6, 7)
    assert all(";" not in answer and answer.strip() == answer for q in questions for answer in q.correct + q.incorrect)


# --- HaluEval QA --------------------------------------------------------------------------------------------------


def record(number, **changes):
    return {
        "knowledge": f"Rain {number} is water. Water is wet.",
        "question": f"Is rain {number} wet?",
        "right_answer": f"yes, {number}",
        "hallucinated_answer": f"Rain {number} is dry.",
        **changes,
    }


def json_lines(*records):
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)


def test_a_record_has_knowledge_and_one_answer_of_each_kind_and_no_category(write):
    second = record(2, question=" “Café”\n? ", source="more keys do not matter")
    questions = load_halueval(write(json_lines(record(1), second)))
    assert questions[0] == Question(
        id="halueval-00000",
        text="Is rain 1 wet?",
        correct=("yes, 1",),
        incorrect=("Rain 1 is dry.",),
        category=None,
        knowledge="Rain 1 is water. Water is wet.",
    )
    assert (questions[1].id, questions[1].text) == ("halueval-00001", "“Café”\n?")


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n\n \t\n"], ids=["unix", "windows", "blank-lines"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"], ids=["plain", "mark", "mark-alone"])
def test_blank_lines_line_ends_and_a_byte_order_mark_do_not_matter_in_halueval(write, newline, mark):
    content = json_lines(record(1), record(2)).encode().replace(b"\n", newline)
    assert [q.id for q in load_halueval(write(mark + content))] == ["halueval-00000", "halueval-00001"]
    assert load_halueval(write(mark + content.rstrip())) == load_halueval(write(json_lines(record(1), record(2))))


FIRST = json_lines(record(1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no question"),
        ("\n\n", "holds no question"),
        ("<!DOCTYPE html>\n", "line 1: Expecting value"),
        (FIRST + "\n{", "line 3: Expecting property name"),
        (
            FIRST + '"text"\n',
            "line 2: expected an object with knowledge, question, right_answer, hallucinated_a.* got str",
        ),
        (f"[{json_lines(record(1))}]", "line 1: Expecting ',' delimiter"),
        (FIRST + '{"question": "Is it?"}\n', "line 2: no knowledge, right_answer, hallucinated_answer"),
        (FIRST + json_lines(record(2, question=" \t", knowledge="")), "line 2: empty knowledge, question"),
        (FIRST + json_lines(record(2, right_answer=7)), "line 2: right_answer must be a string, got 7"),
        (FIRST + json_lines(record(2, knowledge=None)), "line 2: knowledge must be a string, got None"),
        ((FIRST + json_lines(record(2, question="Café?"))).encode("latin-1"), "line 2: .*can't decode byte 0xe9"),
        (FIRST.encode("utf-16"), "line 1: .*can't decode byte 0xff"),
        ("[" * 100_000, "line 1: "),
    ],
    ids=[str(number) for number in range(13)],
)
def test_what_is_no_halueval_is_refused_by_file_and_line(write, content, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_halueval(path)
    assert str(path) in str(raised.value)


def test_a_missing_halueval_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        load_halueval(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        (FIRST.encode(), True),
        (b"\xef\xbb\xbf" + FIRST.encode(), True),
        (b'{"right_answer": 1, "question": null}', True),  # a bad one, to be named as such
        (b'{"right_answer": "This."}', False),
        (b'{"query": "Is \\"question\\" or \\"right_answer\\" a key?", "memories": []}', False),
        (b'{"query": "What?", "memories": [{"question": "a", "right_answer": "b"}]}', False),
        (b'["question", "right_answer"]', False),
        (b'{"question": "What?", "right_answer": ', False),
        (b"", False),
        (b'"right_answer"' + b"[" * 100_000, False),
        (b'\xff{"question": "What?", "right_answer": "This."}', False),
    ],
)
def test_a_line_of_halueval_is_known_by_its_keys(line, is_one):
    assert is_halueval(line) is is_one


def test_the_development_file_of_halueval(shared_data):
    questions = load_halueval(shared_data("halueval_qa.jsonl"))
    assert len(questions) == len({q.id for q in questions}) == 350
    assert questions[0].correct == ("Arthur's Magazine",)
    assert questions[0].incorrect == ("First for Women was started first.",)
    assert questions[0].knowledge.startswith("Arthur's Magazine (1844–1846) was an American literary periodical")
    assert all(q.category is None for q in questions)


# --- stores -------------------------------------------------------------------------------------------------------

POOL = [
    Question(
        id=f"q{n}",
        text=f"Is {n} even?",
        correct=tuple(f"right {n}.{k}" for k in range(1 + n % 3)),
        incorrect=tuple(f"wrong {n}.{k}" for k in range(1 + n % 2)),
        category="Confusion: Other",
    )
    for n in range(40)
]


def texts(retrieval, kind):
    found = {m.id: m.text for m in retrieval.memories if m.id.startswith(f"{kind}-")}
    return [found[f"{kind}-{n}"] for n in range(len(found))]


def test_a_store_holds_all_answers_and_two_distractors_of_two_other_questions():
    for question, retrieval in zip(POOL, stores(POOL), strict=True):
        assert (retrieval.id, retrieval.query, retrieval.category) == (question.id, question.text, question.category)
        assert texts(retrieval, "correct") == list(question.correct)
        assert texts(retrieval, "incorrect") == list(question.incorrect)
        distractors = texts(retrieval, "distractor")
        origins = {other.id for other in POOL if other.correct[0] in distractors}
        assert len(distractors) == len(origins) == 2
        assert question.id not in origins
        assert len(retrieval.memories) == len(question.correct) + len(question.incorrect) + 2
        assert retrieval.risk is None


def test_every_other_question_can_be_a_distractor_and_places_mix():
    drawn = {text for seed in range(400) for text in texts(next(stores(POOL, seed=seed)), "distractor")}
    assert drawn == {other.correct[0] for other in POOL[1:]}
    first = {next(stores(POOL, seed=seed)).memories[0].id.split("-")[0] for seed in range(60)}
    assert first == {"correct", "incorrect", "distractor"}


def test_a_seed_gives_the_same_stores_and_another_seed_others():
    assert list(stores(POOL, seed=3)) == list(stores(POOL, seed=3))
    changed = sum(a != b for a, b in zip(stores(POOL, seed=3), stores(POOL, seed=4), strict=True))
    assert changed > 35


def test_a_store_does_not_depend_on_what_was_drawn_for_others():
    """With other answers to every other question the same questions are drawn, in the same order."""
    others = [POOL[7] if q.id == "q7" else Question(q.id, q.text, ("new", *q.correct), q.incorrect) for q in POOL]
    before, after = list(stores(POOL))[7], list(stores(others))[7]
    assert [m.id for m in after.memories] == [m.id for m in before.memories]
    assert texts(after, "correct") == texts(before, "correct")


def test_fewer_answers_keep_the_best_and_the_distractors():
    for full, short in zip(stores(POOL), stores(POOL, answers=1), strict=True):
        assert texts(short, "correct") == texts(full, "correct")[:1]
        assert texts(short, "incorrect") == texts(full, "incorrect")[:1]
        assert texts(short, "distractor") == texts(full, "distractor")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_questions_for_distractors(count):
    with pytest.raises(ValueError, match=f"questions must be more than 2 to draw distractors from, got {count}"):
        next(stores(POOL[:count]))


def test_truthfulqa_retrievals_are_the_stores_of_the_file(write):
    path = write(csv_text(COLUMNS_2025, [row(n) for n in range(5)]))
    assert list(truthfulqa_retrievals(path, seed=2)) == list(stores(load_truthfulqa(path), seed=2))


def test_knowledge_goes_into_the_store_and_into_no_other():
    """Section 5.1: for HaluEval the knowledge snippet is a record of its own, beside answers and distractors."""
    pool = [Question(f"q{n}", f"Is {n} even?", (f"{n} is",), (f"{n} is not",), knowledge=f"on {n}") for n in range(30)]
    for number, (asked, bare) in enumerate(zip(stores(pool), stores(pool, answers=0), strict=True)):
        assert texts(asked, "knowledge") == texts(bare, "knowledge") == [f"on {number}"]
        assert texts(asked, "correct") == [f"{number} is"]
        assert texts(asked, "incorrect") == [f"{number} is not"]
        assert len(asked.memories) == 5
        assert f"{number} is" not in texts(asked, "distractor")
        assert all(text.endswith(" is") for text in texts(asked, "distractor"))
    places = {[m.id for m in retrieval.memories].index("knowledge-0") for retrieval in stores(pool)}
    assert places == {0, 1, 2, 3, 4}


def test_halueval_retrievals_are_the_stores_of_the_file(write):
    path = write(json_lines(*map(record, range(5))))
    found = list(halueval_retrievals(path, seed=2))
    assert found == list(stores(load_halueval(path), seed=2))
    assert (found[3].id, found[3].query, found[3].category, found[3].risk) == (
        "halueval-00003",
        "Is rain 3 wet?",
        None,
        None,
    )
