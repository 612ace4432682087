"""Cosines, conflicts and clusters of texts."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mdl_torch.encoder import Encoded
from mdl_torch.evaluation.agreement import AGREEMENT, Comparer, Likeness, clusters, medoid
from mdl_torch.stance import ConflictDetector, TextFeatures, detector

TEXTS = [
    "Tea is a drink.",
    "Tea is not a drink.",
    "Parcels can be sent back within 30 days.",
    "Cats sleep a lot.",
    "Tea is a drink.",
    "TEA is a drink.",
    "The shop is open on Sundays.",
    "The shop is closed on Sundays.",
]


@pytest.fixture(scope="module")
def compare(encoder):
    return Comparer(encoder, detector("lexical"))


@dataclass(frozen=True)
class Sized(TextFeatures):
    size: torch.Tensor


class Table:
    """An encoder whose embeddings are given."""

    def __init__(self, embeddings):
        self.embeddings = torch.tensor(np.array(embeddings, dtype=np.float32))

    def encode_documents(self, texts):
        return Encoded(self.embeddings, torch.zeros(len(texts), dtype=torch.bool))


def compared(embeddings):
    return Comparer(Table(embeddings), detector("lexical"))(["word"] * len(embeddings)).similarity


def likeness(pairs, n, conflicts=()):
    """Of n texts, from the cosines of some pairs; 0 for the others."""
    similarity, conflict = np.eye(n), np.zeros((n, n), dtype=bool)
    for (i, j), value in pairs.items():
        similarity[i, j] = similarity[j, i] = value
    for i, j in conflicts:
        conflict[i, j] = conflict[j, i] = True
    return Likeness(similarity, conflict)


# ----------------------------------------------------------------------------------------------------------- Comparer


def test_cosines_are_those_of_the_encoder_in_double_precision(compare, encoder):
    rows = encoder.encode_documents(TEXTS).embeddings.numpy().astype(np.float64)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = compare(TEXTS).similarity
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, units @ units.T, atol=1e-14)  # float32 would be 1e-7 off
    np.testing.assert_array_equal(found, found.T)
    assert (np.diagonal(found) == 1).all()
    assert found[0, 4] == 1  # the same text
    assert found[0, 5] == pytest.approx(1, abs=1e-6)  # MiniLM ignores case, but may have met the texts in other batches
    np.testing.assert_array_equal(found[0], found[4])
    assert found[0, 2] < 0.3 < 0.8 < found[0, 1] < 1


def test_conflicts_are_those_of_the_detector(compare):
    lexical = detector("lexical")
    found = compare(TEXTS).conflict
    assert found.dtype == np.bool_
    assert found.tolist() == [[lexical.evidence(a, b) is not None for b in TEXTS] for a in TEXTS]
    pairs = {(int(i), int(j)) for i, j in np.argwhere(found)}
    assert pairs == {(0, 1), (4, 1), (5, 1), (1, 0), (1, 4), (1, 5), (6, 7), (7, 6)}


def test_every_detector_will_do(encoder):
    """One of another kind of features, which has tensors of its own; it is asked without gradients."""

    class Lengths(ConflictDetector):
        name, rules = "lengths", ("length",)

        def __init__(self):
            super().__init__()
            self.least = torch.nn.Parameter(torch.tensor(3.0))
            self.gradients = []

        def features(self, texts):
            known = torch.ones(len(texts), dtype=torch.bool)
            return Sized(known, ~known, torch.tensor([len(text) for text in texts]))

        def conflicts(self, a, b):
            self.gradients.append(torch.is_grad_enabled())
            apart = (a.size.unsqueeze(-1) - b.size.unsqueeze(-2)).abs() > self.least
            return (apart & (a.size > 0).unsqueeze(-1) & (b.size > 0).unsqueeze(-2)).to(torch.int8)

        def evidence(self, a, b, rule=None):
            return None

    lengths = Lengths()
    found = Comparer(encoder, lengths)(["tea", "teas", "teapots"]).conflict
    assert found.tolist() == [[False, False, True], [False, False, False], [True, False, False]]
    assert lengths.gradients == [False]


def test_no_texts(compare):
    found = compare([])
    assert found.similarity.shape == found.conflict.shape == (0, 0)
    assert (found.similarity.dtype, found.conflict.dtype) == (np.float64, np.bool_)
    assert clusters(found) == []


def test_blank_texts_agree_with_nothing(compare):
    found = compare(["", "Tea is a drink.", " \n", ""])
    assert found.similarity.tolist() == np.diag([0.0, 1.0, 0.0, 0.0]).tolist()
    assert not found.conflict.any()
    assert clusters(found) == [[0], [1], [2], [3]]


def test_one_string_is_refused(compare):
    with pytest.raises(TypeError, match="texts: expected a sequence of strings, got str"):
        compare("Tea is a drink.")


def test_a_vector_without_length_is_like_none():
    assert compared([[0, 0], [3, 4], [4, 3]]).tolist() == [[0, 0, 0], [0, 1, 0.96], [0, 0.96, 1]]


@given(
    arrays.arrays(np.float32, (5, 3), elements=st.floats(-1, 1, width=32)),
    st.lists(st.sampled_from([1e-18, 1e-3, 1.0, 1e18]), min_size=5, max_size=5),
)
def test_cosines_of_any_vectors(rows, scales):
    assume((np.abs(rows).max(axis=1) > 1e-3).all())
    scaled = rows * np.float32(scales)[:, None]
    found = compared([*scaled, *scaled[::-1]])
    np.testing.assert_array_equal(found, found.T)
    assert (np.diagonal(found) == 1).all()
    assert np.abs(found).max() <= 1
    units = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(found[:5, :5], units @ units.T, atol=1e-6)  # scaling rounds to float32
    np.testing.assert_array_equal(found, found[::-1])  # equal rows have equal cosines, 1 with each other


# ----------------------------------------------------------------------------------------------------------- clusters


def greedy(given_likeness, threshold):
    """Complete linkage as it is defined: merge the two groups of the largest least cosine, as long as all agree."""
    similarity, conflict = given_likeness.similarity, given_likeness.conflict
    groups = [[i] for i in range(len(similarity))]

    def link(pair):
        cosines = [similarity[i, j] for i, j in itertools.product(*pair)]
        return -1.0 if any(conflict[i, j] for i, j in itertools.product(*pair)) else min(cosines)

    while len(groups) > 1:
        best = max(itertools.combinations(groups, 2), key=link)
        if link(best) < threshold:
            break
        groups = [group for group in groups if group not in best] + [sorted(best[0] + best[1])]
    return groups


def mean_cosine(given_likeness, group):
    pairs = list(itertools.combinations(group, 2))
    return sum(given_likeness.similarity[pair] for pair in pairs) / len(pairs) if pairs else 1.0


@st.composite
def likenesses(draw, values=None):
    """Symmetric cosines and conflicts of up to 8 texts; without ``values`` no two cosines are the same."""
    n = draw(st.integers(0, 8))
    pairs = list(itertools.combinations(range(n), 2))
    cosines = st.sampled_from(values) if values else st.integers(-999, 999).map(lambda number: number / 1000)
    drawn = draw(st.lists(cosines, min_size=len(pairs), max_size=len(pairs), unique=values is None))
    conflicts = [pair for pair in pairs if draw(st.integers(0, 5)) == 0]
    return likeness(dict(zip(pairs, drawn, strict=True)), n, conflicts)


THRESHOLDS = st.sampled_from([0.001, 0.2, 0.5, 0.7, 1.0])


@given(likenesses() | likenesses(values=[0.1, 0.5, 0.5000000000000001, 0.7, 1.0]), THRESHOLDS)
def test_groups_are_cliques_of_agreement_that_cannot_grow_together(found, threshold):
    groups = clusters(found, threshold)
    assert sorted(itertools.chain(*groups)) == list(range(len(found.similarity)))
    assert all(group == sorted(group) for group in groups)

    def agree(i, j):
        return found.similarity[i, j] >= threshold and not found.conflict[i, j]

    assert all(agree(*pair) for group in groups for pair in itertools.combinations(group, 2))
    for one, other in itertools.combinations(groups, 2):
        assert not all(agree(*pair) for pair in itertools.product(one, other))


@given(likenesses(), THRESHOLDS)
def test_groups_are_those_of_complete_linkage_in_their_order(found, threshold):
    expected = greedy(found, threshold)
    expected.sort(key=lambda group: (-len(group), -round(mean_cosine(found, group), 9), group[0]))
    assert clusters(found, threshold) == expected


@given(likenesses(), THRESHOLDS, st.randoms(use_true_random=False))
def test_another_order_of_the_texts_gives_the_same_groups(found, threshold, random):
    order = list(range(len(found.similarity)))
    random.shuffle(order)
    shuffled = Likeness(found.similarity[np.ix_(order, order)], found.conflict[np.ix_(order, order)])
    renamed = [sorted(order[place] for place in group) for group in clusters(shuffled, threshold)]
    expected = clusters(found, threshold)
    assert sorted(renamed) == sorted(expected)
    assert [len(group) for group in renamed] == [len(group) for group in expected]
    means = [{round(mean_cosine(found, group), 9) for group in expected if len(group) == size} for size in range(1, 9)]
    sizes = [sum(len(group) == size for group in expected) for size in range(1, 9)]
    if all(len(mean) == size for mean, size in zip(means[1:], sizes[1:], strict=True)):  # none is tied
        assert [g for g in renamed if len(g) > 1] == [g for g in expected if len(g) > 1]


def test_the_threshold_itself_is_enough():
    assert clusters(likeness({(0, 1): 0.5}, 2)) == [[0, 1]]
    assert clusters(likeness({(0, 1): np.nextafter(0.5, 0)}, 2)) == [[0], [1]]
    assert clusters(likeness({(0, 1): 1.0}, 2), 1.0) == [[0, 1]]
    assert AGREEMENT == 0.5


def test_a_chain_is_no_cluster():
    """1 agrees with both of its neighbours, but they do not agree with each other: it goes with the nearer."""
    assert clusters(likeness({(0, 1): 0.8, (1, 2): 0.9, (0, 2): 0.4}, 3)) == [[1, 2], [0]]


def test_a_conflict_splits_what_looks_the_same(compare):
    texts = ["Tea is not a drink.", "Tea is a drink.", "Tea is a kind of drink."]
    found = compare(texts)
    assert found.similarity.min() > 0.75
    assert clusters(found) == [[1, 2], [0]]
    assert clusters(Likeness(found.similarity, np.zeros_like(found.conflict))) == [[0, 1, 2]]
    assert clusters(likeness({(0, 1): 1.0}, 2, [(0, 1)])) == [[0], [1]]


def test_the_order_is_size_then_mean_cosine_then_index():
    pairs = {(1, 2): 0.6, (3, 4): 0.9, (5, 6): 0.6, (7, 8): 0.55, (7, 9): 0.55, (8, 9): 0.55}
    assert clusters(likeness(pairs, 11)) == [[7, 8, 9], [3, 4], [1, 2], [5, 6], [0], [10]]


def test_equal_means_are_equal_whatever_the_order_of_their_cosines():
    orders = list(itertools.permutations((0.6, 0.7, 0.8)))
    less, more = min(orders, key=sum), max(orders, key=sum)
    assert sum(less) < sum(more)  # by rounding alone
    pairs = dict(zip([(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)], [*less, *more], strict=True))
    assert clusters(likeness(pairs, 6)) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.001, float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\], got"):
        clusters(likeness({}, 0), threshold)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"scikit-learn: pip install mdl_torch\[evaluate\]"):
        clusters(likeness({}, 2))
    assert clusters(likeness({}, 1)) == [[0]]


# ------------------------------------------------------------------------------------------------------------- medoid


@given(likenesses(), st.data())
def test_the_medoid_is_most_like_the_others(found, data):
    n = len(found.similarity)
    assume(n > 0)
    group = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    means = {one: np.mean([found.similarity[one, other] for other in group if other != one] or [1]) for one in group}
    chosen = medoid(found, group)
    assert chosen in group
    assert means[chosen] == pytest.approx(max(means.values()), abs=1e-12)


def test_of_equal_medoids_the_first_is_taken():
    assert medoid(likeness({(0, 1): 0.9, (0, 2): 0.6, (1, 2): 0.6}, 3), [0, 1, 2]) == 0
    assert medoid(likeness({(1, 2): 0.9}, 3), [1, 2]) == 1
    assert medoid(likeness({(0, 1): 0.1, (0, 2): 0.2, (1, 3): 0.2, (2, 3): 0.3, (0, 3): 0.3}, 4), [0, 3]) == 0
