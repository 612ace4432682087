"""What a run evaluates: data, model, systems and seeds, as plain data that a YAML file holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import yaml

from mdl_torch.errors import check_keys, unknown_name
from mdl_torch.evaluation.questions import Condition
from mdl_torch.generation.backend import Sampling


@dataclass(frozen=True)
class Experiment:
    """A run of systems on questions with a language model.

    Attributes:
        data: A data set: a file, or the name of one on the hub; see ``evaluation.questions.load_questions``.
        model: Keywords of ``generation.build.build_backend``: ``kind`` and what that kind takes; or the YAML file that
            holds them.
        sampling: How answers are drawn.
        questions: How many are evaluated; None takes all that the calibration does not.
        seeds: Of the answers; each question is answered once for each.
        systems: Keys of ``SYSTEMS``.
        condition: How memory stores are built.
        calibration: ``fit`` on a split of the data, ``reference``, or a calibration file for the paper's gate. Gates of
            other presets are fitted too, or keep their defaults.
        calibration_questions: Size of the split that calibrations and supervised controllers are fitted on, disjoint
            from the evaluated questions. With a given calibration and no system that learns, none is set aside, and
            other questions are evaluated.
        at_top_risk: At least so many of the evaluated questions have the risk 0.85, if the data has them.
        split_seed: Of the choice of questions.
        store_seed: Of distractors and of the order of memories.
        encoder: Name or folder of the sentence encoder; all-MiniLM-L6-v2 if None.
        detector: Name of the conflict detector.
        require_relevant: Whether a store needs a relevant memory to be injected.
        judge: Keywords of a backend that judges the answers, or the YAML file that holds them; None is the paper's
            scorer.

    Raises:
        TypeError: A value is of the wrong kind.
        ValueError: A value is out of its range or a name unknown; the message names it.

    Example:
        >>> Experiment(data="TruthfulQA.csv", model={"kind": "scripted"}).systems
        ('b1', 'b2', 'b3', 'certified', 'abstain')
    """

    data: str
    model: dict[str, Any] | str
    sampling: Sampling = field(default_factory=Sampling)
    questions: int | None = None
    seeds: tuple[int, ...] = (0,)
    systems: tuple[str, ...] = ("b1", "b2", "b3", "certified", "abstain")
    condition: Condition = "paper"
    calibration: str = "fit"
    calibration_questions: int = 80
    at_top_risk: int = 0
    split_seed: int = 0
    store_seed: int = 0
    encoder: str | None = None
    detector: str = "lexical"
    require_relevant: bool = True
    judge: dict[str, Any] | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(self.seeds))
        object.__setattr__(self, "systems", tuple(self.systems))
        from mdl_torch.evaluation.systems import SYSTEMS  # which loads torch, and ``mdl --help`` need not wait for it

        for name in ("model", "judge"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = yaml.safe_load(Path(value).read_text("utf-8"))
                object.__setattr__(self, name, value)
            if value is None and name == "judge":
                continue
            if not isinstance(value, Mapping) or "kind" not in value:
                raise ValueError(f"{name} must name its kind, got {value!r}")
        for name, kind, what in (
            ("data", str, "a text"),
            ("calibration", str, "a text"),
            ("detector", str, "a text"),
            ("encoder", str | None, "a text or None"),
            ("require_relevant", bool, "true or false"),
            ("sampling", Sampling, "a sampling"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be {what}, got {getattr(self, name)!r}")
        if self.condition not in get_args(Condition):
            raise ValueError(unknown_name("condition", self.condition, get_args(Condition)))
        for name, values in (("seeds", self.seeds), ("systems", self.systems)):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} must be one or more, each once, got {values}")
        for system in self.systems:
            if system not in SYSTEMS:
                raise ValueError(unknown_name("system", system, SYSTEMS))
        if not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in self.seeds):
            raise ValueError(f"seeds must be whole numbers from 0, got {self.seeds}")
        least_of = {"questions": 1, "calibration_questions": 2, "at_top_risk": 0, "split_seed": 0, "store_seed": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which ``from_dict`` takes back."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return plain | {
            "sampling": self.sampling.to_dict(),
            "seeds": list(self.seeds),
            "systems": list(self.systems),
            "model": dict(self.options),
            "judge": None if self.judge is None else dict(self.judge),  # type: ignore[arg-type]
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The experiment of a mapping; missing keys take the defaults.

        Raises:
            TypeError: ``values`` is no mapping, or a value is of the wrong kind.
            ValueError: A key is unknown, or a value out of its range.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"an experiment must be a mapping, got {type(values).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        check_keys("key of an experiment", values, known)
        if missing := [name for name in ("data", "model") if name not in values]:
            raise ValueError(f"an experiment must have {' and '.join(missing)}")
        sampling = values.get("sampling", {})
        if isinstance(sampling, Mapping):
            check_keys("key of sampling", sampling, [f.name for f in dataclasses.fields(Sampling)])
            sampling = Sampling(**sampling)
        return cls(**{**values, "sampling": sampling})

    @property
    def options(self) -> dict[str, Any]:
        """The model's keywords."""
        assert not isinstance(self.model, str)  # read by then
        return self.model

    @property
    def label(self) -> str:
        """Eight hex digits that name all of it."""
        from mdl_torch.calibration import digest  # loads torch

        return digest(self.to_dict())
