#!/usr/bin/env bash
# Tests of the CUDA backend: every step against float64 on the GPU, whole models against the CPU, the KV transfer
# between GPU memories, and services of real processes. The last two need a UCX with CUDA (README): set ucx_ROOT.
#
#   tests/run_gpu.sh [-- OPTIONS]  build (preset cuda) and run, within ten minutes; "not run", exit 77, without a GPU
#   tests/run_gpu.sh --pack DIR    build here, for a GPU machine that has only a driver: copy DIR and the
#                                  repository there and run DIR/run.sh [OPTIONS] from the repository's root
#   tests/run_gpu.sh --sanitize [--pack DIR] [-- OPTIONS]
#                                  the step tests under compute-sanitizer instead: memcheck, racecheck, initcheck and
#                                  synccheck, few cases of each sweep (TANDEM_TEST_SMALL); on a machine with the CUDA
#                                  toolkit
#
# OPTIONS are those of tests/gpu_jobs.sh, which runs the programs: --parts ops,models,kv,serve and --tests for some of
# them, --seconds for all together, --jobs side by side, --logs. TANDEM_TEST_LARGE=1 adds layers of gpt-oss-20b's shape.
# Packed libraries of the CUDA toolkit take 0.5 GB; TANDEM_PACK_TOOLKIT=no leaves them out for a machine with one.
#
# Nothing that compute-sanitizer's tools say is filtered out. What they cannot know is left out at its source, and is
# what the other tests check: kernels are built with TANDEM_RACECHECK (hopper.cuh says why); a workspace is poisoned
# and not raw where rows end within 16 bytes or cuBLASLt writes them, which initcheck does not see (harness.c); tests
# that ask for too much memory are skipped (test_ops_load.c); test_ops_comm is run where --tests names it only, as its
# ranks wait for each other, and a launch may wait for all kernels under the tools.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# programs OPTIONS...: those of the jobs.
programs() { bash tests/gpu_jobs.sh --list "$@" | awk '{ print $3 }' | sort -u; }

mapfile -t TESTS < <(programs --parts ops,models)
mapfile -t SERVE < <(programs --parts kv,serve)
mapfile -t SANITIZED < <(programs --sanitize; echo test_ops_comm)
PROGRAMS=(tandem-router tandem-prefill tandem-decode)

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
    cp tests/gpu_jobs.sh "$1/"
    {
        echo '#!/usr/bin/env bash'
        echo '# Made by tests/run_gpu.sh --pack; run from the root of the repository. Options: those of gpu_jobs.sh beside this.'
        echo 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
        echo 'export LD_LIBRARY_PATH=$HERE/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} TANDEM_E2E_BIN=$HERE/bin'
        printf 'exec bash "$HERE/gpu_jobs.sh" --bin "$HERE"'
        [ ${#JOBS[@]} -eq 0 ] || printf ' %q' "${JOBS[@]}"
        echo ' "$@"'
    } >"$1/run.sh"
    chmod +x "$1/run.sh"
}

PRESET=cuda DIR='' JOBS=() GIVEN=()
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        --pack) [ $# -ge 2 ] || { echo "tests/run_gpu.sh: --pack wants a folder" >&2; exit 2; }
            DIR=$2
            shift
            ;;
        --sanitize) PRESET=racecheck JOBS=(--sanitize) ;;
        --) shift; GIVEN=("$@"); break ;;
        *) echo "tests/run_gpu.sh: unknown argument $1; --help" >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$DIR" ] && [[ $(nvidia-smi -L 2>/dev/null) != GPU* ]]; then
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
        SERVE=() JOBS=(--parts 'ops,models')
    fi
fi
if [ -n "$DIR" ]; then
    pack "$DIR" && echo "packed: copy $DIR to the GPU machine and run $DIR/run.sh there"
else
    exec bash tests/gpu_jobs.sh --bin "build/$PRESET" "${JOBS[@]}" "${GIVEN[@]}"
fi
