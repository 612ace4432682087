"""Supervised controllers: from the three signals to adopt or reject, learned from the oracle's labels (Table 7(b)).

What the paper compares its controller with: logistic regression, a small network and boosted trees; beside them the
larger class, a tree that fits on a page, and a rule of one number. Each sees (M, R, A) and nothing else, as the memory
decision layer does, so that it can be no better than the signals are: B1 and B2 of one question share theirs, and their
labels contradict each other wherever it makes no difference which of them answers.
"""

from __future__ import annotations

import importlib
import math
import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from mdl_torch.risk import HIGH_RISK, RISK_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

SIGNALS = ("M", "R", "A")
"""Columns of the signals: relevance, reliability, risk."""

EARLY_STOPPING_ROWS = 20
"""Fewest rows of which the network sets a tenth aside to stop by: two of them."""

NEVER = math.nextafter(1.0, 2.0)
"""The rule's t that no relevance reaches."""


class Controller(ABC):
    """A classifier of signals, after ``fit``.

    A fit depends on the rows and not on their order, and comes out the same every time, with any number of threads. If
    all labels are the same, every controller is constant: P is 1 or 0, and nothing of the method is fitted.

    Attributes:
        name: In ``CONTROLLERS``, tables and records.
        settings: All that is set by hand, as plain JSON values.
    """

    name: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}
    _constant: float | None = None
    _fitted = False

    def fit(self, signals: ArrayLike, adopt: ArrayLike) -> Self:
        """Learn from labelled signals, and forget what was learned before.

        Args:
            signals: (M, R, A) of n rows, ``(n, 3)`` in [0, 1].
            adopt: What the oracle says of each, bool ``(n,)``.

        Returns:
            Itself.

        Raises:
            TypeError: ``adopt`` holds something other than truth values.
            ValueError: There are no rows, lengths differ, or a signal is not finite or out of range.
            ImportError: The method's library is not installed.
        """
        rows, labels = check_signals(signals), np.asarray(adopt)
        if not len(rows):
            raise ValueError("signals must have at least one row, got none")
        if labels.shape != (len(rows),):
            raise ValueError(f"adopt must be ({len(rows)},), one for each row of signals, got {labels.shape}")
        if labels.dtype != np.bool_:
            raise TypeError(f"adopt must be truth values, got {labels.dtype}")
        self._fitted = False
        order = np.lexsort((labels, *rows.T[::-1]))
        self._constant = float(labels[0]) if labels.all() or not labels.any() else None
        if self._constant is None:
            self._fit(rows[order], labels[order])
        self._fitted = True
        return self

    def probability(self, signals: ArrayLike) -> Floats:
        """P(adopt) of n rows, ``(n,)`` in [0, 1].

        Args:
            signals: (M, R, A), ``(n, 3)`` in [0, 1]; n may be 0.

        Raises:
            RuntimeError: It is not fitted.
            ValueError: A signal is not finite or out of range.
        """
        rows = self._rows(signals)
        if self._constant is not None or not len(rows):
            return np.full(len(rows), self._constant, np.float64)
        return self._probability(rows)

    def adopts(self, signals: ArrayLike) -> Bools:
        """Which of n rows are adopted, ``(n,)``: those of P(adopt) ≥ 0.5.

        Args:
            signals: As for ``probability``.

        Raises:
            RuntimeError: It is not fitted.
            ValueError: A signal is not finite or out of range.
        """
        return self.probability(signals) >= 0.5

    @property
    def parameters(self) -> int:
        """How many numbers that its decisions rest on are fitted; 1 if it is constant.

        Weights, thresholds and the values of leaves; which signal a tree splits by is not counted.

        Raises:
            RuntimeError: It is not fitted.
        """
        self._check_fitted()
        return 1 if self._constant is not None else self._parameters()

    @property
    def learned(self) -> dict[str, Any]:
        """What an auditor reads of the fit, as plain JSON values.

        Raises:
            RuntimeError: It is not fitted.
        """
        self._check_fitted()
        return {"constant": self._constant} if self._constant is not None else self._learned()

    @property
    def library(self) -> str:
        """The library that fits it, with its version; empty if none does."""
        return ""

    def _rows(self, signals: ArrayLike) -> Floats:
        self._check_fitted()
        return check_signals(signals)

    def _check_fitted(self) -> None:
        if not self._fitted:
            raise RuntimeError(f"controller {self.name!r} is not fitted: call fit(signals, adopt) first")

    @abstractmethod
    def _fit(self, signals: Floats, adopt: Bools) -> None:
        """On rows of both classes, sorted."""

    @abstractmethod
    def _probability(self, signals: Floats) -> Floats:
        """Of at least one row."""

    @abstractmethod
    def _parameters(self) -> int: ...

    @abstractmethod
    def _learned(self) -> dict[str, Any]: ...


class MajorityClass(Controller):
    """The same for all: P is the share of adopt among the labels. A tie adopts.

    Example:
        >>> majority = MajorityClass().fit([[0.9, 0.8, 0.2]] * 4, [True, False, False, False])
        >>> majority.probability([[0.1, 0.1, 0.1]]).tolist(), majority.adopts([[0.1, 0.1, 0.1]]).tolist()
        ([0.25], [False])
    """

    name = "majority_class"

    def _fit(self, signals: Floats, adopt: Bools) -> None:
        self._share = float(adopt.mean())

    def _probability(self, signals: Floats) -> Floats:
        return np.full(len(signals), self._share)

    def _parameters(self) -> int:
        return 1

    def _learned(self) -> dict[str, Any]:
        return {"share of adopt": self._share}


class Rule(Controller):
    """Adopt if M ≥ t and A < 0.7, with the t that agrees most with the labels.

    t is 0, halfway between two neighbouring values of M among the rows with A < 0.7, or above 1, where nothing is
    adopted. Of equally good ones it is the smallest, so that a tie adopts, as P = 0.5 does elsewhere. Without a row of
    A < 0.7, t is 0 if at least half of the labels say adopt, else above 1.

    The rule decides, and P only scores: it is the share of adopt among the training rows on the same side of the rule,
    or among all if there are none. What the rule adopts has P ≥ 0.5, but it rejects at A ≥ 0.7 whatever P is, even if
    all labels say adopt.

    Example:
        >>> rule = Rule().fit([[0.2, 0.5, 0.1], [0.6, 0.5, 0.1], [0.8, 0.5, 0.1]], [False, True, True])
        >>> rule.learned["t"], rule.adopts([[0.5, 0.5, 0.1], [0.5, 0.5, 0.9]]).tolist()
        (0.4, [True, False])
    """

    name = "rule"
    settings: ClassVar[dict[str, Any]] = {"adopt": f"M >= t and A < {HIGH_RISK}"}

    def adopts(self, signals: ArrayLike) -> Bools:
        """Which of n rows the rule adopts, ``(n,)``."""
        rows = self._rows(signals)
        if self._constant is not None:
            return _low_risk(rows) & bool(self._constant)
        return self._side(rows)

    def _fit(self, signals: Floats, adopt: Bools) -> None:
        relevance, low, share = signals[:, 0], _low_risk(signals), float(adopt.mean())
        values = np.unique(relevance[low])
        grid = [0.0, *((values[:-1] + values[1:]) / 2).tolist(), NEVER]
        if not len(values):
            grid = [0.0 if share >= 0.5 else NEVER]
        self._t = max(grid, key=lambda t: int((((relevance >= t) & low) == adopt).sum()))  # the first of the best
        side = self._side(signals)
        self._shares = {
            taken: float(adopt[side == taken].mean()) if taken in side else share for taken in (True, False)
        }

    def _side(self, signals: Floats) -> Bools:
        relevant: Bools = signals[:, 0] >= self._t
        return relevant & _low_risk(signals)

    def _probability(self, signals: Floats) -> Floats:
        return np.where(self._side(signals), self._shares[True], self._shares[False])

    def _parameters(self) -> int:
        return 1

    def _learned(self) -> dict[str, Any]:
        return {
            "t": self._t,
            "share of adopt where it adopts": self._shares[True],
            "share of adopt where it rejects": self._shares[False],
        }


class _Estimator(Controller):
    """One whose fit is a library's, with the interface of scikit-learn."""

    _model: Any
    _module: ClassVar[str] = "sklearn"
    _package: ClassVar[str] = "scikit-learn"

    @property
    def library(self) -> str:
        """The library that fits it, with its version.

        Raises:
            ImportError: It is not installed.
        """
        return f"{self._package} {self._load(self._module).__version__}"

    def _load(self, module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"controller {self.name!r} needs {self._package}: pip install mdl_torch[evaluate]"
            ) from error

    def _fit(self, signals: Floats, adopt: Bools) -> None:
        self._model = self._estimator(adopt)
        with self._load("threadpoolctl").threadpool_limits(1):  # the order of sums depends on the number of threads
            self._model.fit(signals, adopt.astype(np.int64))

    def _probability(self, signals: Floats) -> Floats:
        return np.asarray(self._model.predict_proba(signals)[:, 1], np.float64)

    @abstractmethod
    def _estimator(self, adopt: Bools) -> Any:
        """Not fitted, for these labels."""


class LogisticRegression(_Estimator):
    """P = σ(w·(M, R, A) + b), of the w and b with the least Σ log-loss · C + ‖w‖²/2; b is not penalised.

    The signals are taken as they are, not standardised. The optimum is unique, and found to about 1e-8.

    Example:
        >>> lr = LogisticRegression().fit([[0.1, 0.5, 0.2], [0.9, 0.5, 0.2]], [False, True])
        >>> lr.parameters, lr.adopts([[0.2, 0.5, 0.2], [0.8, 0.5, 0.2]]).tolist()
        (4, [False, True])
    """

    name = "lr"
    settings: ClassVar[dict[str, Any]] = {"C": 1.0, "solver": "newton-cholesky", "tol": 1e-8, "max_iter": 1000}

    def _estimator(self, adopt: Bools) -> Any:
        return self._load("sklearn.linear_model").LogisticRegression(**self.settings)

    def _parameters(self) -> int:
        return int(self._model.coef_.size + self._model.intercept_.size)

    def _learned(self) -> dict[str, Any]:
        return {
            "coefficients": dict(zip(SIGNALS, self._model.coef_[0].tolist(), strict=True)),
            "intercept": float(self._model.intercept_[0]),
        }


class MLP(_Estimator):
    """A network of two hidden layers, 64 and 32 wide, with ReLU: at most 500 passes, stopped early.

    Early stopping sets a tenth of the rows aside, and ends after ten passes without a better accuracy on them, with the
    weights of the best. Few rows are a coarse measure: of 40 they are 4, and the network may stop hardly trained. Below
    ``EARLY_STOPPING_ROWS`` rows, or with fewer than two rows of a class, there is nothing to set aside, and it ends
    when the training loss stalls. ``learned`` says how many passes it made and whether they ended by themselves.

    Example:
        >>> mlp = MLP().fit([[0.1, 0.5, 0.2], [0.9, 0.5, 0.2]] * 5, [False, True] * 5)
        >>> mlp.parameters, mlp.learned["early stopping"]
        (2369, False)
    """

    name = "mlp"
    settings: ClassVar[dict[str, Any]] = {
        "hidden_layer_sizes": [64, 32],
        "activation": "relu",
        "max_iter": 500,
        "early_stopping": True,
        "validation_fraction": 0.1,
        "random_state": 0,
    }

    def _estimator(self, adopt: Bools) -> Any:
        enough = len(adopt) >= EARLY_STOPPING_ROWS and 2 <= adopt.sum() <= len(adopt) - 2
        network = self._load("sklearn.neural_network").MLPClassifier
        return network(**{**self.settings, "early_stopping": bool(enough)})

    def _fit(self, signals: Floats, adopt: Bools) -> None:
        with warnings.catch_warnings():  # that it did not converge is said in what it learned
            warnings.simplefilter("ignore", self._load("sklearn.exceptions").ConvergenceWarning)
            super()._fit(signals, adopt)

    def _parameters(self) -> int:
        return sum(weights.size for weights in (*self._model.coefs_, *self._model.intercepts_))

    def _learned(self) -> dict[str, Any]:
        return {
            "passes": int(self._model.n_iter_),
            "ended by itself": bool(self._model.n_iter_ < self._model.max_iter),
            "early stopping": self._model.early_stopping,
        }


class XGBoost(_Estimator):
    """100 boosted trees of at most four splits from root to leaf; it reads signals as float32.

    Its parameters are the thresholds and leaf values of all trees, and the log-odds that they start from.

    Example:
        >>> trees = XGBoost().fit([[0.1, 0.5, 0.2], [0.9, 0.5, 0.2]] * 10, [False, True] * 10)
        >>> trees.learned["trees"], trees.adopts([[0.1, 0.5, 0.2], [0.9, 0.5, 0.2]]).tolist()
        (100, [False, True])
    """

    name = "xgboost"
    settings: ClassVar[dict[str, Any]] = {
        "n_estimators": 100,
        "max_depth": 4,
        "tree_method": "hist",
        "device": "cpu",
        "n_jobs": 1,
        "random_state": 0,
        "verbosity": 0,
    }
    _module = "xgboost"
    _package = "xgboost"

    def _estimator(self, adopt: Bools) -> Any:
        return self._load("xgboost").XGBClassifier(**self.settings)

    def _parameters(self) -> int:
        splits, leaves = self._counted()
        return splits + leaves + 1

    def _learned(self) -> dict[str, Any]:
        splits, leaves = self._counted()
        return {"trees": self._model.get_booster().num_boosted_rounds(), "splits": splits, "leaves": leaves}

    def _counted(self) -> tuple[int, int]:
        """Splits and leaves of all trees."""
        trees = self._model.get_booster().get_dump()
        return sum(tree.count("yes=") for tree in trees), sum(tree.count("leaf=") for tree in trees)


class Tree(_Estimator):
    """A decision tree of depth 3, which ``learned`` has in words; it reads signals as float32.

    P is the share of adopt among the training rows of the leaf.

    Example:
        >>> tree = Tree().fit([[0.1, 0.5, 0.2], [0.9, 0.5, 0.2]], [False, True])
        >>> print(tree.learned["tree"][0])
        |--- M <= 0.50
    """

    name = "tree"
    settings: ClassVar[dict[str, Any]] = {"max_depth": 3, "random_state": 0}

    def _estimator(self, adopt: Bools) -> Any:
        return self._load("sklearn.tree").DecisionTreeClassifier(**self.settings)

    def _parameters(self) -> int:
        return int(self._model.tree_.node_count)  # each node has a threshold or a leaf's value

    def _learned(self) -> dict[str, Any]:
        text = self._load("sklearn.tree").export_text(
            self._model, feature_names=list(SIGNALS), class_names=["reject", "adopt"]
        )
        return {
            "depth": int(self._model.get_depth()),
            "leaves": int(self._model.get_n_leaves()),
            "tree": text.splitlines(),
        }


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    kind.name: kind for kind in (LogisticRegression, MLP, XGBoost, Tree, MajorityClass, Rule)
}
"""Every controller by its name, not fitted."""


def check_signals(signals: ArrayLike) -> Floats:
    """Signals as float64 ``(n, 3)``.

    Raises:
        ValueError: They have another shape, or one is not finite or outside of [0, 1]; the first such is named.

    Example:
        >>> check_signals([[0.5, 0.5, 1.2]])
        Traceback (most recent call last):
        ValueError: signals must be in [0, 1], got A = 1.2 in row 0
    """
    try:
        rows = np.asarray(signals, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"signals must be (n, 3) numbers, the columns M, R and A: {error}") from error
    if rows.shape == (0,):
        rows = rows.reshape(0, len(SIGNALS))
    if rows.ndim != 2 or rows.shape[1] != len(SIGNALS):
        raise ValueError(f"signals must be (n, 3), the columns M, R and A, got {rows.shape}")
    for row, column in np.argwhere(~((rows >= 0) & (rows <= 1)))[:1]:
        raise ValueError(f"signals must be in [0, 1], got {SIGNALS[column]} = {rows[row, column]:g} in row {row}")
    return rows


def _low_risk(signals: Floats) -> Bools:
    low: Bools = signals[:, 2] < HIGH_RISK - RISK_TOLERANCE
    return low
