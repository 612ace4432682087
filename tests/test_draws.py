"""Tokens drawn from a nucleus, against the definition in plain Python."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from mdl_torch.generation import draws
from mdl_torch.generation.draws import draw, keyed_uniform


def oracle(logits: list[float], u: float, temperature: float, top_p: float) -> tuple[int, list[int], float]:
    """The token, its nucleus, and how near a boundary was to deciding otherwise."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    p = [w / math.fsum(weights) for w in weights]
    nucleus, mass, margin = [], 0.0, 1.0
    for token in sorted(range(len(p)), key=lambda i: (-p[i], i)):
        nucleus.append(token)
        mass += p[token]
        margin = min(margin, abs(mass - top_p))
        if mass >= top_p:
            break
    reached, token = 0.0, nucleus[-1]
    for candidate in nucleus:
        reached += p[candidate]
        margin = min(margin, abs(reached - u * mass))
        if reached > u * mass:
            token = candidate
            break
    return token, nucleus, margin


@given(
    logits=st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=12),
    u=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(0.1, 2),
    top_p=st.floats(0.01, 0.999),
    first_look=st.sampled_from([1, 2, 4, 1024]),
)
def test_draws_from_the_nucleus_by_definition(logits, u, temperature, top_p, first_look):
    """Ties included, and whether the first look holds the whole set or not."""
    token, _, margin = oracle(logits, u, temperature, top_p)
    assume(margin > 1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_FIRST_LOOK", first_look)
        row = torch.tensor([logits, logits[::-1]], dtype=torch.float64)
        assert draw(row, [u, 0.0], temperature=temperature, top_p=top_p)[0] == token


def test_a_long_tail_is_drawn_from_too():
    """More equal tokens than the first look holds: u still picks them evenly, in the order of their ids."""
    logits = torch.zeros(3, 5000)
    assert draw(logits, [0.0, 0.5001, 0.9999], temperature=1.0, top_p=1.0).tolist() == [0, 2500, 4999]


def test_frequencies_are_the_probabilities_of_the_nucleus():
    p = torch.tensor([0.4, 0.05, 0.25, 0.2, 0.1], dtype=torch.float64)
    n = 20_000
    noise = [keyed_uniform(f"key-{i}", 3) for i in range(n)]
    drawn = Counter(draw(p.log().expand(n, -1), noise, temperature=1.0, top_p=0.84).tolist())
    assert set(drawn) == {0, 2, 3}
    for token, probability in ((0, 0.4 / 0.85), (2, 0.25 / 0.85), (3, 0.2 / 0.85)):
        assert drawn[token] / n == pytest.approx(probability, abs=4 * math.sqrt(0.25 / n))


def test_temperature_sharpens():
    logits = torch.tensor([[1.0, 0.0]])
    boundary = 1 / (1 + math.exp(-1 / 0.7))
    assert draw(logits, [boundary - 1e-4], temperature=0.7, top_p=1.0).item() == 0
    assert draw(logits, [boundary + 1e-4], temperature=0.7, top_p=1.0).item() == 1


def test_temperature_zero_takes_the_likeliest_and_the_first_of_equals():
    assert draw(torch.tensor([[0.0, 2.0, 2.0]]), [0.99], temperature=0, top_p=0.9).tolist() == [1]


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    assert draw(logits, [1 - 2**-53], temperature=0.7, top_p=1.0).tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    logits = torch.tensor([[0.0, 3.0, 1.0]], dtype=dtype)
    assert draw(logits, [0.5], temperature=0.7, top_p=0.9).tolist() == [1]


def test_noise_is_uniform_and_belongs_to_key_and_step():
    u = sorted(keyed_uniform("a", step) for step in range(5000))
    assert 0 <= u[0] < u[-1] < 1
    distance = max(abs(value - (i + 0.5) / len(u)) for i, value in enumerate(u))
    assert distance < 1.6 / math.sqrt(len(u))  # Kolmogorov–Smirnov at 1%
    assert keyed_uniform("a", 11) != keyed_uniform("1a", 1)


def test_noise_is_the_same_everywhere():
    """Recorded answers depend on it: a change of the recipe breaks resumed runs."""
    assert keyed_uniform("seed-0:q1", 2) == 0.39294605022865103
