"""Questions with reference answers, and the data sets they come from."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mdl_torch.errors import check_keys, unknown_name

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

TRUTHFULQA_COLUMNS = ("Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers")
"""What both official releases have: the 817 questions of 2021 and the 790 of 2025."""

HALUEVAL_KEYS = ("knowledge", "question", "right_answer", "hallucinated_answer")
"""What each line of HaluEval's ``qa_data.json`` has."""

OWN_KEYS = ("id", "question", "correct_answers", "incorrect_answers", "knowledge", "category")
"""What a line of one's own questions may have; id, knowledge and category are optional."""


Condition = Literal["paper", "off_topic"]
"""How stores are built: as the paper does, or of memories of other questions alone."""


class HubFile(NamedTuple):
    """Where a data set lies on the Hugging Face hub."""

    repo: str
    file: str
    revision: str


HUB = {
    "truthfulqa": HubFile("truthfulqa/truthful_qa", "generation/validation-00000-of-00001.parquet", "main"),
    "halueval": HubFile("pminervini/HaluEval", "qa/data/0000.parquet", "refs/convert/parquet"),
}
"""The data sets that have a name."""


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


@dataclass(frozen=True)
class Dataset:
    """Questions, and which they are.

    Attributes:
        name: ``truthfulqa``, ``halueval``, or the name of the file without its ending.
        revision: SHA-256 of the file.
        questions: In the order of the file.
    """

    name: str
    revision: str
    questions: tuple[Question, ...]

    @property
    def label(self) -> str:
        """Name and revision, as records and calibrations spell it.

        Example:
            >>> Dataset("truthfulqa", "0123456789abcdef", ()).label
            'truthfulqa@0123456789ab'
        """
        return f"{self.name}@{self.revision[:12]}"


def load_questions(path_or_name: str | os.PathLike[str]) -> Dataset:
    """A data set from a file, told by its content, or from the Hugging Face hub by its name.

    Args:
        path_or_name: A TruthfulQA CSV, HaluEval's ``qa_data.json``, one's own JSON lines (``load_own``), a parquet file
            of the hub; or ``truthfulqa`` or ``halueval``. A file that exists wins over a name.

    Raises:
        OSError: It cannot be read, or not be fetched.
        ValueError: It is none of these, or malformed; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.jsonl"
        >>> _ = path.write_text('{"question": "Is it wet?", "correct_answers": "Yes", "incorrect_answers": "No"}')
        >>> data = load_questions(path)
        >>> data.name, data.questions[0].id
        ('mine', 'mine-00000')
    """
    path, name = Path(path_or_name), str(path_or_name)
    if not path.exists():
        if name.lower() in HUB:
            path, name = _fetch(name.lower()), name.lower()
        elif path.suffix or len(path.parts) > 1:
            raise FileNotFoundError(f"no such file: {path}")
        else:
            raise ValueError(f"{unknown_name('data set', name, HUB)}; or give the path of a file")
    content = path.read_bytes()
    if not content.strip():
        raise ValueError(f"{path} is empty")
    kind, questions = _read(path, content)
    known = kind if kind in HUB else (name if name in HUB else path.stem)
    return Dataset(known, hashlib.sha256(content).hexdigest(), tuple(questions))


def _read(path: Path, content: bytes) -> tuple[str, list[Question]]:
    """What kind of file it is, and its questions."""
    if content.startswith(b"PAR1"):
        return _read_parquet(path)
    refuse_other_content(content[:_HEAD], str(path))
    first = next((line for line in content.splitlines() if line.strip(_BLANK)), b"")
    if is_halueval(first):
        return "halueval", load_halueval(path)
    if first.lstrip(_BLANK).startswith(b"{"):
        return "own", load_own(path)
    if first.lstrip(_BLANK).startswith(b"["):
        raise ValueError(f"{path}: expected one JSON object a line, got a JSON list")
    return "truthfulqa", load_truthfulqa(path)


def refuse_other_content(head: bytes, name: str) -> None:
    """Refuse what is saved by mistake in place of a data set: a web page, or the pointer to a large file.

    Args:
        head: The first bytes of the file.
        name: Of the file, for the message.

    Raises:
        ValueError: It is one of these.

    Example:
        >>> refuse_other_content(b"<!DOCTYPE html><html>", "qa_data.json")
        Traceback (most recent call last):
        ValueError: qa_data.json is a web page (HTML), no data set: download the raw file itself
    """
    start = head.lstrip(_BLANK).lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<!--")):
        raise ValueError(f"{name} is a web page (HTML), no data set: download the raw file itself")
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{name} is a Git LFS pointer, no data set: fetch the file that it points to (git lfs pull)")


def _fetch(name: str) -> Path:
    """The file of a named data set, from the hub or its cache."""
    from huggingface_hub import hf_hub_download

    where = HUB[name]
    try:
        return Path(hf_hub_download(where.repo, where.file, revision=where.revision, repo_type="dataset"))
    except Exception as error:  # of a dozen kinds, from three libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"cannot fetch {name!r} from the Hugging Face hub ({where.repo}: {reason}). Without a network, give the "
            "path of the published file instead: TruthfulQA.csv, or HaluEval's qa_data.json"
        ) from error


def _read_parquet(path: Path) -> tuple[str, list[Question]]:
    """Of the hub: TruthfulQA (generation) or HaluEval QA, as their columns tell."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OSError(f"{path} is a parquet file: pip install 'mdl_torch[evaluate]' to read it") from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: {error}") from error
    if rows and {"knowledge", "right_answer"} <= rows[0].keys():
        lines = ((number, json.dumps(row).encode()) for number, row in enumerate(rows, start=1))
        return "halueval", read_halueval(lines, str(path))
    if not rows or "best_answer" not in rows[0]:
        columns = ", ".join(rows[0]) if rows else "no row"
        raise ValueError(f"{path} is no parquet file of TruthfulQA (generation) or HaluEval QA: it has {columns}")
    questions = []
    for number, row in enumerate(rows):
        own = {
            "question": row.get("question"),
            "correct_answers": [row["best_answer"], *(row.get("correct_answers") or ())],
            "incorrect_answers": [
                *filter(None, [row.get("best_incorrect_answer")]),
                *(row.get("incorrect_answers") or ()),
            ],
            "category": row.get("category"),
        }
        questions.append(_own_question(own, f"{path}, row {number + 1}", f"truthfulqa-{number:03d}"))
    return "truthfulqa", questions


def load_own(path: str | os.PathLike[str]) -> list[Question]:
    """One's own questions, from JSON lines.

    Each line is an object: ``question``; ``correct_answers`` and ``incorrect_answers``, each a text or a list of texts
    with the best first; and, where wanted, ``knowledge``, ``category`` (of the risk policy) and ``id``. Without an id,
    a question is named after file and place. Blank lines are skipped.

    Args:
        path: The file, in UTF-8.

    Raises:
        OSError: It cannot be read.
        ValueError: A line is malformed, or two have one id; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.jsonl"
        >>> _ = path.write_text('{"id": 7, "question": "Wet?", "correct_answers": "Yes", "incorrect_answers": "No"}')
        >>> load_own(path)[0].id
        '7'
    """
    path = Path(path)
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                refuse_other_content(raw, str(path))
            if not raw.strip(_BLANK):
                continue
            where = f"{path}, line {number}"
            question = _own_question(_json_object(raw, where, OWN_KEYS), where, f"{path.stem}-{len(questions):05d}")
            if question.id in line_of:
                raise ValueError(f"{where}: the id {question.id!r} is already on line {line_of[question.id]}")
            line_of[question.id] = number
            questions.append(question)
    if not questions:
        raise ValueError(f"{path} holds no question")
    return questions


def _own_question(value: dict[str, Any], where: str, name: str) -> Question:
    try:
        check_keys("key", value, OWN_KEYS)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    text = _own_text(value.get("question"), f"{where}: question")
    answers = {}
    for key in ("correct_answers", "incorrect_answers"):
        listed = value.get(key)
        listed = [listed] if isinstance(listed, str) else listed
        if not isinstance(listed, list) or not listed:
            raise ValueError(f"{where}: {key} must be a text or a list of texts, got {listed!r:.60}")
        answers[key] = tuple(dict.fromkeys(_own_text(answer, f"{where}: {key}") for answer in listed))
    both = set(answers["correct_answers"]) & set(answers["incorrect_answers"])
    if both:
        raise ValueError(f"{where}: {min(both)!r:.60} is among the correct and the incorrect answers")
    given = value.get("id")
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int) or not str(given).strip()):
        raise ValueError(f"{where}: id must be a text or a whole number, got {given!r:.60}")
    knowledge, category = (
        None if value.get(key) is None else _own_text(value[key], f"{where}: {key}")
        for key in ("knowledge", "category")
    )
    return Question(
        id=name if given is None else str(given),
        text=text,
        correct=answers["correct_answers"],
        incorrect=answers["incorrect_answers"],
        category=category,
        knowledge=knowledge,
    )


def _own_text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text, not empty, got {value!r:.60}")
    return value.strip()


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
    with Path(path).open("rb") as raw:
        refuse_other_content(raw.read(_HEAD), str(path))
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
        refuse_other_content(file.read(_HEAD), str(path))
        file.seek(0)
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

_HEAD = 256
"""Bytes that tell what a file is."""


def _halueval_question(raw: bytes, where: str, number: int) -> Question:
    value = _json_object(raw, where, HALUEVAL_KEYS)
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


def _json_object(raw: bytes, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object with {', '.join(keys)}, got {type(value).__name__}")
    return value


def _answers(best: str, others: str) -> tuple[str, ...]:
    """The best answer, then the others of a list separated by semicolons, each once."""
    listed = [best, *others.split(";")]
    return tuple(dict.fromkeys(answer.strip() for answer in listed if answer.strip()))
