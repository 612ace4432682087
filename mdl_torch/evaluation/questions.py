"""Questions with reference answers, and the data sets they come from."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

TRUTHFULQA_COLUMNS = ("Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers")
"""What both official releases have: the 817 questions of 2021 and the 790 of 2025."""


@dataclass(frozen=True)
class Question:
    """A question with what is right and what is commonly believed to be.

    Attributes:
        id: Stable within its data set.
        text: The question.
        correct: Reference answers, the best first.
        incorrect: Reference misconceptions, the best known first where the data set says so.
        category: Of the data set, for its risk.
    """

    id: str
    text: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    category: str | None = None


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


def _answers(best: str, others: str) -> tuple[str, ...]:
    """The best answer, then the others of a list separated by semicolons, each once."""
    listed = [best, *others.split(";")]
    return tuple(dict.fromkeys(answer.strip() for answer in listed if answer.strip()))
