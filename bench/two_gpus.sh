#!/usr/bin/env bash
# What two GPUs of one host give, in one command of about three minutes: whether two and four ranks compute what
# one does, how a worker ends when one of its ranks stops, the speed of both models on two GPUs beside one, how
# KV crosses from one GPU to the other, what a decode worker notices of a prefill worker, and what a sum over
# ranks costs beside NCCL.
#
#   bench/two_gpus.sh [--bin DIR] [--out DIR] [--seconds N] [--parts equal,hang,model,serve,kv,sums]
#
# DIR of --bin has the programs, or is a build (default build/cuda: preset cuda with -DTANDEM_TESTS=ON; KV by
# NVLink wants a UCX with CUDA, README). Tables go to stdout; rows, all output and logs to --out (default
# build/two_gpus). What does not end within --seconds (270) is cut; what was measured before stays. Needs
# Python 3; NCCL's column wants libnccl.so.2. No part uses NVLink's multicast, and NCCL is told not to.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

BIN=build/cuda OUT_DIR=build/two_gpus LIMIT=270 PARTS=equal,hang,model,serve,kv,sums
while [ $# -gt 0 ]; do
    case "$1" in
        --bin) BIN=$2 ;;
        --out) OUT_DIR=$2 ;;
        --seconds) LIMIT=$2 ;;
        --parts) PARTS=$2 ;;
        -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) echo "bench/two_gpus.sh: unknown argument $1; --help" >&2; exit 2 ;;
    esac
    shift 2 || { echo "bench/two_gpus.sh: $1 wants a value" >&2; exit 2; }
done

mkdir -p "$OUT_DIR" || exit 1
LOG=$OUT_DIR/two_gpus.log
: >"$LOG"
FAILED=0
export NCCL_NVLS_ENABLE=0 TANDEM_TEST_BACKEND=cuda TANDEM_TEST_REPORT=1
nccl=$(python3 -c "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + '/lib')" 2>/dev/null)
[ -z "$nccl" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$nccl

# prog NAME: where it is, in a flat folder or in a build.
prog() {
    local at
    for at in "$BIN" "$BIN/bin" "$BIN/tests"; do
        [ -x "$at/$1" ] && { echo "$at/$1"; return 0; }
    done
    echo "bench/two_gpus.sh: $1 is not in $BIN; build it or name its folder with --bin" >&2
    return 1
}

# has PART: whether it was asked for.
has() { case ",$PARTS," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

# left MOST: seconds for the next step, at most MOST.
left() {
    local n=$((LIMIT - SECONDS))
    [ "$n" -gt "$1" ] && n=$1
    [ "$n" -lt 1 ] && n=1
    echo "$n"
}

title() { printf '\n== %s (at %d s)\n' "$1" "$SECONDS"; }

# step MOST NAME PROGRAM ARGS...: run, keep all output in $OUT_DIR/NAME.txt and in the log, complain if it failed.
step() {
    local most=$1 name=$2 program rc
    program=$(prog "$3") || { FAILED=1; return 1; }
    shift 3
    timeout -k 2 "$(left "$most")" "$program" "$@" >"$OUT_DIR/$name.txt" 2>&1
    rc=$?
    { echo "=== $name: exit $rc"; cat "$OUT_DIR/$name.txt"; } >>"$LOG"
    [ "$rc" -eq 0 ] && return 0
    FAILED=1
    [ "$rc" -eq 124 ] && echo "  $name: cut after $most s or at the limit" || echo "  $name: exit $rc"
    grep -v '^\[' "$OUT_DIR/$name.txt" | tail -n 1 | cut -c1-150 | sed 's/^/  /'
    return "$rc"
}

# report NAME: what a test says about itself, shortened.
report() {
    sed -nE 's/^report: (cuda:? )?/  /p; s/^\[ +(OK|FAILED|SKIPPED) +\] (test_.*)/  \1 \2/p; /rror:/s/^/  /p' "$OUT_DIR/$1.txt" |
        sed -E 's/rms difference ([0-9.%]+) of the largest logit \(([0-9.%]+) allowed\)/rms \1 (\2)/
                s/in the median row/median/; s/another likeliest token in/other top token/' | sort -u | cut -c1-140
}

gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU'; }
if [ "$(gpus)" -lt 2 ]; then
    echo "not run: this machine has $(gpus) NVIDIA GPUs, this bench wants two"
    exit 77
fi
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader | sed 's/^/  /'
nvidia-smi topo -m >>"$LOG" 2>&1
grep -E '^GPU[01]' "$LOG" | cut -c1-60

serving=
trap '[ -z "$serving" ] || kill "$serving" 2>/dev/null; exit 1' INT TERM

if has equal; then
    title "two and four ranks on two GPUs against one: differences over the largest logit (allowed)"
    TANDEM_TEST_ONLY='*two_ranks*' step 40 decode test_model_decode
    report decode
    TANDEM_TEST_LARGE=1 step 60 ranks test_model_ranks
    report ranks | grep -E 'tp [24]|test_|rror'
fi

# serve NAME MOST LINES ARGS...: workers alone on the GPUs, because a process that opens both waits for as long as
# others load their weights.
serve() {
    local name=$1 most=$2 lines=$3 router
    shift 3
    router=$(prog tandem-router) || { FAILED=1; return 1; }
    rm -rf "$OUT_DIR/logs"
    timeout -k 2 "$(left "$most")" python3 bench/two_gpus_serve.py --bin "$(dirname "$router")" --out "$OUT_DIR" \
        "$@" >"$OUT_DIR/$name.txt" 2>&1 &
    serving=$!
    wait "$serving" || FAILED=1
    serving=
    cut -c1-170 "$OUT_DIR/$name.txt" | head -n "$lines"
    { echo "=== $name"; cat "$OUT_DIR/$name.txt"; tail -n 25 "$OUT_DIR"/logs/*.log; } >>"$LOG"
}

if has hang; then
    title "a decode worker of two ranks, of which one stops or breaks (--step-timeout 3s)"
    serve hang 45 12 --tables hang
fi

# models DEVICES MODEL: one after the other, rows in $OUT_DIR/model-*.csv.
models() {
    local d=$1 m=$2 name
    name=model-$m-${d//,/}
    step 40 "$name-decode" bench_model decode --model "$m" --devices "$d" --batches 1,8,32,64,128 --contexts 8k \
        --case-seconds 0.4 --csv "$OUT_DIR/$name-decode.csv"
    step 45 "$name-prefill" bench_model prefill --model "$m" --devices "$d" --experts fp8 --lengths 1k,8k,32k \
        --case-seconds 0.4 --csv "$OUT_DIR/$name-prefill.csv"
}

if has model; then
    title "models with random weights on two GPUs (tp 2 ep 2) beside one; prefill FP8, decode MXFP4 experts"
    rm -f "$OUT_DIR"/model-*.csv
    models 0,1 120b
    models 0,1 20b
    models 0 20b & one=$! # each on a GPU of its own, at the same time
    models 1 120b
    wait "$one" || FAILED=1
    cat "$OUT_DIR"/model-*.csv 2>/dev/null | awk -F, '
        $1 == "what" { next }
        { k = $1 "," $2 "," $6 "," $7; if (!(k in seen)) { seen[k] = 1; order[n++] = k }; ms[k, $3] = $8; rate[k, $3] = $11 }
        END {
            printf "%-8s %-5s %5s %6s %10s %10s %10s %10s %8s\n", "what", "model", "batch", "tokens", "1 GPU ms",
                "tokens/s", "2 GPUs ms", "tokens/s", "speed-up"
            for (i = 0; i < n; i++) {
                split(order[i], f, ","); k = order[i]
                printf "%-8s %-5s %5d %6d %10s %10.0f %10s %10.0f %8s\n", f[1], f[2], f[3], f[4],
                    (k, 1) in ms ? sprintf("%.2f", ms[k, 1]) : "-", rate[k, 1],
                    (k, 2) in ms ? sprintf("%.2f", ms[k, 2]) : "-", rate[k, 2],
                    (k, 1) in ms && (k, 2) in ms ? sprintf("%.2f", ms[k, 1] / ms[k, 2]) : "-"
            }
        }' | tee -a "$LOG"
fi

if has serve; then
    title "services of gpt-oss-20b's shape, random weights: FP8 experts for prefill, MXFP4 for decode"
    serve serve 80 40 --tables transfers,interference
fi

if has kv; then
    title "KV pushed from GPU 0 to GPU 1, 256 MiB in puts of one size (latency: one put)"
    step 12 kv bench_kv --cuda 0,1 --transport auto --mib 256 --reps 100
    cut -c1-78 "$OUT_DIR/kv.txt" 2>/dev/null
fi

if has sums; then
    title "sums and gathers over two ranks, us a call"
    step 25 sums comm_cuda 2
    cut -c1-110 "$OUT_DIR/sums.txt" 2>/dev/null
    title "sums over ranks: every element, ranks that dawdle, pause or stay away"
    TANDEM_TEST_ROUNDS=${TANDEM_TEST_ROUNDS:-10000} step 30 comm test_ops_comm
    report comm | grep -E '[238] ranks on|did not come|test_|rror' | head -n 22
fi

[ "$FAILED" -eq 0 ] && how=complete || how="something failed"
printf '\n%s, %d s; rows and logs in %s\n' "$how" "$SECONDS" "$OUT_DIR"
exit "$FAILED"
