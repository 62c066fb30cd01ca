#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into a prefix of its own, moves it, and builds and runs a consumer by CMake, by pkg-config, and in C++17.
# usage: test_install.sh BUILD_DIR VERSION
set -eu
build=$1
version=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_install: $1" >&2
    exit 1
}

# A job's variables would make the consumer look for ranks that do not exist.
unset EXPAR_RANK EXPAR_SIZE EXPAR_UNIQUE_ID RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE || true

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || fail "$(cat "$work/install.log")"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
pc=$(find "$prefix" -name expar.pc)
[ -n "$pc" ] || fail "no expar.pc was installed"
lib=$(dirname "$(dirname "$pc")")
[ -e "$lib/libexpar.so.$version" ] || fail "no libexpar.so.$version in $lib"
[ "$(readlink "$lib/libexpar.so.${version%%.*}")" = "libexpar.so.$version" ] || fail "the soname's link is wrong"

expect_rank() {
    text=$("$@")
    [ "$text" = "expar $version, rank 0 of 1" ] || fail "$1 printed: $text"
}

cmake -S "$here/app" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" 2>&1 || fail "$(cat "$work/cmake.log")"
cmake --build "$work/cmake" >"$work/build.log" 2>&1 || fail "$(cat "$work/build.log")"
expect_rank "$work/cmake/app"

export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib"
[ "$(pkg-config --modversion expar)" = "$version" ] || fail "pkg-config knows another version"
flags=$(pkg-config --cflags --libs expar)
# shellcheck disable=SC2086 # the flags are words
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/app/app.c" $flags -o "$work/app-c"
expect_rank "$work/app-c"
# shellcheck disable=SC2086
c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$here/app/app.cpp" $flags -o "$work/app-cpp"
"$work/app-cpp" || fail "the C++ consumer failed"

# shellcheck disable=SC2046 # the flags are words
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/app/shmem.c" $(pkg-config --cflags --libs expar-shmem) \
    -o "$work/app-shmem"
[ "$("$work/app-shmem")" = "PE 0 of 1" ] || fail "the OpenSHMEM consumer failed"

unset LD_LIBRARY_PATH
[ -e "$build/bin/expar" ] || exit 0
"$prefix/bin/expar" --version | grep -qF "$version" || fail "the installed expar does not start"
for page in expar_pgas expar_rma expar_put_f32 shmem_int_put; do
    [ -e "$prefix/share/man/man3/$page.3" ] || fail "$page.3 is missing"
done
for page in expar expar-run expar-bench expar-info expar-demo; do
    file=$prefix/share/man/man1/$page.1
    grep -q '^\.SH NAME' "$file" || fail "$page.1 is missing or no man page"
    if command -v mandoc >/dev/null; then
        mandoc -T lint -W warning "$file" || fail "$page.1 is not well-formed"
    fi
done
