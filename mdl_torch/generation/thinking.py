"""What a model writes to itself before it answers, cut out of what it says."""

from __future__ import annotations

import re

# DeepSeek, Qwen and SmolLM3 write <think>, Gemma 4 behind Google's API <thought>, Gemma 4 itself <|channel>thought.
_EMPTY = re.compile(r"<(think|thinking|thought)>\s*</\1>|<\|channel>(?:\s*thought)?\s*<channel\|>", re.IGNORECASE)
_BLOCK = re.compile(
    r"<(think|thinking|thought)>.*?(?:</\1>|\Z)|<\|channel>.*?(?:<channel\|>|\Z)", re.DOTALL | re.IGNORECASE
)
# A template may open the block in the prompt, so that the answer holds only its end.
_ORPHAN = re.compile(r"\A.*(?:</(?:think|thinking|thought)>|<channel\|>)", re.DOTALL | re.IGNORECASE)


def strip_thinking(text: str) -> tuple[str, bool]:
    r"""Cut out the thinking: tagged blocks, blocks that the length limit cut off, and all before a lone end tag.

    Gemma 4's markers are special tokens: decode with them, strip, then drop what special tokens remain.

    Args:
        text: What the model wrote.

    Returns:
        The answer, without white space around it if anything was cut, and whether any thinking was cut out. A text
        without thinking comes back as it is; so the answer is empty if the model never came to one. An empty block,
        which some models write with thinking off, is cut but is no thinking.

    Example:
        >>> strip_thinking("<think>Lyon? No.</think> Paris.")
        ('Paris.', True)
        >>> strip_thinking("<think>It may be Lyon, or it may")
        ('', True)
        >>> strip_thinking("<|channel>thought\n<channel|>Paris.")
        ('Paris.', False)
    """
    spoken = _EMPTY.sub("", text)
    answer = _ORPHAN.sub("", _BLOCK.sub("", spoken))
    return (text if answer == text else answer.strip()), answer != spoken
