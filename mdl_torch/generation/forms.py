"""Answers that fill in a form: a field or more, each with one of a few labels (grades, verdicts, reflection tokens)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


READING = 2
"""Raised when the same text or the same likelihoods are read as other labels."""

_AROUND = r"[\s*_\"'`()\[\]<>|.]"  # quotes, brackets, emphasis, a full stop: nothing that denies what it stands beside


@dataclass(frozen=True)
class Field:
    """One thing to be said.

    Attributes:
        name: What it is called in the answer.
        labels: What it can be, two or more.
    """

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Form:
    r"""What an answer has to say, on one line: a bare label, or, of several fields, ``NAME: label; NAME: label``.

    Attributes:
        fields: In the order in which they are filled in: what stands before is read with what follows.

    Raises:
        ValueError: There is no field, two are alike, one's name ends with another's, a field has fewer than two labels,
            or two alike, or a name or label holds more than words and blanks.

    Example:
        >>> form = Form((Field("ISREL", ("Relevant", "Irrelevant")), Field("ISUSE", ("2", "1"))))
        >>> form.line({"ISREL": "Relevant", "ISUSE": "2"})
        'ISREL: Relevant; ISUSE: 2'
        >>> form.read("**ISREL:** irrelevant\nISUSE - not much")
        {'ISREL': 'Irrelevant', 'ISUSE': None}
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [_plain(field.name) for field in self.fields]
        if not names or len(set(names)) < len(names) or not all(names):
            raise ValueError(f"fields must be one or more, each with a name of its own, got {self.fields}")
        if any(one != other and one.endswith(f" {other}") for one in names for other in names):
            raise ValueError(f"names of fields must not end with one another, got {self.fields}")
        for field in self.fields:
            labels = {_plain(label) for label in field.labels}
            if len(labels) < 2 or len(labels) < len(field.labels) or "" in labels:
                raise ValueError(f"labels of {field.name} must be two or more, each once, got {field.labels}")
            if not all(re.fullmatch(r"\w+(?: +\w+)*", text) for text in (field.name, *field.labels)):
                raise ValueError(f"name and labels must be words and blanks, got {field}")

    def line(self, values: Mapping[str, str]) -> str:
        """The form filled in, as a model is to say it."""
        if len(self.fields) == 1:
            return values[self.fields[0].name]
        return "; ".join(f"{field.name}: {values[field.name]}" for field in self.fields)

    def before(self, values: Mapping[str, str], field: Field) -> str:
        """What stands before the label of a field whose predecessors are filled in; nothing before a bare label.

        Example:
            >>> form = Form((Field("A", ("x", "y")), Field("B", ("1", "2"))))
            >>> form.before({"A": "x"}, form.fields[1])
            'A: x; B:'
        """
        if len(self.fields) == 1:
            return ""
        said = (f"{one.name}: {values[one.name]}; " for one in self.fields[: self.fields.index(field)])
        return f"{''.join(said)}{field.name}:"

    def read(self, text: str) -> dict[str, str | None]:
        """The labels that a text gives; None for a field that it does not fill in, or not clearly.

        Nothing is guessed: a value has to be a label and nothing else, in any case, in quotes, brackets or emphasis,
        and a field that is filled in twice with different labels is not filled in. Of a form of one field the name may
        be left out if the first line holds nothing but the label; a bare label that contradicts counts all the same.

        Args:
            text: What a model said.
        """
        names = "|".join(re.escape(field.name) for field in self.fields)
        between = r"\n" if len(self.fields) == 1 else rf"[;\n]|,(?={_AROUND}*(?:{names}){_AROUND}*[:=])"
        parts = [piece for piece in re.split(between, text, flags=re.IGNORECASE) if re.search(r"\w", piece)]
        found = {field.name: _label(field, parts) for field in self.fields}
        only = self.fields[0]
        if len(self.fields) == 1 and parts:
            named = [value for part in parts if (value := _value(only, part)) is not None]
            bare = [label for part in parts if (label := _matching(only, part)) is not None]
            said = {*bare, *(_matching(only, value) for value in named)}
            clear = len(said) == 1 and (named or _matching(only, parts[0]) is not None)
            found[only.name] = said.pop() if clear else None
        return found

    def choices(self, text: str, probabilities: Mapping[str, Mapping[str, float]]) -> dict[str, str | None]:
        """What an answer says: by the labels' probabilities where there are any, else by its text.

        Args:
            text: What a model said.
            probabilities: Of the labels of each field; empty if they are not known. Of a tie for the first place
                nothing is chosen.

        Example:
            >>> Form((Field("V", ("yes", "no")),)).choices("yes", {"V": {"yes": 0.5, "no": 0.5}})
            {'V': None}
        """
        if not probabilities:
            return self.read(text)
        return {field.name: likeliest(probabilities[field.name]) for field in self.fields}


def likeliest(probabilities: Mapping[str, float]) -> str | None:
    """The likeliest label; None if two share that place.

    Example:
        >>> likeliest({"yes": 0.6, "no": 0.4}), likeliest({"yes": 0.4, "no": 0.4, "so": 0.2})
        ('yes', None)
    """
    best = max(probabilities.values())
    labels = [label for label, probability in probabilities.items() if probability == best]
    return labels[0] if len(labels) == 1 else None


def _value(field: Field, part: str) -> str | None:
    """What a part of an answer says of a field; None if it is not about it."""
    named = rf"(?:{_AROUND}|[-#])*{re.escape(field.name)}{_AROUND}*?(?:[:=]|\s[-–—]\s)(.*)"
    match = re.match(named, part, re.IGNORECASE)
    return None if match is None else match[1]


def _label(field: Field, parts: list[str]) -> str | None:
    labels = {_matching(field, value) for part in parts if (value := _value(field, part)) is not None}
    return labels.pop() if len(labels) == 1 else None


def _matching(field: Field, value: str) -> str | None:
    return next((label for label in field.labels if _plain(label) == _plain(value)), None)


def _plain(text: str) -> str:
    """In lower case, without what may stand around a word that is said."""
    return " ".join(re.sub(rf"^{_AROUND}+|(?:{_AROUND}|,)+$", "", text.lower()).split())
