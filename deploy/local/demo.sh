#!/usr/bin/env bash
# Tandem on one machine, no GPU needed: a router, a prefill worker and a decode worker with the small
# model of the repository. Installs what is missing, builds, asks, shows the answer, stops everything.
#
#   deploy/local/demo.sh "What is 12 plus 30?"          one question, then nothing is left running
#   deploy/local/demo.sh --effort high "..."            any flag of tandem-ask: --weather, --system, ...
#   deploy/local/demo.sh --serve                        leave the service up and say how to use it
#   deploy/local/demo.sh --stop                         stop what --serve left up
#
# Environment: PORT (8000, with --serve), PREFILL_FLAGS and DECODE_FLAGS for the workers ("--tp 4").
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. deploy/local/lib.sh

STATE=build/demo
BIN=build/release/bin
MODEL=models/tandem-tiny

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# stop_pids PID...: SIGTERM, then wait for each; they drain and exit by themselves.
stop_pids() {
    local pid i
    for pid in "$@"; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in "$@"; do
        for i in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            read -rt 0.05 <> <(:) || true # wait without a program of its own
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
}

stop_service() {
    [ -f "$STATE/pids" ] || return 1
    # shellcheck disable=SC2046
    stop_pids $(cat "$STATE/pids")
    rm -f "$STATE/pids"
}

# start NAME PROGRAM ARGS...: in the background, its log in $LOGS/NAME.log, its pid in PIDS.
start() {
    local name=$1
    shift
    setsid "$@" >"$LOGS/$name.log" 2>&1 </dev/null &
    PIDS+=($!)
}

# from_log NAME SED-PATTERN: wait until the program has logged what the pattern picks out; print it.
from_log() {
    local name=$1 pattern=$2 i value
    for i in $(seq 400); do
        value=$(sed -nE "s/$pattern/\\1/p" "$LOGS/$name.log" | head -n 1)
        [ -n "$value" ] && { printf '%s' "$value"; return 0; }
        grep -q ' failed ' "$LOGS/$name.log" && break
        read -rt 0.05 <> <(:) || true
    done
    cat "$LOGS/$name.log" >&2
    die "tandem-$name did not come up"
}

# http_get PORT PATH: the status code.
http_get() {
    local line
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&3
    read -r line <&3 || line=
    exec 3>&- 3<&-
    line=${line#* }
    printf '%s' "${line%% *}"
}

start_service() {
    local port=$1 i
    LOGS=$STATE/logs
    mkdir -p "$LOGS"
    PIDS=()
    start router "$BIN/tandem-router" --model "$MODEL" --http-listen "127.0.0.1:$port" \
        --workers-listen tcp://127.0.0.1:0 --rpc-listen tcp://127.0.0.1:0
    local workers
    workers=$(from_log router '.* router_started .* workers=([^ ]+).*')
    # shellcheck disable=SC2086
    start prefill "$BIN/tandem-prefill" --model "$MODEL" --router "$workers" \
        --kv-memory 64MiB ${PREFILL_FLAGS:-}
    # shellcheck disable=SC2086
    start decode "$BIN/tandem-decode" --model "$MODEL" --router "$workers" \
        --kv-memory 128MiB ${DECODE_FLAGS:-}
    HTTP_PORT=$(from_log router '.* listening http_port=([0-9]+).*')
    RPC_URL=$(from_log router '.* rpc_listening url=([^ ]+).*')
    for i in $(seq 400); do
        [ "$(http_get "$HTTP_PORT" /ready 2>/dev/null)" = 200 ] && return 0
        for pid in "${PIDS[@]}"; do
            kill -0 "$pid" 2>/dev/null || { cat "$LOGS"/*.log >&2; die "a process has ended"; }
        done
        read -rt 0.05 <> <(:) || true
    done
    cat "$LOGS"/*.log >&2
    die "the service did not become ready"
}

ASK=()
MODE=ask
case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    --stop) stop_service || die "nothing is running"; say "stopped"; exit 0 ;;
    --serve) MODE=serve; shift; [ $# -eq 0 ] || die "--serve takes nothing else" ;;
    *) ASK=("$@"); [ $# -gt 0 ] || ASK=("What is 12 plus 30?") ;;
esac

need_packages "${BUILD_PACKAGES[@]}"
[ -f build/release/.configured ] || configure release -DTANDEM_TESTS=OFF
build release programs

if [ "$MODE" = serve ]; then
    stop_service 2>/dev/null || true
    trap '[ -n "${PIDS[*]:-}" ] && stop_pids "${PIDS[@]}"' ERR
    start_service "${PORT:-8000}"
    trap - ERR
    printf '%s\n' "${PIDS[@]}" >"$STATE/pids"
    cat <<TXT
Tandem is up: HTTP on 127.0.0.1:$HTTP_PORT, RPC on $RPC_URL, logs in $LOGS.

  curl -N http://127.0.0.1:$HTTP_PORT/v1/chat/completions -d '{"messages":[{"role":"user","content":"What is 12 plus 30?"}],"stream":true}'

  python3 -c "from openai import OpenAI; print(OpenAI(base_url='http://127.0.0.1:$HTTP_PORT/v1', api_key='none').chat.completions.create(model='tandem-tiny', messages=[{'role':'user','content':'What is 12 plus 30?'}]).choices[0].message.content)"

  $BIN/tandem-ask --router $RPC_URL "What is the capital of France?"

  deploy/local/demo.sh --stop        stops it
TXT
    exit 0
fi

STATE=$(mktemp -d)
cleanup() {
    local rc=$?
    [ -n "${PIDS[*]:-}" ] && stop_pids "${PIDS[@]}"
    rm -rf "$STATE"
    exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
start_service 0
"$BIN/tandem-ask" --router "$RPC_URL" "${ASK[@]}"
