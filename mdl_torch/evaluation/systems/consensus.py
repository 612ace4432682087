"""Two plain answers to poisoned and contradicting memories: trust what most of them say, before or after asking.

Neither knows what is true. A lie that is told three times outvotes a truth that is told twice: agreement among memories
is what both reward, as R does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdl_torch.evaluation.agreement import AGREEMENT, check_threshold, clusters, medoid
from mdl_torch.evaluation.refusals import is_refusal
from mdl_torch.evaluation.systems.base import ABSTENTION, Answer, System
from mdl_torch.generation.prompts import ask, inject

if TYPE_CHECKING:
    from mdl_torch.evaluation.systems.base import Item, Steps
    from mdl_torch.generation.backend import Completion


class _Consensus(System):
    """A system that asks which texts agree.

    Args:
        threshold: Least cosine of two texts that agree, in (0, 1].

    Raises:
        ValueError: ``threshold`` is out of range.
    """

    def __init__(self, threshold: float = AGREEMENT) -> None:
        check_threshold(threshold)
        self.threshold = float(threshold)

    @property
    def identity(self) -> str:
        """Its threshold. Encoder and detector are those of the gate, which records name."""
        return f"agreement from {self.threshold}"


class LargestCluster(_Consensus):
    """Keeps the largest cluster of memories that all agree, and answers with those alone, in the order of the store.

    After TrustRAG (Zhou et al. 2025, arXiv:2501.00879), which clusters what was retrieved before the model reads it.
    That one drops what clusters too tightly, as planted, and lets the model settle the rest against its own knowledge;
    this is the plainer idea that a memory is to be trusted if others bear it out. So it drops a lone lie and a lone
    truth alike, and three copies of a lie win over two of the truth.

    If no two of several memories agree, none is borne out, and the model answers alone. A single memory, which nothing
    could bear out, goes in.

    Example:
        >>> LargestCluster(0.7).identity
        'agreement from 0.7'
    """

    name = "largest_cluster"

    def answer(self, item: Item) -> Steps:
        """One prompt."""
        memories = item.memories
        kept = next(iter(clusters(item.compare(memories), self.threshold)), [])
        corroborated = len(kept) > 1
        if not corroborated and len(memories) > 1:
            kept = []
        completion = yield inject(item.question.text, [memories[place] for place in kept])
        return Answer(
            completion.text,
            injected=bool(kept),
            notes={"memories kept": len(kept), "memories": len(memories), "corroborated": corroborated},
        )


class IsolatedVote(_Consensus):
    """Answers with each memory alone, one call a memory, and says what more than half of those answers agree on.

    After RobustRAG (Xiang et al. 2024, arXiv:2405.15556): isolate, so that a planted memory cannot bend the answers of
    others, then aggregate. There, answers meet in their keywords or their next tokens, with a proof of robustness; here
    the votes are clustered whole, without one. Refusals and blank answers are no votes. The answer is the medoid of the
    largest cluster if that holds more than half of the votes; otherwise, or without a vote, the system abstains. Copies
    of a lie are as many votes: three win over two of the truth. Without memories the model answers alone.

    Example:
        >>> IsolatedVote().identity == IsolatedVote(0.9).identity
        False
    """

    name = "isolated_vote"

    def answer(self, item: Item) -> Steps:
        """A prompt a memory, all at once."""
        question, memories = item.question.text, item.memories
        if not memories:
            completion = yield ask(question)
            return Answer(completion.text, injected=False, notes={"votes": 0, "agreeing": 0, "majority": False})
        completions: list[Completion] = yield [inject(question, [memory]) for memory in memories]
        votes = [found.text for found in completions if found.text.strip() and not is_refusal(found.text)]
        likeness = item.compare(votes)
        largest = next(iter(clusters(likeness, self.threshold)), [])
        majority = 2 * len(largest) > len(votes)
        text = votes[medoid(likeness, largest)] if majority else ABSTENTION
        return Answer(
            text,
            injected=majority,
            notes={"votes": len(votes), "agreeing": len(largest), "majority": majority},
        )
