"""Questions with reference answers, and the data sets they come from."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

TRUTHFULQA_COLUMNS = ("Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers")
"""What both official releases have: the 817 questions of 2021 and the 790 of 2025."""

HALUEVAL_KEYS = ("knowledge", "question", "right_answer", "hallucinated_answer")
"""What each line of HaluEval's ``qa_data.json`` has."""


@dataclass(frozen=True)
class Question:
    """A question with what is right and what is commonly believed to be.

    Attributes:
        id: Stable within its data set.
        text: The question.
        correct: Reference answers, the best first.
        incorrect: Reference misconceptions, the best known first where the data set says so.
        category: Of the data set, for its risk.
        knowledge: The passage that the right answer follows from, where the data set has one.
    """

    id: str
    text: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    category: str | None = None
    knowledge: str | None = None


def load_truthfulqa(path: str | os.PathLike[str]) -> list[Question]:
    r"""The questions of a TruthfulQA CSV, of the release of 2021 or of 2025.

    Args:
        path: ``TruthfulQA.csv`` as published.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no TruthfulQA CSV, or a row is malformed; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "TruthfulQA.csv"
        >>> _ = path.write_text("Type,Category,Question,Best Answer,Correct Answers,Incorrect Answers,Source\n"
        ...                     "Adversarial,Weather,Is rain wet?,Yes,Yes; It is wet,No; Rain is dry,-\n")
        >>> load_truthfulqa(path)[0].correct
        ('Yes', 'It is wet')
    """
    questions: list[Question] = []
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            missing = [name for name in TRUTHFULQA_COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise ValueError(f"{path} is no TruthfulQA CSV: its first line lacks the columns {', '.join(missing)}")
            for row in rows:
                questions.append(_truthfulqa_question(row, f"{path}, line {rows.line_num}", len(questions)))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, line {rows.line_num}: {error}") from error
    if not questions:
        raise ValueError(f"{path} holds no question")
    return questions


def _truthfulqa_question(row: dict[str, str | None], where: str, number: int) -> Question:
    values = {name: (row.get(name) or "").strip() for name in (*TRUTHFULQA_COLUMNS, "Best Incorrect Answer")}
    empty = [name for name in TRUTHFULQA_COLUMNS if not values[name]]
    if empty or None in row:  # the csv module keeps surplus fields under the key None
        raise ValueError(f"{where}: {'empty ' + ', '.join(empty) if empty else 'more fields than columns'}")
    return Question(
        id=f"truthfulqa-{number:03d}",
        text=values["Question"],
        correct=_answers(values["Best Answer"], values["Correct Answers"]),
        incorrect=_answers(values["Best Incorrect Answer"], values["Incorrect Answers"]),
        category=values["Category"],
    )


def load_halueval(path: str | os.PathLike[str]) -> list[Question]:
    r"""The questions of HaluEval QA, each with its knowledge, the right and the hallucinated answer.

    Args:
        path: ``qa_data.json`` as published: one JSON object a line, for all its name. Blank lines are skipped.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no such file, or a line is malformed; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "qa_data.json"
        >>> _ = path.write_text('{"knowledge": "Tea is made of leaves.", "question": "What is tea made of?", '
        ...                     '"right_answer": "leaves", "hallucinated_answer": "Tea is made of roots."}\n')
        >>> load_halueval(path)[0].incorrect
        ('Tea is made of roots.',)
    """
    with Path(path).open("rb") as file:
        return read_halueval(enumerate(file, start=1), str(path))


def read_halueval(lines: Iterable[tuple[int, bytes]], name: str) -> list[Question]:
    """The same from lines, wherever they come from.

    Args:
        lines: Each with its number.
        name: Of where they come from, for messages.

    Raises:
        ValueError: A line is malformed, or there is no question.
    """
    questions: list[Question] = []
    for number, raw in lines:
        if raw.strip(_BLANK):
            questions.append(_halueval_question(raw, f"{name}, line {number}", len(questions)))
    if not questions:
        raise ValueError(f"{name} holds no question")
    return questions


def is_halueval(raw: bytes) -> bool:
    """Whether a line is of HaluEval QA: a JSON object with a ``question`` and a ``right_answer``, whatever else.

    Example:
        >>> is_halueval(b'{"question": "What?", "right_answer": "This."}'), is_halueval(b'{"query": "What?"}')
        (True, False)
    """
    if b'"right_answer"' not in raw:  # spares most lines the parsing
        return False
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"question", "right_answer"} <= value.keys()


_BLANK = b" \t\r\n\xef\xbb\xbf"
"""White space and the byte order mark."""


def _halueval_question(raw: bytes, where: str, number: int) -> Question:
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object with {', '.join(HALUEVAL_KEYS)}, got {type(value).__name__}")
    missing = [key for key in HALUEVAL_KEYS if key not in value]
    if missing:
        raise ValueError(f"{where}: no {', '.join(missing)}")
    for key in HALUEVAL_KEYS:
        if not isinstance(value[key], str):
            raise ValueError(f"{where}: {key} must be a string, got {value[key]!r:.60}")
    empty = [key for key in HALUEVAL_KEYS if not value[key].strip()]
    if empty:
        raise ValueError(f"{where}: empty {', '.join(empty)}")
    knowledge, text, right, hallucinated = (value[key].strip() for key in HALUEVAL_KEYS)  # in this order
    return Question(f"halueval-{number:05d}", text, (right,), (hallucinated,), knowledge=knowledge)


def _answers(best: str, others: str) -> tuple[str, ...]:
    """The best answer, then the others of a list separated by semicolons, each once."""
    listed = [best, *others.split(";")]
    return tuple(dict.fromkeys(answer.strip() for answer in listed if answer.strip()))
