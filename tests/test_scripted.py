"""The backend that tests ask, and backends from configuration files."""

from pathlib import Path

import pytest
import yaml

from mdl_torch.generation import local
from mdl_torch.generation.backend import Completion, Request, Sampling
from mdl_torch.generation.build import build_backend
from mdl_torch.generation.scripted import ScriptedBackend

CONFIGS = Path(__file__).parents[1] / "configs" / "models"


def ask(backend, *users, **sampling):
    requests = [Request(f"k{i}", "Be brief.", user) for i, user in enumerate(users)]
    return backend.generate(requests, Sampling(**sampling))


def test_a_mapping_answers_by_what_occurs_in_the_question():
    backend = ScriptedBackend({"tea": "A drink.", "iron": "A metal.", "": "I don't know."})
    assert [a.text for a in ask(backend, "What is iron?", "What is tea?", "Who?")] == [
        "A metal.",
        "A drink.",
        "I don't know.",
    ]


def test_what_the_script_lacks_is_an_error_in_its_place():
    known, unknown = ask(ScriptedBackend({"tea": "A drink."}), "tea?", "iron?")
    assert known.text == "A drink."
    assert isinstance(unknown, KeyError)


def test_a_function_sees_the_whole_request():
    backend = ScriptedBackend(lambda request: f"{request.key} {request.instruction} {request.user}")
    assert [a.text for a in ask(backend, "a", "b")] == ["k0 Be brief. a", "k1 Be brief. b"]


def test_it_fails_where_it_is_told_to():
    failing = ScriptedBackend(lambda request: TimeoutError("slow") if request.user == "b" else "fine")
    good, bad = ask(failing, "a", "b")
    assert good.text == "fine"
    assert isinstance(bad, TimeoutError)

    def down(request):
        raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"):
        ask(ScriptedBackend(down), "a")


def test_a_completion_is_given_as_it_is():
    given = Completion("x", "length", 1, 2, 3.0, "m", ("note",))
    assert ask(ScriptedBackend(lambda request: given), "a") == [given]


def test_words_are_counted_and_limited():
    (answer,) = ask(ScriptedBackend({"": "one two three"}), "What is it?", max_new_tokens=2)
    assert (answer.text, answer.finish, answer.prompt_tokens, answer.completion_tokens) == ("one two", "length", 5, 2)
    (answer,) = ask(ScriptedBackend({"": "one two three"}), "What is it?", max_new_tokens=3)
    assert (answer.text, answer.finish, answer.completion_tokens) == ("one two three", "stop", 3)


def test_an_empty_answer_is_an_answer():
    (answer,) = ask(ScriptedBackend({"": ""}), "a")
    assert (answer.text, answer.finish, answer.completion_tokens) == ("", "stop", 0)


def test_it_remembers_what_it_was_asked():
    backend = ScriptedBackend({"": "x"}, batch_size=2)
    ask(backend, "a", "b")
    ask(backend, "c")
    assert [request.user for request in backend.requests] == ["a", "b", "c"]
    assert backend.batches == [2, 1]
    assert backend.batch_size == 2


def test_another_script_is_another_identity():
    identities = [
        ScriptedBackend({"": "a"}).identity,
        ScriptedBackend({"": "b"}).identity,
        ScriptedBackend({"": "a"}, name="other").identity,
    ]
    assert len(set(identities)) == 3
    assert ScriptedBackend({"": "a"}).identity == identities[0]


def test_a_backend_from_its_configuration():
    backend = build_backend("scripted", answers={"": "x"}, name="fake", batch_size=3)
    assert (backend.name, backend.batch_size) == ("fake", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "locl"}, "unknown kind of backend 'locl'; did you mean 'local'"),
        ({"kind": "local"}, "the local backend needs the option 'model'"),
        (
            {"kind": "local", "model": "x", "dytpe": "y"},
            "unknown option of the local backend 'dytpe'; did you mean 'dtype'",
        ),
        ({"kind": "scripted"}, "the scripted backend needs the option 'answers'"),
    ],
)
def test_a_mistaken_configuration_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        build_backend(**options)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("gemma-3-270m", {"model": "gemma3-270m", "dtype": "bfloat16", "template": "completion"}),
        ("smollm2-135m-instruct", {"model": "smollm2-135m", "dtype": "float32", "template": "chat"}),
        ("gemma-4-e4b-it", {"model": "google/gemma-4-E4B-it", "template": "chat", "thinking": False}),
    ],
)
def test_shipped_configurations_reach_the_backend(file, expected, monkeypatch):
    """All their options are known, and arrive."""
    arrived = {}

    class Loaded:
        @staticmethod
        def from_pretrained(
            model,
            *,
            revision=None,
            dtype="float32",
            device=None,
            device_map=None,
            template="auto",
            thinking=False,
            batch_size=32,
        ):
            arrived.update(locals())

    monkeypatch.setattr(local, "LocalBackend", Loaded)
    config = yaml.safe_load((CONFIGS / f"{file}.yaml").read_text("utf-8"))
    build_backend(**config)
    assert arrived.items() >= expected.items()
