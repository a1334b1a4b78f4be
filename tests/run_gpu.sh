#!/usr/bin/env bash
# Tests of the CUDA backend: every step against float64 on the GPU, whole models against the CPU, the KV transfer
# between GPU memories, and a service of real processes. The last two need a UCX with CUDA (README): set ucx_ROOT.
# Packed libraries of the CUDA toolkit take 0.5 GB; TANDEM_PACK_TOOLKIT=no leaves them out for a machine with one.
#
#   tests/run_gpu.sh               build (preset cuda) and run; "not run", exit 77, without a GPU
#   tests/run_gpu.sh --pack DIR    build here, for a GPU machine that has only a driver: copy DIR and the
#                                  repository there and run DIR/run.sh from the repository's root
#   tests/run_gpu.sh --sanitize [--pack DIR]
#                                  the step tests under compute-sanitizer instead: memcheck, racecheck, initcheck and
#                                  synccheck, few cases of each sweep (TANDEM_TEST_SMALL). Some ten minutes; on a machine
#                                  with the CUDA toolkit
#
# Nothing that the tools say is filtered out. What they cannot know is left out at its source, and is what the other
# tests check: kernels are built with TANDEM_RACECHECK (hopper.cuh says why); a workspace is poisoned and not raw
# where rows end within 16 bytes or cuBLASLt writes them, which initcheck does not see (harness.c); tests that ask
# for too much memory are skipped (test_ops_load.c); test_ops_comm is not there, as its ranks wait for each other
# and replays of their graphs do not overlap under the tools; test_ops_dense and test_ops_attn_in are not under
# synccheck, which takes barriers that warps come to from two places (dense_mid.cu) for divergence. PTX counts arrivals.
#
# TANDEM_TEST_LARGE=1 adds layers of gpt-oss-20b's shape. Worst errors are printed beside their bounds.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TESTS=(test_ops_attn test_ops_attn_in test_ops_comm test_ops_dense test_ops_experts test_ops_experts_fp8 test_ops_load test_ops_sample test_model_backends test_model_decode test_model_ranks)

# The slowest first.
SANITIZED=(test_ops_sample test_ops_experts test_ops_attn_in test_ops_dense test_ops_attn test_ops_experts_fp8 test_ops_load)
TOOLS=(racecheck memcheck initcheck synccheck)

PROGRAMS=(tandem-router tandem-prefill tandem-decode)
SERVE=(test_kv_cuda test_e2e_model test_e2e_faults test_e2e_device test_e2e_guided)

# run_tests DIR: the programs in DIR, and what they report.
run_tests() {
    export TANDEM_E2E_WORKERS='--backend cuda --kv-memory 512MiB'
    local name log rc passed=0 failed=0 skipped=0 absent=0
    export TANDEM_TEST_BACKEND=cuda TANDEM_TEST_REPORT=1
    log=$(mktemp)
    for name in "${TESTS[@]}" "${SERVE[@]}"; do
        timeout 300 "$1/$name" >"$log" 2>&1
        rc=$?
        grep -E '^report: |^\[  (SKIPPED|FAILED|ERROR)' "$log"
        [ "$rc" -eq 77 ] && { absent=$((absent + 1)); continue; }
        [ "$rc" -eq 0 ] || { tail -n 40 "$log" >&2; echo "$name: exit $rc" >&2; failed=$((failed + 1)); }
        passed=$((passed + $(grep -c '^\[       OK \]' "$log")))
        skipped=$((skipped + $(grep -c '^\[  SKIPPED \] test_.*' "$log") / 2))
    done
    rm -f "$log"
    [ "$absent" -eq $((${#TESTS[@]} + ${#SERVE[@]})) ] && { echo "not run: this machine has no GPU"; return 77; }
    echo "$passed passed, $failed programs failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$absent" -eq 0 ]
}

# Whether a tool is for a program.
can_watch() { [ "$1-$2" != synccheck-test_ops_dense ] && [ "$1-$2" != synccheck-test_ops_attn_in ]; }

# sanitize TOOL DIR NAME LOG: one program under one tool; a line of how it went. Errors that the tool reports make it fail.
sanitize() {
    local rc began=$SECONDS
    # Lazily loaded, only the kernels that run are made over.
    CUDA_MODULE_LOADING=LAZY timeout -k 5 "${SANITIZE_SECONDS:-1200}" compute-sanitizer --tool "$1" --error-exitcode 86 --print-limit 20 \
        "$2/$3" >"$4" 2>&1
    rc=$?
    echo "$1 $3: exit $rc, $(grep -c '^\[       OK \]' "$4") passed, $((SECONDS - began)) s, $(
        grep -E 'SUMMARY' "$4" | tail -n 1 | sed 's/^=* *//')"
    [ "$rc" -eq 0 ] && return 0
    grep -E '^=========|FAILED|ERROR' "$4" | grep -vE 'Host Frame|Target application|COMPUTE-SANITIZER' | head -n 30 | sed 's/^/    /'
    return 1
}

# sanitize_tests DIR: all of them under all tools, SANITIZE_JOBS (7) at a time: each takes gigabytes of the GPU.
sanitize_tests() {
    local tool name logs runs=0 failed
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "not run: no compute-sanitizer on PATH or in /usr/local/cuda/bin"; return 77; }
    logs=${SANITIZE_LOGS:-$(mktemp -d)}
    mkdir -p "$logs"
    export TANDEM_TEST_BACKEND=cuda TANDEM_TEST_SMALL=1
    for tool in "${TOOLS[@]}"; do
        for name in "${SANITIZED[@]}"; do
            can_watch "$tool" "$name" || continue
            runs=$((runs + 1))
            while [ "$(jobs -rp | wc -l)" -ge "${SANITIZE_JOBS:-7}" ]; do wait -n; done
            rm -f "$logs/$tool-$name.ok"
            { sanitize "$tool" "$1" "$name" "$logs/$tool-$name.log" && : >"$logs/$tool-$name.ok"; } &
        done
    done
    wait
    failed=$((runs - $(find "$logs" -name '*.ok' | wc -l)))
    echo "$runs runs, $failed failed; logs in $logs"
    [ "$failed" -eq 0 ]
}

# The folder of UCX's modules; fails where they have no CUDA, and nothing can be served from a GPU then.
ucx_modules() {
    local folder
    folder=$(dirname "$(readlink -f "$(ldd build/cuda/bin/tandem-prefill | awk '$1 ~ /libucs\.so/ { print $3 }')")")/ucx
    echo "$folder"
    [ -f "$folder/libuct_cuda.so" ]
}

# What a program needs that a GPU machine may not have: libnng, UCX with its modules, and the like.
pack_libraries() {
    local lib ucx skip='/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so'
    [ "${TANDEM_PACK_TOOLKIT:-yes}" = yes ] || skip="$skip|/cuda"
    {
        ldd "${LINKED[@]}" |
            awk '$2 == "=>" { print $3 }'
        # Loaded at run time, by this name.
        ls "$(sed -n 's/^CUDA_cublasLt_LIBRARY:[A-Z]*=//p' "build/$PRESET/CMakeCache.txt")".[0-9]*[0-9] | grep -E '\.so\.[0-9]+$'
    } | sort -u |
        grep -Ev "$skip" | while read -r lib; do
            strip -o "$1/$(basename "$lib")" "$lib"
        done
    [ "$PRESET" = cuda ] || return 0
    ucx=$(ucx_modules) || return 0
    mkdir -p "$1/ucx"
    # UCX looks for modules by its own suffix, which is .so or .so.0.
    for lib in "$ucx"/libuc[tm]_{cma,cuda,ib}.so{,.0}; do
        [ ! -f "$lib" ] || strip -o "$1/ucx/$(basename "$lib")" "$lib"
    done
    lib=$(ldd "$ucx/libucm_cuda.so" 2>/dev/null | awk '/libcudart/ && $3 ~ /^\// { print $3 }')
    [ -z "$lib" ] || strip -o "$1/$(basename "$lib")" "$lib" # a wheel's own
}

pack() {
    local name
    mkdir -p "$1/lib" "$1/bin"
    if [ "$PRESET" = racecheck ]; then
        LINKED=(build/racecheck/tests/test_ops_dense)
        for name in "${SANITIZED[@]}"; do
            cp "build/racecheck/tests/$name" "$1/"
        done
    else
        LINKED=(build/cuda/bin/tandem-prefill build/cuda/tests/test_kv_cuda build/cuda/tests/test_model_backends)
        for name in "${PROGRAMS[@]}"; do
            strip -o "$1/bin/$name" "build/cuda/bin/$name"
        done
        for name in "${TESTS[@]}" "${SERVE[@]}"; do
            strip -o "$1/$name" "build/cuda/tests/$name"
        done
        for name in bench_model ops_cuda; do
            strip -o "$1/$name" "build/cuda/bin/$name"
        done
    fi
    pack_libraries "$1/lib"
    {
        echo '#!/usr/bin/env bash'
        echo '# Made by tests/run_gpu.sh --pack; run from the root of the repository.'
        echo 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
        echo 'export LD_LIBRARY_PATH=$HERE/lib:/usr/local/cuda/lib64 TANDEM_E2E_BIN=$HERE/bin'
        declare -p TESTS SERVE SANITIZED TOOLS
        declare -f run_tests can_watch sanitize sanitize_tests
        if [ "$PRESET" = racecheck ]; then echo 'sanitize_tests "$HERE"'; else echo 'run_tests "$HERE"'; fi
    } >"$1/run.sh"
    chmod +x "$1/run.sh"
}

PRESET=cuda DIR=
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        --pack) [ $# -ge 2 ] || { echo "tests/run_gpu.sh: --pack wants a folder" >&2; exit 2; }
            DIR=$2
            shift
            ;;
        --sanitize) PRESET=racecheck ;;
        *) echo "tests/run_gpu.sh: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$DIR" ] && ! { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }; then
    echo "not run: this machine has no NVIDIA GPU"
    exit 77
fi

. deploy/local/lib.sh
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
configure "$PRESET" -DTANDEM_TESTS=ON ${ucx_ROOT:+"-Ducx_ROOT=$ucx_ROOT"}
if [ "$PRESET" = racecheck ]; then
    build racecheck "${SANITIZED[@]}"
else
    build cuda "${TESTS[@]}" "${SERVE[@]}" "${PROGRAMS[@]}" bench_model ops_cuda
    if ! ucx_modules >/dev/null; then
        echo "not run: KV between GPU memories, and serving: this build's UCX has no CUDA; set ucx_ROOT" >&2
        SERVE=()
    fi
fi
if [ -n "$DIR" ]; then
    pack "$DIR" && echo "packed: copy $DIR to the GPU machine and run $DIR/run.sh there"
elif [ "$PRESET" = racecheck ]; then
    sanitize_tests build/racecheck/tests
else
    run_tests build/cuda/tests
fi
