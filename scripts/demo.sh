#!/usr/bin/env bash
# The main job from an empty clone: retrievals in, audited decisions out. See usage().
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
    cat <<'TEXT'
Usage: bash scripts/demo.sh [--data FILE] [--help]

Sets up .venv (scripts/setup.sh), scores the sample of retrievals that ships with the package, prints the decisions
as a table and writes them to decisions.jsonl in the project's folder, then shows one decision's audit card.

  --data FILE   score FILE instead: TruthfulQA.csv, or retrievals as JSON lines (see README.md)
TEXT
}

die() {
    printf 'demo: %s\n' "$*" >&2
    exit 2
}

data="$root/mdl_torch/data/sample.jsonl"
while (($#)); do
    case "$1" in
        --data)
            (($# > 1)) || die "--data needs a FILE"
            data="$2"
            shift 2
            ;;
        --data=*)
            data="${1#--data=}"
            shift
            ;;
        -h | --help) usage && exit 0 ;;
        *)
            usage >&2
            die "unknown option '$1'"
            ;;
    esac
done
[[ -f "$data" && -r "$data" ]] || die "cannot read '$data': no such file, or not readable"

bash "$root/scripts/setup.sh"
mdl="$root/.venv/bin/mdl"
decisions="$root/decisions.jsonl"
export TOKENIZERS_PARALLELISM=false

rm -f -- "$decisions" # what an earlier run left must not pass for this one's
# A bad input line becomes an error line and the exit status; the rest is still worth showing.
status=0
"$mdl" score "$data" -o "$decisions" --table || status=$?
[[ -s "$decisions" ]] || exit "$status"

# A cautious decision over memories in conflict has the most to explain.
id="$("$root/.venv/bin/python" - "$decisions" <<'PY'
import json, sys

caution = ["active", "supp", "silent", "opt_out"]
with open(sys.argv[1], encoding="utf-8") as lines:
    decided = [line for line in map(json.loads, lines) if "error" not in line]

def weight(line):
    return caution.index(line["action"]), line["conflict_count"]

print(max(decided, key=weight)["id"] if decided else "", end="")
PY
)"
[[ -n "$id" ]] || die "no line of '$data' could be decided"

printf '\n'
"$mdl" explain "$decisions" --id "$id" --source "$data"
printf '\ndemo: all decisions are in %s\n' "$decisions"
exit "$status"
