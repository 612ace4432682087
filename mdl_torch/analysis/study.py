"""A run with what the analyses need of it: its labelled answers, its calibration split, its calibrated layers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from mdl_torch.analysis.samples import POOLED, Pairs, Samples
from mdl_torch.calibration import Calibration
from mdl_torch.config import PRESETS
from mdl_torch.evaluation.fitting import calibration_records
from mdl_torch.evaluation.results import Run, Summary, read_run, summarise
from mdl_torch.layer import MemoryDecisionLayer

if TYPE_CHECKING:
    import os


@dataclass(frozen=True)
class Study:
    """What analyses read.

    Attributes:
        run: With all records and their description.
        samples: Labelled answers of the evaluated questions, of ``POOLED`` systems.
        pairs: B1 and B2 on the same questions and seeds.
        split: Labelled answers of B1 and B2 on the calibration split, which has no question in common with the others;
            empty if the run has none.
        layers: The run's gates by name, calibrated as they were.
    """

    run: Run
    samples: Samples
    pairs: Pairs
    split: Samples
    layers: dict[str, MemoryDecisionLayer]

    @functools.cached_property
    def summary(self) -> Summary:
        """The run's rates, which bootstraps make slow: computed once."""
        return summarise(self.run)

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads a run.

        Args:
            folder: Of ``mdl evaluate``.

        Raises:
            FileNotFoundError: It holds no run, or a calibration of it is gone.
            ValueError: A calibration is not the one that the run had, or a file is malformed.
        """
        run = read_run(folder)
        fitted = run.description["experiment"]["calibration"] == "fit"
        if fitted and not run.description.get("calibration_keys"):
            raise ValueError(
                f"{run.folder / 'experiment.json'} must hold calibration_keys, as its calibration was fitted"
            )
        split = calibration_records(folder) if run.description.get("calibration_keys") else []
        return cls(
            run=run,
            samples=Samples.from_records(run.records, POOLED),
            pairs=Pairs.from_records(run.records),
            split=Samples.from_records(split, ("b1", "b2")),
            layers={name: _layer(run, name, fitted=fitted) for name in PRESETS if name in run.description["gates"]},
        )


def _layer(run: Run, name: str, *, fitted: bool) -> MemoryDecisionLayer:
    """A gate's layer as it was in the run."""
    layer, given = MemoryDecisionLayer.from_preset(name), run.description["experiment"]["calibration"]
    kept = run.folder / f"calibration-{name}-{run.description['label']}.json"
    if fitted or (name == "paper" and kept.is_file()):
        if not kept.is_file():
            raise FileNotFoundError(f"{kept.name} is gone from {run.folder}: run mdl evaluate again, which writes it")
        layer = layer.calibrated(Calibration.load(kept))
    elif name == "paper":
        layer = layer.calibrated(Calibration.reference() if given == "reference" else Calibration.load(given))
    if layer.digest() != run.description["gates"][name]["layer"]:
        raise ValueError(f"the calibration of {name!r} in {run.folder} is not the one that the run had")
    return layer
