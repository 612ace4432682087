#!/usr/bin/env bash
# Runs every check of the project. See usage().
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
    cat <<'TEXT'
Usage: bash scripts/test.sh [--fast] [--help]

Sets up .venv (scripts/setup.sh), then runs every check: lint, format, types, tests, doctests and notebooks. The
tests also build the wheel, install it elsewhere and use it there. All checks run even if one fails; the exit status
is 0 only if all passed.

  --fast   the inner loop: leaves out the notebooks and tests marked slow, the wheel among them

Tests that need the development data look in ../shared/data, or in the folder that MDL_DATA names, and are skipped
where it is absent.
TEXT
}

fast=false
for argument in "$@"; do
    case "$argument" in
        --fast) fast=true ;;
        -h | --help) usage && exit 0 ;;
        *)
            usage >&2
            printf "test: unknown option '%s'\n" "$argument" >&2
            exit 2
            ;;
    esac
done

bash "$root/scripts/setup.sh"
cd -- "$root"

# The checks see the package of .venv, no network, and a hash order that changes from run to run.
export PATH="$root/.venv/bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
unset PYTHONPATH
export PYTHONHASHSEED="$RANDOM" # the same in every process of pytest, or they would name tests with a set differently

failed=()

# step NAME COMMAND...: runs a check under a heading, and remembers it if it fails.
step() {
    local name="$1" started=$SECONDS
    shift
    printf '\n=== %s: %s\n' "$name" "$*"
    if "$@"; then
        printf -- '--- %s passed (%d s)\n' "$name" $((SECONDS - started))
    else
        printf -- '--- %s FAILED (%d s)\n' "$name" $((SECONDS - started))
        failed+=("$name")
    fi
}

# A process a core, four at most, each with whole files of tests. Benchmarks are no tests, and do not run beside others.
pytest=(pytest -n auto --maxprocesses 4 --dist loadfile --benchmark-disable --doctest-modules)

step lint ruff check .
step format ruff format --check .
step types mypy
if "$fast"; then
    step tests "${pytest[@]}" -m 'not slow' mdl_torch tests
else
    step tests "${pytest[@]}" mdl_torch tests
    step notebooks pytest --nbmake --nbmake-timeout=900 notebooks
fi

if ((${#failed[@]})); then
    printf '\ntest: FAILED: %s\n' "${failed[*]}"
    exit 1
fi
printf '\ntest: all checks passed (%d s)\n' "$SECONDS"
