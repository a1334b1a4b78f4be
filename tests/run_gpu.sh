#!/usr/bin/env bash
# Tests of the CUDA backend: every step against float64 on the GPU, whole models against the CPU, the KV transfer
# between GPU memories, and a service of real processes. The last two need a UCX with CUDA (README): set ucx_ROOT.
# Packed libraries of the CUDA toolkit take 0.5 GB; TANDEM_PACK_TOOLKIT=no leaves them out for a machine with one.
#
#   tests/run_gpu.sh               build (preset cuda) and run; "not run", exit 77, without a GPU
#   tests/run_gpu.sh --pack DIR    build here, for a GPU machine that has only a driver: copy DIR and the
#                                  repository there and run DIR/run.sh from the repository's root
#   tests/run_gpu.sh --sanitize    build and run the step tests under compute-sanitizer instead: memcheck, racecheck,
#                                  initcheck and synccheck, few cases of each sweep (TANDEM_TEST_SMALL; about three
#                                  minutes; needs the CUDA toolkit there). DIR/run.sh --sanitize does the same
#
# TANDEM_TEST_LARGE=1 adds layers of gpt-oss-20b's shape. Worst errors are printed beside their bounds.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TESTS=(test_ops_attn test_ops_comm test_ops_dense test_ops_experts test_ops_experts_fp8 test_ops_load test_ops_sample test_model_backends test_model_ranks)

# The slowest first.
SANITIZED=(test_ops_dense test_ops_attn test_ops_experts_fp8 test_ops_experts test_ops_sample test_ops_comm test_ops_load)
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

# sanitize TOOL DIR NAME LOG: one program under one tool; a line of how it went. Errors that the tool reports make it fail.
sanitize() {
    local rc began=$SECONDS loading=LAZY # loaded at first use, only the kernels that run are made over
    [ "$3" = test_ops_comm ] && loading=EAGER # ranks that wait for each other cannot wait for the loader
    CUDA_MODULE_LOADING=$loading timeout -k 5 "${SANITIZE_SECONDS:-170}" compute-sanitizer --tool "$1" --error-exitcode 86 --print-limit 20 \
        "$2/$3" >"$4" 2>&1
    rc=$?
    echo "$1 $3: exit $rc, $(grep -c '^\[       OK \]' "$4") passed, $((SECONDS - began)) s, $(
        grep -E 'SUMMARY' "$4" | tail -n 1 | sed 's/^=* *//')"
    [ "$rc" -eq 0 ] && return 0
    grep -E '^=========|FAILED|ERROR' "$4" | grep -vE 'Host Frame|Target application|COMPUTE-SANITIZER' | head -n 30 | sed 's/^/    /'
    return 1
}

# sanitize_tests DIR: all of them under all tools, SANITIZE_JOBS (12) at a time.
sanitize_tests() {
    local tool name logs failed
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "not run: no compute-sanitizer on PATH or in /usr/local/cuda/bin"; return 77; }
    logs=${SANITIZE_LOGS:-$(mktemp -d)}
    mkdir -p "$logs"
    export TANDEM_TEST_BACKEND=cuda TANDEM_TEST_SMALL=1
    for tool in "${TOOLS[@]}"; do
        for name in "${SANITIZED[@]}"; do
            while [ "$(jobs -rp | wc -l)" -ge "${SANITIZE_JOBS:-12}" ]; do wait -n; done
            rm -f "$logs/$tool-$name.ok"
            { sanitize "$tool" "$1" "$name" "$logs/$tool-$name.log" && : >"$logs/$tool-$name.ok"; } &
        done
    done
    wait
    failed=$((${#TOOLS[@]} * ${#SANITIZED[@]} - $(find "$logs" -name '*.ok' | wc -l)))
    echo "$((${#TOOLS[@]} * ${#SANITIZED[@]})) runs, $failed failed; logs in $logs"
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
        ldd build/cuda/bin/tandem-prefill build/cuda/tests/test_kv_cuda build/cuda/tests/test_model_backends |
            awk '$2 == "=>" { print $3 }'
        # Loaded at run time, by this name.
        ls "$(sed -n 's/^CUDA_cublasLt_LIBRARY:[A-Z]*=//p' build/cuda/CMakeCache.txt)".[0-9]*[0-9] | grep -E '\.so\.[0-9]+$'
    } | sort -u |
        grep -Ev "$skip" | while read -r lib; do
            strip -o "$1/$(basename "$lib")" "$lib"
        done
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
    pack_libraries "$1/lib"
    for name in "${PROGRAMS[@]}"; do
        strip -o "$1/bin/$name" "build/cuda/bin/$name"
    done
    for name in "${TESTS[@]}" "${SERVE[@]}"; do
        strip -o "$1/$name" "build/cuda/tests/$name"
    done
    for name in bench_model ops_cuda; do
        strip -o "$1/$name" "build/cuda/bin/$name"
    done
    {
        echo '#!/usr/bin/env bash'
        echo '# Made by tests/run_gpu.sh --pack; run from the root of the repository.'
        echo 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
        echo 'export LD_LIBRARY_PATH=$HERE/lib:/usr/local/cuda/lib64 TANDEM_E2E_BIN=$HERE/bin'
        declare -p TESTS SERVE SANITIZED TOOLS
        declare -f run_tests sanitize sanitize_tests
        echo '[ "${1:-}" = --sanitize ] && { sanitize_tests "$HERE"; exit; }'
        echo 'run_tests "$HERE"'
    } >"$1/run.sh"
    chmod +x "$1/run.sh"
}

case "${1:-}" in
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --pack) [ $# -eq 2 ] || { echo "usage: tests/run_gpu.sh --pack DIR" >&2; exit 2; } ;;
    '' | --sanitize)
        if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
            echo "not run: this machine has no NVIDIA GPU"
            exit 77
        fi
        ;;
    *) echo "tests/run_gpu.sh: unknown argument $1" >&2; exit 2 ;;
esac

. deploy/local/lib.sh
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
configure cuda -DTANDEM_TESTS=ON ${ucx_ROOT:+"-Ducx_ROOT=$ucx_ROOT"}
build cuda "${TESTS[@]}" "${SERVE[@]}" "${PROGRAMS[@]}" bench_model ops_cuda
if ! ucx_modules >/dev/null; then
    echo "not run: KV between GPU memories, and serving: this build's UCX has no CUDA; set ucx_ROOT" >&2
    SERVE=()
fi
if [ "${1:-}" = --pack ]; then
    pack "$2" && echo "packed: copy $2 to the GPU machine and run $2/run.sh there"
elif [ "${1:-}" = --sanitize ]; then
    sanitize_tests build/cuda/tests
else
    run_tests build/cuda/tests
fi
