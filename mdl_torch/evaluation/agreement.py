"""Which of several texts say the same: their cosines, their conflicts, and the clusters in which all agree.

Two texts agree if they are similar and do not contradict each other. That is how R measures agreement, and it is no
truth: three copies of a lie agree.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mdl_torch.cache import FeatureCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mdl_torch.encoder import SentenceEncoder
    from mdl_torch.stance import ConflictDetector

AGREEMENT = 0.5
"""Least cosine of two texts that agree; the paper's scorer holds an answer and a reference alike above the same."""

REMEMBERED = 50_000
"""Texts whose stance features are remembered."""

_APART = 2.0  # distance of two texts that do not agree: greater than any 1 - cosine of two that do


@dataclass(frozen=True)
class Likeness:
    """How n texts stand to each other.

    Attributes:
        similarity: Cosines of their embeddings, float64 ``(n, n)``, symmetric, in [-1, 1]. A text has 1 with itself
            and with one of the same embedding; one that is blank, or whose embedding has no length, 0 with all.
        conflict: Which of them contradict each other, bool ``(n, n)``, symmetric, false on the diagonal.
    """

    similarity: NDArray[np.float64]
    conflict: NDArray[np.bool_]


class Comparer:
    """Compares texts by the gate's means: the encoder for their similarity, the detector for their conflicts.

    Args:
        encoder: Embeds the texts, as documents.
        detector: Says which contradict each other.

    Example:
        >>> from mdl_torch.encoder import SentenceEncoder
        >>> from mdl_torch.stance import detector
        >>> compare = Comparer(SentenceEncoder.from_pretrained(), detector("lexical"))
        >>> found = compare(["Tea is a drink.", "Tea is not a drink.", " "])
        >>> found.conflict.astype(int).tolist()
        [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
        >>> found.similarity.round(2).tolist()
        [[1.0, 0.89, 0.0], [0.89, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, encoder: SentenceEncoder, detector: ConflictDetector) -> None:
        self._encoder, self._detector = encoder, detector
        self._features = FeatureCache(detector, REMEMBERED)

    def __call__(self, texts: Sequence[str]) -> Likeness:
        """How n texts stand to each other; n may be 0.

        Raises:
            TypeError: ``texts`` is one string or no sequence, or holds something that is not a string.
        """
        embeddings = self._encoder.encode_documents(texts).embeddings.double().numpy()
        blank = np.array([not text.strip() for text in texts], dtype=np.bool_)
        return Likeness(_cosines(np.where(blank[:, None], 0.0, embeddings)), self._conflicts(texts))

    def _conflicts(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        if not texts:
            return np.zeros((0, 0), dtype=np.bool_)
        tensors = itertools.chain(self._detector.parameters(), self._detector.buffers())
        features = self._features.of(texts).to(next(tensors, torch.empty(0)).device)
        with torch.no_grad():
            found: NDArray[np.bool_] = (self._detector.conflicts(features, features) != 0).cpu().numpy()
        return found


def clusters(likeness: Likeness, threshold: float = AGREEMENT) -> list[list[int]]:
    """The texts in groups whose members all agree with each other: none conflict, and each pair's cosine is enough.

    Agglomerative clustering with complete linkage of the distances 1 - cos, where a pair that does not agree is beyond
    any merging. It merges the two nearest groups first, so that a larger group may exist than any that it finds; where
    distances tie, it may depend on the order of the texts.

    Args:
        likeness: Of n texts.
        threshold: Least cosine of two that agree, in (0, 1].

    Returns:
        Every index once, ascending in its group. The largest group comes first, then that of the higher mean cosine
        of its pairs, then that of the lowest index, as it is for groups of one.

    Raises:
        ValueError: ``threshold`` is out of range.
        ImportError: scikit-learn is not installed.

    Example:
        >>> cosines = np.array([[1, 0.2, 0.9, 0.6], [0.2, 1, 0.1, 0.3], [0.9, 0.1, 1, 0.7], [0.6, 0.3, 0.7, 1]])
        >>> clusters(Likeness(cosines, np.zeros((4, 4), bool)))
        [[0, 2, 3], [1]]
        >>> clusters(Likeness(cosines, np.eye(4, dtype=bool)[::-1]))  # 0 contradicts 3, and 1 contradicts 2
        [[0, 2], [1], [3]]
    """
    check_threshold(threshold)
    n = len(likeness.similarity)
    if n < 2:  # too few for scikit-learn
        return [[place] for place in range(n)]
    try:
        from sklearn.cluster import AgglomerativeClustering
    except ImportError as error:
        raise ImportError("clusters need scikit-learn: pip install mdl_torch[evaluate]") from error
    agree = (likeness.similarity >= threshold) & ~likeness.conflict
    distances = np.where(agree, 1.0 - likeness.similarity, _APART)
    model = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="complete", distance_threshold=_APART
    )
    labels = model.fit_predict(distances).tolist()
    groups = [[place for place in range(n) if labels[place] == label] for label in set(labels)]
    return sorted(groups, key=lambda group: (-len(group), -_mean_cosine(likeness, group), group[0]))


def medoid(likeness: Likeness, group: Sequence[int]) -> int:
    """The member of a group that is most like the others, by its mean cosine with them; of equals the first.

    Args:
        likeness: Of n texts.
        group: Indices of at least one of them.

    Example:
        >>> cosines = np.array([[1, 0.6, 0.5], [0.6, 1, 0.9], [0.5, 0.9, 1]])
        >>> medoid(Likeness(cosines, np.zeros((3, 3), bool)), [0, 1, 2])
        1
    """
    rows = likeness.similarity
    return max(group, key=lambda one: (math.fsum(rows[one, other] for other in group if other != one), -one))


def check_threshold(threshold: float) -> None:
    """Refuse a least cosine outside of (0, 1]: at 0, texts that have nothing in common would agree.

    Raises:
        ValueError: It is out of range.

    Example:
        >>> check_threshold(0.0)
        Traceback (most recent call last):
        ValueError: threshold must be in (0, 1], got 0.0
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], got {threshold!r}")


def _cosines(embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines of all pairs of rows, ``(n, n)``; 0 for a row without a length."""
    # Not by BLAS: einsum sums every pair in one order, so that the result is symmetric and equal rows have exactly 1.
    dots = np.einsum("id,jd->ij", embeddings, embeddings)
    squares = np.diagonal(dots)
    scale = np.sqrt(np.outer(squares, squares))
    cosines: NDArray[np.float64] = np.clip(dots / np.where(scale > 0, scale, 1.0), -1.0, 1.0)
    return cosines


def _mean_cosine(likeness: Likeness, group: Sequence[int]) -> float:
    """Of the pairs of a group; 1 without a pair. The sum is exact, so that it does not hang on the order of texts."""
    pairs = list(itertools.combinations(group, 2))
    return math.fsum(likeness.similarity[pair] for pair in pairs) / len(pairs) if pairs else 1.0
