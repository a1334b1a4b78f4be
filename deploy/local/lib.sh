# Shared by demo.sh and tests/run.sh: packages, builds, and messages. Sourced, from the root.

BUILD_PACKAGES=(build-essential cmake ninja-build pkg-config libnng-dev libucx-dev libprotobuf-c-dev
    protobuf-c-compiler libcjson-dev libevent-dev uthash-dev libxxhash-dev)
TEST_PACKAGES=(libcmocka-dev libpcre2-dev python3 python3-venv clang libclang-rt-dev)

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# need_packages NAME...: install what is missing, by name; says nothing when nothing is. Where packages have other
# names it says which ones are meant, and CMake names what is not there. bash 3.2 has to get as far as this.
need_packages() {
    local missing=() p sudo=()
    [ "$(uname -s)" = Linux ] || die "Tandem runs on Linux. With Docker, from $PWD:
  docker run --rm -it -v \"\$PWD\":/tandem -w /tandem debian:12 deploy/local/demo.sh"
    if ! command -v dpkg-query >/dev/null; then
        say "not a Debian, so nothing is installed; what is needed has these names there: $*"
        return 0
    fi
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "missing packages: ${missing[*]}. Install them, or run this as root or with sudo"
        sudo=(sudo)
    fi
    say "installing ${missing[*]}"
    "${sudo[@]}" apt-get update -qq >&2 || die "apt-get update failed"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >&2 </dev/null || die "apt-get install failed: ${missing[*]}"
}

# configure PRESET [cmake flags]: only where it has not been done with these flags.
configure() {
    local preset=$1 stamp="build/$1/.configured" want
    shift
    want="$* $(cat CMakePresets.json | cksum)"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return 0
    say "configuring $preset"
    mkdir -p "build/$preset"
    cmake --preset "$preset" "$@" >"build/$preset/configure.log" 2>&1 ||
        { cat "build/$preset/configure.log" >&2; die "cmake --preset $preset failed"; }
    printf '%s' "$want" >"$stamp"
}

# build PRESET [target...]: quiet when there is nothing to do.
build() {
    local preset=$1
    shift
    if ! ninja -C "build/$preset" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
        say "building $preset (a minute or two the first time)"
    fi
    ninja -C "build/$preset" "$@" >"build/$preset/build.log" 2>&1 ||
        { tail -n 60 "build/$preset/build.log" >&2; die "the build failed: build/$preset/build.log"; }
}
