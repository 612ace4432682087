"""Calibrates a controller on the outcomes of a calibration split (Section 3.4)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mdl_torch.calibration import (
    Calibration,
    bootstrap_action_mix,
    config_digest,
    fit_norm_range,
    fit_thresholds,
)
from mdl_torch.certificate import SHIPPED_CERTIFICATES
from mdl_torch.evaluation.oracle import labelled, signals_of
from mdl_torch.outputs import Action
from mdl_torch.risk import HIGH_RISK

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from mdl_torch.layer import MemoryDecisionLayer


def fit_calibration(
    records: Sequence[dict[str, Any]],
    layer: MemoryDecisionLayer,
    *,
    name: str,
    range_method: str = "minmax",
) -> Calibration:
    """Range and thresholds from the B1 and B2 records of a calibration split.

    n_min and n_max are those of the norms of the split's signals. θ0 is the threshold whose Active agrees most with
    the oracle, which says adopt where the memories helped: where B2, with memories, was safe, and where B1, without,
    hallucinated.

    Args:
        records: Of ``mdl evaluate``, of B1 and B2 on the same questions.
        layer: The controller; its own range and thresholds play no part.
        name: Of the calibration.
        range_method: ``minmax`` or ``quantile(q)``. Presets whose order is proved keep the exact range.

    Raises:
        ValueError: There are no records of B1 and B2, or their signals leave no range.
    """
    used, adopt = labelled(records)
    signals = torch.tensor([signals_of(record) for record in used], dtype=torch.float64)
    asked = {r["question_id"]: signals_of(r) for r in records if r["system"] in ("b1", "b2")}
    once = torch.tensor(list(asked.values()), dtype=torch.float64)
    bare = layer.uncalibrated()
    norms = _norms(bare, once)
    norm_range = _range(bare, norms, range_method)
    thresholds = fit_thresholds(bare.ranged(norm_range)(*signals.unbind(-1)).gated_confidence.numpy(), adopt)
    final = bare.ranged(norm_range, thresholds)
    mix = _action_mix(final, once, norms, range_method, fitted=norm_range is not None)
    top = once[:, 2].numpy() >= HIGH_RISK
    decided = final(*signals.unbind(-1)).action.numpy()
    agreement = float(np.mean((decided == Action.ACTIVE) == np.array(adopt)))
    gate = used[0]["gate"]
    return Calibration(
        name=name,
        norm_range=norm_range,
        thresholds=thresholds,
        range_method="exact" if norm_range is None else range_method,
        threshold_method="grid search of θ0 against the oracle of B1 and B2; θ1, θ2 below it",
        config=config_digest(bare.config),
        basis=bare.basis,
        encoder=gate["encoder"],
        detector=gate["detector"],
        dataset=f"{used[0]['data']} sha256:{used[0]['revision'][:12]}",
        samples=len(once),
        signals=tuple(tuple(row) for row in once.tolist()),
        action_mix=mix,
        action_mix_top_risk=_action_mix(final, once, norms, range_method, fitted=norm_range is not None, within=top)
        if top.any()
        else {},
        provenance={
            "agreement with the oracle": round(agreement, 4),  # on the split that it was fitted on
            "share of adopt": round(float(np.mean(adopt)), 4),
            "actions reachable": reachable(final),
            "model": used[0]["model"],
            "questions": list(asked),
        },
    )


def refit(layer: MemoryDecisionLayer, signals: ArrayLike, adopt: ArrayLike) -> MemoryDecisionLayer:
    """The layer with range and thresholds of labelled signals, as ``fit_calibration`` fits them, without a record.

    Args:
        layer: Its own range and thresholds play no part. A preset whose order is proved keeps the exact range.
        signals: M, R and A, ``(n, 3)``.
        adopt: What the oracle says, bool ``(n,)``.

    Raises:
        ValueError: There are no rows, lengths differ, or the signals leave no range.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> fitted = refit(MemoryDecisionLayer(), [[0.9, 0.9, 0.2], [0.2, 0.2, 0.9]], [True, False])
        >>> fitted(*torch.tensor([[0.9, 0.9, 0.2], [0.2, 0.2, 0.9]]).unbind(-1)).action.tolist()
        [0, 3]
    """
    rows = torch.as_tensor(np.asarray(signals), dtype=torch.float64)
    bare = layer.uncalibrated()
    norm_range = _range(bare, _norms(bare, rows), "minmax")
    gated = bare.ranged(norm_range)(*rows.unbind(-1)).gated_confidence.numpy()
    return bare.ranged(norm_range, fit_thresholds(gated, adopt))


def calibration_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The B1 and B2 records of a run's calibration split, each once.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The run has no calibration split: its calibration was given.
    """
    path = Path(folder)
    if not (path / "experiment.json").is_file():
        raise FileNotFoundError(f"{folder} holds no run: experiment.json is missing")
    try:
        keys = json.loads((path / "experiment.json").read_text("utf-8"))["calibration_keys"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / 'experiment.json'} describes no run: {error!r}") from error
    if not keys:
        raise ValueError(f"the run in {folder} has no calibration split: its calibration was given")
    found = {}
    for line in (path / "answers.jsonl").read_bytes().splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that a kill cut, or garbage
            record = json.loads(line)
            found[record["key"]] = record
    if missing := [key for key in keys if key not in found]:
        raise ValueError(f"{len(missing)} of {len(keys)} answers of the calibration split are missing in {folder}")
    return [found[key] for key in keys]


def reachable(layer: MemoryDecisionLayer) -> dict[str, bool]:
    """Whether each action is taken somewhere on a 41-point grid of the cube of signals.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> reachable(MemoryDecisionLayer())
        {'active': True, 'supp': True, 'silent': True, 'opt_out': True}
    """
    axis = torch.linspace(0.0, 1.0, 41, dtype=torch.float64)
    taken = set(layer(*torch.cartesian_prod(axis, axis, axis).unbind(-1)).action.tolist())
    return {action.label: int(action) in taken for action in Action}


def _norms(bare: MemoryDecisionLayer, signals: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    norms: np.ndarray[Any, np.dtype[np.float64]]
    norms = bare.trust(*signals.unbind(-1)).norm.reshape(len(signals), -1).mean(dim=-1).numpy()
    return norms


def _range(
    bare: MemoryDecisionLayer, norms: np.ndarray[Any, np.dtype[np.float64]], method: str
) -> tuple[float, float] | None:
    """None for a preset whose order is proved for the exact range."""
    return None if bare.preset in SHIPPED_CERTIFICATES else fit_norm_range(norms, method)


def _action_mix(
    layer: MemoryDecisionLayer,
    signals: torch.Tensor,
    norms: np.ndarray[Any, np.dtype[np.float64]],
    range_method: str,
    *,
    fitted: bool,
    within: Any = None,
) -> dict[str, tuple[float, float, float]]:
    """The action mix with its bootstrap interval; of an exact range, that of which questions were drawn alone."""
    decision = layer(*signals.unbind(-1))
    if fitted:
        constant, coefficient = layer.head.gate.tolist() if layer.head.gated else (1.0, 0.0)
        factors = constant + coefficient * decision.consistency.numpy()
        theta = tuple(layer.policy.thresholds.tolist())
        return bootstrap_action_mix(norms, factors, theta, range_method, within=within)
    actions = decision.action.numpy() if within is None else decision.action.numpy()[within]
    rng = np.random.default_rng(0)
    drawn = actions[rng.integers(0, len(actions), (1000, len(actions)))]
    found = {}
    for action in Action:
        low, high = np.quantile((drawn == action).mean(axis=1), (0.025, 0.975))
        found[action.label] = (float((actions == action).mean()), float(low), float(high))
    return found
