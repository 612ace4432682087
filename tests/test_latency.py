"""The latency profile: that what is timed is what decides, and that the figures follow from the durations. No times."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch
from analysis_cases import samples, study
from cases import CONFIGURATIONS, assert_identical, grid, oracle_of
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.analysis import latency
from mdl_torch.analysis.latency import (
    AGGREGATION,
    BASELINE,
    CONTROLLER,
    ENCODER,
    ENCODING,
    FEATURES,
    FEWEST,
    FUSION,
    GUARD,
    HEAD,
    LEARNED,
    PAPER,
    POLICY,
    READ,
    READING,
    ROUNDS,
    TOTAL,
    Profile,
    Stores,
    _measure,
    _plain_controller,
    _Task,
    controller_stages,
    latency_profile,
    latency_table,
    quiet,
    statistics,
    table_of,
    timings,
)
from mdl_torch.encoder import DEFAULT_ENCODER, SentenceEncoder
from mdl_torch.evaluation.controllers import CONTROLLERS
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.signals import SignalExtractor

POINT = [[0.7, 0.3, 0.5]]
TEXTS = [
    ("The shop is open.", "The shop is closed.", "Tea is a drink."),
    ("Backups are on.", "Backups are not on.", "A"),
]


@pytest.fixture(scope="module")
def layer() -> MemoryDecisionLayer:
    return MemoryDecisionLayer()


@pytest.fixture
def stores() -> Stores:
    generator = torch.Generator().manual_seed(1)
    near = torch.randn(2, 1, 8, generator=generator)
    memories = near + torch.randn(2, 3, 8, generator=generator)
    return Stores(("Is the shop open?", "Are backups on?"), tuple(TEXTS), near.squeeze(1), memories)


# ------------------------------------------------------------------------------------------------------- the figures


def test_statistics_of_known_durations():
    median, mean, p99 = statistics(np.arange(0, 101_000, 1000))  # 0 to 100 µs
    assert (median, mean) == (50.0, 50.0)
    assert p99 == pytest.approx(99.0)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_statistics_are_numpys_in_microseconds(durations):
    expected = np.median(durations), np.mean(durations), np.percentile(durations, 99)
    assert statistics(durations) == pytest.approx([value / 1000 for value in expected])
    assert min(durations) / 1000 <= statistics(durations)[2] * (1 + 1e-12)


def test_no_duration_is_an_error():
    with pytest.raises(ValueError, match="at least one duration"):
        statistics([])


def test_shares_ratios_and_the_papers_figures():
    durations = {AGGREGATION: [3000, 3000, 90_000], TOTAL: [4000], "odd": [500], BASELINE: [2000]}
    found = {one.name: one for one in timings(durations, parts=(AGGREGATION, TOTAL))}
    assert (found[AGGREGATION].runs, found[AGGREGATION].median, found[AGGREGATION].mean) == (3, 3.0, 32.0)
    assert found[AGGREGATION].share == 0.75  # of medians, not of means
    assert found[AGGREGATION].ratio == 1.5
    assert (found["odd"].share, found["odd"].ratio, found["odd"].paper) == (None, 0.25, None)
    assert found[TOTAL].share == 1.0
    assert (found[TOTAL].paper, PAPER[READ]) == (None, 138.7)  # the paper's total reads the texts too
    assert list(found) == list(durations)


def test_without_total_and_baseline_there_are_no_shares_and_ratios():
    (only,) = timings({POLICY: [1000]}, parts=(POLICY,))
    assert (only.share, only.ratio) == (None, None)
    (zero, _) = timings({POLICY: [1000], BASELINE: [0]})
    assert zero.ratio is None


def test_the_papers_own_figures_add_up_as_it_says():
    assert PAPER[READING] + PAPER[CONTROLLER] == pytest.approx(PAPER[READ], abs=0.11)
    assert PAPER[READING] / PAPER[READ] == pytest.approx(0.71, abs=5e-4)


# -------------------------------------------------------------------------------------------------- what is timed


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_stages_compose_to_the_layer(name):
    layer = MemoryDecisionLayer(CONFIGURATIONS[name])
    signals = grid(5)
    made = signals
    for stage in controller_stages(layer).values():
        made = stage(*made)
    decision = layer(*signals)
    for got, field in zip(made, ("confidence", "consistency", "gated_confidence", "action"), strict=True):
        torch.testing.assert_close(got, getattr(decision, field), rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_baseline_is_the_papers_equations(name):
    layer, oracle = MemoryDecisionLayer(CONFIGURATIONS[name]), oracle_of(CONFIGURATIONS[name])
    plain = _plain_controller(layer)
    rows = np.vstack([np.random.default_rng(0).random((40, 3)), np.zeros(3), np.ones(3), [1.0000001, 0.5, 0.5]])
    for row in rows.tolist():
        *found, action = plain(*row)
        *expected, decided = oracle.decide(*row)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        assert action == decided


def test_the_baseline_has_what_the_layer_was_calibrated_to():
    layer = MemoryDecisionLayer().ranged((2.0, 3.0), (0.9, 0.8, 0.7))
    *_, gated, action = _plain_controller(layer)(0.7, 0.3, 0.5)
    decision = layer(*torch.tensor(POINT[0], dtype=torch.float64))
    assert gated == pytest.approx(decision.gated_confidence.item(), abs=1e-12)
    assert action == decision.action.item() != 0


def test_every_stage_is_called_on_what_the_one_before_made(layer, stores, monkeypatch):
    """What the profile times, run once in order on one store, ends in the gate's own decision."""
    kept = {}

    def catch(tasks, *, progress):
        kept.update(tasks)
        return {name: np.ones(task.runs, np.int64) for name, task in tasks.items()}

    monkeypatch.setattr(latency, "_measure", catch)
    latency_profile(layer, POINT, stores=stores, runs=3)
    for before, after in ((ENCODING, FUSION), (FUSION, HEAD), (HEAD, POLICY)):
        for made, taken in zip(kept[before].inputs, kept[after].inputs, strict=True):
            for got, expected in zip(kept[before].call(*made), taken, strict=True):
                assert torch.equal(got, expected)
    for place in range(len(stores)):
        given = kept[AGGREGATION].inputs[place]
        signals = kept[AGGREGATION].call(*given)
        decision = layer(signals.relevance, signals.reliability, signals.risk)
        assert_identical(kept[GUARD].inputs[place][0], decision)
        assert_identical(kept[TOTAL].call(*given)[1], kept[GUARD].call(*kept[GUARD].inputs[place]))
        assert_identical(kept[READ].call(*kept[READ].inputs[place])[1], kept[TOTAL].call(*given)[1])
        assert kept[READING].call(*kept[READING].inputs[place]).relevance == signals.relevance
        assert kept[FEATURES].inputs[place] == (TEXTS[place],)
    assert [tuple(one.item() for one in row) for row in kept[CONTROLLER].inputs] == [
        tuple(np.float32(POINT[0]).tolist())
    ]


# ------------------------------------------------------------------------------------------------------- the measuring


def test_each_task_runs_as_often_as_it_says_and_on_its_inputs_in_turn():
    calls = []
    tasks = {
        "a": _Task(lambda *one: calls.append(("a", *one)), [(1,), (2,), (3,)], 50),
        "b": _Task(lambda: calls.append(("b",)), [()], 7),
    }
    found = _measure(tasks, progress=False)
    assert {name: len(column) for name, column in found.items()} == {"a": 50, "b": 7}
    counted = calls[latency.WARM_UP + 7 :]
    assert [one for one in counted if one[0] == "a"] == [("a", 1 + place % 3) for place in range(50)]
    assert sum(one == ("b",) for one in counted) == 7
    turns = sum(first[0] != second[0] for first, second in itertools.pairwise(counted))
    assert turns > 7  # they take turns
    assert ROUNDS > 1


def test_durations_are_of_the_call(monkeypatch):
    """A clock that only moves by what a call takes gives exactly that."""
    now = [0]
    monkeypatch.setattr(latency.time, "perf_counter_ns", lambda: now[0])

    def work(nanoseconds):
        now[0] += nanoseconds

    found = _measure({"a": _Task(work, [(10,), (30,)], 6), "b": _Task(work, [(7,)], 3)}, progress=False)
    assert found["a"].tolist() == [10, 30] * 3
    assert found["b"].tolist() == [7] * 3


def test_rows_and_runs(layer, stores):
    controllers = {
        label: CONTROLLERS[name]().fit([[0.1, 0.5, 0.5], [0.9, 0.5, 0.5]] * 10, [False, True] * 10)
        for name, label in LEARNED.items()
    }
    paths = {"compiled": layer}
    profile = latency_profile(layer, POINT, stores=stores, controllers=controllers, paths=paths, runs=30)
    assert [one.name for one in profile.timings] == [
        AGGREGATION,
        ENCODING,
        FUSION,
        HEAD,
        POLICY,
        CONTROLLER,
        GUARD,
        TOTAL,
        "compiled",
        BASELINE,
        *LEARNED.values(),
        FEATURES,
        READING,
        READ,
    ]
    few = {FEATURES, READING, READ, *LEARNED.values()}
    assert {one.name: one.runs for one in profile.timings} == {
        one.name: FEWEST if one.name in few else 30 for one in profile.timings
    }
    assert {one.name for one in profile.timings if one.share is not None} == {
        AGGREGATION,
        ENCODING,
        FUSION,
        HEAD,
        POLICY,
        CONTROLLER,
        GUARD,
        TOTAL,
    }
    assert profile.of(TOTAL).share == profile.of(BASELINE).ratio == 1.0
    assert profile.threads == 1
    assert profile.clock >= 0
    assert all(one.median > 0 and one.p99 >= one.median for one in profile.timings)


def test_without_stores_the_controller_is_still_timed(layer):
    names = [one.name for one in latency_profile(layer, POINT, runs=2).timings]
    assert names == [ENCODING, FUSION, HEAD, POLICY, CONTROLLER, BASELINE]


def test_the_encoder_is_not_asked_from_its_cache(layer, stores, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(cache_size=0)
    computed = []
    compute = encoder._compute
    monkeypatch.setattr(encoder, "_compute", lambda texts, kind: computed.append(texts) or compute(texts, kind))
    monkeypatch.setattr(latency, "WARM_UP", 1)
    profile = latency_profile(layer, POINT, stores=stores, encoder=encoder, runs=3)
    assert profile.of(ENCODER).runs == 3
    assert computed == [[stores.queries[place % 2]] for place in (0, 0, 1, 0)]


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_threads_and_garbage_collection_are_as_they_were(layer, collecting, fails):
    threads, before = torch.get_num_threads(), gc.isenabled()
    seen = []

    def path(*signals):
        seen.append((torch.get_num_threads(), gc.isenabled()))
        if fails:
            raise RuntimeError("it broke")

    try:
        torch.set_num_threads(2)
        (gc.enable if collecting else gc.disable)()
        if fails:
            with pytest.raises(RuntimeError, match="it broke"):
                latency_profile(layer, POINT, paths={"path": path}, runs=1)
        else:
            latency_profile(layer, POINT, paths={"path": path}, runs=1)
        assert set(seen) == {(1, False)}
        assert (torch.get_num_threads(), gc.isenabled()) == (2, collecting)
    finally:
        torch.set_num_threads(threads)
        (gc.enable if before else gc.disable)()


def test_quiet_is_nothing_but_quiet():
    with quiet():
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"signals": []}, "signals must have at least one row"),
        ({"signals": [[0.5, 2.0, 0.5]]}, "R = 2"),
    ],
)
def test_bad_arguments(layer, change, message):
    with pytest.raises(ValueError, match=message):
        latency_profile(layer, **{"signals": POINT, "runs": 1, **change})


def test_a_layer_elsewhere_is_an_error():
    with pytest.raises(ValueError, match="layer must be on the cpu, got meta"):
        latency_profile(MemoryDecisionLayer().to("meta"), POINT, runs=1)


# ------------------------------------------------------------------------------------------------------------ the table


def test_the_table_says_what_the_profile_does():
    durations = {ENCODING: [1000], FUSION: [2000], HEAD: [3000], POLICY: [4000], CONTROLLER: [20_000], BASELINE: [5000]}
    machine = {"cpu": "a fast one", "python": "3.12", "packages": {"torch": "2.13"}}
    table = table_of(Profile(timings(durations), 0.25, 1, machine), ["Mind the gap."])
    assert table.rows[0] == (ENCODING, 1, 1.0, 1.0, 1.0, None, 0.2, 24.6)
    assert "a fast one" in table.note
    assert "0.25 µs" in table.note
    assert "four stages take 10.0 µs together, its whole call 20.0" in table.note
    assert table.note.endswith("Mind the gap.")


def records(texts):
    return [
        {"system": "b1", "question": f"Is {n}?", "memories": [{"id": "0", "text": text} for text in store]}
        for n, store in enumerate(texts)
    ]


def test_the_table_of_a_run(layer, monkeypatch):
    monkeypatch.setattr(latency, "_encoder", lambda study, notes: None)
    rows = samples([[0.9, 0.5, 0.2], [0.2, 0.5, 0.8]] * 5, [True, False] * 5)
    found = latency_table(study(rows, layers={"paper": layer}, records=records(TEXTS)), runs=2)
    assert found.name == "table8"
    assert len(found.rows) == 14
    assert {row[0] for row in found.rows} >= set(PAPER) | set(LEARNED.values()) | {BASELINE}
    assert "filled up" in found.note
    assert "nan" not in found.markdown().lower().replace("nanosecond", "")


def test_an_empty_run_has_a_table_that_says_so(monkeypatch):
    monkeypatch.setattr(latency, "_encoder", lambda study, notes: None)
    found = latency_table(study(samples(np.empty((0, 3)), [])), runs=1)
    assert {row[0] for row in found.rows} >= {CONTROLLER, BASELINE, *LEARNED.values()}
    for said in ("no layer", "no labelled answer", "no memories", "no labels of both kinds"):
        assert said in found.note


def test_stores_are_of_six_memories_each_own_first(monkeypatch):
    notes: list[str] = []
    own = [[f"a{n}" for n in range(9)], ["b0", "b1"]]
    found = latency._stores(study(samples([], []), records=records(own)), None, notes)
    assert found.texts[0] == ("a0", "a1", "a2", "a3", "a4", "a5")
    assert found.texts[1][:2] == ("b0", "b1")
    assert len(found.texts[1]) == latency.STORE_SIZE
    assert found.embeddings.shape == (2, 6, 384)
    assert len(notes) == 1
    assert SignalExtractor()(found.query_embeddings, found.embeddings, torch.tensor(0.5)).relevant.any()


def test_the_runs_encoder_is_loaded_without_a_cache(monkeypatch):
    asked = []
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", lambda name, **options: asked.append((name, options)))
    made = study(samples([], []))
    latency._encoder(made, [])
    made.run.description["experiment"]["encoder"] = "my/encoder"
    latency._encoder(made, [])
    options = {"device": "cpu", "cache_size": 0}
    assert asked == [(DEFAULT_ENCODER, options), ("my/encoder", options)]


def test_a_missing_encoder_and_library_are_said(monkeypatch):
    notes: list[str] = []

    def gone(*_, **__):
        raise OSError("no model")

    monkeypatch.setattr(SentenceEncoder, "from_pretrained", gone)
    assert latency._encoder(study(samples([], [])), notes) is None
    assert "not to be had" in notes[0]

    def uninstalled():
        raise ImportError("controller 'xgboost' needs xgboost")

    monkeypatch.setitem(CONTROLLERS, "xgboost", uninstalled)
    fitted = latency._controllers(study(samples(POINT * 4, [True, False] * 2)), notes)
    assert list(fitted) == [LEARNED["lr"]]
    assert "needs xgboost" in notes[1]
