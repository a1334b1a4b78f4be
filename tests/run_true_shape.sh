#!/usr/bin/env bash
# Logits of a checkpoint of gpt-oss-20b's true shape, here and in Transformers, on the GPU.
#
#   tests/run_true_shape.sh [DIR]   DIR (/dev/shm/tandem-20b) gets a random checkpoint of 13.8 GB in the published
#                                   layout and Transformers' logits for it, if they are not there yet
#
# Needs an H200's memory, and python3 with torch, transformers >= 5, safetensors and numpy. Takes two minutes.
# Exit 1: an error is larger than what bfloat16 loses in Transformers allows; 77: this machine has no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
DIR=${1:-/dev/shm/tandem-20b}

case "$DIR" in -*) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;; esac
if [[ $(nvidia-smi -L 2>/dev/null) != GPU* ]]; then
    echo "not run: this machine has no NVIDIA GPU"
    exit 77
fi
. deploy/local/lib.sh
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
configure cuda -DTANDEM_TESTS=ON
build cuda compare_logits
[ -f "$DIR/model.safetensors.index.json" ] || python3 tests/golden/make_random_checkpoint.py "$DIR"
[ -f "$DIR/logits.ref" ] || python3 tests/golden/reference_logits.py "$DIR" "$DIR/logits.ref"
build/cuda/bin/compare_logits "$DIR" "$DIR/logits.ref"
build/cuda/bin/compare_logits "$DIR" "$DIR/logits.ref" --experts fp8 --allow 1.5
build/cuda/bin/compare_logits "$DIR" "$DIR/logits.ref" --kv e4m3 --allow 2.5
