#!/usr/bin/env bash
# Tests of the CUDA backend: every step against float64 on the GPU, and whole models against the CPU.
#
#   tests/run_gpu.sh               build (preset cuda) and run; "not run", exit 77, without a GPU
#   tests/run_gpu.sh --pack DIR    build here, for a GPU machine that has only a driver: copy DIR and the
#                                  repository there and run DIR/run.sh from the repository's root
#
# TANDEM_TEST_LARGE=1 adds layers of gpt-oss-20b's shape. Worst errors are printed beside their bounds.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TESTS=(test_ops_attn test_ops_comm test_ops_dense test_ops_experts test_ops_sample test_model_backends test_model_ranks)

# run_tests DIR: the programs in DIR, and what they report.
run_tests() {
    local name log rc passed=0 failed=0 skipped=0 absent=0
    export TANDEM_TEST_BACKEND=cuda TANDEM_TEST_REPORT=1
    log=$(mktemp)
    for name in "${TESTS[@]}"; do
        timeout 300 "$1/$name" >"$log" 2>&1
        rc=$?
        grep -E '^report: |^\[  (SKIPPED|FAILED|ERROR)' "$log"
        [ "$rc" -eq 77 ] && { absent=$((absent + 1)); continue; }
        [ "$rc" -eq 0 ] || { tail -n 40 "$log" >&2; echo "$name: exit $rc" >&2; failed=$((failed + 1)); }
        passed=$((passed + $(grep -c '^\[       OK \]' "$log")))
        skipped=$((skipped + $(grep -c '^\[  SKIPPED \] test_.*' "$log") / 2))
    done
    rm -f "$log"
    [ "$absent" -eq "${#TESTS[@]}" ] && { echo "not run: this machine has no GPU"; return 77; }
    echo "$passed passed, $failed programs failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$absent" -eq 0 ]
}

pack() {
    local name lib
    mkdir -p "$1/lib"
    for name in "${TESTS[@]}"; do
        strip -o "$1/$name" "build/cuda/tests/$name"
    done
    strip -o "$1/ops_cuda" build/cuda/bin/ops_cuda
    for lib in libcmocka.so.0 libcjson.so.1; do
        cp -L "$(ldd "$1/test_model_backends" | awk -v l="$lib" '$1 == l { print $3 }')" "$1/lib/"
    done
    {
        echo '#!/usr/bin/env bash'
        echo '# Made by tests/run_gpu.sh --pack; run from the root of the repository.'
        echo 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
        echo 'export LD_LIBRARY_PATH=$HERE/lib'
        declare -p TESTS
        declare -f run_tests
        echo 'run_tests "$HERE"'
    } >"$1/run.sh"
    chmod +x "$1/run.sh"
}

case "${1:-}" in
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --pack) [ $# -eq 2 ] || { echo "usage: tests/run_gpu.sh --pack DIR" >&2; exit 2; } ;;
    '')
        if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
            echo "not run: this machine has no NVIDIA GPU"
            exit 77
        fi
        ;;
    *) echo "tests/run_gpu.sh: unknown argument $1" >&2; exit 2 ;;
esac

. deploy/local/lib.sh
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
configure cuda -DTANDEM_TESTS=ON
build cuda "${TESTS[@]}" ops_cuda
if [ "${1:-}" = --pack ]; then
    pack "$2" && echo "packed: copy $2 to the GPU machine and run $2/run.sh there"
else
    run_tests build/cuda/tests
fi
