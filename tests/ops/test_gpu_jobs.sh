#!/usr/bin/env bash
# tests/gpu_jobs.sh with programs that pass, fail, hang, crash or are not there, and a tool that finds something: each gets
# its line, none takes the others with it, and what did not run is named.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
D=$(mktemp -d) && trap 'rm -rf "$D"' EXIT
mkdir "$D/bin" "$D/tools"

program() { printf '#!/bin/sh\n%s\n' "$2" >"$D/bin/$1" && chmod +x "$D/bin/$1"; }
say() { printf 'echo "[       OK ] test_%s"; ' "$@"; }
wrong() { echo "wrong: $*"; cat "$D/out"; exit 1; }
# line PATTERN: what was printed has it.
line() { grep -qE -- "$1" "$D/out" || wrong "no line like $1"; }
jobs() { PATH="$D/tools:$PATH" bash tests/gpu_jobs.sh --bin "$D/bin" --logs "$D/logs" "$@" >"$D/out" 2>&1; }

program test_ops_attn "$(say a b) echo 'report: cuda attn: worst error 1, allowed 2'"
program test_ops_attn_in "echo \"[  SKIPPED ] test_s\"; $(say a) echo \"[  SKIPPED ] test_s\""
program test_ops_dense "$(say a) echo '[  ERROR   ] --- 1 != 2'; echo '[  FAILED  ] test_b'; exit 1"
program test_ops_experts "$(say a) kill -SEGV \$\$"
program test_ops_load "echo 'not run: no GPU here'; exit 77"
program test_model_backends "$(say a) echo '[ RUN      ] test_sleeps'; sleep 60"
program test_model_ranks "$(say a)"

# Cut by the limit for all; what comes after it has no time. Nothing of it outlives that.
began=$SECONDS
jobs --jobs 2 --seconds 6 --parts models && wrong "a cut program is no success"
line '^cut +test_model_backends +1 passed .* in test_sleeps$'
line '^not run, no time was left: .*test_model_ranks'
line '^0 programs passed \(1 tests, 0 skipped\), 1 failed or were cut, 1 absent, 1 not run'
[ $((SECONDS - began)) -le 20 ] || wrong "it took $((SECONDS - began)) s"

jobs --parts ops && wrong "failures are no success"
line '^ok +test_ops_attn +2 passed +0 skipped'
line '^ok +test_ops_attn_in +1 passed +1 skipped'
line '^failed +test_ops_dense +1 passed .* exit 1$'
line '^    \[  ERROR   \] --- 1 != 2$'
line '^failed +test_ops_experts +1 passed .* exit 139$'
line '^absent +test_ops_load .* no GPU here'
line '^absent +test_ops_sample .* is not in '
line '^2 programs passed \(5 tests, 1 skipped\), 2 failed or were cut, [0-9]+ absent, 0 not run'
grep -q 'worst error 1, allowed 2' "$D/logs/reports.txt" || wrong "no report"

jobs --tests test_ops_attn || wrong "a program that passes is a success"
jobs --tests test_ops_load
[ $? -eq 77 ] || wrong "without a GPU it is not run"
jobs --parts nothing
[ $? -eq 2 ] || wrong "a part that is not there"
line 'nothing is called that'

# The tool is given each share once, and its findings fail a program that passed.
program compute-sanitizer 'while [ "${1#--}" != "$1" ]; do [ "$1" = --tool ] && tool=$2; [ "$1" = --error-exitcode ] && code=$2; shift 2; done
"$@"; echo "========= ERROR SUMMARY: 0 errors"; [ "$tool" != initcheck ] || exit "${code:-0}"'
mv "$D/bin/compute-sanitizer" "$D/tools/"
program test_ops_attn "$(say a) echo \"\$TANDEM_TEST_PART\" >>'$D/shares'"
jobs --sanitize --tests test_ops_attn --parts racecheck,initcheck && wrong "findings are no success"
line '^ok +racecheck-test_ops_attn-1.2 +1 passed'
line '^failed +initcheck-test_ops_attn-2.2 +1 passed .* exit 86, ERROR SUMMARY: 0 errors'
[ "$(sort "$D/shares" | tr '\n' ' ')" = '1/2 1/2 2/2 2/2 ' ] || wrong "shares: $(cat "$D/shares")"
echo "all as it should be"
