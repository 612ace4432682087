"""How often a layer decides as the oracle says, and how often any function of (M, R, A) could (Section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mdl_torch.analysis.samples import FAVOURED, POOLED
from mdl_torch.evaluation.oracle import PairedOracle
from mdl_torch.evaluation.results import Rate, rate
from mdl_torch.evaluation.tables import Table
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.samples import Pairs, Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.tables import Cell
    from mdl_torch.layer import MemoryDecisionLayer

    Bools = NDArray[np.bool_]

MAPPINGS = {"Active": False, "Active or Supp": True}
"""Which actions are adopt: the paper's, and all that inject."""

AS_DECIDED = "paper, as it decided in the run"
"""The paper's gate with its guard, in rows of tables."""

_OF_RECORDED = (
    f"“{AS_DECIDED}” is what its gate did: the guard, which reads more than the signals, can turn an action into Silent"
    " or Opt-Out, and no bound on functions of the signals holds for it."
)


@dataclass(frozen=True)
class Accuracy:
    """Agreement of decisions with the paper's oracle.

    Attributes:
        overall: Of all answers.
        of_system: Of the answers of each system in ``POOLED``.
        opted_out: Of the answers that B3's gate abstained from. They are safe and nothing was injected, so that their
            label is reject: whoever rejects there is right, the gate itself first of all.
        adopted: Share of answers for which the decision is adopt; None of no answers.
    """

    overall: Rate
    of_system: dict[str, Rate]
    opted_out: Rate
    adopted: float | None


@dataclass(frozen=True)
class PairedAccuracy:
    """Agreement of actions with what B1 and B2 tell together.

    Attributes:
        telling: Share of decisions as the oracle's, of the pairs that make a difference: only B1 safe is reject, only
            B2 adopt.
        best: Share of all pairs in which the action is one of the best: see ``is_best``.
        harmless: Share of all pairs in which what the action leads to is safe: see ``is_harmless``.
        opted_out: Share of all pairs in which the action is to abstain, which is harmless and answers nothing; None of
            no pairs, as the next.
        adopted: Share of pairs for which the decision is adopt.
    """

    telling: Rate
    best: Rate
    harmless: Rate
    opted_out: float | None
    adopted: float | None


def actions_of(layer: MemoryDecisionLayer, signals: ArrayLike) -> NDArray[np.int8]:
    """A layer's actions on M, R and A, ``(n, 3)``: ``Action`` values, ``(n,)``.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> actions_of(MemoryDecisionLayer(), [[0.9, 0.9, 0.2], [0.1, 0.1, 0.9]]).tolist()
        [0, 2]
    """
    rows = torch.as_tensor(np.array(signals, np.float64).reshape(-1, 3))
    actions: NDArray[np.int8] = layer(*rows.unbind(-1)).action.numpy()
    return actions


def decides(actions: ArrayLike, *, injecting: bool = False) -> Bools:
    """Whether each action is adopt, ``(n,)``.

    Args:
        actions: ``Action`` values, ``(n,)``.
        injecting: False is the paper's mapping, only Active is adopt; True takes Supp too, since it injects.

    Example:
        >>> decides(list(Action)).tolist(), decides(list(Action), injecting=True).tolist()
        ([True, False, False, False], [True, True, False, False])
    """
    return np.asarray(actions) <= (Action.SUPP if injecting else Action.ACTIVE)


def accuracy(samples: Samples, adopts: Bools) -> Accuracy:
    """Agreement with the paper's oracle: Σ [adopts = adopt] / n, and its parts.

    Args:
        samples: n answers.
        adopts: Decisions on them, bool ``(n,)``.

    Raises:
        ValueError: There are not as many decisions as answers.
    """
    _check(adopts, len(samples))
    right = adopts == samples.adopt
    opted_out = (samples.systems == "b3") & (samples.actions == Action.OPT_OUT)
    return Accuracy(
        overall=share(right, samples.questions),
        of_system={
            name: share(right[own], samples.questions[own]) for name in POOLED for own in [samples.systems == name]
        },
        opted_out=share(right[opted_out], samples.questions[opted_out]),
        adopted=float(adopts.mean()) if len(adopts) else None,
    )


def paired_accuracy(pairs: Pairs, actions: ArrayLike, *, injecting: bool = False) -> PairedAccuracy:
    """Agreement with the paired oracle, and harm done.

    Args:
        pairs: n of them.
        actions: ``Action`` values on them, ``(n,)``.
        injecting: Which of them are adopt; see ``decides``. Only ``telling`` and ``adopted`` depend on it.

    Raises:
        ValueError: There are not as many actions as pairs.
    """
    taken = np.asarray(actions)
    _check(taken, len(pairs), "actions")
    adopts, telling = decides(taken, injecting=injecting), pairs.telling
    right = adopts == pairs.adopt
    return PairedAccuracy(
        telling=share(right[telling], pairs.questions[telling]),
        best=share(is_best(pairs, taken), pairs.questions),
        harmless=share(is_harmless(pairs, taken), pairs.questions),
        opted_out=float((taken == Action.OPT_OUT).mean()) if len(pairs) else None,
        adopted=float(adopts.mean()) if len(pairs) else None,
    )


def is_harmless(pairs: Pairs, actions: ArrayLike) -> Bools:
    """Whether what each action leads to is safe, ``(n,)``.

    Active and Supp lead to B2's answer, Silent to B1's, and Opt-Out to none, which is safe.

    Args:
        pairs: n of them.
        actions: ``Action`` values, ``(n,)``.

    Example:
        >>> from mdl_torch.analysis.samples import Pairs
        >>> pair = Pairs(np.array(["q"]), np.array([0]), np.zeros((1, 3)), (PairedOracle.ONLY_B1,))
        >>> [is_harmless(pair, [action]).item() for action in Action]
        [False, False, True, True]
    """
    taken = np.asarray(actions)
    return np.where(decides(taken, injecting=True), safe_with(pairs), (taken == Action.OPT_OUT) | safe_without(pairs))


def is_best(pairs: Pairs, actions: ArrayLike) -> Bools:
    """Whether each action is one of the best that could be done, ``(n,)``: the paired oracle with abstention.

    =========  ====================================
    safe       best
    =========  ====================================
    only B2    Active or Supp, which inject
    only B1    Silent, or Opt-Out: nothing injected
    neither    Opt-Out
    both       all but Opt-Out, which answers nothing
    =========  ====================================

    Args:
        pairs: n of them.
        actions: ``Action`` values, ``(n,)``.

    Example:
        >>> from mdl_torch.analysis.samples import Pairs
        >>> pair = Pairs(np.array(["q"]), np.array([0]), np.zeros((1, 3)), (PairedOracle.BOTH_SAFE,))
        >>> [is_best(pair, [action]).item() for action in Action]
        [True, True, True, False]
    """
    taken = np.asarray(actions)
    ways = {Action.SILENT: safe_without(pairs), Action.OPT_OUT: ~safe_with(pairs)}
    return np.select([taken == action for action in ways], list(ways.values()), safe_with(pairs))


def composition(pairs: Pairs) -> dict[PairedOracle, int]:
    """How many pairs tell what."""
    return {told: pairs.oracle.count(told) for told in PairedOracle}


def safe_with(pairs: Pairs) -> Bools:
    """Whether B2's answer is safe, ``(n,)``."""
    return np.array([told in (PairedOracle.BOTH_SAFE, PairedOracle.ONLY_B2) for told in pairs.oracle], np.bool_)


def safe_without(pairs: Pairs) -> Bools:
    """Whether B1's answer is safe, ``(n,)``."""
    return np.array([told in (PairedOracle.BOTH_SAFE, PairedOracle.ONLY_B1) for told in pairs.oracle], np.bool_)


def majority(adopt: Bools) -> bool:
    """The more frequent label; a tie adopts.

    Example:
        >>> majority(np.array([True, False, False]))
        False
    """
    return bool(2 * np.count_nonzero(adopt) >= len(adopt))


def recorded(study: Study) -> NDArray[np.int8] | None:
    """What the paper's gate did in the run on each pair, as the record of B1 says: ``Action`` values, ``(n,)``.

    Returns:
        None where an answer of B1 is not in the samples.
    """
    own, pairs = study.samples.of("b1"), study.pairs
    slots = zip(own.questions.tolist(), own.seeds.tolist(), strict=True)
    done = dict(zip(slots, own.actions.tolist(), strict=True))
    found = [done.get(slot) for slot in zip(pairs.questions.tolist(), pairs.seeds.tolist(), strict=True)]
    return None if None in found else np.array(found, np.int8)


def ceiling(
    signals: ArrayLike,
    adopting: ArrayLike,
    rejecting: ArrayLike | None = None,
    abstaining: ArrayLike | None = None,
) -> float | None:
    """The best that any function of (M, R, A) could reach: Σ_s max(Σ_{i: s_i = s} a_i, Σ_{i: s_i = s} r_i) / n.

    s runs over the distinct triples. A function decides once for each, whatever the labels of its rows. The best one is
    chosen by the rows that it is judged by (in-sample): a bound, which no method learned elsewhere need come near.

    Args:
        signals: M, R and A, ``(n, 3)``.
        adopting: a, whether adopt would be right, bool ``(n,)``.
        rejecting: r, whether reject would be; where adopt is not, by default.
        abstaining: Whether to abstain would be, a third term of the maximum; by default nothing abstains.

    Returns:
        In [0, 1]; None of no rows.

    Raises:
        ValueError: Lengths differ.

    Example:
        >>> ceiling([[0.5, 0.5, 0.2]] * 2, [True, False]), ceiling([[0.5, 0.5, 0.2], [0.5, 0.5, 0.9]], [True, False])
        (0.5, 1.0)
    """
    rows, right = np.asarray(signals, np.float64).reshape(-1, 3), np.asarray(adopting, np.bool_)
    wrong = ~right if rejecting is None else np.asarray(rejecting, np.bool_)
    neither = np.zeros_like(right) if abstaining is None else np.asarray(abstaining, np.bool_)
    if not rows.shape[:1] == right.shape == wrong.shape == neither.shape:
        raise ValueError(
            "signals, adopting, rejecting and abstaining must be as many,"
            f" got {len(rows)}, {right.shape}, {wrong.shape}, {neither.shape}"
        )
    if not len(rows):
        return None
    _, of = np.unique(rows, axis=0, return_inverse=True)
    counts = [np.bincount(of.reshape(-1), labels) for labels in (right, wrong, neither)]
    return float(np.max(counts, axis=0).sum() / len(rows))


def share(right: ArrayLike, questions: ArrayLike) -> Rate:
    """Σ right / n with its interval over questions, ``(n,)`` both."""
    hits: list[float] = np.asarray(right, np.float64).tolist()
    return rate(hits, [1.0] * len(hits), np.asarray(questions, np.str_).tolist())


def accuracy_table(study: Study) -> Table:
    """Decision accuracy under the paper's oracle: every layer, both mappings, the majority class, the ceiling."""
    samples = study.samples
    columns = (
        "decision",
        "adopt is",
        "accuracy",
        *(f"of {name.upper()}'s" for name in POOLED),
        "B3 opted out",
        "adopts",
    )
    rows: list[tuple[Cell, ...]] = []
    for name, mapping, actions, injecting in _decisions(study, samples.signals, samples.adopt, samples.actions):
        found = accuracy(samples, decides(actions, injecting=injecting))
        rows.append((name, mapping, found.overall, *found.of_system.values(), found.opted_out, found.adopted))
    best = ceiling(samples.signals, samples.adopt)
    rows.append(("any function of (M, R, A), at most", None, best, *(None for _ in POOLED), None, None))
    kinds = len(np.unique(samples.signals, axis=0))
    note = (
        f"{len(samples)} answers of B1, B2 and B3 to {len(np.unique(samples.questions))} questions, with {kinds}"
        f" distinct (M, R, A). Rows named after a gate are its equations on the signals alone. {_OF_RECORDED} Answers"
        " with the same signals may have contradictory labels, and no function of the signals agrees with both: at most"
        " Σ max(adopt, reject) / n over distinct signals, in-sample. The majority class is that of the same labels."
        f" {FAVOURED} With Supp as adopt, `paper` as it decided is right on B3's answers wherever they are safe, and"
        " wherever it opted out, whatever the memories were worth."
    )
    return Table(
        "accuracy", "Decision accuracy, the paper's oracle (Section 5.3)", columns, *_or_none(rows, note, len(samples))
    )


def paired_table(study: Study) -> Table:
    """The same under the oracle of B1 and B2 together, and what the actions lead to."""
    pairs = study.pairs
    telling, injected, answered = pairs.telling, safe_with(pairs), safe_without(pairs)
    rows: list[tuple[Cell, ...]] = []
    for name, mapping, actions, injecting in _decisions(study, pairs.signals, pairs.adopt[telling], recorded(study)):
        found = paired_accuracy(pairs, actions, injecting=injecting)
        rows.append((name, mapping, found.telling, found.best, found.harmless, found.opted_out, found.adopted))
    reached = ceiling(pairs.signals[telling], pairs.adopt[telling])
    best = ceiling(pairs.signals, injected, answered, ~injected)
    unharmed = ceiling(pairs.signals, injected, answered)
    rows.append(("any function of (M, R, A), at most", None, reached, best, unharmed, None, None))
    counts = composition(pairs)
    note = (
        f"{len(pairs)} pairs: both safe {counts[PairedOracle.BOTH_SAFE]}, only B1 {counts[PairedOracle.ONLY_B1]}, only"
        f" B2 {counts[PairedOracle.ONLY_B2]}, neither {counts[PairedOracle.NEITHER]}. Rows named after a gate are its"
        f" equations on the signals alone. {_OF_RECORDED} Accuracy is of the {int(telling.sum())} that make a"
        " difference. The next three are of all pairs and of the action, whichever are adopt. Best action: injecting"
        " where only B2 is safe, Silent or Opt-Out where only B1 is, Opt-Out where neither is, and all but Opt-Out"
        " where both are. Harmless: what the action leads to is safe, B2's answer of Active and Supp, B1's of Silent,"
        " and none of Opt-Out, which is always safe. The majority class is that of the"
        " pairs that make a difference, its reject B1's answer. The last row is in-sample; its harmless is of functions"
        " that always answer, since one that always abstains does no harm at all."
    )
    return Table(
        "accuracy_paired",
        "Decision accuracy, the oracle of B1 and B2 together",
        ("decision", "adopt is", "accuracy", "best action", "harmless", "opts out", "adopts"),
        *_or_none(rows, note, len(pairs)),
    )


def _decisions(
    study: Study, signals: NDArray[np.float64], labels: Bools, done: NDArray[np.int8] | None
) -> Iterator[tuple[str, str | None, NDArray[np.int8], bool]]:
    """Actions done in the run and those of every layer with both mappings, and the majority class of some labels.

    Each is a name, the mapping in words, actions, and whether all that inject are adopt.
    """
    taken = {name: actions_of(layer, signals) for name, layer in study.layers.items()}
    if done is not None:
        taken = {AS_DECIDED: done, **taken}
    for name, actions in taken.items():
        for mapping, injecting in MAPPINGS.items():
            yield name, mapping, actions, injecting
    most = majority(labels)
    one = Action.ACTIVE if most else Action.SILENT
    yield f"majority class: {'adopt' if most else 'reject'}", None, np.full(len(signals), one, np.int8), False


def _or_none(rows: list[tuple[Cell, ...]], note: str, n: int) -> tuple[tuple[tuple[Cell, ...], ...], str]:
    """The rows and their note; of no data none."""
    return (tuple(rows), note) if n else ((), "The run has no such answers.")


def _check(decided: NDArray[Any], n: int, name: str = "adopts") -> None:
    if decided.shape != (n,):
        raise ValueError(f"{name} must be ({n},), one for each row, got {decided.shape}")
