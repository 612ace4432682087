"""How much the signals tell of the oracle's action, in bits, with two estimators and a null (Table 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.evaluation.results import Rate
from mdl_torch.evaluation.statistics import RESAMPLES
from mdl_torch.evaluation.tables import Table

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.samples import Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.tables import Cell

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

SETS = ("M", "R", "A", "M+R", "M+A", "R+A", "M+R+A")
"""Signals that are read together."""

PAPER = dict(zip(SETS, (0.002, 0.012, 0.037, 0.015, 0.042, 0.050, 0.057), strict=True))
"""I in bits that the paper reports (Table 10)."""

PAPER_SYNERGY = {"M+R": 0.001, "M+A": 0.003, "R+A": 0.001, "M+R+A": 0.007}
"""Its synergy."""

BINS = 4
"""Of M and of R."""

NEIGHBOURS = 3
"""k of the second estimator."""

DRAWS = 20
"""Subsamples with one answer to each question that the second estimator is averaged over."""

JITTER = 1e-9
"""Half-width of the noise that parts equal signals, in standard deviations; signals are recorded to 1e-7."""

_NEAREST = 64  # neighbours that are sorted at first: nearly all rows have k of their own label among them


# ------------------------------------------------------------------------------------------------------- the estimators


def entropy(counts: ArrayLike) -> float:
    """H = −Σ p·log2 p in bits of the shares of counts; 0 of no counts.

    Example:
        >>> entropy([1, 1]), entropy([4, 0])
        (1.0, 0.0)
    """
    return float(_entropy(np.asarray(counts, np.float64).reshape(1, -1))[0])


def information(cells: ArrayLike, adopt: ArrayLike) -> float:
    """Plug-in I = Σ p(x, y)·log2(p(x, y) / (p(x)·p(y))) in bits of a discrete x and the oracle's action.

    Args:
        cells: Of each row, int ``(n,)``, n ≥ 1.
        adopt: Of each row, bool ``(n,)``.

    Example:
        >>> information([0, 0, 1, 1], [False, False, True, True])
        1.0
    """
    return float(_information(_counts(np.asarray(cells), np.asarray(adopt, bool))))


def binned(column: ArrayLike, bins: int | None = BINS) -> Ints:
    """The bin of each value, int ``(n,)``: bins hold as nearly equal numbers as ties, which stay together, allow.

    A value is put where its mid-rank falls among ``bins`` equal parts of the ranks.

    Args:
        column: Values, ``(n,)``.
        bins: How many at most, ≥ 1; None gives every value a bin of its own.

    Raises:
        ValueError: ``bins`` is less than 1.

    Example:
        >>> binned([0.1, 0.4, 0.2, 0.9], 2).tolist(), binned([0.2, 0.2, 0.2, 0.9], 2).tolist()
        ([0, 1, 0, 1], [0, 0, 0, 1])
    """
    if bins is not None and bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    _, place, many = np.unique(np.asarray(column, np.float64), return_inverse=True, return_counts=True)
    if bins is None:
        return place.astype(np.int64)
    middle = np.cumsum(many) - many / 2
    found: Ints = np.floor(bins * middle / max(many.sum(), 1)).astype(np.int64)[place]
    return found


def cells_of(signals: Floats, name: str, bins: int = BINS) -> Ints:
    """The cell of each row, numbered from 0, int ``(n,)``: M and R in bins, A by its values.

    Args:
        signals: M, R and A, ``(n, 3)``.
        name: One of ``SETS``.
        bins: Of M and of R.

    Example:
        >>> cells_of(np.array([[0.1, 0.5, 0.2], [0.9, 0.5, 0.2], [0.9, 0.5, 0.5]]), "M+A", 2).tolist()
        [0, 1, 2]
    """
    columns = [binned(signals[:, place], None if place == 2 else bins) for place in _places(name)]
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def nearest_information(
    points: ArrayLike, adopt: ArrayLike, *, k: int = NEIGHBOURS, jitter: float = JITTER, seed: int = 0
) -> float | None:
    """Ross's estimate of the information between a continuous x and the oracle's action, in bits; it may be below 0.

    I = ψ(n) + ψ(k) − ⟨ψ(n_y)⟩ − ⟨ψ(m)⟩ (Ross, PLoS ONE 9(2): e87357, 2014): n_y is how many rows have the label of a
    row, m how many rows are as near to it as the k-th nearest of its own label, in the largest difference of the
    columns, each in standard deviations. Labels of k rows or fewer are read with the k that they have; rows that are
    alone with their label are left out.

    Args:
        points: Of independent rows, ``(n, d)``.
        adopt: Of each row, bool ``(n,)``.
        k: At least 1.
        jitter: Half-width of the noise that parts rows with equal points, which have no order, in standard deviations.
        seed: Of the noise.

    Returns:
        None with fewer than two rows that have another of their label.

    Raises:
        ValueError: ``k`` is less than 1.

    Example:
        >>> apart = nearest_information(np.arange(100).reshape(-1, 1), np.arange(100) >= 50)
        >>> round(apart, 1)
        1.0
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    labels = np.asarray(adopt, bool)
    if len(labels) < 2:
        return None
    noise = np.random.default_rng(seed)
    return _nearest_information(_Neighbours.of(np.asarray(points, np.float64), jitter, noise), labels, k)


def synergy(found: dict[str, float]) -> dict[str, float]:
    """What signals tell together beyond what they tell apart, as the paper has it, in bits.

    Of pairs I(X+Y) − I(X) − I(Y); of all three I(M+R+A) less the largest of the pairs, which is more than 0 too where
    the third signal merely adds what it tells alone.

    Args:
        found: I of each of ``SETS``.

    Example:
        >>> {name: round(value, 3) for name, value in synergy(PAPER).items()}
        {'M+R': 0.001, 'M+A': 0.003, 'R+A': 0.001, 'M+R+A': 0.007}
    """
    pairs = [name for name in SETS if len(_places(name)) == 2]
    of = {name: found[name] - sum(found[part] for part in name.split("+")) for name in pairs}
    return {**of, SETS[-1]: found[SETS[-1]] - max(found[name] for name in pairs)}


# ---------------------------------------------------------------------------------------------------------- the samples


@dataclass(frozen=True)
class Null:
    """What an estimator finds where the signals tell nothing.

    Attributes:
        mean: Over permutations, in bits: the estimator's bias.
        p: (b + 1) / (n + 1), of which b of n permutations reach the figure.
    """

    mean: float
    p: float

    @classmethod
    def of(cls, value: float, drawn: ArrayLike) -> Null:
        """Of a figure and what permutations gave.

        Example:
            >>> Null.of(1.0, [0.0, 0.0, 1.0]).p
            0.5
        """
        under = np.asarray(drawn, np.float64)
        reached = int((under >= value - 1e-12).sum())  # sums of the same shares in another order differ by rounding
        return cls(float(under.mean()), (reached + 1) / (len(under) + 1))


@dataclass(frozen=True)
class SetInformation:
    """What a set of signals tells of the oracle's action, in bits.

    Attributes:
        name: One of ``SETS``.
        cells: That occur.
        plug_in: I over cells.
        corrected: I less the mean of its null, c, with the interval [c + ⟨I*⟩ − q97.5(I*), c + ⟨I*⟩ − q2.5(I*)] of a
            bootstrap over questions, whose I* are as much too large again; below 0 where there is nothing to see.
        null: Of ``plug_in``.
        nearest: I by nearest neighbours; None of too few answers.
        nearest_null: Its own.
        synergy: Of ``plug_in``; None of one signal.
        synergy_null: Its own.
    """

    name: str
    cells: int
    plug_in: float
    corrected: Rate
    null: Null
    nearest: float | None
    nearest_null: Null | None
    synergy: float | None
    synergy_null: Null | None


def informed(
    samples: Samples,
    *,
    bins: int = BINS,
    k: int = NEIGHBOURS,
    permutations: int = 999,
    nearest_permutations: int = 199,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[SetInformation]:
    """What each set of signals tells of the oracle's action.

    Answers to one question share its signals, and their labels hang together. So the null permutes questions: each
    gets the signals of another, and keeps its labels as they are, which leaves what its labels have in common; a null
    that permuted answers would have too small a bias, and call significant what a few questions happen to show. And
    nearest neighbours, which take rows as independent and would find the answers to the same question first, are
    sought among one answer to each question, drawn at random, and the estimate is the mean over ``DRAWS`` draws.

    Args:
        samples: Labelled answers, at least one.
        bins: Of M and of R.
        k: Of the nearest neighbours.
        permutations: Of the null of the plug-in estimator, at least 1.
        nearest_permutations: Of that of nearest neighbours, at least 1 and at most ``permutations``.
        resamples: Of the bootstrap.
        seed: Of all draws.

    Returns:
        One for each of ``SETS``, in their order.

    Example:
        >>> from mdl_torch.analysis.samples import Samples
        >>> decision = {"relevance": 0.8, "reliability": 0.5, "risk": 0.2, "action": "active"}
        >>> record = {"system": "b2", "seed": 0, "decision": decision, "injected": True, "outcome": "correct"}
        >>> samples = Samples.from_records({**record, "question_id": name} for name in "abc")
        >>> informed(samples)[-1].plug_in
        0.0
    """
    rng = np.random.default_rng(seed)
    blocks = _Blocks.grouped(samples.questions)
    cells = {name: cells_of(samples.signals, name, bins) for name in SETS}
    given = [rng.permutation(len(blocks)) for _ in range(permutations)]

    plain = {name: information(cells[name], samples.adopt) for name in SETS}
    under = [{n: information(cells[n][rows], samples.adopt) for n in SETS} for rows in map(blocks.donated, given)]
    drawn = _resampled(cells, samples.adopt, blocks, resamples, rng) if len(blocks) > 1 else None

    near, near_under = _nearest_of(samples, blocks, given[:nearest_permutations], k, rng)
    together, together_under = synergy(plain), [synergy(each) for each in under]

    def null_of(name: str) -> Null:
        return Null.of(plain[name], [each[name] for each in under])

    def corrected(name: str) -> Rate:
        n, asked, value = len(samples), len(blocks), plain[name] - null_of(name).mean
        if drawn is None:
            return Rate(value, None, None, "none", n, asked)
        low, high = drawn[name].mean() - np.quantile(drawn[name], (0.975, 0.025))
        return Rate(value, float(value + low), float(value + high), "bootstrap", n, asked)

    return [
        SetInformation(
            name=name,
            cells=len(np.unique(cells[name])),
            plug_in=plain[name],
            corrected=corrected(name),
            null=null_of(name),
            nearest=near.get(name),
            nearest_null=Null.of(near[name], [each[name] for each in near_under]) if near else None,
            synergy=together.get(name),
            synergy_null=Null.of(together[name], [each[name] for each in together_under]) if name in together else None,
        )
        for name in SETS
    ]


def information_tables(study: Study) -> tuple[Table, Table]:
    """Table 10: information of each signal set about the oracle's action.

    Args:
        study: Of a run.

    Returns:
        Over the answers that the paper pools, and over those of B1 and B2 alone, whose labels no controller had a part
        in.
    """
    title = "Information of the signals about the oracle's action, in bits (Table 10)"
    alone = "Information of the signals about the oracle's action, in bits, of the answers of B1 and B2 alone"
    return (
        _table("information", title, study.samples, "B1, B2 and B3", FAVOURED),
        _table("information_b1_b2", alone, study.samples.of("b1", "b2"), "B1 and B2"),
    )


# ------------------------------------------------------------------------------------------------------------ the parts


_COLUMNS = (
    "signals",
    "I",
    "I less null mean",
    "p",
    "I (nearest neighbours)",
    "null mean (nearest neighbours)",
    "p (nearest neighbours)",
    "synergy",
    "synergy less null mean",
    "p (synergy)",
    "I (paper)",
    "synergy (paper)",
)


def _table(name: str, title: str, samples: Samples, whose: str, remark: str = "") -> Table:
    """The information in these answers; the remark is the last of the note."""
    if not len(samples):
        return Table(name, title, _COLUMNS, (), f"There are no labelled answers of {whose}. {remark}".rstrip())
    found = informed(samples)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            each.name,
            each.plug_in,
            each.corrected,
            each.null.p,
            each.nearest,
            each.nearest_null.mean if each.nearest_null else None,
            each.nearest_null.p if each.nearest_null else None,
            each.synergy,
            each.synergy - each.synergy_null.mean if each.synergy is not None and each.synergy_null else None,
            each.synergy_null.p if each.synergy_null else None,
            PAPER[each.name],
            PAPER_SYNERGY.get(each.name),
        )
        for each in found
    )
    return Table(name, title, _COLUMNS, rows, f"{_note(samples, whose, found)} {remark}".rstrip())


def _note(samples: Samples, whose: str, found: list[SetInformation]) -> str:
    asked, levels = len(np.unique(samples.questions)), len(np.unique(samples.signals[:, 2]))
    most = entropy([samples.adopt.sum(), (~samples.adopt).sum()])
    return " ".join(
        (
            f"{len(samples)} labelled answers of {whose} to {asked} questions. The oracle says adopt of"
            f" {samples.adopt.mean():.1%}: its entropy, the most that could be told, is {most:.3f} bits.",
            f"I is the plug-in estimate over cells: M and R in up to {BINS} bins of as nearly equal numbers of answers"
            f" as ties allow, A by its values (here {levels}); all three fill {found[-1].cells} cells. The paper pools"
            " B1, B2 and B3; it states neither its estimator nor its bins.",
            "A plug-in estimate is too large, the more so the more cells there are and the more alike the answers to a"
            " question. The null permutes questions: each keeps its labels and gets the signals of another. Its mean is"
            " the bias where signals tell nothing, and p the share of permutations that reach the figure; p are not"
            " corrected for the seven sets. I less the null mean is what is left: below 0 where there is nothing to"
            " see, too small where signals tell much. Its interval is by bootstrap over questions.",
            f"Nearest neighbours: Ross (2014), k = {NEIGHBOURS}, signals in standard deviations, mean over {DRAWS}"
            " draws of one answer to each question, since the nearest to an answer would else be those to the same"
            f" question; equal signals are parted by noise of ±{JITTER:g} standard deviations. It may be below 0.",
            "Synergy: of pairs I(X+Y) − I(X) − I(Y); of all three I(M+R+A) less the largest of the pairs. It grows with"
            " the cells as I does: its null mean is its bias where signals tell nothing at all, and its p is against"
            " that.",
        )
    )


def _places(name: str) -> list[int]:
    return ["MRA".index(signal) for signal in name.split("+")]


def _counts(cells: Ints, adopt: Bools) -> Floats:
    """Rows of each cell and label, ``(cells, 2)``."""
    return np.bincount(cells * 2 + adopt, minlength=2 * (int(cells.max()) + 1)).astype(np.float64).reshape(-1, 2)


def _entropy(counts: Floats) -> Floats:
    """H of counts along the last axis."""
    total = counts.sum(axis=-1, keepdims=True)
    shares = counts / np.where(total > 0, total, 1)
    found: Floats = (shares * -np.log2(np.where(shares > 0, shares, 1))).sum(axis=-1)
    return found


def _information(counts: Floats) -> Floats:
    """Plug-in I = H(x) + H(y) − H(x, y) of counts ``(..., cells, 2)``."""
    joint = _entropy(counts.reshape(*counts.shape[:-2], -1))
    return np.maximum(_entropy(counts.sum(axis=-1)) + _entropy(counts.sum(axis=-2)) - joint, 0.0)


@dataclass(frozen=True)
class _Blocks:
    """The rows of each question.

    Attributes:
        of: Question of each row, ``(n,)``.
        turn: Which of its question's rows each is, ``(n,)``.
        rows: Of each question, ``(questions, most)``; over again where it has fewer than the most.
        sizes: Rows of each question.
    """

    of: Ints
    turn: Ints
    rows: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def grouped(cls, questions: NDArray[np.str_]) -> _Blocks:
        """Of the question of each row."""
        of, sizes = np.unique(questions, return_inverse=True, return_counts=True)[1:]
        rows = np.split(np.argsort(of, kind="stable"), np.cumsum(sizes)[:-1])
        turn = np.zeros(len(of), np.int64)
        for block in rows:
            turn[block] = np.arange(len(block))
        most = int(sizes.max(initial=0))
        return cls(of, turn, np.array([np.resize(block, most) for block in rows]), sizes)

    def donated(self, given: Ints) -> Ints:
        """The row whose signals each row gets where question i gets those of question ``given[i]``, ``(n,)``."""
        donors: Ints = self.rows[given[self.of], self.turn]
        return donors

    def one_each(self, rng: np.random.Generator) -> Ints:
        """A row of each question, drawn at random, ``(questions,)``."""
        drawn: Ints = self.rows[np.arange(len(self)), rng.integers(0, self.sizes)]
        return drawn


def _resampled(
    cells: dict[str, Ints], adopt: Bools, blocks: _Blocks, resamples: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Plug-in I of each set over bootstrap resamples of questions, each ``(resamples,)``."""
    tables = {}
    for name, column in cells.items():
        table = np.zeros((len(blocks), int(column.max()) + 1, 2))
        np.add.at(table, (blocks.of, column, adopt.astype(np.int64)), 1.0)
        tables[name] = table
    found: dict[str, list[Floats]] = {name: [] for name in cells}
    for start in range(0, resamples, 500):
        size = min(500, resamples - start)
        times = rng.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=size).astype(np.float64)
        for name, table in tables.items():
            found[name].append(_information((times @ table.reshape(len(blocks), -1)).reshape(size, -1, 2)))
    return {name: np.concatenate(parts) for name, parts in found.items()}


@dataclass(frozen=True)
class _Neighbours:
    """Points, no two alike, with the nearest neighbours of each, the nearest first.

    Attributes:
        points: ``(n, d)``.
        order: Of the nearest, ``(n, min(n − 1, _NEAREST))``.
    """

    points: Floats
    order: Ints

    @classmethod
    def of(cls, points: Floats, jitter: float, rng: np.random.Generator) -> _Neighbours:
        """Of points in standard deviations, parted by noise."""
        from scipy.spatial import cKDTree

        spread = points.std(axis=0)
        scaled = points / np.where(spread > 0, spread, 1) + rng.uniform(-jitter, jitter, points.shape)
        near = min(len(points), _NEAREST + 1)
        order = cKDTree(scaled).query(scaled, near, p=np.inf)[1].reshape(len(points), near)[:, 1:]
        return cls(scaled, order)

    def ranks(self, labels: Bools, k: Ints) -> Ints:
        """Which neighbour of each row is the k-th of its own label, ``(n,)``; k of each row, at least 1."""
        reached = (labels[self.order] == labels[:, None]).cumsum(axis=1) >= k[:, None]
        ranks: Ints = reached.argmax(axis=1) + 1
        for row in np.flatnonzero(~reached[:, -1]):
            distance = np.abs(self.points - self.points[row]).max(axis=1)
            distance[row] = np.inf
            own = np.sort(distance[labels == labels[row]])[k[row] - 1]
            ranks[row] = (distance <= own).sum()
        return ranks


def _nearest_information(near: _Neighbours, labels: Bools, k: int) -> float | None:
    from scipy.special import digamma

    n = len(labels)
    alike = np.where(labels, labels.sum(), n - labels.sum())
    paired = alike > 1
    if not paired.any():
        return None
    wanted = np.clip(alike - 1, 1, k)
    terms = digamma(n) + digamma(wanted) - digamma(alike) - digamma(near.ranks(labels, wanted))
    return float(terms[paired].mean() / np.log(2))


def _nearest_of(
    samples: Samples, blocks: _Blocks, given: list[Ints], k: int, rng: np.random.Generator
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """I of each set by nearest neighbours among one answer to each question, and the same under permutations."""
    sums, counted = np.zeros((1 + len(given), len(SETS))), 0
    for _ in range(DRAWS):
        rows = blocks.one_each(rng)
        labels, signals = samples.adopt[rows], samples.signals[rows]
        if len(rows) < 2 or (len(rows) == 2 and labels[0] != labels[1]):  # no answer has another of its label
            continue
        counted += 1
        for place, name in enumerate(SETS):
            near = _Neighbours.of(signals[:, _places(name)], JITTER, rng)
            for line, order in enumerate([np.arange(len(rows)), *given]):
                sums[line, place] += _nearest_information(near, labels[order], k) or 0.0
    if not counted:
        return {}, []
    found = [dict(zip(SETS, line, strict=True)) for line in (sums / counted).tolist()]
    return found[0], found[1:]
