"""Statistics against SciPy and closed forms."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.evaluation.statistics import (
    RISK_WEIGHTS,
    Interval,
    cluster_bootstrap,
    mcnemar,
    mean_std,
    paired_difference,
    paired_t,
    per_question,
    risk_weighted,
    wilson,
)


@given(
    st.integers(1, 700).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.95, 0.99])
)
def test_wilson_is_scipys(counts, confidence):
    expected = scipy.stats.binomtest(*counts).proportion_ci(confidence, method="wilson")
    assert wilson(*counts, confidence=confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_at_the_ends():
    assert wilson(0, 7).low == 0.0
    assert wilson(7, 7).high == 1.0
    assert wilson(0, 0) == Interval(0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson(3, 2), "successes must be from 0 to n, got 3 of 2"),
        (lambda: wilson(1, 2, confidence=1.0), "confidence must be in"),
        (lambda: cluster_bootstrap([1], [1, 1], ["a"]), "must be as many, got 1, 2, 1"),
        (lambda: cluster_bootstrap([math.nan], [1], ["a"]), "numerator must be finite"),
        (lambda: cluster_bootstrap([1], [-1], ["a"]), "denominator must not be negative"),
        (lambda: cluster_bootstrap([1], [1], ["a"], resamples=0), "resamples must be at least 1"),
        (lambda: paired_difference([1], [1, 0], ["a"]), "first and second must be as many, got 1 and 2"),
        (lambda: paired_difference([1], [1], ["a"], weights=[1, 2]), "weights must be as many as first, got 2 and 1"),
        (lambda: paired_t([], []), "as many, at least 1, got 0 and 0"),
        (lambda: mcnemar([True], []), "as many, got 1 and 0"),
        (lambda: per_question([1], []), "as many, got 1 and 0"),
        (lambda: risk_weighted([1], [1.5]), r"risk must be in \[0, 1\]"),
        (lambda: risk_weighted([1], [0.5], weighting="rsk"), "unknown weighting 'rsk'; did you mean 'risk'"),
    ],
)
def test_what_cannot_be_computed_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- bootstrap ----------------------------------------------------------------------------------------------------


def test_the_bootstrap_of_a_rate_has_the_quantiles_of_the_binomial():
    """With one answer a question, the resampled count is Binomial(n, p̂): the percentiles are known."""
    values = [1] * 30 + [0] * 70
    found = cluster_bootstrap(values, [1] * 100, range(100), resamples=40_000)
    expected = scipy.stats.binom(100, 0.3).ppf([0.025, 0.975]) / 100
    assert found.value == pytest.approx(0.3)
    assert found.interval == pytest.approx(expected, abs=0.0101)
    assert (found.questions, found.samples) == (100, 100)


def test_seeds_of_one_question_are_drawn_together():
    """Copies of a question add nothing: the interval is that of the questions, not of the answers."""
    rng = np.random.default_rng(5)
    values = rng.integers(0, 2, 60)
    once = cluster_bootstrap(values, np.ones(60), range(60))
    copied = cluster_bootstrap(np.repeat(values, 4), np.ones(240), np.repeat(range(60), 4).tolist())
    assert copied.interval == pytest.approx(once.interval, abs=1e-12)
    independent = cluster_bootstrap(np.repeat(values, 4), np.ones(240), range(240))
    width = lambda estimate: estimate.interval.high - estimate.interval.low  # noqa: E731
    assert width(independent) < 0.6 * width(once)


def test_a_paired_difference_covers_what_pairing_cancels():
    """Systems that fail on the same questions differ by less than their own uncertainty."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 2, 200)
    second = first.copy()
    second[:10] = 0
    found = paired_difference(first, second, range(200))
    assert found.value == pytest.approx((first.sum() - second.sum()) / 200)
    assert found.interval.low >= 0.0
    assert found.interval.high < 0.1


def test_an_unbalanced_difference_and_a_weighted_one_are_ratios_of_sums():
    first, second, asked = [1, 1, 0, 1], [0, 1, 0, 0], ["a", "a", "b", "c"]
    assert paired_difference(first, second, asked).value == pytest.approx(2 / 4)
    assert paired_difference(first, second, asked, weights=[0.2, 0.5, 0.5, 0.8]).value == pytest.approx(1.0 / 2.0)


def test_coverage_of_the_bootstrap_is_about_what_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        chance = rng.beta(2, 4, 80)  # of each question; its mean is 1/3
        values = (rng.random((80, 2)) < chance[:, None]).astype(float).ravel()
        interval = cluster_bootstrap(
            values, np.ones(160), np.repeat(range(80), 2).tolist(), seed=trial, resamples=400
        ).interval
        hits += interval.low <= 1 / 3 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


def test_little_data_gives_no_interval_and_a_seed_gives_the_same_one():
    assert cluster_bootstrap([], [], []).to_dict() == {"value": None, "interval": None, "questions": 0, "samples": 0}
    single = cluster_bootstrap([1, 0], [1, 1], ["a", "a"])
    assert (single.value, single.interval) == (0.5, None)
    values, asked = [1, 0, 1, 1], ["a", "b", "c", "d"]
    assert cluster_bootstrap(values, [1] * 4, asked, seed=3) == cluster_bootstrap(values, [1] * 4, asked, seed=3)
    assert cluster_bootstrap([0, 0], [0, 0], ["a", "b"]).value is None
    json.dumps(cluster_bootstrap(values, [0, 0, 0, 1], asked).to_dict(), allow_nan=False)


# --- tests --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30))
def test_the_paired_t_test_is_scipys(pairs):
    first, second = np.array(pairs).T
    found = paired_t(first, second)
    if found.t is None:
        assert np.ptp(first - second) <= 1e-10
        return
    expected = scipy.stats.ttest_rel(first, second)
    assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-6, abs=1e-12)
    assert found.d_z == pytest.approx(found.t / math.sqrt(len(pairs)))
    assert found.difference == pytest.approx((first - second).mean())


@pytest.mark.parametrize("pairs", [([0.5], [0.2]), ([0.5, 0.6], [0.4, 0.5]), ([0.1, 0.1], [0.1, 0.1])])
def test_without_variation_there_is_no_t(pairs):
    found = paired_t(*pairs)
    assert (found.t, found.p, found.d_z) == (None, None, None)
    assert found.difference == pytest.approx(pairs[0][0] - pairs[1][0])


def test_the_papers_t_has_two_degrees_of_freedom():
    """t = 11.82 with p = 0.007 (Section 5.2) is that of three pairs, not of two seeds."""
    p = {n: 2 * scipy.stats.t.sf(11.82, n - 1) for n in (2, 3, 4)}
    assert {n: round(value, 3) for n, value in p.items()} == {2: 0.054, 3: 0.007, 4: 0.001}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200))
def test_mcnemar_is_the_exact_binomial_test(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = mcnemar(first, second)
    assert found.only_first == sum(a and not b for a, b in pairs)
    assert found.only_second == sum(b and not a for a, b in pairs)
    differing = found.only_first + found.only_second
    expected = scipy.stats.binomtest(found.only_first, differing).pvalue if differing else 1.0
    assert found.p == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_many_pairs_does_not_overflow():
    found = mcnemar([True] * 1500 + [False] * 1400, [False] * 1500 + [True] * 1400)
    assert found.p == pytest.approx(scipy.stats.binomtest(1500, 2900).pvalue, rel=1e-9)


def test_means_over_seeds_and_over_questions():
    found = mean_std([0.2, 0.3, 0.7])
    assert (found.mean, found.std, found.n) == pytest.approx((0.4, math.sqrt((0.04 + 0.01 + 0.09) / 2), 3))
    assert mean_std([]).mean is None
    assert mean_std([0.4]).std is None
    assert per_question([1, 0, 1, 1, 1], ["b", "b", "a", "a", "a"]) == {"b": 0.5, "a": 1.0}


# --- risk ---------------------------------------------------------------------------------------------------------

RISK = [0.2, 0.2, 0.2, 0.5, 0.5, 0.85, 0.75]
HALLUCINATED = [1, 0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("risk", (0.2 + 0.5 + 0.75) / 3.2),
        ("risk squared", (0.04 + 0.25 + 0.5625) / (3 * 0.04 + 2 * 0.25 + 0.7225 + 0.5625)),
        ("tiers by mean risk", (0.2 / 3 + 0.5 / 2 + 0.8 / 2) / (0.2 + 0.5 + 0.8)),
        ("tiers alike", (1 / 3 + 1 / 2 + 1 / 2) / 3),
        ("medium and high only", 2 / 4),
        ("high only", 1 / 2),
    ],
)
def test_risk_weighted_rates(weighting, expected):
    assert risk_weighted(HALLUCINATED, RISK, weighting=weighting) == pytest.approx(expected, abs=1e-12)


def test_every_weighting_has_its_value_above_and_none_can_leave_the_rates():
    assert len(RISK_WEIGHTS) == 6
    for weighting in RISK_WEIGHTS:
        assert risk_weighted([1] * 7, RISK, weighting=weighting) == pytest.approx(1.0)
        assert risk_weighted([0] * 7, RISK, weighting=weighting) == 0.0
        assert risk_weighted([], [], weighting=weighting) is None
    assert risk_weighted([1, 0], [0.2, 0.2], weighting="high only") is None


def test_float32_rounding_keeps_a_tier():
    assert risk_weighted([1.0], [float(np.float32(0.7))], weighting="high only") == 1.0
