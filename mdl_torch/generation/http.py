"""Models behind an OpenAI-compatible HTTP endpoint, with all that can go wrong between here and there."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from mdl_torch.generation.backend import Backend, Completion, cut_at_stop
from mdl_torch.generation.prompts import COMPLETION_STOP, completion_text, wording_digest
from mdl_torch.generation.thinking import strip_thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mdl_torch.generation.backend import Request, Sampling

_LOG = logging.getLogger(__name__)
_OURS = {"model", "messages", "prompt", "temperature", "top_p", "max_tokens", "stop", "seed", "n", "stream"}
_STOPS = 4  # as many as every server takes; the others are cut here


class AnswerError(RuntimeError):
    """The server was reached and gave no usable answer to a request.

    Attributes:
        status: HTTP status; None if the fault lies in the answer itself.
        temporary: Whether asking again may help.
        wait: Seconds that the server asks us to wait; 0 if it says nothing.
    """

    def __init__(self, message: str, *, status: int | None = None, temporary: bool = False, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.temporary, self.wait = status, temporary, wait


def request_seed(key: str) -> int:
    """The seed that a server draws with, in [0, 2³¹): the first 31 bits of the key's SHA-256.

    Example:
        >>> request_seed("seed-0:q1") == request_seed("seed-0:q1") != request_seed("seed-0:q2")
        True
    """
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:4], "big") >> 1


def retry_after(header: str | None, now: float) -> float:
    """Seconds that a ``Retry-After`` header asks for, as a number or as a date; 0 if it says nothing usable.

    Example:
        >>> retry_after("2.5", 0.0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 20.0), retry_after("soon", 0.0)
        (2.5, 40.0, 0.0)
    """
    try:
        seconds = float(header or 0)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(str(header)).timestamp() - now
        except ValueError:
            return 0.0
    return seconds if 0 <= seconds < float("inf") else 0.0


def read_reply(reply: object, asked_model: str, sampling: Sampling, stop: Sequence[str], seconds: float) -> Completion:
    """A server's reply as a completion, with a note on everything that is not as asked.

    Args:
        reply: The decoded JSON of a chat or text completion.
        asked_model: Compared with what the server says has answered.
        sampling: As asked.
        stop: Texts that end the answer.
        seconds: From sending to having it.

    Raises:
        AnswerError: The reply holds no answer; asking again may help.

    Example:
        >>> from mdl_torch.generation.backend import Sampling
        >>> reply = {"model": "m", "choices": [{"message": {"content": "Paris. Or"}, "finish_reason": "stop"}],
        ...          "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
        >>> done = read_reply(reply, "m", Sampling(), ["."], 0.5)
        >>> done.text, done.notes
        ('Paris', ('the server went on past a stop text; cut there',))
    """
    choice = _choice(reply)
    assert isinstance(reply, dict)
    message = choice["message"] if isinstance(choice.get("message"), dict) else choice
    raw = message.get("content" if message is not choice else "text")
    notes: list[str] = []
    if raw is None and isinstance(message.get("refusal"), str):
        raw = message["refusal"]
        notes.append("the server sent its answer as a refusal")
    if raw is None and message is not choice:
        raw = ""
        notes.append("the server sent no text")
    if not isinstance(raw, str):
        raise AnswerError(f"the reply's text must be a string, got {_short(raw)}", temporary=True)

    spoken, thought = strip_thinking(raw.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    if thought:
        notes.append("thinking was cut out of the answer")
    usage = reply["usage"] if isinstance(reply.get("usage"), dict) else {}
    if any(message.get(name) for name in ("reasoning_content", "reasoning")) or _reasoning_tokens(usage):
        notes.append("the model was thinking; the server kept it apart")
    text = cut_at_stop(spoken, stop)
    if text != spoken:
        notes.append("the server went on past a stop text; cut there")

    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        notes.append(f"finish_reason {_short(finish)}, read as stop")
    counts = [_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")]
    if None in counts:
        notes.append("the server sent no token counts")
    prompt_tokens, completion_tokens = (count or 0 for count in counts)
    if completion_tokens > sampling.max_new_tokens:
        notes.append(f"{completion_tokens} tokens where at most {sampling.max_new_tokens} were asked for")
    model = reply.get("model")
    if not isinstance(model, str) or not model:
        notes.append("the server does not say which model answered")
        model = asked_model
    elif model != asked_model:
        notes.append(f"model {_short(model)} answered where {asked_model!r} was asked for")
    ended = "length" if finish == "length" and text == spoken else "stop"
    return Completion(text, ended, prompt_tokens, completion_tokens, seconds, model, tuple(notes))


def _choice(reply: object) -> dict[str, Any]:
    if not isinstance(reply, dict):
        raise AnswerError(f"the reply must be a JSON object, got {_short(reply)}", temporary=True)
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise AnswerError(f"the reply must hold choices, got {_short(reply.get('error', reply))}", temporary=True)
    return choices[0]


def _reasoning_tokens(usage: Mapping[str, Any]) -> int:
    details = usage.get("completion_tokens_details")
    return (_count(details.get("reasoning_tokens")) or 0) if isinstance(details, dict) else 0


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _short(value: object) -> str:
    """One line of at most 200 characters."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


class RateLimit:
    """Spaces out the requests of all threads, and holds them all back while the server wants none.

    Args:
        per_minute: Most requests a minute; None for no limit.
        pause: Sleeps for some seconds.
        clock: Tells the seconds.

    Example:
        >>> slept = []
        >>> limit = RateLimit(30, pause=slept.append, clock=lambda: 0.0)
        >>> for _ in range(3):
        ...     limit.take()
        >>> slept
        [2.0, 4.0]
    """

    def __init__(
        self, per_minute: float | None, *, pause: Callable[[float], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._pause, self._clock = pause, clock
        self._next = float("-inf")
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait for the next free slot."""
        with self._lock:
            now = self._clock()
            slot = max(now, self._next)
            self._next = slot + self._interval
        if slot > now:
            self._pause(slot - now)

    def hold(self, seconds: float) -> None:
        """Give out no slot for so long."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)


@dataclass(frozen=True)
class Retry:
    """How often, and how long apart, a request is tried.

    Attributes:
        retries: Tries after the first.
        backoff: Seconds before the second try; doubled for each one after, with up to a quarter of jitter taken off.
        longest: Longest wait in seconds. A server that asks for a longer one is not waited for.
    """

    retries: int
    backoff: float
    longest: float

    def wait(self, attempt: int, asked: float) -> float:
        """Seconds to wait after failed try number ``attempt``, from 0; at least what the server asked for."""
        doubled = self.backoff * 2.0 ** min(attempt, 60)
        return max(asked, min(doubled, self.longest) * random.uniform(0.75, 1.0))


class HttpBackend(Backend):
    """Any OpenAI-compatible endpoint: a provider's, or a server of your own (vLLM, llama.cpp, xllamacpp).

    What may pass (no connection, time-out, 408, 409, 425, 429, 5xx, a reply without an answer in it) is tried again
    with exponential back-off, never sooner than ``Retry-After`` says; other refusals (400, 401, 404) are not. What
    cannot be had stands as an exception in the place of its request: TimeoutError, ConnectionError or AnswerError.

    Each request carries a seed made of its key. Whether it, or any parameter, is honoured is the server's affair; what
    can be checked is, and is noted in the completion.

    Args:
        base_url: Such as ``https://api.example.com/v1``; holds neither password nor query.
        model: As the server calls it.
        api: ``chat``, or ``completions`` for base models, which get ``completion_text`` and end with their line.
        key_env: Environment variable that holds the key. It is read now and sent, and is nowhere else; no
            ``Authorization`` is sent if it is not set.
        concurrency: Requests under way at once, and the batch size.
        requests_per_minute: Most requests a minute, retries included; None for no limit.
        timeout: Seconds without a sign of the server that end a try.
        retries: Tries after the first.
        backoff: Seconds before the second try; doubled for each one after.
        max_wait: Longest wait between two tries in seconds; a server that asks for a longer one is not asked again.
        send_seed: Turn off for a server that refuses requests with a seed.
        extra_body: Further fields of the request, such as a server's switch for thinking; part of the identity.

    Raises:
        ImportError: The package ``openai`` is not installed.
        ValueError: An argument is out of its range; the message names it.

    Example:
        >>> backend = HttpBackend("http://127.0.0.1:8080/v1", "smollm2", key_env="NO_SUCH_KEY")
        >>> backend.identity
        'http chat 127.0.0.1/v1 smollm2'
        >>> backend.close()
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api: Literal["chat", "completions"] = "chat",
        key_env: str | None = None,
        concurrency: int = 4,
        requests_per_minute: float | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        backoff: float = 1.0,
        max_wait: float = 120.0,
        send_seed: bool = True,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("base_url must be an http or https address, such as http://127.0.0.1:8080/v1")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("base_url must not hold a user, password, query or fragment; put a key into key_env")
        if not model:
            raise ValueError(f"model must be a name, got {model!r}")
        if api not in ("chat", "completions"):
            raise ValueError(f"api must be 'chat' or 'completions', got {api!r}")
        if key_env == "":
            raise ValueError(f"key_env must name an environment variable, got {key_env!r}")
        if key_env is None:  # nobody else's server gets the key of OpenAI unasked
            key_env = "OPENAI_API_KEY" if parts.hostname == "api.openai.com" else "MDL_API_KEY"
        for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        for name, seconds in (("backoff", backoff), ("max_wait", max_wait)):
            if not 0 <= seconds < float("inf"):
                raise ValueError(f"{name} must be a number of seconds of at least 0, got {seconds!r}")
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if requests_per_minute is not None and not requests_per_minute > 0:
            raise ValueError(f"requests_per_minute must be positive or None, got {requests_per_minute!r}")
        self._extra = dict(extra_body or {})
        if taken := sorted(_OURS & set(self._extra)):
            raise ValueError(f"extra_body must not hold what the backend sets itself, got {', '.join(taken)}")
        try:
            import openai
        except ImportError:
            raise ImportError("an HTTP backend needs the package openai: pip install openai") from None

        self._key = os.environ.get(key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError(f"key_env must name a variable that holds a key; the value of {key_env} cannot be sent")
        if self._secret and self._secret in f"{base_url} {model} {json.dumps(self._extra)}":
            raise ValueError(f"the key of {key_env} must stand in the environment only, not in another argument")
        self.batch_size, self.batch_matters = concurrency, False
        self._url, self._host, self._model, self._api, self._key_env = base_url, parts.hostname, model, api, key_env
        self._send_seed = send_seed
        self._retry = Retry(retries, backoff, max_wait)
        self._halt = threading.Event()
        self._limit = RateLimit(requests_per_minute, pause=self._pause)
        self._headers = {} if self._key else {"Authorization": openai.Omit()}
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=self._key,
            admin_api_key="",  # or the client would take OPENAI_ADMIN_KEY and send it to whatever server this is
            max_retries=0,
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._model!r}, api={self._api!r}, key_env={self._key_env!r})"

    @property
    def identity(self) -> str:
        """``http``, kind, address, model, and what else changes an answer; the port of this machine does not count."""
        parts = urlsplit(self._url)
        local = self._host in ("127.0.0.1", "localhost", "::1")
        port = f":{parts.port}" if parts.port and not local else ""
        more = [json.dumps(self._extra, sort_keys=True)] if self._extra else []
        more += [] if self._send_seed else ["unseeded"]
        more += [f"completion@{wording_digest()[:8]}"] if self._api == "completions" else []
        return " ".join(["http", self._api, f"{self._host}{port}{parts.path.rstrip('/')}", self._model, *more])

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion | Exception]:
        """Answer a batch, ``concurrency`` requests at a time; see ``Backend.generate``.

        Raises:
            ConnectionError: No request of the batch could reach the server.
        """
        self._halt.clear()
        with ThreadPoolExecutor(self.batch_size) as pool:
            try:
                answers = list(pool.map(lambda request: self._answer(request, sampling), requests))
            except BaseException:
                self._halt.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if answers and all(isinstance(answer, ConnectionError) for answer in answers):
            raise ConnectionError(str(answers[0]))
        return answers

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _answer(self, request: Request, sampling: Sampling) -> Completion | Exception:
        for attempt in range(self._retry.retries + 1):
            self._limit.take()
            error = self._try(request, sampling)
            if isinstance(error, Completion):
                return error
            asked = error.wait if isinstance(error, AnswerError) else 0.0
            if isinstance(error, AnswerError) and (not error.temporary or asked > self._retry.longest):
                return error
            if asked:
                self._limit.hold(asked)
            if attempt < self._retry.retries:
                wait = self._retry.wait(attempt, asked)
                _LOG.warning("%s; again in %.1f s", error, wait)
                self._pause(wait)
        return error

    def _try(self, request: Request, sampling: Sampling) -> Completion | AnswerError | ConnectionError | TimeoutError:
        """One try. No error keeps the client's own in tow, which holds the key in its headers."""
        import openai

        stop = (*sampling.stop, *([COMPLETION_STOP] if self._api == "completions" else []))
        started = perf_counter()
        try:
            body = self._redact(self._send(request, sampling, stop))
            return read_reply(_decode(body), self._model, sampling, stop, perf_counter() - started)
        except openai.APIConnectionError as raised:
            cause = type(raised.__cause__).__name__
            if cause in ("ConnectError", "ConnectTimeout", "ProxyError"):
                return ConnectionError(self._redact(f"cannot reach {self._url}: {cause} {raised.__cause__}".strip()))
            if isinstance(raised, openai.APITimeoutError):
                return TimeoutError(f"{self._host} did not answer in time ({cause})")
            return AnswerError(f"{self._host} broke off its answer ({cause})", temporary=True)
        except openai.APIStatusError as raised:
            status = raised.status_code
            detail = _detail(self._redact(raised.response.text))
            wait = retry_after(raised.response.headers.get("retry-after"), time())
            temporary = status in (408, 409, 425, 429) or status >= 500
            return AnswerError(
                f"{self._host} answered {status}: {detail}", status=status, temporary=temporary, wait=wait
            )
        except AnswerError as raised:
            return AnswerError(f"{self._host}: {raised}", temporary=raised.temporary)
        except (openai.OpenAIError, ValueError) as raised:
            return AnswerError(self._redact(f"the request cannot be sent: {type(raised).__name__} {raised}"))

    def _send(self, request: Request, sampling: Sampling, stop: Sequence[str]) -> str:
        """The body of the server's reply, whatever it is."""
        common: dict[str, Any] = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "extra_body": self._extra,
            "extra_headers": self._headers,
        }
        if stop:
            common["stop"] = list(stop[:_STOPS])
        if self._send_seed:
            common["seed"] = request_seed(request.key)
        if self._api == "completions":
            prompt = completion_text(request.instruction, request.user, request.example, request.cue)
            return self._client.completions.with_raw_response.create(prompt=prompt, **common).http_response.text
        turns = [("system", request.instruction), ("user", request.user)]
        messages: Any = [{"role": role, "content": content} for role, content in turns if content]
        return self._client.chat.completions.with_raw_response.create(messages=messages, **common).http_response.text

    @property
    def _secret(self) -> str:
        """The key, but for the placeholders that local servers are given, which may be words of an answer."""
        return self._key if len(self._key) >= 8 else ""

    def _redact(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text

    def _pause(self, seconds: float) -> None:
        if self._halt.wait(seconds):
            raise InterruptedError("the batch was given up")


def _decode(body: str) -> object:
    try:
        return json.loads(body)
    except ValueError:
        raise AnswerError(f"the reply must be JSON, got {_short(body)}", temporary=True) from None


def _detail(body: str) -> str:
    """What an error's body says, on one line."""
    try:
        error = json.loads(body)["error"]
        return _short(error["message"] if isinstance(error, dict) and "message" in error else error)
    except (ValueError, TypeError, KeyError):
        return _short(body)
