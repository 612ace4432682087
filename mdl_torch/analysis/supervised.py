"""Supervised controllers beside the geometric ones, cross-validated by question on the oracle's labels (Table 7(b))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.evaluation.controllers import CONTROLLERS
from mdl_torch.evaluation.fitting import refit
from mdl_torch.evaluation.results import rate
from mdl_torch.evaluation.statistics import paired_difference
from mdl_torch.evaluation.tables import Table
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.samples import Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.tables import Cell

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

FOLDS = 5
"""Of the cross-validation."""

GEOMETRIC = ("paper", "certified", "ensemble")
"""Presets that are compared; the first is what all others are compared with."""

PAPER = {"paper": (0.612, "0"), "lr": (0.633, "~16"), "mlp": (0.630, "~3K"), "xgboost": (0.646, "~500")}
"""Accuracy and number of parameters that the paper reports (Table 7)."""

_NAMES = {
    "lr": "LR",
    "mlp": "MLP",
    "xgboost": "XGBoost",
    "tree": "tree of depth 3",
    "majority_class": "majority class",
    "rule": "rule M ≥ t, A < 0.7",
    **{name: f"MDL `{name}`" for name in GEOMETRIC},
}


class NoRangeError(ValueError):
    """The labelled signals leave a preset no range: their norms are all the same."""


@dataclass(frozen=True)
class Predicted:
    """What a controller says of rows that it was not fitted on.

    Attributes:
        adopt: Its decisions, bool ``(n,)``.
        probability: P(adopt), ``(n,)`` in [0, 1]; None of a geometric controller, which has none.
    """

    adopt: Bools
    probability: Floats | None

    def log_loss(self, labels: ArrayLike) -> float | None:
        """Mean of −log P(label), in nats; a probability of 0 counts as float64's ε, about 36 nats.

        Args:
            labels: Whether to adopt, bool ``(n,)``, n ≥ 1.

        Example:
            >>> round(Predicted(np.array([True]), np.array([0.5])).log_loss([True]), 4)
            0.6931
        """
        if self.probability is None:
            return None
        given = np.where(np.asarray(labels, bool), self.probability, 1 - self.probability)
        return float(-np.log(np.maximum(given, np.finfo(np.float64).eps)).mean())

    def brier(self, labels: ArrayLike) -> float | None:
        """Mean of (P − label)².

        Args:
            labels: Whether to adopt, bool ``(n,)``, n ≥ 1.

        Example:
            >>> Predicted(np.array([True]), np.array([0.5])).brier([True])
            0.25
        """
        if self.probability is None:
            return None
        return float(((self.probability - np.asarray(labels, np.float64)) ** 2).mean())


def folds(groups: ArrayLike, count: int = FOLDS, *, seed: int = 0) -> Ints:
    """The fold of each row, ``(n,)`` in [0, count): groups are shuffled and dealt out, all rows of one together.

    With every row a group of its own these are the folds of an ordinary cross-validation.

    Args:
        groups: Of each row, ``(n,)``.
        count: At least 2 and at most as many as there are groups.
        seed: Of the shuffle.

    Raises:
        ValueError: There are too few groups, or fewer than two folds.

    Example:
        >>> of = folds(["a", "a", "b", "b"], 2)
        >>> sorted(of.tolist()), of[0] == of[1], of[2] == of[3]
        ([0, 0, 1, 1], np.True_, np.True_)
    """
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    if not 2 <= count <= len(names):
        raise ValueError(f"count must be from 2 to the number of groups, {len(names)}, got {count}")
    dealt: Ints = np.random.default_rng(seed).permutation(np.arange(len(names), dtype=np.int64) % count)[place]
    return dealt


def predict(name: str, signals: Floats, adopt: Bools, unseen: Floats) -> Predicted:
    """A controller fitted on labelled signals, applied to others.

    Args:
        name: One of ``CONTROLLERS``, or a preset of the memory decision layer, whose thresholds, and whose range where
            it is fitted, are those of the labelled signals; Active adopts, all else rejects.
        signals: M, R and A of the labelled rows, ``(n, 3)``, n ≥ 1.
        adopt: Their labels, bool ``(n,)``; if all are alike, a learned controller is constant.
        unseen: M, R and A of the others, ``(m, 3)``.

    Raises:
        NoRangeError: A preset finds no range in the labelled signals.
        ValueError: Signals are not in [0, 1].
        ImportError: A learned controller's library is not installed.

    Example:
        >>> rows = np.array([[0.2, 0.5, 0.2], [0.9, 0.5, 0.2]])
        >>> predict("paper", rows, np.array([False, True]), rows).adopt.tolist()
        [False, True]
    """
    if name in CONTROLLERS:
        learned = CONTROLLERS[name]().fit(signals, adopt)
        return Predicted(learned.adopts(unseen), learned.probability(unseen))
    layer = _refitted(name, signals, adopt)
    rows = torch.as_tensor(unseen, dtype=torch.float64)
    return Predicted(layer(*rows.unbind(-1)).action.numpy() == Action.ACTIVE, None)


def out_of_fold(name: str, signals: Floats, adopt: Bools, fold: Ints) -> Predicted:
    """What a controller says of each row when it is fitted on the rows of all other folds; see ``predict``.

    Args:
        name: Of the controller.
        signals: M, R and A, ``(n, 3)``.
        adopt: The labels, bool ``(n,)``.
        fold: Of each row, ``(n,)``.

    Raises:
        ValueError: As ``predict`` does.
        ImportError: As ``predict`` does.

    Example:
        >>> rows, labels = np.full((4, 3), 0.5), np.array([True, True, False, False])
        >>> out_of_fold("majority_class", rows, labels, np.array([0, 0, 1, 1])).adopt.tolist()
        [False, False, True, True]
    """
    decided = np.zeros(len(adopt), np.bool_)
    chances: Floats | None = np.zeros(len(adopt))
    for held in np.unique(fold):
        test = fold == held
        said = predict(name, signals[~test], adopt[~test], signals[test])
        decided[test] = said.adopt
        if said.probability is None or chances is None:
            chances = None
        else:
            chances[test] = said.probability
    return Predicted(decided, chances)


def parameters(name: str, signals: Floats, adopt: Bools) -> int:
    """How many numbers a controller takes from labelled signals.

    Of a preset with a fitted range n_min, n_max and θ0; of one whose range is exact θ0 alone. θ1 and θ2 follow from θ0.

    Example:
        >>> rows = np.array([[0.2, 0.5, 0.2], [0.9, 0.5, 0.2]])
        >>> [parameters(name, rows, np.array([False, True])) for name in ("lr", "paper", "certified")]
        [4, 3, 1]
    """
    if name in CONTROLLERS:
        return CONTROLLERS[name]().fit(signals, adopt).parameters
    fitted = _refitted(name, signals, adopt)
    return 1 if fitted.config.norm_range is None else 3


def _refitted(name: str, signals: Floats, adopt: Bools) -> MemoryDecisionLayer:
    try:
        return refit(MemoryDecisionLayer.from_preset(name), signals, adopt)
    except ValueError as error:
        if str(error).startswith("norms must"):  # of `fit_norm_range`, which has no error of its own for it
            raise NoRangeError(str(error)) from error
        raise


@dataclass(frozen=True)
class Validated:
    """A controller under cross-validation.

    Attributes:
        name: Of the controller.
        grouped: Out-of-fold decisions where the answers to one question are in one fold.
        ungrouped: Where they are in any.
        parameters: Numbers that it takes from all rows.
    """

    name: str
    grouped: Predicted
    ungrouped: Predicted
    parameters: int


def validate(samples: Samples, *, count: int = FOLDS, seed: int = 0) -> tuple[list[Validated], dict[str, str]]:
    """Every controller under cross-validation, with folds by question and without.

    Args:
        samples: Labelled answers to ``count`` questions or more.
        count: Folds.
        seed: Of the folds.

    Returns:
        Controllers, and of those that could not be fitted the reason: a fold leaves no range, a library is missing.

    Raises:
        ValueError: There are fewer questions than folds.

    Example:
        >>> from mdl_torch.analysis.samples import Samples
        >>> validate(Samples.from_records([]))
        Traceback (most recent call last):
        ValueError: count must be from 2 to the number of groups, 0, got 5
    """
    by_question, by_answer = (
        folds(groups, count, seed=seed) for groups in (samples.questions, np.arange(len(samples)))
    )
    done, failed = [], {}
    for name in (*GEOMETRIC, *CONTROLLERS):
        try:
            done.append(
                Validated(
                    name,
                    out_of_fold(name, samples.signals, samples.adopt, by_question),
                    out_of_fold(name, samples.signals, samples.adopt, by_answer),
                    parameters(name, samples.signals, samples.adopt),
                )
            )
        except (NoRangeError, ImportError) as error:
            failed[name] = str(error)
    return done, failed


def supervised_tables(study: Study) -> tuple[Table, Table]:
    """Table 7(b): supervised and geometric controllers, cross-validated on the oracle's labels.

    Args:
        study: Of a run.

    Returns:
        Over the answers that the paper pools, and over those of B1 and B2 alone, whose labels no controller had a part
        in: fitted on those, and tested on those.
    """
    title = "Supervised and geometric controllers, cross-validated (Table 7b)"
    alone = "Supervised and geometric controllers, cross-validated on the answers of B1 and B2 alone"
    return (
        _table("supervised", title, study.samples, "B1, B2 and B3", FAVOURED),
        _table("supervised_b1_b2", alone, study.samples.of("b1", "b2"), "B1 and B2"),
    )


def _table(name: str, title: str, samples: Samples, whose: str, remark: str = "") -> Table:
    """All controllers on these answers; the remark is the last of the note."""
    questions = samples.questions.tolist()
    asked = len(set(questions))
    count = min(FOLDS, asked)
    rows: list[tuple[Cell, ...]] = []
    if count < 2:
        note = f"Cross-validation by question needs two questions with labelled answers; there are {asked}."
        return Table(name, title, _COLUMNS, (), f"{note} {remark}".rstrip())
    done, failed = validate(samples, count=count)
    hits = {each.name: _hits(each.grouped, samples) for each in done}
    reference = hits.get(GEOMETRIC[0])
    for each in done:
        strayed, hit = _hits(each.ungrouped, samples), hits[each.name]
        compared = each.name != GEOMETRIC[0] and reference is not None
        accuracy, numbers = PAPER.get(each.name, (None, None))
        rows.append(
            (
                _NAMES[each.name],
                rate(hit, np.ones(len(hit)).tolist(), questions),
                paired_difference(hit, reference, questions) if compared and reference else None,
                each.grouped.log_loss(samples.adopt),
                each.grouped.brier(samples.adopt),
                rate(strayed, np.ones(len(hit)).tolist(), questions),
                paired_difference(strayed, hit, questions),
                each.parameters,
                accuracy,
                numbers,
            )
        )
    return Table(name, title, _COLUMNS, tuple(rows), f"{_note(samples, whose, count, failed)} {remark}".rstrip())


_COLUMNS = (
    "controller",
    "accuracy",
    "minus `paper`",
    "log-loss",
    "Brier score",
    "accuracy, ungrouped folds",
    "ungrouped minus grouped",
    "parameters",
    "accuracy (paper)",
    "parameters (paper)",
)


def _hits(predicted: Predicted, samples: Samples) -> list[float]:
    return [float(right) for right in predicted.adopt == samples.adopt]


def _note(samples: Samples, whose: str, count: int, failed: dict[str, str]) -> str:
    asked = len(set(samples.questions.tolist()))
    parts = [
        f"{len(samples)} labelled answers of {whose} to {asked} questions; the oracle says adopt of"
        f" {samples.adopt.mean():.1%}. {count} folds, dealt at random with a fixed seed (as GroupKFold does when it"
        " shuffles); each row is decided by a controller that was fitted on the other folds, the thresholds of MDL, and"
        " the range of `paper`, among the rest. Active is adopt, all other actions are reject; intervals are by"
        " bootstrap over questions.",
        "Grouped folds keep all answers to a question together. Ungrouped ones put"
        " answers to one question, which share M, R and A, into training and test: a controller that can tell questions"
        " apart then recalls the labels of the other answers, which the signals of a new question do not give it. That"
        " helps where seeds agree and hurts where B1 and B2 are labelled the other way round.",
        "Log-loss is in nats; MDL gives no probability. Parameters are the numbers fitted on all rows: of MDL θ0, and"
        " n_min and n_max where the range is fitted (the ranges of `certified` and `ensemble` are exact); the paper"
        " counts 0, pools B1, B2 and B3, and calibrated its MDL on a separate split, not by cross-validation.",
    ]
    if samples.adopt.all() or not samples.adopt.any():
        parts.append("All labels are the same: the learned controllers are constant.")
    if count < FOLDS:
        parts.append(f"There are fewer questions than {FOLDS}, and so as many folds as questions.")
    parts += [f"{_NAMES[name]} could not be fitted: {reason}." for name, reason in failed.items()]
    return " ".join(parts)
