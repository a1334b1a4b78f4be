#!/usr/bin/env bash
# Sets up and runs every test: the optimised build, then the same suite under AddressSanitizer and
# UndefinedBehaviorSanitizer, then what shares data between threads under ThreadSanitizer, then each
# fuzzer for some seconds.
#
#   tests/run.sh                   all of it
#   tests/run.sh release           one of release, asan, tsan, fuzz
#   tests/run.sh release -R e2e    the same, with more flags for ctest
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/local/lib.sh

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"

PRESETS=(release asan tsan fuzz)
case "${1:-}" in
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    release | asan | tsan | fuzz) PRESETS=("$1"); shift ;;
esac

# One test at a time a core: they start processes of their own, and time-outs must mean something.
JOBS=$(nproc)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# The model's own vocabulary and the references that some tests compare with: from a package index, or
# those tests are "not run".
if vocabulary=$(tests/golden/oracle.sh --vocabulary 2>/dev/null); then
    export TANDEM_O200K=$vocabulary
fi

passed=0 failed=0 skipped=0 bad=()
for preset in "${PRESETS[@]}"; do
    started=$SECONDS
    configure "$preset" -DTANDEM_TESTS=ON -DTANDEM_WERROR=ON
    select=() targets=() none=error
    [ "$preset" = tsan ] && select=(-L threads)
    [ "$preset" = fuzz ] && targets=(fuzzers) none=ignore
    build "$preset" "${targets[@]}"
    say "testing $preset"
    log=build/$preset/tests.log
    ctest --preset "$preset" -j "$JOBS" "--no-tests=$none" "${select[@]}" "$@" >"$log" 2>&1
    rc=$?
    # Every test program prints a line a test; ctest keeps what each one printed.
    all=build/$preset/Testing/Temporary/LastTest.log
    p=$(grep -c '^\[       OK \]' "$all")
    s=$(grep -c '^\[  SKIPPED \]' "$all")
    f=$(grep -cE '^\[  (FAILED|ERROR)  \] (--- )?test_' "$all")
    if [ "$rc" -ne 0 ]; then
        tail -n 200 "$log" >&2
        [ "$f" -gt 0 ] || f=1
        bad+=("$preset")
    fi
    grep -E '^ *[0-9]+/[0-9]+ Test' "$log" | sed -E 's/^ */  /' >&2
    say "$preset: $p passed, $f failed, $s not run, in $((SECONDS - started)) s"
    grep '^\[  SKIPPED \]' "$all" | sort | uniq -c | sed 's/^/  not run: /' >&2
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
[ ${#bad[@]} -eq 0 ] || say "failed in: ${bad[*]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ ${#bad[@]} -eq 0 ]
