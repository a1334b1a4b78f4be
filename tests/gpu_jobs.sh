#!/usr/bin/env bash
# The programs that tests/run_gpu.sh built or packed, run on a GPU: side by side where they do not mind, each within
# its time and all within --seconds. A line says how each went as soon as it has ended, and at the end what did not
# run; whatever hangs, the lines before it and all output stay in --logs. Ends with 0 if everything ran and passed,
# with 77 without a GPU. Run from the root of the repository.
#
#   tests/gpu_jobs.sh --bin DIR [--sanitize] [options]
#     --bin DIR        where the programs are: a build or a package
#     --sanitize       those of build/racecheck, under compute-sanitizer
#     --parts A,B      only these (--list shows all): ops, models, kv, serve; with --sanitize the tools, racecheck ..
#     --tests 'A B'    only these programs
#     --seconds N      for everything (570)
#     --jobs N         side by side (3; with --sanitize 7, as each takes gigabytes of the GPU)
#     --logs DIR       (build/gpu_logs) NAME.log of each; summary.txt; reports.txt: worst errors beside their bounds
#     --list           what would run
set -uo pipefail

# part, program, its most seconds, whether it runs beside others: ranks that wait for each other have 2 s to come, and
# test_ops_load compares the GPU's free memory before and after.
PLAIN=(
    'serve test_e2e_faults 200 beside'
    'serve test_e2e_device 200 beside'
    'kv test_kv_cuda 150 beside'
    'serve test_e2e_guided 150 beside'
    'serve test_e2e_model 60 beside'
    'ops test_ops_attn 90 beside'
    'ops test_ops_dense 90 beside'
    'ops test_ops_attn_in 90 beside'
    'ops test_ops_experts_fp8 90 beside'
    'ops test_ops_experts 90 beside'
    'ops test_ops_sample 90 beside'
    'models test_model_backends 90 beside'
    'ops test_ops_load 60 alone'
    'models test_model_decode 90 alone'
    'models test_model_ranks 90 alone'
    'ops test_ops_comm 90 alone'
)

# tool, program, into how many parts it is cut (TANDEM_TEST_PART); what takes longest first.
SANITIZED=(
    'racecheck test_ops_sample 7'
    'racecheck test_ops_experts 7'
    'racecheck test_ops_attn_in 4'
    'racecheck test_ops_dense 2'
    'racecheck test_ops_attn 2'
    'racecheck test_ops_experts_fp8 2'
    'initcheck test_ops_attn_in 4'
    'initcheck test_ops_dense 2'
    'memcheck test_ops_experts 3'
    'memcheck test_ops_attn 2'
    'memcheck test_ops_attn_in 1'
    'memcheck test_ops_dense 1'
    'initcheck test_ops_experts 2'
    'initcheck test_ops_attn 2'
    'synccheck test_ops_attn 2'
    'synccheck test_ops_attn_in 1'
    'synccheck test_ops_dense 1'
    'synccheck test_ops_experts 1'
    'memcheck test_ops_experts_fp8 1'
    'memcheck test_ops_sample 1'
    'synccheck test_ops_experts_fp8 1'
    'initcheck test_ops_experts_fp8 1'
    'initcheck test_ops_sample 1'
    'synccheck test_ops_sample 1'
    'racecheck test_ops_load 1'
    'memcheck test_ops_load 1'
    'initcheck test_ops_load 1'
    'synccheck test_ops_load 1'
)
# Only where --tests asks for it: under the tools a rank's launch, in a graph or not, may wait for the end of another
# rank's kernel that waits for this rank.
ASKED=('memcheck test_ops_comm 1' 'racecheck test_ops_comm 1' 'initcheck test_ops_comm 1' 'synccheck test_ops_comm 1')
SANITIZED_MOST=240 # seconds of one

BIN='' LOGS=build/gpu_logs LIMIT=570 JOBS='' PARTS='' TESTS='' SANITIZE=no LIST=no

usage_error() { echo "tests/gpu_jobs.sh: $*; --help" >&2; exit 2; }

options() {
    while [ $# -gt 0 ]; do
        case "$1" in
            -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
            --sanitize) SANITIZE=yes; shift; continue ;;
            --list) LIST=yes; shift; continue ;;
        esac
        [ $# -ge 2 ] || usage_error "$1 is no option, or wants a value"
        case "$1" in
            --bin) BIN=$2 ;;
            --logs) LOGS=$2 ;;
            --seconds) LIMIT=$2 ;;
            --jobs) JOBS=$2 ;;
            --parts) PARTS=$2 ;;
            --tests) TESTS=$2 ;;
            *) usage_error "unknown argument $1" ;;
        esac
        shift 2
    done
    [[ $LIMIT =~ ^[1-9][0-9]*$ ]] || usage_error "--seconds is \"$LIMIT\", expected a number"
    [ -n "$JOBS" ] || JOBS=$([ "$SANITIZE" = yes ] && echo 7 || echo 3)
    [[ $JOBS =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs is \"$JOBS\", expected a number"
}

wanted() { # PART PROGRAM
    [ -z "$PARTS" ] || case ",$PARTS," in *",$1,"*) ;; *) return 1 ;; esac
    [ -z "$TESTS" ] || case " $TESTS " in *" $2 "*) ;; *) return 1 ;; esac
}

# The jobs that were asked for, as lines: name, part, program, most seconds, beside or alone, share of its tests.
planned() {
    local job part program most beside n i
    if [ "$SANITIZE" = yes ]; then
        [ -z "$TESTS" ] || SANITIZED+=("${ASKED[@]}")
        for job in "${SANITIZED[@]}"; do
            read -r part program n <<<"$job"
            wanted "$part" "$program" || continue
            for ((i = 1; i <= n; i++)); do
                [ "$n" -eq 1 ] && echo "$part-$program $part $program $SANITIZED_MOST beside 1/1" ||
                    echo "$part-$program-$i.$n $part $program $SANITIZED_MOST beside $i/$n"
            done
        done
    else
        for job in "${PLAIN[@]}"; do
            read -r part program most beside <<<"$job"
            ! wanted "$part" "$program" || echo "$program $part $program $most $beside 1/1"
        done
    fi
}

find_program() {
    local at
    for at in "$BIN" "$BIN/tests"; do
        [ -x "$at/$1" ] && { echo "$at/$1"; return 0; }
    done
    return 1
}

# job NAME PART PROGRAM MOST BESIDE SHARE: run it, and say how it went: a line, and in NAME.result a word and counts.
job() {
    local name=$1 part=$2 program most=$4 log=$LOGS/$1.log left=$((LIMIT - SECONDS - 3)) began=$SECONDS rc passed skipped how what
    local -a under=() settings=("TANDEM_TEST_PART=$6")
    program=$(find_program "$3") || { say_result "$name" absent 0 0 "$3 is not in $BIN"; return; }
    [ "$left" -ge 2 ] || return # its result stays away: not run
    [ "$left" -ge "$most" ] || most=$left
    if [ "$SANITIZE" = yes ]; then
        under=(compute-sanitizer --tool "$part" --error-exitcode 86 --print-limit 20)
        settings+=(TANDEM_TEST_SMALL="$([ "$part" = racecheck ] && echo 2 || echo 1)" TANDEM_TEST_WAIT_MS=20000)
        # Lazily loaded, only the kernels that run are made over; but a rank must not load while another waits for it.
        [ "$3" = test_ops_comm ] || settings+=(CUDA_MODULE_LOADING=LAZY)
    fi
    env "${settings[@]}" timeout -k 3 "$most" ${under[@]+"${under[@]}"} "$program" >"$log" 2>&1
    rc=$?
    passed=$(grep -c '^\[       OK \]' "$log")
    skipped=$(grep -E '^\[  SKIPPED \] test_' "$log" | sort -u | wc -l)
    what="$((SECONDS - began)) s"
    case $rc in
        0) how=ok ;;
        77) how=absent what="$(grep -m 1 -iE 'not run|SKIPPED' "$log" | cut -c1-120)" ;;
        124 | 137)
            how='cut'
            what="after $what, in $(grep -aoE '^\[ RUN      \] test_\w+' "$log" | tail -n 1 | cut -c14-)"
            ;;
        *) how=failed what="$what, exit $rc" ;;
    esac
    [ "$SANITIZE" = no ] || what="$what, $(grep -aE 'SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')"
    say_result "$name" "$how" "$passed" "$skipped" "$what" "$log"
}

# say_result NAME HOW PASSED SKIPPED WHAT [LOG]: in one write, as others write too.
say_result() {
    local text more
    text=$(printf '%-8s%-34s %3d passed  %2d skipped  %s' "$2" "$1" "$3" "$4" "$5")
    if [ "$2" = failed ] || [ "$2" = cut ]; then
        more=$(grep -aE '^\[  (FAILED|ERROR)|^=========|rror: |never |DEVICE' "$6" |
            grep -avE 'Host Frame|Target application|COMPUTE-SANITIZER|SUMMARY|^\[  FAILED  \] [0-9]|at line' |
            awk '!seen[$0]++' | cut -c1-200 | head -n 12 | sed 's/^/    /')
        [ -z "$more" ] || text+=$'\n'$more
    fi
    printf '%s\n' "$text" | tee -a "$LOGS/summary.txt"
    echo "$2 $3 $4" >"$LOGS/$1.result"
}

# Waits until fewer than N run.
room() { while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do wait -n; done; }

run_all() {
    local name part program most beside share
    while read -r name part program most beside share; do
        if [ "$beside" = alone ]; then room 1; else room "$JOBS"; fi
        job "$name" "$part" "$program" "$most" "$beside" "$share" </dev/null &
        [ "$beside" = beside ] || room 1
    done <"$LOGS/planned"
    room 1
}

# What all results come to; the exit code.
sum_up() {
    local name how p s passed=0 skipped=0 ok=0 bad=0 absent=0 missing=()
    while read -r name _; do
        if [ ! -f "$LOGS/$name.result" ]; then
            missing+=("$name")
            continue
        fi
        read -r how p s <"$LOGS/$name.result"
        passed=$((passed + p)) skipped=$((skipped + s))
        case $how in ok) ok=$((ok + 1)) ;; absent) absent=$((absent + 1)) ;; *) bad=$((bad + 1)) ;; esac
    done <"$LOGS/planned"
    grep -ahE '^report: ' "$LOGS"/*.log >"$LOGS/reports.txt" 2>/dev/null
    {
        [ ${#missing[@]} -eq 0 ] || echo "not run, no time was left: ${missing[*]}"
        echo "$ok programs passed ($passed tests, $skipped skipped), $bad failed or were cut, $absent absent," \
            "${#missing[@]} not run; $SECONDS s; logs in $LOGS"
    } | tee -a "$LOGS/summary.txt"
    [ "$ok" -gt 0 ] || [ "$bad" -gt 0 ] || [ ${#missing[@]} -gt 0 ] || return 77
    [ "$bad" -eq 0 ] && [ "$absent" -eq 0 ] && [ ${#missing[@]} -eq 0 ]
}

options "$@"
if [ "$LIST" = yes ]; then planned; exit 0; fi
[ -n "$BIN" ] || usage_error "--bin is missing"
[ -n "$(planned)" ] || usage_error "nothing is called that; --list"
if [ "$SANITIZE" = yes ]; then
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "not run: no compute-sanitizer on PATH or in /usr/local/cuda/bin"; exit 77; }
fi
mkdir -p "$LOGS" && rm -f "$LOGS"/{*.result,*.log,summary.txt,reports.txt} && planned >"$LOGS/planned" || exit 1
export TANDEM_TEST_BACKEND=cuda TANDEM_TEST_REPORT=1 TANDEM_E2E_WORKERS='--backend cuda --kv-memory 512MiB'
# Interrupted, it still says what is known; the programs are ended by their timeouts' signals.
trap 'trap - INT TERM; for p in $(jobs -rp); do pkill -TERM -P "$p"; done; wait; sum_up; exit 1' INT TERM
run_all
sum_up
