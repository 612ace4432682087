"""Every analysis by its name: run one, some or all of them over a run, and write what they find."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mdl_torch.errors import unknown_name
from mdl_torch.figures import save, style

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.tables import Table


class Drawn(NamedTuple):
    """A figure, the name of its file, and what it shows."""

    stem: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Analysis:
    """What can be asked of a run.

    Attributes:
        about: What it shows, and where in the paper.
        tables: Makes its tables.
        figures: Makes its figures, each with the name of its file.
    """

    about: str
    tables: Callable[[Study], Sequence[Table]] = lambda study: ()
    figures: Callable[[Study], Sequence[Drawn]] = lambda study: ()


def _systems(study: Study) -> Sequence[Table]:
    from mdl_torch.evaluation.report import tables

    return [table for table in tables(study.summary) if table.name in ("baselines", "hallucination")]


def _risks(study: Study) -> Sequence[Drawn]:
    from mdl_torch.evaluation.report import risk_figure

    caption = "Hallucination by risk, a bar a system with its 95% interval; as lines, how often B3 abstains."
    return (Drawn("fig3a", caption, risk_figure(study.summary)),)


def _top_risk(study: Study) -> Sequence[Drawn]:
    from mdl_torch.evaluation.report import top_risk_figure

    caption = "Hallucination at A = 0.85; `mdl report` of several runs draws them side by side."
    return (Drawn("fig3b", caption, top_risk_figure([study.summary])),)


def _accuracy(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.accuracy import accuracy_table, paired_table

    return accuracy_table(study), paired_table(study)


def _complementarity(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.complementarity import complementarity_table

    return (complementarity_table(study),)


def _ablation(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.ablation import ablation_table

    return (ablation_table(study),)


def _supervised(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.supervised import supervised_tables

    return supervised_tables(study)


def _information(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.information import information_tables

    return information_tables(study)


def _safety(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.safety import category_table, high_stakes_table, low_relevance_table, residual_table

    return low_relevance_table(study), high_stakes_table(study), category_table(study), residual_table(study)


def _gating(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.gating import gating_table, grid_table

    return gating_table(study), grid_table(study)


def _selective(study: Study) -> Sequence[Table]:
    from mdl_torch.analysis.selective import area_table, selective_table

    return selective_table(study), area_table(study)


def _maps(study: Study) -> Sequence[Drawn]:
    from mdl_torch.analysis.plots import CAPTIONS, decision_map

    return (Drawn("fig4", CAPTIONS["decision_map"], decision_map(study)),)


def _confusion(study: Study) -> Sequence[Drawn]:
    from mdl_torch.analysis.plots import CAPTIONS, confusion

    return (Drawn("fig5a", CAPTIONS["confusion"], confusion(study)),)


def _grid(study: Study) -> Sequence[Drawn]:
    from mdl_torch.analysis.gating import gate_grid
    from mdl_torch.analysis.plots import CAPTIONS, gate_grid_figure

    return (Drawn("fig5b", CAPTIONS["gate_grid_figure"], gate_grid_figure(gate_grid(study))),)


def _abstention(study: Study) -> Sequence[Drawn]:
    from mdl_torch.analysis.plots import CAPTIONS, abstention_map

    return (Drawn("fig5c", CAPTIONS["abstention_map"], abstention_map(study)),)


def _seeds(study: Study) -> Sequence[Drawn]:
    from mdl_torch.analysis.plots import CAPTIONS, seed_figure

    return (Drawn("seeds", CAPTIONS["seed_figure"], seed_figure(study)),)


def _risk_coverage(study: Study) -> Sequence[Drawn]:
    from mdl_torch.analysis.plots import CAPTIONS, risk_coverage_figure
    from mdl_torch.analysis.selective import curves, operating_points

    return (
        Drawn(
            "risk_coverage",
            CAPTIONS["risk_coverage_figure"],
            risk_coverage_figure(curves(study), operating_points(study)),
        ),
    )


def _latency(study: Study, runs: int | None = None) -> Sequence[Table]:
    from mdl_torch.analysis.latency import RUNS, latency_table

    return (latency_table(study, runs=runs or RUNS, progress=sys.stderr.isatty()),)


ANALYSES: dict[str, Analysis] = {
    "table5": Analysis("systems and what they cost (Tables 4 and 5)", _systems),
    "fig3a": Analysis("hallucination by risk (Fig. 3(a))", figures=_risks),
    "fig3b": Analysis("hallucination at the highest risk (Fig. 3(b))", figures=_top_risk),
    "accuracy": Analysis("decision accuracy under both oracles, and its ceiling (Section 5.3)", _accuracy),
    "table6": Analysis("what each signal adds (Table 6)", _complementarity),
    "table7a": Analysis("what each part of the controller adds (Table 7(a))", _ablation),
    "table7b": Analysis("beside supervised controllers, cross-validated (Table 7(b))", _supervised),
    "table10": Analysis("what the signals tell of the oracle, in bits (Table 10)", _information),
    "safety": Analysis("low relevance, high risk, categories, residual hallucination (Sections 5.3 and 6)", _safety),
    "gating": Analysis("C and α, and the grid of gate coefficients (Section 5.4)", _gating),
    "selective": Analysis("operating points, over-abstention, risk and coverage; not in the paper", _selective),
    "fig4": Analysis("decisions over the plane of M and R (Fig. 4)", figures=_maps),
    "fig5a": Analysis("actions against the oracle (Fig. 5(a))", figures=_confusion),
    "fig5b": Analysis("accuracy over the grid of gate coefficients (Fig. 5(b))", figures=_grid),
    "fig5c": Analysis("abstention at high risk over M and R (Fig. 5(c))", figures=_abstention),
    "table8": Analysis("what a decision takes, stage by stage (Table 8); minutes", _latency),
    "risk_coverage": Analysis("risk against coverage; not in the paper", figures=_risk_coverage),
    "seeds": Analysis("decisions of other seeds of the basis; not in the paper", figures=_seeds),
}
"""Every analysis by its name."""


def chosen(names: Sequence[str] | None) -> list[str]:
    """The names that are asked for, each once and known; all where none are given.

    Raises:
        ValueError: A name is unknown.

    Example:
        >>> chosen(["table6", "accuracy"])
        ['accuracy', 'table6']
        >>> chosen(["table9"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: unknown analysis 'table9'; did you mean 'table8'? Known: accuracy, fig3a, ...
    """
    if names is None:
        return list(ANALYSES)
    for name in names:
        if name not in ANALYSES:
            raise ValueError(unknown_name("analysis", name, ANALYSES))
    return [name for name in ANALYSES if name in names]


def analyse(
    study: Study, names: Sequence[str] | None = None, *, latency_runs: int | None = None
) -> dict[str, tuple[Table, ...]]:
    """The tables of some analyses, all by default, by the names of the analyses.

    Args:
        study: Of a run.
        names: Keys of ``ANALYSES``.
        latency_runs: How often each stage of a decision is timed, for ``table8``; 100,000 times by default.

    Raises:
        ValueError: A name is unknown.
    """
    timed = {"table8": functools.partial(_latency, runs=latency_runs)}
    return {name: tuple(timed.get(name, ANALYSES[name].tables)(study)) for name in chosen(names)}


def write_analyses(
    study: Study, found: Mapping[str, Sequence[Table]], out: str | os.PathLike[str], *, figures: bool = True
) -> list[Path]:
    """Write tables of analyses as Markdown and CSV, and the figures of the same analyses as PNG and SVG.

    Args:
        study: Of a run.
        found: From ``analyse``.
        out: Folder, made where there is none.
        figures: Whether to draw, which needs matplotlib.

    Returns:
        The files.

    Raises:
        OSError: A file cannot be written.
    """
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    parts = ["# Analyses\n"]
    for name, tables in found.items():
        for table in tables:
            parts.append(table.markdown())
            files.append(target / f"{table.name}.csv")
            files[-1].write_text(table.csv(), "utf-8")
        with style() if figures else contextlib.nullcontext():
            for drawn in ANALYSES[name].figures(study) if figures else ():
                files += [save(drawn.figure, target / f"{drawn.stem}{suffix}") for suffix in (".png", ".svg")]
                parts.append(f"![{ANALYSES[name].about}]({drawn.stem}.png)\n\n{drawn.caption}\n")
    files.append(target / ("analyses.md" if list(found) == list(ANALYSES) else f"{'-'.join(found)}.md"))
    files[-1].write_text("\n".join(parts), "utf-8")
    return files
