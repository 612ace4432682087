"""Data sets and the stores that are built from them."""

from __future__ import annotations

import csv
import hashlib
import io
import json

import pytest

from mdl_torch.evaluation.questions import (
    HUB,
    Question,
    is_halueval,
    load_halueval,
    load_own,
    load_questions,
    load_truthfulqa,
)
from mdl_torch.evaluation.stores import build_stores, halueval_retrievals, stores, truthfulqa_retrievals

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
        ("<!DOCTYPE html>\n<html><body>404</body></html>\n", r"is a web page \(HTML\), no data set"),
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
        ("<!DOCTYPE html>\n", r"is a web page \(HTML\), no data set"),
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


# --- one's own ----------------------------------------------------------------------------------------------------

OWN = {"question": "Is rain wet?", "correct_answers": ["Yes", "It is"], "incorrect_answers": "No"}


def test_own_questions_have_what_their_lines_say(write):
    full = {**OWN, "id": 7, "knowledge": " Rain is water. ", "category": "Weather"}
    assert load_own(write(json_lines(OWN, full))) == [
        Question("TruthfulQA-00000", "Is rain wet?", ("Yes", "It is"), ("No",)),
        Question("7", "Is rain wet?", ("Yes", "It is"), ("No",), category="Weather", knowledge="Rain is water."),
    ]
    assert load_own(write(json_lines({**OWN, "id": None, "category": None})))[0].id == "TruthfulQA-00000"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "line 3: question must be a text, not empty, got ' '"),
        ({"question": None}, "line 3: question must be a text, not empty, got None"),
        ({"correct_answers": []}, r"line 3: correct_answers must be a text or a list of texts, got \[\]"),
        ({"incorrect_answers": None}, "line 3: incorrect_answers must be a text or a list of texts, got None"),
        ({"incorrect_answers": ["No", 3]}, "line 3: incorrect_answers must be a text, not empty, got 3"),
        ({"incorrect_answers": ["No", "Yes"]}, "line 3: 'Yes' is among the correct and the incorrect answers"),
        ({"catgory": "Law"}, "line 3: unknown key 'catgory'; did you mean 'category'"),
        ({"category": 3}, "line 3: category must be a text, not empty, got 3"),
        ({"id": True}, "line 3: id must be a text or a whole number, got True"),
        ({"id": "first"}, "line 3: the id 'first' is already on line 1"),
    ],
)
def test_a_malformed_line_of_ones_own_is_named(write, changes, message):
    with pytest.raises(ValueError, match=message):
        load_own(write(json_lines({**OWN, "id": "first"}) + "\n" + json_lines({**OWN, **changes})))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no question"),
        ("<html>", "is a web page"),
        ("7\n", "line 1: expected an object with id, question, correct_answers, .* got int"),
        (json_lines(OWN) + "{", "line 2: Expecting property name"),
        (json_lines(OWN).encode("utf-16"), "line 1: .*can't decode byte 0xff"),
    ],
)
def test_what_are_no_own_questions_is_refused(write, content, message):
    with pytest.raises(ValueError, match=message):
        load_own(write(content))


# --- any of them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name", "first"),
    [
        (csv_text(COLUMNS_2021, [row(n) for n in range(817)]), "truthfulqa", "truthfulqa-000"),
        (csv_text(COLUMNS_2025, [row(n) for n in range(790)]), "truthfulqa", "truthfulqa-000"),
        (json_lines(record(1), record(2)), "halueval", "halueval-00000"),
        ("\n" + json_lines(OWN), "TruthfulQA", "TruthfulQA-00000"),
    ],
    ids=["2021", "2025", "halueval", "own"],
)
def test_a_file_is_told_by_its_content_and_its_revision_is_its_digest(write, content, name, first):
    path = write(content)
    data = load_questions(str(path))
    assert (data.name, data.questions[0].id) == (name, first)
    assert data.revision == hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.label == f"{name}@{data.revision[:12]}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "<!DOCTYPE html><html><title>429</title>",
            r"is a web page \(HTML\), no data set: download the raw file itself",
        ),
        (" \n<html lang='en'>", "is a web page"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "is a Git LFS pointer"),
        (f"[{json_lines(OWN)}]", "expected one JSON object a line, got a JSON list"),
        ("a,b\n1,2\n", "is no TruthfulQA CSV"),
        ("", "is empty"),
        (b"PAR1nonsense", "Parquet"),
    ],
)
def test_what_is_no_data_set_is_refused(write, content, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_questions(path)
    assert str(path) in str(raised.value)


def test_what_does_not_exist_is_a_missing_file_or_an_unknown_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file: .*nothing\.csv"):
        load_questions(tmp_path / "nothing.csv")
    with pytest.raises(
        ValueError, match=r"unknown data set 'truthfulq'; did you mean 'truthfulqa'.* the path of a file"
    ):
        load_questions("truthfulq")


def test_without_a_network_a_name_says_what_to_do(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OSError, match=r"cannot fetch 'halueval' from the Hugging Face hub .*give the path of the published file"
    ):
        load_questions("halueval")


@pytest.mark.parametrize("name", ["truthfulqa", "halueval"])
def test_a_name_is_the_parquet_file_of_the_hub(monkeypatch, tmp_path, name):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    rows = {
        "truthfulqa": [
            {
                "type": "Adversarial",
                "category": "Weather",
                "question": f"Is rain {n} wet?",
                "best_answer": "Yes, it is",
                "correct_answers": ["It wets", "Yes, it is"],
                "incorrect_answers": ["No"],
                "source": "-",
            }
            for n in range(3)
        ],
        "halueval": [record(n) for n in range(3)],
    }[name]
    path = tmp_path / "0000.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    asked = []

    def download(repo, file, **options):
        asked.append((repo, file, options["revision"], options["repo_type"]))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    data = load_questions(name)
    assert asked == [(*HUB[name], "dataset")]
    assert (data.name, len(data.questions)) == (name, 3)
    assert data.revision == hashlib.sha256(path.read_bytes()).hexdigest()
    if name == "truthfulqa":
        expected = Question("truthfulqa-001", "Is rain 1 wet?", ("Yes, it is", "It wets"), ("No",), category="Weather")
        assert data.questions[1] == expected
    else:
        assert list(data.questions) == load_halueval_of(rows, tmp_path)
    assert load_questions(path) == data


def load_halueval_of(rows, folder):
    (folder / "qa_data.json").write_text(json_lines(*rows))
    return load_halueval(folder / "qa_data.json")


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


# --- off-topic stores ---------------------------------------------------------------------------------------------


def test_an_off_topic_store_has_as_many_records_of_each_kind_and_none_of_its_question():
    pool = [
        Question(q.id, q.text, ("I have no comment", *q.correct), q.incorrect, knowledge=f"on {q.id}") for q in POOL
    ]
    owner = {
        text: q.id for q in pool for text in (*q.correct, *q.incorrect, q.knowledge) if text != "I have no comment"
    }
    for question, paper, other in zip(pool, stores(pool), stores(pool, condition="off_topic"), strict=True):
        assert (other.id, other.query) == (paper.id, paper.query)
        assert sorted(m.id for m in other.memories) == sorted(f"off_topic-{m.id}" for m in paper.memories)
        drawn = [m.text for m in other.memories]
        assert not {*question.correct, *question.incorrect, question.knowledge} & set(drawn)
        origins = [owner[text] for text in drawn]
        assert len(set(origins)) == len(origins), "each of another question"
        for memory in other.memories:
            kind = memory.id.split("-")[1]
            assert memory.text.split()[0] == {"incorrect": "wrong", "knowledge": "on"}.get(kind, "right")


def test_an_off_topic_store_is_drawn_by_its_seed_and_its_question():
    for seed in (0, 1):
        found = list(stores(POOL, seed=seed, condition="off_topic"))
        assert found == list(stores(POOL, seed=seed, condition="off_topic"))
    changed = zip(stores(POOL, seed=0, condition="off_topic"), stores(POOL, seed=1, condition="off_topic"), strict=True)
    assert sum(a != b for a, b in changed) > 35
    assert list(stores(POOL, condition="paper")) == list(stores(POOL))


def test_stores_of_some_questions_are_those_of_the_whole_pool():
    for condition in ("paper", "off_topic"):
        every = list(stores(POOL, seed=4, condition=condition))
        some = build_stores(POOL, POOL[30:10:-7], condition=condition, seed=4)
        assert some == [every[place] for place in range(30, 10, -7)]


def test_off_topic_stores_that_cannot_be_built_are_refused():
    with pytest.raises(ValueError, match="unknown condition 'offtopic'; did you mean 'off_topic'"):
        next(stores(POOL, condition="offtopic"))
    with pytest.raises(ValueError, match="questions must be more to draw 4 off-topic memories for 'q0' from, got 4"):
        next(stores(POOL[:4], condition="off_topic"))
    with pytest.raises(ValueError, match="questions must be of the pool, got 'q9', which is not"):
        build_stores(POOL[:5], [POOL[9]])


def test_off_topic_stores_reach_low_relevance(shared_data, gate):
    questions = load_truthfulqa(shared_data("TruthfulQA.csv"))[:60]
    low = {
        condition: sum(
            r.relevance < 0.4 for r in gate.records(list(stores(questions, condition=condition)), audits=False)
        )
        for condition in ("paper", "off_topic")
    }
    assert low["paper"] <= 3
    assert low["off_topic"] >= 30
