"""What a model says, read as a form: every label that is there, and never one that is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.generation.forms import Field, Form
from mdl_torch.generation.prompts import CRITIQUE, GRADE

WORDS = st.text("abcdefghij XYZ12", min_size=1, max_size=8).filter(lambda text: text.strip() == text and text)


@st.composite
def forms(draw):
    names = draw(st.lists(WORDS.filter(str.isalpha), min_size=1, max_size=3, unique_by=str.lower))
    labels = st.lists(WORDS, min_size=2, max_size=4, unique_by=lambda label: " ".join(label.lower().split()))
    return Form(tuple(Field(name, tuple(draw(labels))) for name in names))


@given(forms(), st.data())
def test_what_is_filled_in_is_read(form, data):
    values = {field.name: data.draw(st.sampled_from(field.labels)) for field in form.fields}
    assert form.read(form.line(values)) == values


@given(forms(), st.text(max_size=60))
def test_nothing_is_read_that_is_no_label(form, text):
    found = form.read(text)
    assert found.keys() == {field.name for field in form.fields}
    assert all(found[field.name] in (None, *field.labels) for field in form.fields)


@given(forms(), st.data())
def test_a_label_stands_after_what_is_before_it(form, data):
    """The line is what a local model is scored on, piece by piece."""
    values = {field.name: data.draw(st.sampled_from(field.labels)) for field in form.fields}
    line = form.line(values)
    for field in form.fields:
        before = form.before(values, field)
        assert line.startswith(f"{before} {values[field.name]}" if before else values[field.name])


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Correct", "Correct"),
        ("correct.", "Correct"),
        ("INCORRECT", "Incorrect"),
        ("**Ambiguous**", "Ambiguous"),
        ("Grade: Correct", "Correct"),
        ("**Grade:** Incorrect", "Incorrect"),
        ("grade = ambiguous", "Ambiguous"),
        ('"Correct"', "Correct"),
        ("\n\nCorrect\n", "Correct"),
        ("Correct\nThe memory answers the question.", "Correct"),
        ("Let me think.\nGrade: Incorrect", "Incorrect"),
        ("Correct\nCorrect", "Correct"),
        ("", None),
        ("?", None),
        ("not correct", None),
        ("In correct", None),
        ("Correct or Incorrect", None),
        ("Correct, but Ambiguous", None),
        ("Correct\nIncorrect", None),
        ("Grade: Correct\nGrade: Incorrect", None),
        ("Grade: Correct or Ambiguous", None),
        ("Correct\nGrade: Perhaps", None),
        ("The memory is Correct", None),
        ("Some prose\nCorrect", None),
        ("I would not say Grade: Correct", None),
        ("Correct\nGrade: Incorrect", None),
        ("Grade: Correct\nIncorrect", None),
        ("Correct\nGrade: Correct", "Correct"),
        ("I cannot grade this.", None),
        ("Grade:", None),
        ("Grade - Correct", "Correct"),
        ("- Grade: <Correct>", "Correct"),
        ("Correct; but only in part, otherwise Incorrect", None),
        ("Correct; no, wait, it is wrong", None),
        ("Grade != Correct", None),
        ("~~Correct~~", None),
        ("Correct?", None),
    ],
)
def test_grades(text, grade):
    assert GRADE.read(text) == {"Grade": grade}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ISREL: Relevant; ISSUP: No support; ISUSE: 3", ("Relevant", "No support", "3")),
        ("ISREL: Relevant\nISSUP: Fully supported\nISUSE: 5", ("Relevant", "Fully supported", "5")),
        ("- **ISREL**: [Irrelevant]\n- **ISSUP**: no support.\n- **ISUSE**: 1", ("Irrelevant", "No support", "1")),
        ("ISUSE: 2; ISREL: relevant", ("Relevant", None, "2")),
        ("ISREL: Relevant; ISREL: Irrelevant; ISUSE: 1", (None, None, "1")),
        ("ISREL: Relevant; ISREL: relevant", ("Relevant", None, None)),
        ("Relevant; Fully supported; 5", (None, None, None)),
        ("ISREL: somewhat relevant; ISSUP: Partially; ISUSE: 10", (None, None, None)),
        ("ISREL: Relevant, ISSUP: Fully supported, ISUSE: 5.", ("Relevant", "Fully supported", "5")),
        ("ISREL: Relevant, **ISSUP:** No support, ISUSE = 2", ("Relevant", "No support", "2")),
        ("ISREL: Relevant and ISSUP: No support", (None, None, None)),
        ("ISUSE: 5/5", (None, None, None)),
        ("ISREL != Relevant; ISSUP: !No support; ISUSE: -5", (None, None, None)),
        ("ISREL - Relevant\nISSUP – No support\nISUSE -5", ("Relevant", "No support", None)),
        ("", (None, None, None)),
    ],
)
def test_reflection_tokens(text, values):
    assert tuple(CRITIQUE.read(text).values()) == values


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((), "fields must be one or more"),
        ((Field("a", ("x", "y")), Field("A", ("x", "y"))), "each with a name of its own"),
        ((Field("a", ("x",)),), "labels of a must be two or more"),
        ((Field("a", ("x", "X.")),), "labels of a must be two or more, each once"),
        ((Field("a", ("x", "-")),), "name and labels must be words and blanks"),
        ((Field("a", ("x", "y; z")),), "name and labels must be words and blanks"),
        ((Field("a:", ("x", "y")),), "name and labels must be words and blanks"),
        ((Field("AA", ("x", "y")), Field("X AA", ("x", "y"))), "must not end with one another"),
    ],
)
def test_forms_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        Form(fields)
