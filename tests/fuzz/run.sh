#!/usr/bin/env bash
# Runs a libFuzzer program of the current folder for FUZZ_SECONDS (3), from the corpus folders given
# and what earlier runs kept here.
#
#   tests/fuzz/run.sh fuzz_x CORPUS...
#
# The seed is drawn, so that each run looks elsewhere; an input that fails is written here and named.
set -uo pipefail
name=$1
shift
log=$name.log
mkdir -p "$name.corpus"
"./$name" -max_total_time="${FUZZ_SECONDS:-3}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    "$name.corpus" "$@" >"$log" 2>&1
rc=$?
if [ $rc -ne 0 ]; then
    tail -n 60 "$log"
    echo "[  FAILED  ] test_$name: exit code $rc; inputs and log are in $PWD"
    exit $rc
fi
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
[ "${runs:-0}" -gt 0 ] || { echo "[  FAILED  ] test_$name: nothing was executed"; exit 1; }
echo "[       OK ] $name: $runs executions"
