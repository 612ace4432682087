"""Text to words: the one tokeniser of the package, for everything that matches words as words."""

from __future__ import annotations

import re
import unicodedata

# Typographic apostrophes and hyphens become ASCII; invisible joiners inside words vanish.
_TYPOGRAPHY = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4\u0060\uff07", "'")
    | dict.fromkeys("\u2010\u2011\uff0d", "-")
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
)
# A short run of combining marks only: composing an unbounded run takes quadratic time.
_DECOMPOSED = re.compile(r"[^\W_][\u0300-\u036f]{1,4}")
_STRAY_MARKS = re.compile(r"[\u0300-\u036f]+")

WORD = r"[^\W_]+(?:(?:'(?!s\b)|-|(?<=\d)[.,](?=\d))[^\W_]+)*"
"""One word of normalised text: letters and digits, with apostrophes, hyphens and decimal points inside it."""

_WORD_WITHOUT_S = re.compile(rf"({WORD})(?:'s\b)?")


def normalise(text: str) -> str:
    """Lower-cases a text and replaces typographic variants, so that equal words become equal strings.

    Curly apostrophes become straight ones, Unicode hyphens ``-``, decomposed accents composed; soft hyphens and
    zero-width characters go. Takes time linear in the length of the text.

    Args:
        text: any string; lone surrogates and control characters pass through.

    Returns:
        The normalised string.

    Example:
        >>> normalise("Don\u2019t  PANIC")
        "don't  panic"
    """
    lowered = text.lower()
    if lowered.isascii():
        return lowered.replace("`", "'") if "`" in lowered else lowered
    lowered = lowered.translate(_TYPOGRAPHY)
    lowered = _DECOMPOSED.sub(lambda match: unicodedata.normalize("NFC", match[0]), lowered)
    return _STRAY_MARKS.sub("", lowered)


def words(text: str) -> list[str]:
    """The words of a text in order, lower-cased.

    Hyphenated words and contractions stay whole, numbers keep their decimal point or thousands comma, and a final
    ``'s`` (possessive, or short for "is") is dropped. Everything else, also lone surrogates and control characters,
    separates words. Takes time linear in the length of the text.

    Args:
        text: any string.

    Returns:
        The words; empty for a text without letters or digits.

    Example:
        >>> words("The lawn\u2019s NON-toxic paint doesn't cost $1,000.50!")
        ['the', 'lawn', 'non-toxic', 'paint', "doesn't", 'cost', '1,000.50']
    """
    return _WORD_WITHOUT_S.findall(normalise(text))


def is_blank(text: str) -> bool:
    r"""Whether a text says nothing: only white space, control, format and lost characters, or none at all.

    Lost are lone surrogates and U+FFFD, which stands for what could not be decoded.

    Example:
        >>> is_blank(" \n\u200b"), is_blank("?")
        (True, False)
    """
    return all(unicodedata.category(character)[0] in "CZ" or character == "\ufffd" for character in text)
