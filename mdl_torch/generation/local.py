"""A language model on this machine: any causal one of transformers, in batches, with noise that belongs to requests."""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import inspect
import itertools
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from mdl_torch.generation.backend import Backend, Completion, cut_at_stop, required_form
from mdl_torch.generation.draws import draw, keyed_uniform
from mdl_torch.generation.prompts import COMPLETION_STOP, CUE, EXAMPLE, completion_text
from mdl_torch.generation.thinking import strip_thinking
from mdl_torch.generation.weights import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mdl_torch.generation.backend import Request, Sampling
    from mdl_torch.generation.forms import Form

Template = Literal["auto", "chat", "completion"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_END_OF_TURN = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|end|>")
_OPEN_THINKING = re.compile(r"<(think|thinking|thought)>\s*\Z")


@dataclass
class _Row:
    """A request while it is answered."""

    place: int
    key: str
    text: str
    prompt: list[int]
    notes: tuple[str, ...]
    form: Form | None = None
    tokens: list[int] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    probabilities: dict[str, dict[str, float]] = field(default_factory=dict)
    finish: str = ""
    error: Exception | None = None

    @property
    def opened(self) -> bool:
        """Whether the prompt has begun a block of thinking."""
        return _OPEN_THINKING.search(self.text) is not None


class _Label(NamedTuple):
    """A label of a field to be scored: of which row, and its tokens from ``start`` on, ``read`` being in the cache."""

    row: int
    read: int
    start: int
    tokens: list[int]


class LocalBackend(Backend):
    """Answers with a causal language model of transformers.

    **Same request, same answer.** What is drawn for a request at step t depends on its key and t (``draws``), not on a
    global generator or its batch. The batch only moves logits by float rounding, so that an answer may differ between
    two compositions of a batch where a draw falls within about 1e-6 of a boundary; in the same batch it is the same.

    **Chat or completion.** A tokenizer with a chat template gets instruction and user as two turns, thinking off where
    the template has a switch for it; one whose template knows no system turn gets both in one. A base model gets the
    one-shot prompt of ``prompts.completion_text`` and stops at the end of its line. Text that spells one of the model's
    control tokens is taken apart with a space, and the answer has a note of it.

    **Forms** are not written but read from likelihoods: log P(label | prompt, labels before it), the sum over the
    label's tokens. The likeliest label is taken, and ``probabilities`` are the labels' likelihoods over their sum.
    Where two tie for the first place, as they may in bfloat16, none is, and what follows is read after the first.

    **Sampling** is what was asked for: temperature, then top-p. Filters that a model's own generation settings add
    (Gemma's top-k of 64) are not applied.

    Args:
        model: A loaded model; it is put in evaluation mode.
        tokenizer: Its tokenizer.
        name: What to call it.
        digest: Which weights these are; of the parameters by default.
        template: ``"chat"``, ``"completion"``, or ``"auto"``: chat where the tokenizer has a template.
        thinking: Leave the model's thinking mode on. Thinking is cut from the answers either way.
        batch_size: Requests in one pass; more are sorted by length and split.

    Raises:
        ValueError: An argument is out of range, or there is no chat template to use.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        *,
        digest: str | None = None,
        template: Template = "auto",
        thinking: bool = False,
        batch_size: int = 32,
    ) -> None:
        if template not in ("auto", "chat", "completion"):
            raise ValueError(f"template must be 'auto', 'chat' or 'completion', got {template!r}")
        if template == "chat" and not tokenizer.chat_template:
            raise ValueError(f"template must be 'auto' or 'completion': {name!r} has no chat template, got 'chat'")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
        self.batch_size = batch_size
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._name = name
        self._digest = digest or _parameter_digest(model)
        self._chat = template == "chat" or (template == "auto" and bool(tokenizer.chat_template))
        self._thinking = thinking
        self._has_system_turn = self._chat and self._knows_system_turn()
        self._control = _control_tokens(tokenizer)
        self._ends = self._end_tokens()
        self._context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        parameters = inspect.signature(model.forward).parameters
        # Older versions of transformers call it past_key_values, newer ones warn of that.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_last = "logits_to_keep" in parameters

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        revision: str | None = None,
        dtype: str = "float32",
        device: str | None = None,
        device_map: str | dict[str, Any] | None = None,
        template: Template = "auto",
        thinking: bool = False,
        batch_size: int = 32,
    ) -> LocalBackend:
        """Loads a model by hub name, folder, GGUF file or package name; see ``weights.locate``.

        Args:
            model: Which.
            revision: Of a model on the hub.
            dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"float64"``.
            device: By default a GPU where there is one.
            device_map: Spreads the model over devices instead (``"auto"``); needs accelerate.
            template: See the class.
            thinking: See the class.
            batch_size: See the class.

        Raises:
            OSError: The model is not there, cannot be fetched, or is damaged.
            ValueError: An argument is out of range.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if device is not None and device_map is not None:
            raise ValueError(f"device and device_map exclude each other, got {device!r} and {device_map!r}")
        files = locate(str(model), revision=revision)
        spread = {} if device_map is None else {"device_map": device_map}
        try:
            tokenizer = AutoTokenizer.from_pretrained(files.folder)
            loaded: Any = AutoModelForCausalLM.from_pretrained(files.folder, dtype=DTYPES[dtype], **spread)
            if device_map is None:
                loaded = loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        except Exception as error:  # of a dozen kinds, from four libraries
            raise OSError(f"cannot load the model {model!r}: {type(error).__name__}: {error}") from error
        return cls(
            loaded,
            tokenizer,
            files.name,
            digest=files.digest,
            template=template,
            thinking=thinking,
            batch_size=batch_size,
        )

    @property
    def identity(self) -> str:
        """``name@weights dtype template@digest``, as in ``gemma3-270m@0a1b2c3d4e5f float32 completion@6a7b8c9d``."""
        dtype = str(self._model.dtype).removeprefix("torch.")
        kind = "completion" if not self._chat else "chat-thinking" if self._thinking else "chat"
        spelled = str(self._tokenizer.chat_template) if self._chat else completion_text("{instruction}", "{user}")
        return f"{self._name}@{self._digest} {dtype} {kind}@{hashlib.sha256(spelled.encode()).hexdigest()[:8]}"

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion | Exception]:
        """Answer requests in batches of like length; see ``Backend.generate``.

        A request that does not fit the model's context together with its answer is a ``ValueError`` in its place.

        Raises:
            OSError: The machine has too little memory for the batch.
        """
        return self._in_batches(
            requests,
            sampling.max_new_tokens,
            lambda rows: self._answer(rows, sampling),
            lambda row, seconds: self._completion(row, sampling, seconds),
        )

    def choose(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        """Fill in forms by the likelihood of their labels; see ``Backend.choose``.

        Raises:
            OSError: The machine has too little memory for the batch.
            ValueError: A request has no form.
        """
        for request in requests:
            required_form(request)
        return self._in_batches(requests, 0, self._fill_in, self._filled)

    def _in_batches(
        self,
        requests: Sequence[Request],
        reserve: int,
        work: Callable[[list[_Row]], None],
        result: Callable[[_Row, float], Completion],
    ) -> list[Completion | Exception]:
        """What becomes of each request, in order; those of like length are worked on together."""
        results: list[Completion | Exception | None] = [None] * len(requests)
        rows = []
        for place, request in enumerate(requests):
            try:
                rows.append(self._row(place, request, reserve))
            except Exception as error:  # whatever a template or a tokenizer makes of this text is about this text
                results[place] = error
        rows.sort(key=lambda row: len(row.prompt))
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            began = time.perf_counter()
            with self._memory_checked(batch):
                work(batch)
            seconds = (time.perf_counter() - began) / len(batch)
            for row in batch:
                results[row.place] = row.error or result(row, seconds)
        return [found for found in results if found is not None]

    def close(self) -> None:
        """Frees the model's memory."""
        self._model = self._tokenizer = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def prompt_text(self, instruction: str, user: str, example: str = EXAMPLE, cue: str = CUE) -> str:
        """The prompt as the model reads it, control tokens included but for what the tokenizer puts before a text."""
        if not self._chat:
            return completion_text(instruction, user, example, cue)
        system = [{"role": "system", "content": instruction}] if self._has_system_turn else []
        asked = user if self._has_system_turn else f"{instruction}\n\n{user}"
        return self._render([*system, {"role": "user", "content": asked}])

    def _row(self, place: int, request: Request, reserve: int) -> _Row:
        """The request in tokens, if it fits the context together with ``reserve`` more."""
        instruction, user = (self._control.sub(_taken_apart, text) for text in (request.instruction, request.user))
        changed = (instruction, user) != (request.instruction, request.user)
        text = self.prompt_text(instruction, user, request.example, request.cue)
        tokens = self._tokens(text)
        if not tokens:
            raise ValueError("prompt must not be empty")
        self._check_length(len(tokens), reserve)
        notes = ("control tokens in the prompt were taken apart",) if changed else ()
        return _Row(place, request.key, text, tokens, notes, request.form)

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text, add_special_tokens=not self._chat, verbose=False)["input_ids"]
        return tokens

    def _check_length(self, prompt: int, reserve: int) -> None:
        if self._context is not None and prompt + reserve > self._context:
            raise ValueError(
                f"prompt of {prompt} tokens and an answer of up to {reserve} do not fit "
                f"the context of {self._name}, {self._context} tokens"
            )

    @contextlib.contextmanager
    def _memory_checked(self, rows: list[_Row]) -> Iterator[None]:
        """Says what to do where memory runs out."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise OSError(
                    errno.ENOMEM,
                    f"out of memory with {len(rows)} prompts of up to {max(len(row.prompt) for row in rows)} tokens on "
                    f"{self._model.device}; set a batch_size below {self.batch_size}",
                ) from error
            raise

    # ------------------------------------------------------------------------------------------------------- answers

    @torch.inference_mode()
    def _answer(self, rows: list[_Row], sampling: Sampling) -> None:
        """Draw the tokens of all rows, one forward a step; rows that are done leave the batch."""
        for logits, active in self._steps(rows):
            broken = logits.isnan().any(-1).tolist()
            noise = [keyed_uniform(row.key, len(row.tokens)) for row in active]
            drawn = draw(logits, noise, temperature=sampling.temperature, top_p=sampling.top_p).tolist()
            for row, token, is_nan in zip(active, drawn, broken, strict=True):
                if is_nan:
                    row.error = self._not_a_number()
                elif token in self._ends:
                    row.finish = "stop"
                else:
                    row.tokens.append(token)
                    if self._stopped(row, sampling):
                        row.finish = "stop"
                    elif len(row.tokens) == sampling.max_new_tokens:
                        row.finish = "length"

    def _not_a_number(self) -> FloatingPointError:
        return FloatingPointError(f"logits are NaN in {self._model.dtype}; try bfloat16 or float32")

    def _steps(self, rows: list[_Row]) -> Iterator[tuple[torch.Tensor, list[_Row]]]:
        """Next-token logits ``(B, V)`` and the rows they are of, until all rows are done."""
        from transformers import DynamicCache

        device = self._model.device
        ids, mask, positions = self._padded([row.prompt for row in rows])
        cache = DynamicCache(config=self._model.config)
        active = list(rows)
        while True:
            out = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self._cache_argument: cache},
                **self._keep(1),
            )
            yield out.logits[:, -1], active
            kept = [place for place, row in enumerate(active) if not row.finish and row.error is None]
            if not kept:
                return
            if len(kept) < len(active):
                index = torch.tensor(kept, device=device)
                cache.batch_select_indices(index)
                mask, positions = mask[index], positions[index]
                active = [active[place] for place in kept]
            ids = torch.tensor([[row.tokens[-1]] for row in active], device=device)
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=-1)
            positions = positions[:, -1:] + 1

    def _padded(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids, mask and positions ``(B, T)``, padded on the left."""
        width = max(map(len, sequences))
        pad = self._tokenizer.pad_token_id or 0
        ids = [[pad] * (width - len(one)) + list(one) for one in sequences]
        real = [[0] * (width - len(one)) + [1] * len(one) for one in sequences]
        mask = torch.tensor(real, device=self._model.device)
        return torch.tensor(ids, device=self._model.device), mask, (mask.cumsum(-1) - 1).clamp(min=0)

    def _keep(self, last: int) -> dict[str, int]:
        """The argument that saves logits of other places than the last few, for models that know it."""
        return {"logits_to_keep": last} if self._keeps_last else {}

    def _completion(self, row: _Row, sampling: Sampling, seconds: float) -> Completion:
        text, thought = self._visible(row)
        return Completion(
            text=cut_at_stop(text, self._stops(sampling)).strip(),
            finish=row.finish,
            prompt_tokens=len(row.prompt),
            completion_tokens=len(row.tokens),
            seconds=seconds,
            model=self._name,
            notes=(*row.notes, "thinking was cut out") if thought else row.notes,
        )

    # --------------------------------------------------------------------------------------------------------- forms

    @torch.inference_mode()
    def _fill_in(self, rows: list[_Row]) -> None:
        """Fill in the forms of all rows, a field at a time; the prompts are read once, for all fields."""
        spelled = {row.place: self._spelled(row, 0) for row in rows}
        read = [max(1, _common_prefix([row.prompt, *spelled[row.place]]) - 1) for row in rows]
        cache, mask = self._read([row.prompt[:count] for row, count in zip(rows, read, strict=True)])
        for number in range(max(len(row.form.fields) for row in rows if row.form)):
            asked = []
            for place, row in enumerate(rows):
                if row.form is not None and row.error is None and number < len(row.form.fields):
                    labels = self._spelled(row, number)
                    try:
                        self._check_length(len(row.prompt), max(map(len, labels)) - len(row.prompt))
                    except ValueError as error:
                        row.error = error
                        continue
                    if any(tokens[: read[place]] != row.prompt[: read[place]] for tokens in labels):
                        row.error = ValueError("the tokens of the form must go on from those of the prompt")
                        continue
                    before = _common_prefix([self._tokens(self._before(row, number)), *labels])
                    asked += [_Label(place, read[place], max(read[place] + 1, before), tokens) for tokens in labels]
            scores = iter(self._log_likelihoods(asked, cache, mask))
            for row in (rows[place] for place in dict.fromkeys(label.row for label in asked)):
                assert row.form is not None
                field = row.form.fields[number]
                found = torch.tensor([next(scores) for _ in field.labels], dtype=torch.float64)
                if not found.max().isfinite():
                    row.error = self._not_a_number()
                    continue
                row.values[field.name] = field.labels[int(found.argmax())]
                row.probabilities[field.name] = dict(zip(field.labels, found.softmax(-1).tolist(), strict=True))

    def _before(self, row: _Row, number: int) -> str:
        """The prompt, and what the form says before the label of a field."""
        assert row.form is not None
        before = row.form.before(row.values, row.form.fields[number])
        opened = _OPEN_THINKING.search(row.text)
        closed = f"\n</{opened[1]}>\n\n" if opened else ""  # grades are not to be thoughts
        space = "" if self._chat else " "  # a turn begins with a word, a base model goes on after its cue
        return row.text + closed + (space + before if before else "")

    def _spelled(self, row: _Row, number: int) -> list[list[int]]:
        """Prompt and reply up to each label of a field, in tokens."""
        assert row.form is not None
        before = self._before(row, number)
        bare = len(row.form.fields) == 1
        space = "" if bare and self._chat else " "
        return [self._tokens(before + space + label) for label in row.form.fields[number].labels]

    def _read(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, torch.Tensor]:
        """What a model keeps of prompts, and their mask ``(B, T)``."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        ids, mask, positions = self._padded(prompts)
        self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: cache},
            **self._keep(1),
        )
        return cache, mask

    def _log_likelihoods(self, labels: Sequence[_Label], cache: Any, mask: torch.Tensor) -> list[float]:
        """Σ log p of the tokens of each label, given those before.

        The last token is never read, so that labels of a row which differ in it alone share a place in the batch.
        """
        users: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for place, label in enumerate(labels):
            users.setdefault((label.row, tuple(label.tokens[label.read : -1])), []).append(place)
        found = [0.0] * len(labels)
        inputs = sorted(users, key=lambda one: (len(one[1]), one))
        for start in range(0, len(inputs), self.batch_size):
            batch = inputs[start : start + self.batch_size]
            rows = torch.tensor([row for row, _ in batch], device=mask.device)
            own = copy.deepcopy(cache)
            own.batch_select_indices(rows)
            width = max(len(read) for _, read in batch)
            ids = torch.tensor([[*read, *[0] * (width - len(read))] for _, read in batch], device=mask.device)
            seen = mask[rows]
            positions = seen.sum(-1, keepdim=True) + torch.arange(width, device=mask.device)
            places = [(row, place) for row, one in enumerate(batch) for place in users[one]]
            first = min(labels[place].start - labels[place].read for _, place in places) - 1
            logits = self._model(
                input_ids=ids,
                attention_mask=torch.cat([seen, torch.ones_like(ids)], dim=-1),  # what is padded comes after, unseen
                position_ids=positions,
                use_cache=True,
                **{self._cache_argument: own},
                **self._keep(width - first),
            ).logits[:, first - width :]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            totals = logits.logsumexp(-1)
            for row, place in places:
                label = labels[place]
                said = torch.tensor(label.tokens[label.start :], device=logits.device)
                told = slice(label.start - label.read - 1 - first, len(label.tokens) - label.read - 1 - first)
                scored = logits[row, told].gather(-1, said[:, None])[:, 0] - totals[row, told]
                found[place] = float(scored.double().sum())
        return found

    def _filled(self, row: _Row, seconds: float) -> Completion:
        assert row.form is not None
        line = row.form.line(row.values)
        return Completion(
            text=line,
            finish="stop",
            prompt_tokens=len(row.prompt),
            completion_tokens=len(self._tokenizer(line, add_special_tokens=False)["input_ids"]),
            seconds=seconds,
            model=self._name,
            notes=row.notes,
            choices=row.form.choices(line, row.probabilities),
            probabilities=row.probabilities,
        )

    # ------------------------------------------------------------------------------------------------ text and tokens

    def _stops(self, sampling: Sampling) -> tuple[str, ...]:
        return sampling.stop if self._chat else (*sampling.stop, COMPLETION_STOP)

    def _stopped(self, row: _Row, sampling: Sampling) -> bool:
        stops = self._stops(sampling)
        return bool(stops) and any(stop in self._visible(row)[0] for stop in stops)

    def _visible(self, row: _Row) -> tuple[str, bool]:
        """What the row says so far, without thinking and control tokens, and whether there was thinking."""
        text = self._tokenizer.decode(row.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        answer, thought = strip_thinking(f"<think>{text}" if row.opened else text)
        return self._control.sub("", answer), thought

    def _render(self, turns: list[dict[str, str]]) -> str:
        # Qwen, SmolLM3 and Gemma 4 call the switch enable_thinking, DeepSeek thinking; other templates ignore both.
        return str(
            self._tokenizer.apply_chat_template(
                turns,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=self._thinking,
                thinking=self._thinking,
            )
        )

    def _knows_system_turn(self) -> bool:
        try:
            return "<{MARK}>" in self._render(
                [{"role": "system", "content": "<{MARK}>"}, {"role": "user", "content": "?"}]
            )
        except Exception:  # a template refuses in its own words
            return False

    def _end_tokens(self) -> frozenset[int]:
        configured = getattr(self._model.generation_config, "eos_token_id", None)
        ends = set(configured) if isinstance(configured, list | tuple) else {configured}
        ends.add(self._tokenizer.eos_token_id)
        if self._chat:
            known = self._tokenizer.get_added_vocab()
            ends |= {known.get(token) for token in _END_OF_TURN}
        return frozenset(end for end in ends if end is not None)


def _common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with."""
    together = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))
    return sum(1 for _ in together)


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    added = tokenizer.added_tokens_decoder.values()
    tokens = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)} - {""}
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _taken_apart(match: re.Match[str]) -> str:
    return f"{match[0][:1]} {match[0][1:]}"


def _parameter_digest(model: torch.nn.Module) -> str:
    """First 12 hex digits of the SHA-256 over all parameters."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
