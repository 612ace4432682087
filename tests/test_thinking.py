"""Thinking is cut out of an answer, whole, cut off or half there; an answer without any is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.generation.thinking import strip_thinking

CASES = [
    ("Paris.", "Paris.", False),
    ("  Paris. \n", "  Paris. \n", False),
    ("", "", False),
    ("<think>Lyon?\n\nNo.</think>\n\nParis.", "Paris.", True),
    ("<THINK>Lyon?</Think>Paris.", "Paris.", True),
    ("<thinking>Lyon?</thinking>Paris.", "Paris.", True),
    ("<thought>Lyon?</thought>Paris.", "Paris.", True),
    ("<think>Lyon? It could be", "", True),
    ("<think>", "", True),
    ("<think>\n\n</think>\n\nParis.", "Paris.", False),
    ("Lyon? No, Paris.</think>Paris.", "Paris.", True),
    ("<think>a</think>Paris<think>b</think>.", "Paris.", True),
    ("<think>a <think>b</think> c</think>Paris.", "Paris.", True),
    ("<think>the tag </thought> is not mine</think>Paris.", "Paris.", True),
    ("<|channel>thought\nLyon?\nNo.<channel|>Paris.", "Paris.", True),
    ("<|channel>thought\n<channel|>Paris.", "Paris.", False),
    ("<|channel>thought\nLyon? It could", "", True),
    ("<|channel>", "", True),
    ("Lyon? No.<channel|>Paris.", "Paris.", True),
    ("I think it is Paris; 1 < 2 and a thought > none.", "I think it is Paris; 1 < 2 and a thought > none.", False),
]


@pytest.mark.parametrize(("text", "answer", "cut"), CASES)
def test_cases(text: str, answer: str, cut: bool) -> None:
    assert strip_thinking(text) == (answer, cut)


PLAIN = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)))


@given(PLAIN)
def test_a_text_without_markers_is_left_alone(text: str) -> None:
    assert strip_thinking(text) == (text, False)


@given(PLAIN, PLAIN, st.sampled_from([("<think>", "</think>"), ("<|channel>thought\n", "<channel|>")]))
def test_a_block_leaves_the_answer(thought: str, answer: str, tags: tuple[str, str]) -> None:
    assert strip_thinking(f"{tags[0]}{thought}{tags[1]}{answer}") == (answer.strip(), bool(thought.strip()))


@given(PLAIN.filter(str.strip), st.sampled_from(["<think>", "<thought>", "<|channel>thought\n"]))
def test_a_block_that_was_cut_off_leaves_nothing(thought: str, tag: str) -> None:
    assert strip_thinking(tag + thought) == ("", True)
