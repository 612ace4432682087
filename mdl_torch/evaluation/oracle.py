"""What should have been done with the memories, told from what came of it (Section 5.3)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADOPT, REJECT = "adopt", "reject"
"""The oracle's actions, as records spell them."""


def injects(action: Action) -> bool:
    """Whether an action puts memories into the prompt: Active and Supp do.

    Example:
        >>> [injects(action) for action in Action]
        [True, True, False, False]
    """
    return action in (Action.ACTIVE, Action.SUPP)


def oracle_adopts(outcome: Outcome, *, injected: bool) -> bool | None:
    """The paper's oracle: whether the memories should have been adopted, from one answer.

    Where memories were injected (B2; B3 under Active and Supp), a hallucination says reject and a safe answer adopt;
    where none were (B1; B3 under Silent and Opt-Out), the other way round. Everything that is no hallucination is
    safe, abstentions too. An empty output says nothing: None.

    Args:
        outcome: Of the answer.
        injected: Whether memories were in its prompt.

    Example:
        >>> oracle_adopts(Outcome.CORRECT, injected=True), oracle_adopts(Outcome.HALLUCINATION, injected=False)
        (True, True)
        >>> oracle_adopts(Outcome.ABSTENTION, injected=False), oracle_adopts(Outcome.EMPTY, injected=False)
        (False, None)
    """
    if outcome is Outcome.EMPTY:
        return None
    return (outcome is not Outcome.HALLUCINATION) == injected


def oracle_action(record: Mapping[str, Any]) -> str | None:
    """The same of a record of ``mdl evaluate``: ``adopt``, ``reject``, or None where its output is empty or not scored.

    Args:
        record: With its ``outcome`` and what was ``injected``: memories, or whether there were any.

    Example:
        >>> oracle_action({"outcome": "hallucination", "injected": False})
        'adopt'
    """
    if record["outcome"] is None:
        return None
    adopt = oracle_adopts(Outcome(record["outcome"]), injected=bool(record["injected"]))
    return None if adopt is None else (ADOPT if adopt else REJECT)


def agrees(action: Action, adopt: bool) -> bool:
    """Whether a decision is the oracle's: Active is adopt, every other action reject (Section 5.3).

    Example:
        >>> agrees(Action.ACTIVE, True), agrees(Action.SUPP, True), agrees(Action.OPT_OUT, False)
        (True, False, True)
    """
    return (action is Action.ACTIVE) == adopt


class PairedOracle(StrEnum):
    """What B1 and B2 tell together of a question, at the same seed.

    Example:
        >>> [paired.adopt for paired in PairedOracle]
        [None, False, True, None]
    """

    BOTH_SAFE = "both_safe"
    """It does not matter whether the memories are used."""
    ONLY_B1 = "only_b1"
    """Only without memories the answer is safe: reject."""
    ONLY_B2 = "only_b2"
    """Only with them: adopt."""
    NEITHER = "neither"
    """Neither helps: abstain."""

    @property
    def label(self) -> str:
        """As records spell it."""
        return self.value

    @property
    def adopt(self) -> bool | None:
        """True for adopt, False for reject, None where using the memories or not makes no difference."""
        return {PairedOracle.ONLY_B1: False, PairedOracle.ONLY_B2: True}.get(self)


def paired_oracle(b1: Outcome, b2: Outcome) -> PairedOracle | None:
    """What both outcomes of one question and seed tell; None if one of the outputs is empty.

    The paper's oracle labels both answers. Where the pair makes no difference its two labels contradict each other;
    else they are the pair's. So both oracles prefer the same thresholds, but the paper's agreement cannot exceed the
    share of pairs that make a difference plus half of the rest.

    Args:
        b1: Of the answer without memories.
        b2: Of the answer with all of them.

    Example:
        >>> paired_oracle(Outcome.CORRECT, Outcome.HALLUCINATION).label
        'only_b1'
    """
    if Outcome.EMPTY in (b1, b2):
        return None
    safe = (b1 is not Outcome.HALLUCINATION, b2 is not Outcome.HALLUCINATION)
    return {
        (True, True): PairedOracle.BOTH_SAFE,
        (True, False): PairedOracle.ONLY_B1,
        (False, True): PairedOracle.ONLY_B2,
        (False, False): PairedOracle.NEITHER,
    }[safe]


def labelled(records: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[bool]]:
    """What is learned from: records of B1 and B2 that the oracle says something of, and whether it says adopt.

    Both answers to a question have the same signals. Where the pair makes no difference, their labels contradict each
    other.

    Args:
        records: Of ``mdl evaluate`` on a calibration split; those of other systems are left aside.

    Raises:
        ValueError: There are no records of both, or every answer is empty or was not scored.

    Example:
        >>> b1 = {"system": "b1", "outcome": "hallucination", "injected": False}
        >>> b2 = {"system": "b2", "outcome": "hallucination", "injected": True}
        >>> labelled([b1, b2])[1]
        [True, False]
    """
    used = [record for record in records if record["system"] in ("b1", "b2")]
    if {record["system"] for record in used} != {"b1", "b2"}:
        got = ", ".join(sorted({record["system"] for record in records})) or "none"
        raise ValueError(f"records must be of b1 and b2 on a calibration split, got {got}")
    found = [(record, action) for record in used if (action := oracle_action(record)) is not None]
    if not found:
        raise ValueError("records must have outcomes, but every answer is empty or was not scored")
    return [record for record, _ in found], [action == ADOPT for _, action in found]


def signals_of(record: Mapping[str, Any]) -> tuple[float, float, float]:
    """(M, R, A) that a record was decided on.

    Example:
        >>> signals_of({"decision": {"relevance": 0.8, "reliability": 0.5, "risk": 0.2}})
        (0.8, 0.5, 0.2)
    """
    decision = record["decision"]
    return decision["relevance"], decision["reliability"], decision["risk"]
