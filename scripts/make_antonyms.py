"""Derives mdl_torch/data/stance/antonyms_wordnet.txt and irregular.txt from a WordNet 3.0 dictionary folder.

    apt-get install -y wordnet-base
    python scripts/make_antonyms.py --wordnet /usr/share/wordnet

Kept are the antonym pointers that WordNet has in both directions, between single words, in a frequent sense of both
words, and pairs of a word with its un- or non- form where both are adjectives (or adverbs) of WordNet. Pairs that are
opposites only in a dictionary ("man", "woman") and mislead in running text are dropped by name.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

DATA = Path(__file__).parent.parent / "mdl_torch" / "data" / "stance"
PARTS = ("adj", "adv", "noun", "verb")
LONGEST_SENSE_RANK = {"adj": 3, "adv": 2, "noun": 1, "verb": 3}
"""How far down the frequency-ordered senses of a word an antonym may sit and still be meant in running text."""

# People, family, animals, places and times: to name one in a text does not deny the other.
_NAMES = """
man woman boy girl male female husband wife father mother son daughter brother sister king queen uncle aunt
nephew niece actor actress host hostess lady gentleman lord god goddess prince princess bull cow bride groom
hero heroine widow widower here there now then today first last this that thing person child parent student
teacher doctor patient employer employee day night morning evening dawn sunset sea land city country europe body
mind home work time space life back front face
"""
# Function words, and words far more common in another sense than the one that has an antonym.
_COMMON = """
can will may might must one other another many much such own same kind mean even still well right most come go
give take get set put make find keep let have be do know say see use show need want like look call hold bring
ask tell move run turn play stand sit walk read write natural common special major minor general particular
present course plain level fit fair fine odd sharp flat single double matter point cause effect form content art
nature culture act figure bear end interest green ripe whole half age feed attend function following black white
record block lead single boil raw cook cooked cooking study all no some ever never american british foreign
native christian gentile jew arts science south north east west
"""
NOISE = {*_NAMES.split(), *_COMMON.split()}


def lemma(word: str) -> str:
    return re.sub(r"\(.*\)$", "", word).lower()


def senses(folder: Path, part: str) -> dict[str, list[str]]:
    """Lemma to the offsets of its synsets, most frequent first."""
    index: dict[str, list[str]] = {}
    for line in (folder / f"index.{part}").read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            fields = line.split()
            index[fields[0]] = fields[-int(fields[2]) :]
    return index


def antonym_pointers(folder: Path, part: str) -> set[tuple[str, str, str, str]]:
    """All lexical antonym pointers of a part of speech, as (word, its synset, antonym, its synset)."""
    synsets: dict[str, list[str]] = {}
    raw: list[tuple[str, int, str, int]] = []
    for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        fields = line.split(" | ")[0].split()
        count = int(fields[3], 16)
        synsets[fields[0]] = [lemma(word) for word in fields[4 : 4 + 2 * count : 2]]
        pointers = fields[4 + 2 * count + 1 :]
        for symbol, offset, _, ends in zip(*[iter(pointers[: 4 * int(fields[4 + 2 * count])])] * 4, strict=True):
            if symbol == "!":
                raw.append((fields[0], int(ends[:2], 16), offset, int(ends[2:], 16)))
    return {(synsets[a][i - 1], a, synsets[b][j - 1], b) for a, i, b, j in raw if i and j}


def wordnet_pairs(folder: Path) -> set[tuple[str, str]]:
    pairs = set()
    for part in PARTS:
        index, pointers = senses(folder, part), antonym_pointers(folder, part)
        for word, synset, antonym, other in pointers:
            both_ways = (antonym, other, word, synset) in pointers
            rank = max(index[word].index(synset), index[antonym].index(other))
            if both_ways and rank < LONGEST_SENSE_RANK[part]:
                pairs.add((min(word, antonym), max(word, antonym)))
    return pairs


def prefixed_pairs(folder: Path) -> set[tuple[str, str]]:
    pairs = set()
    for part in ("adj", "adv"):
        index = senses(folder, part)
        for word in index:
            for prefix in ("un", "non"):
                if len(word) >= 4 and prefix + word in index:
                    pairs.add((min(word, prefix + word), max(word, prefix + word)))
    return pairs


def usable(pair: tuple[str, str]) -> bool:
    plain = all(re.fullmatch(r"[a-z]{2,}", word) for word in pair)
    return plain and pair[0] != pair[1] and not NOISE.intersection(pair)


def irregular_forms(folder: Path) -> dict[str, str]:
    """Inflected form to base form, for verbs, nouns and adjectives whose inflection is irregular."""
    forms: dict[str, str] = {}
    for part in ("verb", "noun", "adj"):
        for line in (folder / f"{part}.exc").read_text(encoding="utf-8").splitlines():
            form, base = line.split()[:2]
            regular = form.startswith(base) and part != "adj"
            if re.fullmatch(r"[a-z]+", form) and re.fullmatch(r"[a-z]+", base) and form != base and not regular:
                forms.setdefault(form, base)
    return forms


def write(path: Path, what: str, lines: list[str]) -> None:
    header = f"# {what}, derived from WordNet 3.0 by scripts/make_antonyms.py; see NOTICE.\n"
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder with data.adj etc.")
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to")
    arguments = parser.parse_args()
    if not (arguments.wordnet / "data.adj").is_file():
        parser.error(f"--wordnet: no data.adj in {arguments.wordnet}; install Debian's wordnet-base or pass its folder")
    direct = {pair for pair in wordnet_pairs(arguments.wordnet) if usable(pair)}
    prefixed = {pair for pair in prefixed_pairs(arguments.wordnet) if usable(pair)} - direct
    pairs = [" ".join(pair) for pair in sorted(direct)] + [" ".join(pair) for pair in sorted(prefixed)]
    write(arguments.out / "antonyms_wordnet.txt", "Antonym pairs", pairs)
    forms = irregular_forms(arguments.wordnet)
    write(arguments.out / "irregular.txt", "Irregular forms and their bases", [f"{f} {b}" for f, b in forms.items()])


if __name__ == "__main__":
    main()
