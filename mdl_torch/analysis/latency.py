"""How long one decision takes, stage by stage (Table 8): eager, on the CPU, in one thread.

Every stage is timed by itself on what the stage before it made of recorded signals. Beside them, in the same run, stand
what a decision is compared with: the same equations in plain NumPy, the encoder on one query, and two learned
controllers. The stages take turns: the runs are cut into rounds, and in each round every stage has its share of them.
So a machine that slows down slows all of them, and ratios between them hold; within a round a stage runs by itself.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mdl_torch.embedding_gate import EmbeddingGate
from mdl_torch.evaluation.controllers import CONTROLLERS, check_signals
from mdl_torch.evaluation.environment import environment
from mdl_torch.evaluation.tables import Table
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.policy import guard
from mdl_torch.signals import SignalExtractor
from mdl_torch.stance import detector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from mdl_torch.analysis.study import Study
    from mdl_torch.encoder import SentenceEncoder
    from mdl_torch.evaluation.controllers import Controller
    from mdl_torch.evaluation.tables import Cell

    Floats = NDArray[np.float64]
    Stages = dict[str, Callable[..., tuple[Tensor, ...]]]

RUNS = 100_000
"""Of each stage, as in the paper."""

ROUNDS = 20
"""In which the stages take turns."""

WARM_UP = 20
"""Runs of each stage before the first that counts."""

STORE_SIZE = 6
"""Memories of a store, as in the paper."""

POINTS = 256
"""Distinct inputs of a stage at most; they are gone through again and again."""

AGGREGATION, ENCODING, FUSION, HEAD, POLICY = (
    "signal aggregation",
    "value encoding",
    "risk modulation and fusion",
    "C-α extraction and gating",
    "policy",
)
CONTROLLER, TOTAL, GUARD = "controller: the whole layer call", "total: embeddings to decision", "guard of empty stores"
READING, READ = "signal aggregation, stance features included", "total, stance features included"
FEATURES, ENCODER, BASELINE = "stance features of a store's texts", "encoder on one query", "controller in plain NumPy"

PAPER = {READING: 98.5, ENCODING: 24.6, FUSION: 8.0, HEAD: 11.6, POLICY: 0.05, CONTROLLER: 40.1, READ: 138.7}
"""Means of the paper's Table 8, in µs; its aggregation includes conflict detection on the texts."""

LEARNED = {"lr": "logistic regression on one row", "xgboost": "XGBoost on one row"}
"""Controllers whose prediction is timed, and what their rows are called."""

ONE_IN = {ENCODER: 200, FEATURES: 10, READING: 10, READ: 10, LEARNED["lr"]: 10, LEARNED["xgboost"]: 20}
"""Of what takes long, one run is made for so many of the others."""

FEWEST = 20
"""Runs of what takes long, unless fewer are asked for."""


@dataclass(frozen=True)
class Timing:
    """How long something took, in µs.

    Attributes:
        name: Of the stage.
        runs: That were timed.
        median: Over them.
        mean: Over them.
        p99: Which 99% of them stay below.
        share: Median as a part of that of the total; None for what is not part of a decision.
        ratio: Median as a multiple of that of plain NumPy.
        paper: The paper's mean.
    """

    name: str
    runs: int
    median: float
    mean: float
    p99: float
    share: float | None = None
    ratio: float | None = None
    paper: float | None = None


@dataclass(frozen=True)
class Profile:
    """A latency profile.

    Attributes:
        timings: In the order of a decision, then what stands beside them.
        clock: Median of timing nothing, in µs: how much of every figure is the clock and the call.
        threads: Of torch while it was measured.
        machine: ``environment()`` at that time.
        notes: What of it is not as usual.
    """

    timings: tuple[Timing, ...]
    clock: float
    threads: int
    machine: dict[str, Any]
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Timing:
        """The timing of a stage.

        Raises:
            KeyError: There is none.
        """
        return {timing.name: timing for timing in self.timings}[name]


@dataclass(frozen=True)
class Stores:
    """Memory stores of one size with their embeddings.

    Attributes:
        queries: Texts, S of them.
        texts: Of the memories, S times K.
        query_embeddings: ``(S, d)``.
        embeddings: ``(S, K, d)``.
    """

    queries: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    query_embeddings: Tensor
    embeddings: Tensor

    def __len__(self) -> int:
        return len(self.queries)


def statistics(nanoseconds: ArrayLike) -> tuple[float, float, float]:
    """Median, mean and 99th percentile of durations, in µs; percentiles are interpolated.

    Args:
        nanoseconds: At least one, ``(n,)``.

    Raises:
        ValueError: There is none.

    Example:
        >>> statistics([1000, 2000, 6000])
        (2.0, 3.0, 5.92)
    """
    durations = np.asarray(nanoseconds, np.float64)
    if not durations.size:
        raise ValueError("nanoseconds must hold at least one duration, got none")
    median, p99 = np.percentile(durations, (50, 99)).tolist()
    return median / 1000, float(durations.mean()) / 1000, p99 / 1000


def timings(durations: Mapping[str, ArrayLike], *, parts: Sequence[str] = ()) -> tuple[Timing, ...]:
    """Durations as rows: shares of ``TOTAL`` for ``parts`` of a decision, ratios to ``BASELINE``, the paper's beside.

    Args:
        durations: In nanoseconds, by name of the stage.
        parts: Stages that a decision consists of.

    Example:
        >>> found = timings({POLICY: [2000], TOTAL: [8000], BASELINE: [4000]}, parts=(POLICY, TOTAL))
        >>> [(one.share, one.ratio) for one in found]
        [(0.25, 0.5), (1.0, 2.0), (None, 1.0)]
    """
    found = {name: statistics(column) for name, column in durations.items()}

    def over(name: str, of: str) -> float | None:
        return found[name][0] / found[of][0] if of in found and found[of][0] else None

    return tuple(
        Timing(
            name=name,
            runs=np.size(durations[name]),
            median=median,
            mean=mean,
            p99=p99,
            share=over(name, TOTAL) if name in parts else None,
            ratio=over(name, BASELINE),
            paper=PAPER.get(name),
        )
        for name, (median, mean, p99) in found.items()
    )


# ----------------------------------------------------------------------------------------------------------- the stages


def controller_stages(layer: MemoryDecisionLayer) -> Stages:
    """The stages of a layer, each taking what the one before it returns; the first takes (M, R, A), valid signals.

    The last returns C, α, C_final and the action. Checks, status bits and the output are the layer's own and no stage.

    Example:
        >>> layer = MemoryDecisionLayer()
        >>> made = tuple(torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64))
        >>> for stage in controller_stages(layer).values():
        ...     made = stage(*made)
        >>> [round(value.item(), 6) for value in made]
        [0.75105, 0.956726, 0.728299, 0]
    """

    def encode(relevance: Tensor, reliability: Tensor, risk: Tensor) -> tuple[Tensor, ...]:
        return (layer.encode(relevance, reliability, risk),)

    def fuse(vectors: Tensor) -> tuple[Tensor, ...]:
        spread = layer.spread(vectors)
        relevance_vector, _, risk_vector = spread.unbind(-2)
        channels, _ = layer.fusion.modulate(risk_vector, layer.projection(spread))
        return relevance_vector, layer.fusion(channels)

    def extract(relevance_vector: Tensor, meta: Tensor) -> tuple[Tensor, ...]:
        return layer.averaged(layer.head(relevance_vector, meta))[1:]

    def decide(confidence: Tensor, consistency: Tensor, gated: Tensor) -> tuple[Tensor, ...]:
        return confidence, consistency, gated, layer.policy(gated)

    return {ENCODING: encode, FUSION: fuse, HEAD: extract, POLICY: decide}


def _plain_controller(layer: MemoryDecisionLayer) -> Callable[[float, float, float], tuple[float, float, float, int]]:
    """The paper's equations in plain float64 NumPy: one (M, R, A) to C, α, C_final and the action."""
    buffers = {name: buffer.detach().cpu().numpy() for name, buffer in layer.named_buffers()}
    centres, sigma = buffers["encoder.centres"], float(buffers["encoder.sigma"])
    weights = buffers["projection.weights"].reshape(-1, 3, len(centres), len(centres))
    ranges = buffers["head.norm_range"].reshape(-1, 2).tolist()
    g0, g1 = buffers["fusion.coefficients"].tolist()
    constant, slope = buffers["head.gate"].tolist()
    bias, thresholds = buffers["fusion.bias"], buffers["policy.thresholds"].tolist()
    config = layer.config

    def encode(scalar: float) -> Floats:
        linear = scalar * np.ones_like(centres)
        if not config.value_encoding:
            return linear
        return linear + np.exp(-((scalar - centres) ** 2) / (2 * sigma**2))

    def decide(relevance: float, reliability: float, risk: float) -> tuple[float, float, float, int]:
        v_wm, v_r = encode(np.clip(relevance, 0.0, 1.0)), encode(reliability)
        v_a = encode(1.0 - risk if config.risk_inversion else risk)
        gain = g0 + g1 * v_a.mean() if config.risk_modulation else 1.0
        found = []
        for (w_wm, w_r, w_a), (low, high) in zip(weights, ranges, strict=True):
            meta = np.tanh(gain * (w_wm @ v_wm) + w_r @ v_r + w_a @ v_a + bias)
            norm = np.linalg.norm(meta)
            c = np.clip((norm - low) / (high - low), 0.0, 1.0)
            length = np.linalg.norm(v_wm) * norm
            alpha = v_wm @ meta / length if length > 0 else 0.0
            found.append((c, alpha, c * (constant + slope * alpha) if config.alpha_gate else c))
        c, alpha, gated = found[0] if len(found) == 1 else np.mean(found, axis=0)
        return float(c), float(alpha), float(gated), sum(gated < theta for theta in thresholds)

    return decide


# ------------------------------------------------------------------------------------------------------------ the clock


@dataclass
class _Task:
    """What is timed: a call, the arguments that it gets in turn, and how often."""

    call: Callable[..., object]
    inputs: Sequence[tuple[Any, ...]]
    runs: int


@contextmanager
def quiet() -> Iterator[None]:
    """One thread of torch and no garbage collection within; afterwards both as they were.

    Example:
        >>> with quiet():
        ...     torch.get_num_threads(), gc.isenabled()
        (1, False)
    """
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        torch.set_num_threads(threads)


def _measure(tasks: Mapping[str, _Task], *, progress: bool) -> dict[str, NDArray[np.int64]]:
    """Nanoseconds of every run of every task, which take turns in ``ROUNDS``."""
    from tqdm import tqdm

    clock = time.perf_counter_ns
    found = {name: np.empty(task.runs, np.int64) for name, task in tasks.items()}
    for task in tasks.values():
        for place in range(min(WARM_UP, task.runs)):
            task.call(*task.inputs[place % len(task.inputs)])
    with tqdm(total=ROUNDS * len(tasks), desc="latency", unit="part", disable=not progress) as bar:
        for turn in range(ROUNDS):
            for name, task in tasks.items():
                call, inputs, durations, distinct = task.call, task.inputs, found[name], len(task.inputs)
                for place in range(task.runs * turn // ROUNDS, task.runs * (turn + 1) // ROUNDS):
                    arguments = inputs[place % distinct]
                    start = clock()
                    call(*arguments)
                    durations[place] = clock() - start
                bar.update()
    return found


def _nothing() -> None:
    """What the clock's own overhead is measured on."""


def latency_profile(
    layer: MemoryDecisionLayer,
    signals: ArrayLike,
    *,
    stores: Stores | None = None,
    extractor: SignalExtractor | None = None,
    encoder: SentenceEncoder | None = None,
    controllers: Mapping[str, Controller] | None = None,
    paths: Mapping[str, Callable[[Tensor, Tensor, Tensor], object]] | None = None,
    runs: int = RUNS,
    dtype: torch.dtype = torch.float32,
    progress: bool = False,
) -> Profile:
    """Time one decision at a time, stage by stage, and what it is compared with.

    Args:
        layer: On the CPU.
        signals: Recorded (M, R, A), ``(n, 3)`` in [0, 1], at least one; the first ``POINTS`` are used.
        stores: What signals are aggregated from; without them neither aggregation nor total is timed.
        extractor: Aggregates them; with the lexical conflict detector by default.
        encoder: Encodes one of the stores' queries; give it ``cache_size=0``, or its cache is what is timed.
        controllers: Fitted, by the name of their row: each decides on one (M, R, A).
        paths: Further ways to call the layer, by name, such as a compiled one; each takes (M, R, A) as the layer does.
        runs: Of each stage, at least 1; what takes long gets one in ``ONE_IN`` of them, if that is ``FEWEST``.
        dtype: Of the signals and embeddings.
        progress: Whether to show a bar.

    Raises:
        ValueError: ``runs`` is less than 1, signals are missing or invalid, or the layer is not on the CPU.

    Example:
        >>> profile = latency_profile(MemoryDecisionLayer(), [[0.7, 0.3, 0.5]], runs=5)
        >>> profile.of(POLICY).runs, profile.of(BASELINE).ratio
        (5, 1.0)
    """
    if runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}")
    rows = check_signals(signals)[:POINTS]
    if not len(rows):
        raise ValueError("signals must have at least one row, got none")
    if (device := layer.policy.thresholds.device.type) != "cpu":
        raise ValueError(f"layer must be on the cpu, got {device}")

    extractor = SignalExtractor() if extractor is None else extractor
    with quiet(), torch.inference_mode():
        points: list[tuple[Any, ...]] = [tuple(torch.tensor(row, dtype=dtype)) for row in rows]
        tasks: dict[str, _Task] = {"clock": _Task(_nothing, [()], runs)}
        parts = [CONTROLLER]
        if stores is not None and len(stores):
            tasks |= _store_tasks(layer, extractor, stores, rows, dtype, runs)
            parts += [AGGREGATION, GUARD, TOTAL]
        made: Sequence[tuple[Any, ...]] = points
        for name, stage in controller_stages(layer).items():
            tasks[name] = _Task(stage, made, runs)
            made = [stage(*one) for one in made]
            parts.append(name)
        tasks[CONTROLLER] = _Task(layer, points, runs)
        for name in (GUARD, TOTAL):  # after the stages that they come after
            if name in tasks:
                tasks[name] = tasks.pop(name)
        tasks |= {name: _Task(path, points, runs) for name, path in (paths or {}).items()}
        tasks[BASELINE] = _Task(_plain_controller(layer), [tuple(row) for row in rows.tolist()], runs)
        for name, controller in (controllers or {}).items():
            tasks[name] = _Task(controller.adopts, [(row[None],) for row in rows], runs)
        if encoder is not None and stores is not None and len(stores):
            tasks[ENCODER] = _Task(encoder.encode_queries, [([query],) for query in stores.queries], runs)
        for name in (FEATURES, READING, READ):  # last: texts are read once, where they are stored
            if name in tasks:
                tasks[name] = tasks.pop(name)
        for name, task in tasks.items():
            task.runs = min(runs, max(FEWEST, runs // ONE_IN.get(name, 1)))
        durations: dict[str, Any] = dict(_measure(tasks, progress=progress))
        machine = environment()
    clock = statistics(durations.pop("clock"))[0]
    return Profile(timings(durations, parts=parts), clock, machine["threads"], machine)


def _store_tasks(
    layer: MemoryDecisionLayer, extractor: SignalExtractor, stores: Stores, rows: Floats, dtype: torch.dtype, runs: int
) -> dict[str, _Task]:
    """Aggregation, guard and the whole way, of stores whose embeddings and stance features are ready."""
    gate = EmbeddingGate(layer, extractor)
    features = [extractor.detector.features(texts) for texts in stores.texts]
    queries, memories = stores.query_embeddings.to(dtype), stores.embeddings.to(dtype)
    risks = [torch.tensor(rows[place % len(rows), 2], dtype=dtype) for place in range(len(stores))]
    whole = [(queries[place], memories[place], risk, features[place]) for place, risk in enumerate(risks)]

    def aggregate(query: Tensor, store: Tensor, risk: Tensor, stance: Any) -> object:
        return extractor(query, store, risk, stance=stance)

    def decide(query: Tensor, store: Tensor, risk: Tensor, stance: Any) -> Any:
        return gate(query, store, risk, stance=stance)

    def read_and_aggregate(query: Tensor, store: Tensor, risk: Tensor, texts: list[str]) -> object:
        return aggregate(query, store, risk, extractor.detector.features(texts))

    def read_and_decide(query: Tensor, store: Tensor, risk: Tensor, texts: list[str]) -> object:
        return decide(query, store, risk, extractor.detector.features(texts))

    def keep_out(decision: Any, status: Tensor) -> object:
        return guard(decision, status, require_relevant=True)

    unread = [(*one[:3], texts) for one, texts in zip(whole, stores.texts, strict=True)]
    decided = [(decision, signals.status) for signals, decision in (decide(*one) for one in whole)]
    return {
        AGGREGATION: _Task(aggregate, whole, runs),
        GUARD: _Task(keep_out, decided, runs),
        TOTAL: _Task(decide, whole, runs),
        FEATURES: _Task(extractor.detector.features, [(texts,) for texts in stores.texts], runs),
        READING: _Task(read_and_aggregate, unread, runs),
        READ: _Task(read_and_decide, unread, runs),
    }


# ------------------------------------------------------------------------------------------------------------ the table


def latency_table(study: Study, runs: int = RUNS, *, progress: bool = False) -> Table:
    """Table 8 for a run: its layer, signals and stores, on this machine.

    Args:
        study: The run.
        runs: Of each stage; see ``latency_profile``.
        progress: Whether to show a bar.
    """
    notes: list[str] = []
    layer = study.layers.get("paper") or next(iter(study.layers.values()), None)
    if layer is None:
        layer = MemoryDecisionLayer.from_preset("paper")
        notes.append("The run has no layer: this is the paper's preset.")
    signals = np.unique(study.samples.signals, axis=0)
    if not len(signals):
        signals = np.random.default_rng(0).random((POINTS, 3))
        notes.append("The run has no labelled answer: signals are drawn evenly from the cube.")
    signals = np.random.default_rng(0).permutation(signals)
    encoder = _encoder(study, notes)
    stores = _stores(study, encoder, notes)
    profile = latency_profile(
        layer,
        signals,
        stores=stores,
        extractor=SignalExtractor(detector(study.run.description["experiment"].get("detector", "lexical"))),
        encoder=encoder,
        controllers=_controllers(study, notes),
        runs=runs,
        progress=progress,
    )
    return table_of(profile, notes)


def table_of(profile: Profile, notes: Sequence[str] = ()) -> Table:
    """A profile as a table, with more to say beneath it."""
    rows: list[tuple[Cell, ...]] = [
        (one.name, one.runs, one.median, one.mean, one.p99, one.share, one.ratio, one.paper) for one in profile.timings
    ]
    stages = sum(one.median for one in profile.timings if one.name in (ENCODING, FUSION, HEAD, POLICY))
    machine, whole = profile.machine, profile.of(CONTROLLER).median
    where = f"{machine['cpu']}, Python {machine['python']}, torch {machine['packages'].get('torch')}"
    said = [
        f"Eager, one decision at a time, {profile.threads} thread of torch, no garbage collection, on {where}.",
        f"Stages take turns in {ROUNDS} rounds, after {WARM_UP} runs each that do not count; what takes long is run "
        f"less often. The clock and the call take {profile.clock:.2f} µs of each run and are left in.",
        "Shares and × NumPy are of medians: machines are noisy, and means hang on the few slowest runs. "
        "The paper's figures are means, on its own machine.",
        f"The controller's four stages take {stages:.1f} µs together, its whole call {whole:.1f}: the rest are checks, "
        "status bits and the output.",
        *notes,
    ]
    columns = ("stage", "runs", "median (µs)", "mean (µs)", "p99 (µs)", "share", "× NumPy", "paper (µs)")
    return Table("table8", "Latency of one decision (Table 8)", columns, tuple(rows), " ".join(said))


def _encoder(study: Study, notes: list[str]) -> SentenceEncoder | None:
    """The run's encoder without its cache; None if it is not to be had."""
    from mdl_torch.encoder import DEFAULT_ENCODER, SentenceEncoder

    name = study.run.description["experiment"].get("encoder") or DEFAULT_ENCODER
    try:
        return SentenceEncoder.from_pretrained(name, device="cpu", cache_size=0)
    except (OSError, ImportError):
        notes.append("The run's encoder is not to be had here: embeddings are drawn at random, and it is not timed.")
        return None


def _stores(study: Study, encoder: SentenceEncoder | None, notes: list[str]) -> Stores | None:
    """Six memories for each question of the run, its own first, then those of the next ones."""
    own = {one["question"]: [memory["text"] for memory in one["memories"]] for one in study.run.records}
    queries = list(own)[:POINTS]
    every = [text for question in queries for text in own[question]]
    if not every:
        notes.append("The run has no memories, so neither aggregation nor total is timed.")
        return None
    if any(len(own[query]) < STORE_SIZE for query in queries):
        notes.append(f"Stores of fewer than {STORE_SIZE} memories are filled up with those of other questions.")
    texts = []
    for place, query in enumerate(queries):
        filled = [*own[query], *(every[(place + step) % len(every)] for step in range(STORE_SIZE))]
        texts.append(tuple(filled[:STORE_SIZE]))
    if encoder is None:
        generator = torch.Generator().manual_seed(0)
        near = torch.randn(len(queries), 1, 384, generator=generator)
        memories = near + torch.randn(len(queries), STORE_SIZE, 384, generator=generator)
        return Stores(tuple(queries), tuple(texts), near.squeeze(1), memories)
    encoded = encoder.encode_documents([text for store in texts for text in store]).embeddings
    memories = encoded.reshape(len(texts), STORE_SIZE, -1)
    return Stores(tuple(queries), tuple(texts), encoder.encode_queries(queries).embeddings, memories)


def _controllers(study: Study, notes: list[str]) -> dict[str, Controller]:
    """Learned controllers, fitted on the run's labels."""
    split = study.split if len(np.unique(study.split.adopt)) > 1 else study.samples
    signals, adopt = split.signals, split.adopt
    if len(np.unique(adopt)) < 2:
        signals = np.random.default_rng(0).random((POINTS, 3))
        adopt = signals[:, 0] > signals[:, 2]
        notes.append("The run has no labels of both kinds: controllers are fitted on drawn signals.")
    fitted: dict[str, Controller] = {}
    for name, label in LEARNED.items():
        try:
            fitted[label] = CONTROLLERS[name]().fit(signals, adopt)
        except ImportError as error:
            notes.append(f"{name} is not timed: {error}.")
    return fitted
