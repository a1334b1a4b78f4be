#!/usr/bin/env bash
# Runs a test of this folder in a venv with the clients of requirements.txt.
#
#   tests/clients/run.sh BUILD_FOLDER TEST.py [flags of the test]
#
# The venv is made once in the build folder, again when requirements.txt changes. Where it cannot be
# had (no venv module, no package index) the test has not run: exit 77, with the reason.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 2 ] || { sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
build=$1 test=$2
shift 2
venv=$build/clients-venv
log=$build/clients-venv.log

not_run() {
    tail -n 5 "$log" 2>/dev/null
    printf '[  SKIPPED ] %s: %s\n' "${test%.py}" "$*"
    exit 77
}

if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
    : >"$log"
    command -v python3 >/dev/null || not_run "there is no python3"
    rm -rf "$venv"
    timeout -k 5 60 python3 -m venv "$venv" >>"$log" 2>&1 ||
        not_run "python3 -m venv does not work (Debian: python3-venv)"
    timeout -k 5 120 "$venv/bin/python" -m pip install --quiet --no-input \
        --disable-pip-version-check --timeout 15 --retries 1 \
        -r "$here/requirements.txt" >>"$log" 2>&1 ||
        not_run "pip cannot install $(grep -v '^#' "$here/requirements.txt" | xargs)"
    cp "$here/requirements.txt" "$venv/requirements.txt" # last: the venv is complete
fi
# In place of this shell: a signal from ctest reaches the test, whose end takes the services along.
PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" "$here/$test" --bin "$build/bin" "$@"
