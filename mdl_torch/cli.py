"""The command line, ``mdl``: options in, one call of the library, its result on the terminal."""

# No ``from __future__ import annotations`` here: to read annotations that are text, jsonargparse would import all that
# is imported for type checking, torch among it.
import contextlib
import dataclasses
import difflib
import errno
import itertools
import os
import re
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from mdl_torch import __version__
from mdl_torch.config import MOST_BASES, PRESETS, MDLConfig
from mdl_torch.errors import CalibrationMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from mdl_torch.calibration import Calibration
    from mdl_torch.gate import MemoryGate
    from mdl_torch.layer import MemoryDecisionLayer
    from mdl_torch.records import DecisionRecord
    from mdl_torch.score import Item
    from mdl_torch.stability import SeedStability
    from mdl_torch.verify import Verification

FINE, BAD, FAILED, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses; see ``EXIT_STATUSES``."""

OUTCOMES = {
    "verified": FINE,
    "differs": BAD,
    "not_verifiable": FAILED,
    "no_decision": FINE,
    "malformed": BAD,
    "mismatched": BAD,
}
"""The exit status of each outcome of a verification, and of what else can become of a line of a whole file: it is an
error line, it is damaged, or it is not of the line of the source."""

PLAIN_WIDTH = 120
"""Columns of what is printed into a file or a pipe."""

SHOWN_FAILURES = 20
"""Lines that could not be verified, of which the checks are shown; all of them are counted."""

EXIT_STATUSES = """exit status:
  0    fine
  1    some lines were bad, or a stored decision is damaged or does not come out again,
       or answers of a run are missing, or a controller is not proved to keep the order of trust
  2    could not run, or could not verify with this gate
  130  interrupted
With --debug, or MDL_DEBUG=1 in the environment, an error shows its traceback."""


@dataclass(frozen=True)
class GateOptions:
    """What decides.

    Attributes:
        encoder: Name or folder of a sentence-transformers model; all-MiniLM-L6-v2 if null.
        layer: A preset, a folder written by save_pretrained, or a repository of the hub.
        config: Values of the controller's configuration (Table 2), in place of a preset.
        calibration: auto, reference, a calibration file, or null for the exact range. Thresholds
            of your own, in config, keep the range of the reference calibration.
        detector: Conflict detector, lexical or literal.
        risk_policy: YAML file of a risk policy; the one of the package if null.
        require_relevant: Whether a store needs a relevant memory to be injected.
        validate_args: Whether a value that is not finite or out of range is an error, rather than opt_out.
        device: Where to compute, such as cpu or cuda.
        long_text: What becomes of text longer than the encoder's window.
    """

    encoder: str | None = None
    layer: str = "paper"
    config: MDLConfig | None = None
    calibration: str | None = "auto"
    detector: str = "lexical"
    risk_policy: str | None = None
    require_relevant: bool = True
    validate_args: bool = True
    device: str = "cpu"
    long_text: Literal["pool", "truncate"] = "pool"


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run ``mdl`` and return its exit status.

    Args:
        arguments: Words of the command line; those of the process by default.

    Example:
        >>> main(["--version"])
        Traceback (most recent call last):
        SystemExit: 0
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character must not end the run
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        command, options = _command(_parser().parse_args(arguments))
        _check_switches(options)
    except (OSError, ValueError) as error:  # of a configuration file that is no text
        print(f"mdl: {_in_one_line(error)}", file=sys.stderr)
        return FAILED
    plainly, warnings.formatwarning = warnings.formatwarning, _in_one_plain_line
    try:
        return COMMANDS[command].run(options)
    except BrokenPipeError:  # whoever read our output has enough; nothing may be flushed into the pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except KeyboardInterrupt as error:
        return _complain(command, "interrupted", error, options, INTERRUPTED)
    except Exception as error:
        return _complain(command, _in_one_line(error), error, options, FAILED)
    finally:
        warnings.formatwarning = plainly


def _in_one_plain_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"mdl: {message}\n"


def _complain(command: str, message: str, error: BaseException, options: Namespace, status: int) -> int:
    notes = getattr(error, "__notes__", [])
    print(f"mdl {command}: {'; '.join([message, *notes])}", file=sys.stderr)
    if options.debug or os.environ.get("MDL_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    return status


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename is not None else error.strerror
    message = " ".join(str(error).split()) or type(error).__name__
    expected = isinstance(error, OSError | ValueError | TypeError | ImportError) or type(error).__name__ in _EXPLAINED
    return message if expected else f"{type(error).__name__}: {message} (--debug shows where)"


_EXPLAINED = ("IncompleteCalibrationError",)
"""Errors of the library that say in their message what to do."""


# --- commands -------------------------------------------------------------------------------------------------------


def _score(options: Namespace) -> int:
    from mdl_torch.score import score

    if options.json and options.output == "-":
        raise ValueError("--json writes the summary to standard output: name a file for the decisions with -o")
    rows: list[tuple[str, str, DecisionRecord | Exception]] = []

    def keep(item: "Item", outcome: "DecisionRecord | Exception") -> None:
        if len(rows) < options.rows:
            query = "" if isinstance(item.retrieval, Exception) else item.retrieval.query or ""
            rows.append((item.id or str(item.number), query, outcome))

    summary = score(
        options.source,
        options.output,
        _gate(options.gate),
        batch_size=options.batch_size,
        audits=options.audits,
        progress=_shows_progress(options),
        observe=keep if options.table else None,
    )
    if options.json:
        _print_json(summary.to_dict())
    else:
        from mdl_torch.explain import decision_table, summary_table

        console = _console(to_stderr=options.output == "-")
        if options.table:
            console.print(decision_table(rows))
            if summary.lines > len(rows):
                console.print(f"{summary.lines - len(rows):,} more lines are not shown (--rows)\n", highlight=False)
        console.print(summary_table(summary.to_dict()), highlight=False)
    return BAD if summary.errors else FINE


def _explain(options: Namespace) -> int:
    if options.file == options.source == "-":
        raise ValueError("FILE and --source cannot both be standard input: name a file for one of them")
    if options.verify and options.id is None and options.line is None:
        if options.stability:
            raise ValueError("--stability is of one decision: choose it by --id or --line")
        return _verify_all(options)
    from mdl_torch.explain import card, verification_table
    from mdl_torch.score import find_decision, find_source
    from mdl_torch.stability import stability_of
    from mdl_torch.verify import verify

    if options.id is not None and options.line is not None:
        raise ValueError("--id and --line both choose a decision: give one of them")
    number, record = find_decision(options.file, id=options.id, line=options.line)
    source = find_source(options.source, record, number) if options.source else None
    gate = _gate(options.gate) if options.verify or options.stability else None
    checked = verify(record, gate, source) if gate and options.verify else None
    stable = stability_of(record, gate, options.stability) if gate and options.stability else None
    if options.json:
        plain = record.to_dict()
        more = {"verification": checked and checked.to_dict(), "stability": stable and stable.to_dict()}
        more = {name: value for name, value in more.items() if value}
        _print_json({"decision": plain, **more} if more else plain)
    else:
        console = _console()
        console.print(card(record, source, stability=stable), highlight=False)
        if checked is not None:
            console.print(verification_table(checked), highlight=False)
    return OUTCOMES[checked.outcome] if checked is not None else FINE


def _verify_all(options: Namespace) -> int:
    """Verify every line of a file; those of ``--source`` stand on the same lines."""
    from mdl_torch.explain import verification_table
    from mdl_torch.score import read_decisions, read_items
    from mdl_torch.verify import Verification

    gate, console = _gate(options.gate), _console()
    counts = dict.fromkeys(OUTCOMES, 0)
    failed: list[dict[str, Any]] = []
    sources = read_items(options.source) if options.source else ()
    lines = itertools.zip_longest(read_decisions(options.file), sources)
    for number, (stored, item) in enumerate(lines, start=1):
        outcome, found = _verify_line(stored, item, gate, sourced=options.source is not None)
        counts[outcome] += 1
        if OUTCOMES[outcome] == FINE or len(failed) >= SHOWN_FAILURES:
            continue
        if isinstance(found, Verification):
            failed.append({"line": number, **found.to_dict()})
            shown: Any = verification_table(found, all_checks=False)
        else:
            failed.append({"line": number, "outcome": outcome, "error": found})
            shown = f"line {number}: {outcome.upper()}: {found}"
        if not options.json:
            console.print(shown, highlight=False, markup=False)
    if not sum(counts.values()):
        raise ValueError(f"{options.file} holds no line, so there is nothing to verify")
    scope = "line_and_source" if options.source else "line"
    if options.json:
        _print_json({**counts, "scope": scope, "failed": failed})
    else:
        console.print(", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items()))
        if not options.source:
            console.print("Lines were checked in themselves; the texts were not (give --source).")
    return max(status for name, status in OUTCOMES.items() if counts[name])


def _verify_line(
    stored: "tuple[int, str | None, DecisionRecord | Exception] | None",
    item: "Item | None",
    gate: "MemoryGate",
    *,
    sourced: bool,
) -> "tuple[str, Verification | str]":
    """The outcome of one line of a file, and the verification or what is wrong.

    Args:
        stored: Number, id and decision of the line; None beyond the end of the file.
        item: The line of the source; None beyond its end.
        gate: What is said to have decided.
        sourced: Whether there is a source.
    """
    from mdl_torch.records import NoDecisionError
    from mdl_torch.verify import verify

    if stored is None:
        return "mismatched", "the source has this line, the file has not"
    _, id, record = stored
    if isinstance(record, Exception) and not isinstance(record, NoDecisionError):
        return "malformed", str(record)
    if sourced and item is None:
        return "mismatched", "the file has this line, the source has not"
    if item is not None:
        named = str(item.number) if item.id is None else item.id
        if id != named and not (id is None and isinstance(record, NoDecisionError)):
            return "mismatched", f"the id is {id!r}, that of the source is {named!r}"
    if isinstance(record, Exception):
        return "no_decision", str(record)
    source = None if item is None else item.retrieval
    if isinstance(source, Exception):
        return "mismatched", f"a decision was stored, but the line of the source is bad: {source}"
    try:
        checked = verify(record, gate, source)
    except CalibrationMismatchError:  # a ValueError, but the gate is at fault
        raise
    except (TypeError, ValueError) as error:
        return "mismatched", f"a decision was stored, but the line of the source is bad: {error}"
    except ArithmeticError as error:
        return "malformed", str(error)
    return checked.outcome, checked


def _bench_conflicts(options: Namespace) -> int:
    from mdl_torch.benchmarks.conflicts import read_pairs, render, run

    report = run(read_pairs(options.pairs), options.detector)
    if options.json:
        _print_json(report.to_dict())
    else:
        render(report, _console())
    return FINE


def _certify(options: Namespace) -> int:
    from mdl_torch.certificate import Certificate
    from mdl_torch.certificate_card import certificate_card, stability_table
    from mdl_torch.certify import certify, check
    from mdl_torch.figures import check_suffix
    from mdl_torch.sensitivity import draw, sensitivity, sensitivity_table

    if options.plot and not options.sensitivity:
        raise ValueError("--plot draws the sensitivity: give --sensitivity too")
    if options.decisions and options.seeds is None:
        raise ValueError("--decisions are for the seeds to decide on again: give --seeds too")
    if options.plot:
        check_suffix(options.plot)
    if options.output and not Path(options.output).parent.is_dir():
        raise ValueError(f"no such folder to write {options.output} to: {Path(options.output).parent}")
    if options.output and Path(options.output).is_dir():
        raise ValueError(f"--output must be a file, got the folder {options.output}")
    if options.check and (others := [name for name in _OF_A_PROOF if options[name]]):
        raise ValueError(f"--check proves nothing anew: leave out --{others[0]}")
    if options.seeds is not None and not 2 <= options.seeds <= MOST_BASES:
        raise ValueError(f"seeds must be from 2 to {MOST_BASES}, got {options.seeds}")
    for file in options.decisions:
        if not Path(file).is_file():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", file)
    layer = _layer_to_certify(options)
    progress = _shows_progress(options)
    console = _console()
    if options.check:
        problems = check(Certificate.load(options.check), layer)
        if options.json:
            _print_json({"holds": not problems, "problems": problems})
        else:
            for line in problems or [f"HOLDS: {options.check} is borne out by its cover, box by box."]:
                console.print(line, highlight=False, markup=False)
        return BAD if problems else FINE
    proved = certify(layer, boxes=options.boxes, resolution=options.resolution, progress=progress)
    result: dict[str, Any] = {"certificate": proved.to_dict()}
    shown: list[Any] = [certificate_card(proved)]
    if options.output:
        proved.save(options.output)
    if options.seeds is not None:
        stable = _seed_stability(layer, options.seeds, options.decisions)
        result["stability"] = {name: one.to_dict() for name, one in stable.items()}
        shown.append(stability_table(stable))
    if options.sensitivity:
        varied = sensitivity(layer.held_config(), options.points, progress=progress)
        result["sensitivity"] = varied.to_dict()
        shown.append(sensitivity_table(varied))
        if options.plot:
            draw(varied, options.plot)
    if options.json:
        _print_json(result)
    else:
        for part in shown:
            console.print(part, highlight=False)
    if options.save:
        layer.certified(proved).save_pretrained(options.save)
    return FINE if proved.trusted else BAD


_OF_A_PROOF = ("output", "save", "seeds", "decisions", "sensitivity", "plot")
"""Options of ``mdl certify`` that ``--check`` has no use for."""


def _layer_to_certify(options: Namespace) -> "MemoryDecisionLayer":
    """The layer that a name or file stands for, with the calibration that was asked for."""
    from mdl_torch.calibration import Calibration
    from mdl_torch.layer import MemoryDecisionLayer

    calibration = None
    if options.calibration is not None:
        given = options.calibration
        calibration = Calibration.reference() if given == "reference" else Calibration.load(given)
    if options.controller is not None:
        if options.layer != "paper":
            raise ValueError("LAYER and --controller both describe the controller: give one of them")
        layer = MemoryDecisionLayer(MDLConfig.from_dict(vars(options.controller)))
    elif Path(options.layer).is_file():
        if calibration is not None:
            raise ValueError("LAYER is a calibration file already: leave out --calibration")
        calibration = Calibration.load(options.layer)
        layer = _preset_of(calibration)
    else:
        layer = MemoryDecisionLayer.from_name(options.layer)
    return layer if calibration is None else layer.calibrated(calibration)


def _preset_of(calibration: "Calibration") -> "MemoryDecisionLayer":
    """The preset that a calibration was fitted for."""
    from mdl_torch.calibration import config_digest
    from mdl_torch.layer import MemoryDecisionLayer

    for name in PRESETS:
        layer = MemoryDecisionLayer.from_preset(name)
        if (calibration.config, calibration.basis) == (config_digest(layer.config), layer.basis):
            return layer
    raise ValueError(
        f"calibration {calibration.name!r} is of no preset: name its layer, and give the file with --calibration"
    )


def _seed_stability(layer: "MemoryDecisionLayer", seeds: int, files: "Sequence[str]") -> "dict[str, SeedStability]":
    import torch

    from mdl_torch.score import read_decisions
    from mdl_torch.stability import CUBE_POINTS, cube, seed_stability

    found = {f"the cube, {CUBE_POINTS}³ points": seed_stability(layer, *cube(CUBE_POINTS), seeds=seeds)}
    for file in files:
        stored = [record for _, _, record in read_decisions(file) if not isinstance(record, Exception)]
        if not stored:
            raise ValueError(f"{file} holds no decision")
        signals = torch.tensor([(r.relevance, r.reliability, r.risk) for r in stored], dtype=torch.float64)
        found[file] = seed_stability(layer, *signals.unbind(-1), seeds=seeds)
    return found


def _check_output(options: Namespace) -> None:
    if options.output == "":
        raise ValueError("--output must name a folder, got ''")


def _evaluate(options: Namespace) -> int:
    _check_output(options)
    from mdl_torch.evaluation.experiment import Experiment
    from mdl_torch.evaluation.runner import run
    from mdl_torch.generation.build import build_backend

    experiment = _as_plain(options.experiment)
    evaluated = Experiment.from_dict(experiment)
    with contextlib.closing(build_backend(**evaluated.options)) as backend:
        done = run(evaluated, options.output, backend, progress=_shows_progress(options))
    if options.json:
        _print_json({**dataclasses.asdict(done), "complete": done.complete, "run": options.output})
    else:
        left = "" if done.complete else f"; {done.errors:,} are missing, run again to try them (see errors.jsonl)"
        print(f"{options.output}: {done.answers:,} of {done.expected:,} answers, {done.new:,} of them new{left}")
    return FINE if done.complete else BAD


def _report(options: Namespace) -> int:
    from mdl_torch.evaluation.report import report_tables, write_summaries
    from mdl_torch.evaluation.results import read_run, summarise

    _check_output(options)
    if len({Path(folder).resolve() for folder in options.runs}) < len(options.runs):
        raise ValueError(f"runs must be folders, each once, got {', '.join(options.runs)}")
    if options.all or options.only is not None or options.cases is not None:
        return _analyse(options)
    runs = [read_run(folder) for folder in options.runs]
    summaries = [summarise(run) for run in runs]
    if options.parquet:
        for run, folder in zip(runs, options.runs, strict=True):
            run.to_parquet(Path(folder) / "answers.parquet")
    target = options.output or (Path(options.runs[0]) / "report" if len(runs) == 1 else None)
    files = write_summaries(summaries, target, figures=options.figures) if target else []
    if options.json:
        _print_json([summary.to_dict() for summary in summaries])
    else:
        console = _console()
        console.print(report_tables(summaries), highlight=False)
        if files:
            console.print(f"wrote {len(files)} files to {target}", highlight=False, markup=False)
    return FINE if all(run.complete for run in runs) else BAD


def _analyse(options: Namespace) -> int:
    """Analyses of each run, in a folder of its own: those asked for, or all beside the report itself."""
    from mdl_torch.analysis.cases import pick, write_cases
    from mdl_torch.analysis.everything import analyse, chosen, write_analyses
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.report import report_tables, write_summaries
    from mdl_torch.figures import style

    if options.all and options.only is not None:
        raise ValueError("--all and --only exclude each other")
    if options.only is not None and not _names(options.only):
        raise ValueError("--only must name one analysis or more, such as '[table6, fig4]', got none")
    if options.output and len(options.runs) > 1:
        raise ValueError("--output names one folder, and the analyses of several runs need one each: leave it out")
    names = [] if not (options.all or options.only) else chosen(_names(options.only))
    picked = _names(options.cases)
    studies = [Study.of(folder) for folder in options.runs]
    if options.figures and names:
        with style():  # says what is missing before anything is computed
            pass
    console, found, complete = _console(), [], True
    for folder, study in zip(options.runs, studies, strict=True):
        run, target = study.run, _made(options.output or Path(folder) / "report")
        complete &= run.complete
        files = [run.to_parquet(Path(folder) / "answers.parquet")] if options.parquet else []
        tables = analyse(study, names, latency_runs=options.latency_runs)
        summary = study.summary if options.all else None
        files += write_summaries([summary], target, figures=options.figures) if summary else []
        files += write_analyses(study, tables, target, figures=options.figures) if names else []
        if options.cases is not None or options.all:
            files += write_cases(pick(study, chosen=picked or None), target)
        if options.json:
            told: dict[str, Any] = {"run": str(folder), "files": [str(file) for file in files]}
            told["tables"] = [table.to_dict() for several in tables.values() for table in several]
            found.append(told if summary is None else {**told, "summary": summary.to_dict()})
            continue
        if summary is not None:
            console.print(report_tables(summary), highlight=False)
        for table in itertools.chain.from_iterable(tables.values()):
            console.print(table.rich(), highlight=False)
        console.print(f"wrote {len(files)} files to {target}", highlight=False, markup=False)
    if options.json:
        _print_json(found)
    return FINE if complete else BAD


def _names(given: "list[str | int] | str | int | None") -> "list[str] | None":
    """Names as they may be given: a list, or one or more between commas."""
    if given is None:
        return None
    several = given if isinstance(given, list) else str(given).split(",")
    return [name for one in several if (name := str(one).strip())]


def _made(folder: "str | Path") -> Path:
    """An output folder, made before anything is computed for it."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"--output must be a folder, got the file {path}")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _calibrate(options: Namespace) -> int:
    from mdl_torch.evaluation.fitting import calibration_records, fit_calibration
    from mdl_torch.explain import calibration_table
    from mdl_torch.layer import MemoryDecisionLayer

    records = calibration_records(options.run)
    layer = MemoryDecisionLayer.from_name(options.layer)
    name = options.name or f"{Path(options.run).name}-{layer.preset}"
    fitted = fit_calibration(records, layer, name=name, range_method=options.range)
    fitted.save(options.output)
    if options.json:
        _print_json(fitted.to_dict())
    else:
        _console().print(calibration_table(fitted), highlight=False)
    return FINE


def _as_plain(value: Any) -> Any:
    """Options as plain values; jsonargparse nests them in namespaces."""
    if isinstance(value, Namespace):
        return {key: _as_plain(item) for key, item in vars(value).items()}
    return value


def _shows_progress(options: Namespace) -> bool:
    return sys.stderr.isatty() if options.progress is None else bool(options.progress)


def _gate(options: Namespace) -> "MemoryGate":
    from mdl_torch.encoder import DEFAULT_ENCODER
    from mdl_torch.gate import MemoryGate
    from mdl_torch.layer import MemoryDecisionLayer

    values = vars(options).copy()
    config = values.pop("config")
    if config is not None:
        if values["layer"] != "paper":
            raise ValueError("--gate.layer and --gate.config both describe the controller: give one of them")
        values["layer"] = MemoryDecisionLayer(MDLConfig.from_dict(vars(config)))
    return MemoryGate.from_pretrained(values.pop("encoder") or DEFAULT_ENCODER, **values)


def _console(*, to_stderr: bool = False) -> "Console":
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1; ``main`` ends quietly
            raise BrokenPipeError

    console = PipedConsole(stderr=to_stderr)
    wide = console.is_terminal or "COLUMNS" in os.environ
    return console if wide else PipedConsole(stderr=to_stderr, width=PLAIN_WIDTH)


def _print_json(value: object) -> None:
    from mdl_torch.score import json_line

    sys.stdout.buffer.write(json_line(value))
    sys.stdout.flush()


# --- options --------------------------------------------------------------------------------------------------------


def _score_options(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=str, metavar="IN", help=f"{_JSONL}; TruthfulQA (.csv) and HaluEval QA too")
    parser.add_argument("-o", "--output", type=str, default="-", metavar="OUT", help="decisions; named as IN")
    parser.add_argument("--table", action="store_true", help="show decisions as a table")
    parser.add_argument("--rows", type=NonNegativeInt, default=100, help="rows of the table at most")
    parser.add_argument("--batch_size", type=PositiveInt, default=256, help="lines decided on together at most")
    parser.add_argument("--audits", type=bool, default=True, help="whether to account for each decision")
    parser.add_argument("--progress", type=bool | None, default=None, help="progress bar; null: on a terminal")
    parser.add_argument("--gate", type=GateOptions, default=GateOptions())


def _explain_options(parser: ArgumentParser) -> None:
    source = "input of that mdl score: shows the texts, and verifies from them"
    verify = "recompute the decision; without --id and --line, every one of the file"
    stability = "share of N controllers with a random basis each, all else as in --gate, that decide the same"
    parser.add_argument("file", type=str, metavar="FILE", help=f"decisions of mdl score: {_JSONL}")
    parser.add_argument("--id", type=str | None, default=None, help="id of the decision")
    parser.add_argument("--line", type=PositiveInt | None, default=None, help="number of its line, from 1")
    parser.add_argument("--source", type=str | None, default=None, metavar="IN", help=source)
    parser.add_argument("--verify", action="store_true", help=verify)
    parser.add_argument("--stability", type=PositiveInt | None, default=None, metavar="N", help=stability)
    parser.add_argument("--gate", type=GateOptions, default=GateOptions())


def _certify_options(parser: ArgumentParser) -> None:
    layer = "a preset, a folder of save_pretrained, a repository of the hub, or a calibration file of a preset"
    decisions = "decisions of mdl score, on whose signals the seeds decide too"
    resolution = "shares of the cube are counted with boxes down to a side of 2^-N"
    parser.add_argument("layer", type=str, nargs="?", default="paper", metavar="LAYER", help=layer)
    parser.add_argument("--calibration", type=str | None, default=None, help="reference, or a calibration file")
    parser.add_argument("--controller", type=MDLConfig | None, default=None, help="values of Table 2 in place of LAYER")
    parser.add_argument("-o", "--output", type=str | None, default=None, metavar="OUT", help="write the certificate")
    parser.add_argument("--save", type=str | None, default=None, metavar="FOLDER", help="write the layer that wears it")
    parser.add_argument("--check", type=str | None, default=None, metavar="FILE", help="check a certificate instead")
    parser.add_argument("--boxes", type=PositiveInt, default=4_000_000, help="boxes to look at, at most")
    parser.add_argument("--resolution", type=PositiveInt, default=7, metavar="N", help=resolution)
    parser.add_argument(
        "--seeds", type=PositiveInt | None, default=None, help="how much hangs on the seed, over so many"
    )
    parser.add_argument("--decisions", type=str, nargs="+", default=[], metavar="FILE", help=decisions)
    parser.add_argument("--sensitivity", action="store_true", help="vary every value of Table 2, on a grid")
    parser.add_argument("--points", type=PositiveInt, default=41, help="points of that grid along each signal")
    parser.add_argument("--plot", type=str | None, default=None, metavar="FILE", help="draw it: .png, .pdf or .svg")
    parser.add_argument("--progress", type=bool | None, default=None, help="progress bar; null: on a terminal")


def _evaluate_options(parser: ArgumentParser) -> None:
    from mdl_torch.evaluation.experiment import Experiment

    folder = "folder of the run, made or gone on with"
    parser.add_argument("--experiment", type=Experiment, required=True)
    parser.add_argument("-o", "--output", type=str, required=True, metavar="RUN_DIR", help=folder)
    parser.add_argument("--progress", type=bool | None, default=None, help="progress bar; null: on a terminal")


def _report_options(parser: ArgumentParser) -> None:
    folder = "where to write; the folder report in that of a single run if null"
    parser.add_argument("runs", type=str, nargs="+", metavar="RUN_DIR", help="folders of mdl evaluate")
    parser.add_argument("-o", "--output", type=str | None, default=None, metavar="FOLDER", help=folder)
    parser.add_argument("--figures", type=bool, default=True, help="whether to draw")
    parser.add_argument("--parquet", action="store_true", help="also write the answers of each run as Parquet")
    parser.add_argument("--all", action="store_true", help="also every analysis of the paper, and the case study")
    only = (
        "some analyses alone: table5, fig3a, fig3b, accuracy, table6, table7a, table7b, table10, safety, gating, "
        "selective, fig4, fig5a, fig5b, fig5c, table8, risk_coverage, seeds"
    )
    parser.add_argument("--only", type=list[str] | str | None, default=None, metavar="NAME,...", help=only)
    runs = "how often --all and table8 time each stage, slow ones fewer times; 100,000 times if null"
    parser.add_argument("--latency_runs", type=PositiveInt | None, default=None, help=runs)
    cases = "the case study, of questions by their question_id in answers.jsonl, or picked ones: '[]'"
    parser.add_argument("--cases", type=list[str | int] | str | None, default=None, metavar="ID,...", help=cases)


def _calibrate_options(parser: ArgumentParser) -> None:
    run = "folder of a mdl evaluate that fitted on a calibration split: its B1 and B2 outcomes are used"
    parser.add_argument("run", type=str, metavar="RUN_DIR", help=run)
    parser.add_argument("-o", "--output", type=str, required=True, metavar="OUT", help="the calibration file")
    parser.add_argument(
        "--layer", type=str, default="paper", help="a preset, a saved layer, or a repository of the hub"
    )
    parser.add_argument("--range", type=str, default="minmax", help="minmax, or quantile(q) with q below 0.5")
    parser.add_argument("--name", type=str | None, default=None, help="short name of the calibration in outputs")


def _bench_conflicts_options(parser: ArgumentParser) -> None:
    pairs = "labelled pairs: JSON lines of source, kind, a, b and conflict"
    parser.add_argument("--pairs", type=str, required=True, metavar="FILE", help=pairs)
    parser.add_argument(
        "--detector", type=str, default=GateOptions.detector, help="detector that kinds of --json is of"
    )


@dataclass(frozen=True)
class Command:
    """A command: what it is for, what runs it, its options, an example."""

    summary: str
    run: "Callable[[Namespace], int]"
    options: "Callable[[ArgumentParser], None]"
    example: str


_JSONL = "JSON lines, gzip if named .gz, - for the standard streams"

COMMANDS: dict[str, Command] = {
    "score": Command(
        "decide on every retrieval of a file",
        _score,
        _score_options,
        "mdl score retrievals.jsonl -o decisions.jsonl --table --gate.calibration reference",
    ),
    "explain": Command(
        "show a decision as an audit card, and verify that it comes out again",
        _explain,
        _explain_options,
        "mdl explain decisions.jsonl --id med-02 --verify --source retrievals.jsonl",
    ),
    "certify": Command(
        "prove how a controller behaves on the whole cube of signals",
        _certify,
        _certify_options,
        "mdl certify paper --calibration reference -o certificate.json --seeds 40",
    ),
    "evaluate": Command(
        "answer questions with a language model, with and without memories and the controller",
        _evaluate,
        _evaluate_options,
        "mdl evaluate --config configs/truthfulqa-gemma-3-270m.yaml --output runs/gemma",
    ),
    "calibrate": Command(
        "fit range and thresholds on the outcomes of a run's calibration split",
        _calibrate,
        _calibrate_options,
        "mdl calibrate runs/gemma -o calibration.json && mdl score in.jsonl --gate.calibration calibration.json",
    ),
    "report": Command(
        "tables and figures of one run or several, beside the paper's, and the paper's analyses",
        _report,
        _report_options,
        "mdl report runs/gemma runs/halueval -o report && mdl report runs/gemma --only table6,fig4",
    ),
    "bench conflicts": Command(
        "how often the conflict detectors fire on labelled pairs of texts",
        _bench_conflicts,
        _bench_conflicts_options,
        "mdl bench conflicts --pairs pairs.jsonl --json",
    ),
}
"""Every command by its words, such as ``bench conflicts``."""


def _parser() -> ArgumentParser:
    """The parser of ``mdl`` with a parser for each command; commands of two words share one for the first."""
    top = _new_parser("decides whether retrieved memories deserve trust, and shows why")
    top.add_argument("--version", action="version", version=f"mdl_torch {__version__}")
    commands = top.add_subcommands(dest="command")
    groups: dict[str, Any] = {}
    for words, command in COMMANDS.items():
        first, _, second = words.partition(" ")
        parser = _new_parser(command.summary, f"example:\n  {command.example}\n\n")
        parser.add_argument("--config", action="config", help="YAML file of options; those on the command line win")
        command.options(parser)
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        parser.add_argument("--debug", action="store_true", help="show where an error came from")
        if not second:
            commands.add_subcommand(first, parser, help=command.summary)
            continue
        if first not in groups:
            group = _new_parser(f"commands of mdl {first}")
            commands.add_subcommand(first, group, help=", ".join(w for w in COMMANDS if w.startswith(f"{first} ")))
            groups[first] = group.add_subcommands(dest="command")
        groups[first].add_subcommand(second, parser, help=command.summary)
    return top


def _new_parser(description: str, examples: str = "") -> ArgumentParser:
    return _Parser(
        prog="mdl",
        description=description,
        epilog=examples + EXIT_STATUSES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )


def _command(options: Namespace) -> tuple[str, Namespace]:
    """The words of the command that was given, and its own options."""
    words: list[str] = []
    while "command" in options:
        words.append(options.command)
        options = options[options.command]
    return " ".join(words), options


def _check_switches(options: Namespace) -> None:
    """Refuse what a configuration file says of a switch other than true or false; jsonargparse does not.

    Raises:
        ValueError: A switch is set to something else.
    """
    for name in ("table", "verify", "sensitivity", "parquet", "json", "debug"):
        if name in options and not isinstance(options[name], bool):
            raise ValueError(f"{name} must be true or false, got {options[name]!r}")


class _HelpFormatter(DefaultHelpFormatter):
    """Keeps the line breaks of the text at the end."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


class _Parser(ArgumentParser):
    """Reports a mistake in one line, with the nearest name for one that does not exist."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the mistake and exit with status 2."""
        parser = getattr(ex, "subcommand_parser", None) or self
        name = parser.prog.replace(" [options]", "") if parser.prog.startswith("mdl") else "mdl"
        line = re.sub(r"(?<=required: )\S+", _as_typed, " ".join(message.split()))
        sys.stderr.write(f"{name}: {line}{_nearest(parser, line)} ({name} --help lists all)\n")
        self.exit(FAILED)
        raise AssertionError  # exit does not return


def _as_typed(found: re.Match[str]) -> str:
    """An option as a user types it, for the parser's name of it, such as ``bench.conflicts.pairs``."""
    name = found[0].split(".")[-1]
    return {"source": "IN", "file": "FILE", "run": "RUN_DIR", "runs": "RUN_DIR"}.get(name, f"--{name}")


def _nearest(parser: ArgumentParser, message: str) -> str:
    """A hint at the name that was meant, if the message is about one that does not exist."""
    values = list(MDLConfig.__dataclass_fields__)
    names = [action.dest for action in parser._actions] + [f"gate.config.{name}" for name in values]
    if option := re.search(r"unrecognized arguments: --?([^\s=]+)", message):
        got, known, dashes = option[1], names, "--"
    elif key := re.search(r"does not accept (?:option|nested key) '([^']+)'", message):
        got, known, dashes = key[1], names, ""
    elif value := re.search(r"Option '([^']+)' is not accepted", message):
        got, known, dashes = value[1], [*names, *values], ""
    elif choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*?)\)", message):
        got, known, dashes = choice[1], re.findall(r"[\w-]+", choice[2]), ""
    else:
        return ""
    near = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    return f"; did you mean {dashes}{near[0]}?" if near else ""
