#!/usr/bin/env bash
# Runs a script beside the references that it compares with: a venv with the packages of
# requirements.txt, and the vocabulary o200k_base.tiktoken out of a package that carries it, known by
# its hash. Both are made once, in build/oracle, for all presets.
#
#   tests/golden/oracle.sh SCRIPT.py [flags]   "{vocabulary}" in a flag stands for the file
#   tests/golden/oracle.sh --vocabulary        print the file's path
#
# Where they cannot be had (no venv module, no package index) nothing has run: exit 77, with the
# reason.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { sed -n '6,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
base=$here/../../build/oracle
mkdir -p "$base" && base=$(cd "$base" && pwd) || exit 1
venv=$base/venv
vocabulary=$base/o200k_base.tiktoken
log=$base/setup.log
what=$(basename -s .py -- "$1")
remember=

CARRIER='llama-index-core==0.14.25' # not installed: only this file is taken out of it
CARRIED=llama_index/core/_static/tiktoken_cache/fb374d419588a4632f3f557e76b4b70aebbca790
SHA256=446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d

not_run() {
    [ -f "$log" ] && tail -n 5 "$log" >&2
    [ -z "$remember" ] || echo "$*" >"$base/failed"
    [ "$what" = --vocabulary ] || printf '[  SKIPPED ] %s: %s\n' "$what" "$*"
    exit 77
}

pip() { timeout -k 5 180 "$venv/bin/python" -m pip "$@" --quiet --no-input --disable-pip-version-check --timeout 15 --retries 1 >>"$log" 2>&1; }

# What is complete is recognised by the requirements beside it, which are copied last.
set_up_venv() {
    cmp -s "$here/requirements.txt" "$venv/requirements.txt" && return
    : >"$log"
    command -v python3 >/dev/null || not_run "there is no python3"
    rm -rf "$venv"
    timeout -k 5 60 python3 -m venv "$venv" >>"$log" 2>&1 ||
        not_run "python3 -m venv does not work (Debian: python3-venv)"
    pip install --no-deps -r "$here/requirements.txt" ||
        not_run "pip cannot install $(grep -v '^#' "$here/requirements.txt" | xargs)"
    cp "$here/requirements.txt" "$venv/requirements.txt"
}

is_vocabulary() { [ -f "$1" ] && echo "$SHA256  $1" | sha256sum --check --status; }

set_up_vocabulary() {
    local folder
    is_vocabulary "$vocabulary" && return
    folder=$(mktemp -d "$base/carrier.XXXXXX") || exit 1
    pip download --no-deps --dest "$folder" "$CARRIER" &&
        python3 -m zipfile -e "$folder"/*.whl "$folder" >>"$log" 2>&1 &&
        mv "$folder/$CARRIED" "$vocabulary.new"
    rm -rf "$folder"
    is_vocabulary "$vocabulary.new" ||
        not_run "pip cannot bring o200k_base.tiktoken, which $CARRIER carries"
    mv "$vocabulary.new" "$vocabulary"
}

exec 9>"$base/lock"
flock -w 300 9 || not_run "another set-up holds $base/lock"
# A machine without a package index need not wait for each test of a run.
[ -z "$(find "$base/failed" -mmin -10 2>/dev/null)" ] || not_run "$(cat "$base/failed")"
remember=yes
set_up_venv
set_up_vocabulary
rm -f "$base/failed"
exec 9>&-

if [ "$what" = --vocabulary ]; then
    echo "$vocabulary"
    exit 0
fi
script=$1
shift
# In place of this shell: a signal from ctest reaches the script.
export TIKTOKEN_ENCODINGS_BASE=$base PYTHONDONTWRITEBYTECODE=1
exec "$venv/bin/python" "$script" "${@//\{vocabulary\}/$vocabulary}"
