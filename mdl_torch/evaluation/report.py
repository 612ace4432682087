"""Results for the eye and for other programs: tables in the terminal, Markdown, CSV and JSON, and the paper's Fig. 3.

Every table is made once, of numbers; what shows it decides how they look.
"""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.text import Text

from mdl_torch.evaluation.results import (
    GROUPS,
    MEASURES,
    PAPER_TEST,
    REFERENCES,
    Rate,
    Summary,
    implied_degrees,
    read_run,
    summarise,
)
from mdl_torch.evaluation.tables import Cell, Table, p_in_words, t_in_words
from mdl_torch.figures import save, style
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType


NAMES = {
    "b1": "B1 no memory",
    "b2": "B2 standard RAG",
    "b3": "B3 MDL",
    "certified": "B3 certified",
    "ensemble": "B3 ensemble",
    "abstain": "always abstain",
    "crag": "CRAG",
    "crag_unanimous": "CRAG, unanimous",
    "self_rag": "Self-RAG",
    "lr": "logistic regression",
    "mlp": "MLP",
    "xgboost": "XGBoost",
    "tree": "tree of depth 3",
    "rule": "rule on M and A",
    "majority_class": "majority class",
    "largest_cluster": "largest cluster",
    "isolated_vote": "isolated vote",
}
"""Systems as tables and figures call them; others by their own name."""

GROUP_NAMES = {"overall": "overall", "low": "low", "medium": "medium", "high": "high", "high_risk": "A = 0.85"}
"""Headings of groups of answers."""

MEASURE_NAMES = {
    **GROUP_NAMES,
    "overall": "hallucination, overall",
    "low": "hallucination, low risk",
    "medium": "hallucination, medium risk",
    "high": "hallucination, high risk",
    "high_risk": "hallucination, A = 0.85",
    "risk_weighted": "hallucination, risk-weighted",
    "abstention": "abstention",
    "correct": "correct answers",
}
"""Measures in full."""


def tables(summary: Summary) -> list[Table]:
    """All tables of one run."""
    found = [_baselines(summary), _hallucination(summary), _behaviour(summary), _actions(summary), _notes(summary)]
    found.append(_differences(summary))
    if len(summary.seeds) > 1:
        found.append(_seeds(summary))
    found += [_paper(summary), _weighted(summary), _consistency(summary)]
    return [table for table in found if table.rows]


def combined_table(summaries: Sequence[Summary]) -> Table:
    """Several runs in one table: models × data sets × systems."""
    rows = tuple(
        (
            summary.model,
            _data(summary),
            f"{len(summary.seeds)}",
            name_of(system.system),
            f"{system.answers} of {system.expected}",
            system.hallucination["overall"],
            system.hallucination["high_risk"],
            system.risk_weighted,
            system.abstention["overall"],
            system.correct,
        )
        for summary in summaries
        for system in summary.systems
    )
    columns = ("model", "data", "seeds", "system", "answers", "overall", "A = 0.85", "risk-weighted", "abstention")
    return Table("combined", "Hallucination rate by model and data set", (*columns, "correct answers"), rows)


def notes(summary: Summary) -> list[str]:
    """What a reader has to know to read the tables, one sentence or two each."""
    counts = ", ".join(f"{summary.questions[group]} {group}" for group in ("low", "medium", "high"))
    found = [
        f"{summary.answers} of {summary.expected} answers"
        + ("." if summary.answers == summary.expected else f": {summary.expected - summary.answers} ARE MISSING.")
        + f" {summary.questions['overall']} of {summary.planned} questions ({counts} risk, of which"
        f" {summary.questions['high_risk']} at A = 0.85),"
        f" {_count_seeds(summary)}.",
        "A rate is over all scored answers. An empty output counts in n, but is neither hallucination nor abstention.",
        "In brackets: 95% intervals; Wilson's where each question has one answer, else a bootstrap over questions"
        " (where every answer agrees, Wilson's over questions). They are not corrected for how many there are.",
    ]
    found += _floor(summary)
    if summary.condition != "paper":
        found.append(f"Stores were built in the condition {summary.condition}; the paper has no figures for it.")
    if summary.at_top_risk:
        found.append(
            f"The sample was drawn to hold at least {summary.at_top_risk} questions at A = 0.85, if the data has them:"
            " overall and risk-weighted rates are those of this sample, not of the data set."
        )
    if summary.foreign and summary.answers < summary.expected:
        found.append(
            f"{summary.foreign} records of the folder are of another experiment (another gate, wording, fit or"
            " sample) or of the calibration split, and are not counted."
        )
    if summary.duplicates:
        found.append(f"{summary.duplicates} records say again what others say, and are counted once.")
    if summary.damaged:
        found.append(f"{summary.damaged} lines of the record file are damaged, and are not counted.")
    t, p = PAPER_TEST["t"], PAPER_TEST["p"]
    degrees = implied_degrees(t, p)
    found.append(
        f"The paper's test of B2 against B1 (t = {t:g}, p = {p:g}) implies {degrees} degrees of freedom, as of"
        f" {degrees + 1} seeds; it names {PAPER_TEST['seeds']} for that model."
    )
    return found


def report_tables(summaries: Summary | Sequence[Summary]) -> RenderableType:
    """What ``mdl report`` prints: one run in full, or several in one table and then each in full.

    Args:
        summaries: Of one run or more.
    """
    every = [summaries] if isinstance(summaries, Summary) else list(summaries)
    parts: list[RenderableType] = [combined_table(every).rich()] if len(every) > 1 else []
    for summary in every:
        parts.append(Text(f"\n{_title(summary)}", style="bold reverse"))
        parts += [Text(f"- {note}") for note in notes(summary)]
        parts += [table.rich() for table in tables(summary)]
    return Group(*parts)


def write_report(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    figures: bool = True,
) -> list[Path]:
    """Write the report of one run or of several: ``report.md``, ``report.json``, a CSV file a table, and figures.

    Args:
        folders: Of the runs.
        out: Where to; the folder ``report`` in that of a single run by default.
        figures: Whether to draw, which needs matplotlib.

    Returns:
        The files.

    Raises:
        FileNotFoundError: A folder holds no run.
        ImportError: matplotlib is not installed.
        ValueError: ``out`` is needed for several runs, or there is none.
    """
    given = [Path(folders)] if isinstance(folders, (str, os.PathLike)) else [Path(folder) for folder in folders]
    if not given:
        raise ValueError("folders must be one or more, got none")
    if out is None and len(given) > 1:
        raise ValueError("out must be given for the report of several runs")
    target = given[0] / "report" if out is None else Path(out)
    return write_summaries([summarise(read_run(folder)) for folder in given], target, figures=figures)


def write_summaries(summaries: Sequence[Summary], out: str | os.PathLike[str], *, figures: bool = True) -> list[Path]:
    """The same of summaries at hand; see ``write_report``."""
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    slugs = _slugs(summaries)
    files: list[Path] = []

    def write(name: str, text: str) -> None:
        (target / name).write_text(text, "utf-8")
        files.append(target / name)

    drawn: list[tuple[str, str]] = []
    if figures:
        with style():
            for summary, slug in zip(summaries, slugs, strict=True):
                drawn.append((f"fig3a{slug}", f"Hallucination by risk, {_title(summary)}"))
                files += _saved(risk_figure(summary), target / drawn[-1][0])
            drawn.append(("fig3b", "Hallucination at A = 0.85"))
            files += _saved(top_risk_figure(summaries), target / "fig3b")
    parts = ["# Results\n"]
    if len(summaries) > 1:
        combined = combined_table(summaries)
        parts.append(combined.markdown())
        write("combined.csv", combined.csv())
    for summary, slug in zip(summaries, slugs, strict=True):
        parts.append(f"# {_title(summary)}\n")
        parts.append("".join(f"- {note}\n" for note in notes(summary)))
        for table in tables(summary):
            parts.append(table.markdown())
            write(f"{table.name}{slug}.csv", table.csv())
        parts.append(_provenance(summary))
    parts += [f"![{caption}]({name}.png)\n" for name, caption in drawn]
    write("report.md", "\n".join(parts))
    values = [summary.to_dict() for summary in summaries]
    write("report.json", json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return files


def name_of(system: str) -> str:
    """A system as tables and figures call it."""
    return NAMES.get(system, system)


# -------------------------------------------------------------------------------------------------------- the tables


def _baselines(summary: Summary) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name_of(s.system),
            s.hallucination["overall"],
            s.hallucination["high_risk"],
            s.abstention["overall"],
            s.correct,
            s.calls,
            s.prompt_tokens,
            s.completion_tokens,
            s.seconds,
            s.seconds_median,
        )
        for s in summary.systems
    )
    columns = ("system", "hallucination", "A = 0.85", "abstention", "correct answers", "calls", "prompt tokens")
    note = (
        "Calls, tokens and seconds are means per answer, of the model alone, as if no answer were shared between"
        " systems; in a batch an answer takes its share of the batch's time. Filling in a form of grades is one call."
    )
    heads = (*columns, "completion tokens", "seconds", "seconds, median")
    return Table("baselines", "Systems and what they cost (Table 5)", heads, rows, note)


def _notes(summary: Summary) -> Table:
    theirs = {(system, label): value for system, label, value, _ in summary.paper_notes}
    models = ", ".join(dict.fromkeys(model for *_, model in summary.paper_notes))
    rows: list[tuple[Cell, ...]] = []
    for system in summary.systems:
        counted: list[tuple[str, float, Rate]] = [(one.label, one.count, one.rate) for one in system.notes]
        if counted:
            counted.append(("calls", (system.calls.value or 0) * system.calls.n, system.calls))
        for label, count, share in counted:
            paper = [theirs.get((system.system, label))] if theirs else []
            rows.append((name_of(system.system), label, _whole(count), share, *paper))
    columns = ("system", "counted", "answers, or sum", "share, or mean per answer")
    heads = (*columns, *([f"paper ({models})"] if theirs else []))
    return Table("notes", "What systems counted: grades, regenerations, decisions", heads, tuple(rows))


def _hallucination(summary: Summary) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name_of(one.system),
            f"{one.answers} of {one.expected}",
            *(one.hallucination[group] for group in GROUPS),
            one.risk_weighted,
        )
        for one in summary.systems
    )
    columns = ("system", "answers", *GROUP_NAMES.values(), "risk-weighted Σ A·h / Σ A")
    return Table("hallucination", "Hallucination rate (Table 4, Fig. 3)", columns, rows)


def _behaviour(summary: Summary) -> Table:
    rows = tuple(
        (
            name_of(one.system),
            one.correct,
            one.among_answered,
            one.abstention["overall"],
            one.abstention["high_risk"],
            one.outcomes["other"],
            one.outcomes["empty"],
            one.unscored,
        )
        for one in summary.systems
    )
    columns = ("system", "correct answers", "hallucination among answered", "abstention", "abstention at A = 0.85")
    note = "Other: answers that say what no reference says. Abstentions are the gate's and the model's own."
    return Table("behaviour", "Answers and abstentions", (*columns, "other", "empty", "not scored"), rows, note)


def _actions(summary: Summary) -> Table:
    rows = tuple(
        (name_of(one.system), GROUP_NAMES[group], *(one.actions[group][action.label] for action in Action))
        for one in summary.systems
        if one.actions
        for group in GROUPS
        if summary.questions[group]
    )
    return Table("actions", "Share of each action", ("system", "risk", *(a.label for a in Action)), rows)


def _differences(summary: Summary) -> Table:
    rows = []
    for one in summary.comparisons:
        test, seeds = one.over_questions, one.over_seeds
        rows.append(
            (
                " − ".join(n.upper() if n in REFERENCES else name_of(n) for n in (one.system, one.reference)),
                one.pairs,
                one.hallucination["overall"],
                one.hallucination["high_risk"],
                one.risk_weighted,
                one.correct,
                t_in_words(test),
                None if test is None else test.d_z,
                t_in_words(seeds),
                f"{one.mcnemar.only_first} : {one.mcnemar.only_second}, {p_in_words(one.mcnemar.p)}",
            )
        )
    columns = ("difference", "pairs", "overall", "A = 0.85", "risk-weighted", "correct answers", "t over questions")
    note = (
        "On the questions and seeds that both answered; below 0, the first hallucinates less. Intervals: bootstrap over"
        " questions, paired. t(degrees of freedom), two-sided. McNemar: questions on which the first alone : the second"
        " alone hallucinates, at the first seed."
    )
    heads = (*columns, "d_z", "t over seeds", "McNemar")
    return Table("differences", "Paired differences in hallucination", heads, tuple(rows), note)


def _seeds(summary: Summary) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name_of(one.system), *(one.seeds[measure] for measure in MEASURES)) for one in summary.systems
    )
    columns = ("system", *(MEASURE_NAMES[m].removeprefix("hallucination, ") for m in MEASURES))
    return Table("seeds", f"Mean ± standard deviation over {len(summary.seeds)} seeds", columns, rows)


def _paper(summary: Summary) -> Table:
    studies = {(one.model, one.source): one for one in summary.paper}
    values = {(one.system, one.measure, one.model, one.source): one.value for one in summary.paper}
    same_model = ("yes" if one.same_model else "no" for one in studies.values())
    same_n = (f"{'yes' if one.same_n else 'no'}: {one.questions} × {one.seeds}" for one in studies.values())
    rows: list[tuple[Cell, ...]] = [
        ("same model?", "", summary.model, *same_model),
        ("same n?", "questions × seeds", f"{summary.planned} × {len(summary.seeds)}", *same_n),
    ]
    for system, measure in sorted(
        {(one.system, one.measure) for one in summary.paper},
        key=lambda row: ([one.system for one in summary.systems].index(row[0]), MEASURES.index(row[1])),
    ):
        theirs = (values.get((system, measure, *study)) for study in studies)
        rows.append((name_of(system), MEASURE_NAMES[measure], summary.of(system).measure(measure), *theirs))
    heads = tuple(f"{model} ({source})" for model, source in studies)
    note = "Where model or n differ, agreement is no replication and disagreement no refutation."
    columns = ("system", "measure", "this run", *heads)
    return Table("paper", "Beside the paper's figures", columns, tuple(rows) if studies else (), note)


def _weighted(summary: Summary) -> Table:
    names = list(summary.systems[0].weightings) if summary.systems else []
    rows = tuple((name_of(one.system), *(one.weightings[name] for name in names)) for one in summary.systems)
    return Table("weightings", "What “risk-weighted” may mean: the rates of this run", ("system", *names), rows)


def _consistency(summary: Summary) -> Table:
    distances = summary.weighting_distances()
    published = {(fit.model, fit.system): fit.published for fit in summary.weightings}
    spans = {(fit.weighting, fit.model, fit.system): f"{fit.low:.3f} .. {fit.high:.3f}" for fit in summary.weightings}
    spans = {key: text.split(" .. ")[0] if len(set(text.split(" .. "))) == 1 else text for key, text in spans.items()}
    rows = tuple(
        (weighting, *(spans.get((weighting, *key)) for key in published), distance)
        for weighting, distance in distances.items()
    )
    heads = tuple(f"{model}, {name_of(system)}: {value:.3f}" for (model, system), value in published.items())
    note = (
        "From the paper's overall, medium and high-risk rates, what its risk-weighted rate (in the heading) must have"
        f" been, if its questions have the risks of these {summary.weightings_from} and its high-risk rate is that of"
        " the high tier; a range where the paper leaves a tier open. The nearest weighting comes first; a wide range is"
        " near to anything."
    )
    return Table(
        "weightings_of_the_paper",
        "What “risk-weighted” may mean: which meaning fits the paper's own figures",
        ("weighting", *heads, "mean distance"),
        rows,
        note,
    )


def _floor(summary: Summary) -> list[str]:
    floor = summary.error_floor
    if floor is None:
        return ["The scorer's error floor was not measured in this run."]
    if floor.get("false_alarm_rate") is None:
        return [
            "The scorer's error floor cannot be measured here: too few reference answers a question to leave one out."
        ]
    missed = floor.get("miss_rate")
    said = f"calls {floor['false_alarm_rate']:.1%} of the correct reference answers a hallucination"
    said += "" if missed is None else f" and does not call {missed:.1%} of the incorrect ones one"
    return [f"The scorer's error floor, beside every rate: it {said} (leave-one-out, {floor['questions']} questions)."]


def _provenance(summary: Summary) -> str:
    lines = [
        f"model: {summary.backend}",
        f"data: {summary.data}, revision {summary.revision[:12]}, stores in the condition {summary.condition}",
        f"scorer: {summary.scorer}",
        f"experiment: {summary.label}",
    ]
    environment = {name: value for name, value in summary.environment.items() if name != "packages"}
    lines += [f"{name}: {value}" for name, value in environment.items() if value]
    packages = summary.environment.get("packages", {})
    lines += [f"packages: {', '.join(f'{name} {version}' for name, version in packages.items())}"] if packages else []
    return "## Provenance\n\n" + "".join(f"- {html.escape(line, quote=False)}\n" for line in lines)


def _title(summary: Summary) -> str:
    return f"{summary.model} on {_data(summary)}, {summary.planned} questions × {_count_seeds(summary)}"


def _count_seeds(summary: Summary) -> str:
    return f"{len(summary.seeds)} seed{'s' if len(summary.seeds) > 1 else ''}"


def _data(summary: Summary) -> str:
    name = {"truthfulqa": "TruthfulQA", "halueval": "HaluEval"}.get(summary.data, summary.data)
    return name if summary.condition == "paper" else f"{name} ({summary.condition})"


def _slugs(summaries: Sequence[Summary]) -> list[str]:
    """What tells the files of several runs apart."""
    if len(summaries) == 1:
        return [""]
    found: list[str] = []
    for summary in summaries:
        plain = "".join(c if c.isalnum() or c in ".-" else "-" for c in f"-{summary.model}-{summary.data}")
        found.append(plain if plain not in found else f"{plain}-{summary.label}")
    return found


def _whole(value: float) -> int | None:
    """A count; of a sum that is none, such as that of probabilities, nothing."""
    return round(value) if abs(value - round(value)) < 1e-9 else None


# ------------------------------------------------------------------------------------------------------- the figures


class _Bar(NamedTuple):
    color: str
    hatch: str


BARS: dict[str, _Bar] = {
    "b1": _Bar("#f4ead0", ""),
    "b2": _Bar("#d9a441", "...."),
    "b3": _Bar("#17375e", ""),
    "certified": _Bar("#7fabcc", "////"),
    "ensemble": _Bar("#a9c4b4", "\\\\\\\\"),
    "crag": _Bar("#a8491f", "xxxx"),
    "self_rag": _Bar("#c9c9c9", "||||"),
}
"""Fill and hatching of the systems that are drawn, the others being in the tables: they differ in lightness, too."""


def risk_figure(summary: Summary) -> Figure:
    """Fig. 3(a): hallucination by risk, a bar a system; as lines, how often B3 abstains. To be made within ``style``.

    Args:
        summary: Of the run.
    """
    from matplotlib.figure import Figure

    groups = [group for group in GROUPS if summary.questions[group] or group == "overall"]
    places = [place + (0.0 if group == "overall" else 0.25) for place, group in enumerate(groups)]
    drawn = Figure(figsize=(6.4, 3.5), layout="constrained")
    axes = drawn.add_subplot()
    names = _drawn_systems([summary])
    bars = _bars(axes, names, places, [[summary.of(name).hallucination[group] for group in groups] for name in names])
    heads = {**{group: f"{group} risk" for group in GROUPS}, "overall": "overall", "high_risk": "of it, A = 0.85"}
    axes.set_xticks(places, [f"{heads[group]}\nn = {summary.questions[group]}" for group in groups])
    lines = _abstention_lines(axes, summary, groups, places) if "b3" in names else []
    axes.set_ylabel("hallucination (bars), abstention (lines)" if lines else "hallucination rate")
    axes.set_title(_title(summary), loc="left")
    drawn.legend(handles=[*bars, *lines], loc="outside lower center", ncols=3)
    return drawn


def top_risk_figure(summaries: Sequence[Summary]) -> Figure:
    """Fig. 3(b): hallucination at A = 0.85 of each run. To be made within ``figures.style``.

    Args:
        summaries: Of the runs.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(max(5.2, 1.4 + 1.7 * len(summaries)), 3.1), layout="constrained")
    axes = drawn.add_subplot()
    names = _drawn_systems(summaries)
    rates = [
        [next((one.hallucination["high_risk"] for one in s.systems if one.system == name), None) for s in summaries]
        for name in names
    ]
    places = [float(place) for place in range(len(summaries))]
    bars = _bars(axes, names, places, rates)
    axes.set_xticks(places, [f"{s.model}\n{_data(s)}\nn = {s.questions['high_risk']}" for s in summaries])
    axes.set_ylabel("hallucination rate at A = 0.85")
    drawn.legend(handles=bars, loc="outside lower center", ncols=4)
    return drawn


def _drawn_systems(summaries: Sequence[Summary]) -> list[str]:
    names = dict.fromkeys(one.system for summary in summaries for one in summary.systems)
    return [name for name in names if name in BARS]


def _bars(
    axes: Axes, names: Sequence[str], places: Sequence[float], rates: Sequence[Sequence[Rate | None]]
) -> list[Artist]:
    """Groups of bars with their intervals, ``rates`` by system, then by group; what the legend shows."""
    from matplotlib.patches import Patch
    from matplotlib.patheffects import Normal, Stroke

    halo = [Stroke(linewidth=2.2, foreground="white"), Normal()]
    width = 0.8 / max(2, len(names))
    shown_in_legend: list[Artist] = []
    for number, (name, of_groups) in enumerate(zip(names, rates, strict=True)):
        look = BARS[name]
        fill: dict[str, Any] = {"facecolor": look.color, "hatch": look.hatch, "edgecolor": "black", "linewidth": 0.5}
        shown_in_legend.append(Patch(label=name_of(name), **fill))
        for place, one in zip(places, of_groups, strict=True):
            if one is None or one.value is None:
                continue
            at = place + (number - (len(names) - 1) / 2) * width
            axes.bar(at, one.value, 0.9 * width, **fill)
            if one.value == 0:
                axes.annotate("0", (at, 0), (-2.5, 1.5), textcoords="offset points", ha="right", fontsize=6)
            if one.low is not None and one.high is not None:
                line = axes.plot([at, at], [one.low, one.high], color="black", linewidth=0.9, solid_capstyle="butt")
                line[0].set_path_effects(halo)
    axes.set_ylim(0, 1)
    axes.set_xlim(places[0] - 0.6, places[-1] + 0.6)
    return shown_in_legend


def _abstention_lines(axes: Axes, summary: Summary, groups: Sequence[str], places: Sequence[float]) -> list[Artist]:
    """How often B3 abstains: a line through the tiers, a marker alone elsewhere."""
    from matplotlib.patheffects import Normal, Stroke

    b3 = summary.of("b3")
    lines: list[Artist] = []
    looks: list[tuple[str, dict[str, float | None], dict[str, Any]]] = [
        (
            "B3 abstains (Opt-Out)",
            {group: b3.actions[group]["opt_out"] for group in groups},
            {"linestyle": "-", "marker": "o", "markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.2},
        ),
        (
            "B3 or its model abstains",
            {group: b3.abstention[group].value for group in groups},
            {"linestyle": ":", "marker": "s", "markersize": 3.2},
        ),
    ]
    for label, values, look in looks:
        points = [(place, group, value) for place, group in zip(places, groups, strict=True)
                  if (value := values[group]) is not None]  # fmt: skip
        tiers = [(place, value) for place, group, value in points if group in ("low", "medium", "high")]
        others = [(place, value) for place, group, value in points if group not in ("low", "medium", "high")]
        common: dict[str, Any] = dict(color="#a8231f", zorder=5, clip_on=False, **look)
        drawn = axes.plot([place for place, _ in tiers], [value for _, value in tiers], label=label, **common)
        drawn[0].set_path_effects([Stroke(linewidth=2.6, foreground="white"), Normal()])
        common["linestyle"] = "none"
        axes.plot([place for place, _ in others], [value for _, value in others], **common)
        lines += drawn
    return lines


def _saved(figure: Figure, stem: Path) -> Iterable[Path]:
    return [save(figure, stem.with_name(f"{stem.name}{suffix}")) for suffix in (".png", ".svg")]
