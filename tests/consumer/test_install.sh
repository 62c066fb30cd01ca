#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into a prefix of its own, copies it to another one, and uninstalls the first. Then it builds and runs a
# consumer by CMake, by pkg-config, by the compilers' wrappers, by the lines of README.md, and in C++17. No program is
# told where the library is.
# usage: test_install.sh BUILD_DIR VERSION
set -eu
build=$1
version=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

# A job's variables would make the consumer look for ranks that do not exist.
unset LD_LIBRARY_PATH
unset EXPAR_LIBRARY EXPAR_RANK EXPAR_SIZE EXPAR_UNIQUE_ID RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE || true

# An earlier install from this build keeps its list.
manifest=$build/install_manifest.txt
[ ! -e "$manifest" ] || cp "$manifest" "$work/before"
cmake --install "$build" --prefix "$work/first" >"$work/install.log" || fail "$(cat "$work/install.log")"
mv "$manifest" "$work/manifest"
[ ! -e "$work/before" ] || mv "$work/before" "$manifest"

cp -a "$work/first" "$work/prefix"
for package in "$work"/first/lib/python*/*/expar; do
    [ ! -d "$package" ] || mkdir "$package/__pycache__"
done
cmake -DMANIFEST="$work/manifest" -P "$here/../../cmake/uninstall.cmake" >"$work/uninstall.log" || fail "$(cat "$work/uninstall.log")"
left=$(find "$work/first" ! -type d -o -name expar -o -name __pycache__)
[ -z "$left" ] || fail "uninstalling has left $left"

prefix=$work/prefix
pc=$(find "$prefix" -name expar.pc)
[ -n "$pc" ] || fail "no expar.pc was installed"
lib=$(dirname "$(dirname "$pc")")
[ -e "$lib/libexpar.so.$version" ] || fail "no libexpar.so.$version in $lib"
# Until 1.0 the soname has major and minor version: another minor version is another interface.
case $version in
    0.*) soversion=${version%.*} ;;
    *) soversion=${version%%.*} ;;
esac
for name in libexpar libexpar-shmem libexpar-nvshmem; do
    [ "$(readlink "$lib/$name.so.$soversion")" = "$name.so.$version" ] || fail "the link of $name's soname is wrong"
    readelf -d "$lib/$name.so" | grep -qF "Library soname: [$name.so.$soversion]" || fail "$name has another soname"
done

expect_rank() {
    text=$("$@")
    [ "$text" = "expar $version, rank 0 of 1" ] || fail "$1 printed: $text"
}

cmake -S "$here/app" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" 2>&1 || fail "$(cat "$work/cmake.log")"
cmake --build "$work/cmake" >"$work/build.log" 2>&1 || fail "$(cat "$work/build.log")"
expect_rank "$work/cmake/app"
readelf -d "$work/cmake/app" | grep -qF "Shared library: [libexpar.so.$soversion]" || fail "the program asks for another library"
# The package knows which versions it serves: its own minor version until 1.0.
for asked in 0.0 0.2 1.0; do
    if cmake -S "$here/app" -B "$work/versions" -DCMAKE_PREFIX_PATH="$prefix" -DASKED="$asked" >"$work/cmake.log" 2>&1; then
        fail "the package takes itself for version $asked"
    fi
    grep -q "exparConfig.cmake, version: $version" "$work/cmake.log" || fail "$(cat "$work/cmake.log")"
done

cmp -s "$prefix/share/expar/abi.json" "$build/abi/abi.json" || fail "the table of structs is not installed"

# Each subcommand has its page.
if [ -e "$build/bin/expar" ]; then
    "$build/bin/expar" --help | sed -n '/--version/q; s/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' >"$work/subcommands"
    grep -qx run "$work/subcommands" || fail "expar --help lists no subcommand 'run'"
    while read -r subcommand; do
        [ -s "$prefix/share/man/man1/expar-$subcommand.1" ] || fail "expar-$subcommand has no page"
    done <"$work/subcommands"
fi

# The shells find how to complete arguments.
for script in bash-completion/completions/expar zsh/site-functions/_expar fish/vendor_completions.d/expar.fish; do
    [ ! -e "$build/bin/expar" ] || grep -q "made by .expar completion" "$prefix/share/$script" ||
        fail "the completion $script is not installed"
done

# The package of Python takes the library that is installed with it.
for package in "$prefix"/lib/python*/*/expar/__init__.py; do
    [ -e "$package" ] || continue
    export PYTHONPATH="${package%/expar/*}" PYTHONDONTWRITEBYTECODE=1
    used=$(python3 -c "import expar; print(expar.library_path())")
    [ "$used" = "$(realpath "$lib/libexpar.so.$version")" ] || fail "the installed Python package takes $used"
    [ ! -e "$build/bin/expar" ] || [ "$(env PATH=/usr/bin:/bin "$(command -v python3)" -m expar --version)" = "expar $version" ] ||
        fail "the installed Python package does not find the tool"
done

export PKG_CONFIG_PATH="$lib/pkgconfig"
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
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/app/nvshmem.c" $(pkg-config --cflags --libs expar-nvshmem) \
    -o "$work/app-nvshmem"
[ "$("$work/app-nvshmem")" = "PE 0 of 1" ] || fail "the consumer with NVSHMEM's names failed"

# The installed README.md has a command, and lines of CMake.
readme=$prefix/share/doc/expar/README.md
# shellcheck disable=SC2016 # a literal of README.md
command=$(sed -n 's/.*`\(cc prog\.c [^`]*\)`.*/\1/p' "$readme")
[ -n "$command" ] || fail "README.md has no command that builds prog.c"
mkdir "$work/readme"
cp "$here/app/app.c" "$work/readme/prog.c"
cp "$here/app/app.c" "$work/readme"
(cd "$work/readme" && sh -c "$command") || fail "README.md's command failed: $command"
expect_rank "$work/readme/a.out"
{
    echo "cmake_minimum_required(VERSION 3.25)"
    echo "project(app LANGUAGES C)"
    # shellcheck disable=SC2016
    sed -n '/^```cmake$/,/^```$/p' "$readme" | grep -v '^```'
} >"$work/readme/CMakeLists.txt"
grep -q 'find_package(expar' "$work/readme/CMakeLists.txt" || fail "README.md has no lines of CMake"
if ! { CMAKE_PREFIX_PATH=$prefix cmake -S "$work/readme" -B "$work/readme/build" &&
    cmake --build "$work/readme/build"; } >"$work/cmake.log" 2>&1; then
    fail "README.md's lines of CMake failed: $(cat "$work/cmake.log")"
fi
expect_rank "$work/readme/build/app"

# Installed pages, and examples that compile as they stand.
doc=$prefix/share/doc/expar
for file in README.md docs/internals/architecture.md examples/cuda_graph.c examples/mpi.c; do
    [ -s "$doc/$file" ] || fail "share/doc/expar/$file is missing"
done
# shellcheck disable=SC2086 # the flags are words
cc -std=c11 "$doc/examples/threads.c" $flags -pthread -o "$work/threads"
[ "$("$work/threads" 3)" = "3 ranks in one process: all sums right" ] || fail "the example of threads failed"
# shellcheck disable=SC2086 # the flags are words
cc -std=c11 "$doc/examples/engine.c" $flags -ldl -o "$work/engine"
[ "$("$work/engine")" = "a result is 6, a sum 6" ] || fail "the example of an engine failed"

unset PKG_CONFIG_PATH

# The wrappers of the compilers: in two steps, through a link, in one step; without files the compiler is asked only.
strict="-Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2086 # the flags are words
"$prefix/bin/oshcc" -std=c11 $strict -c "$here/app/shmem.c" -o "$work/shmem.o"
ln -s "$prefix/bin/oshcc" "$work/linked"
"$work/linked" "$work/shmem.o" -o "$work/app-oshcc"
[ "$("$work/app-oshcc")" = "PE 0 of 1" ] || fail "what oshcc has built failed"
for wrapper in oshc++ oshcxx; do
    # shellcheck disable=SC2086
    "$prefix/bin/$wrapper" -std=c++17 $strict "$here/app/shmem.cpp" -o "$work/app-$wrapper"
done
"$prefix/bin/oshcc" -v 2>"$work/asked" || fail "oshcc -v: $(cat "$work/asked")"
# shows PATTERN WRAPPER ARGUMENT…: the command that it would call.
shows() {
    pattern=$1 wrapper=$2
    shift 2
    shown=$(OSHCC="cc -O1" "$prefix/bin/$wrapper" --showme "$@")
    echo "$shown" | grep -q "^$pattern$" || fail "$wrapper --showme: $shown"
}
shows "cc -O1 a.c -o a -I.* -lexpar-shmem -lexpar" oshcc a.c -o a
shows "cc -O1 -c a.c -I[^ ]* -I[^ ]*/openshmem" oshcc -c a.c
shows "c++ a.cpp -I.* -lexpar-shmem -lexpar" oshc++ a.cpp

[ -e "$build/bin/expar" ] || exit 0
"$prefix/bin/expar" --version | grep -qF "$version" || fail "the installed expar does not start"
# oshrun: -np and -n, options of expar run, and a program's arguments as they are.
[ "$("$prefix/bin/oshrun" -np 2 "$work/app-oshcc" | sort)" = "PE 0 of 2
PE 1 of 2" ] || fail "oshrun -np"
for wrapper in oshc++ oshcxx; do
    "$prefix/bin/oshrun" -n 3 --timeout 60 -- "$work/app-$wrapper" 3 -np "two words" || fail "oshrun -n"
    "$prefix/bin/oshrun" -n 3 --timeout 60 -np 2 "$work/app-$wrapper" 2 -np "two words" || fail "oshrun --timeout"
done
if "$prefix/bin/oshrun" -np 1 "$work/app-oshc++" 2 2>"$work/told"; then fail "oshrun hides that a program failed"; fi
for page in expar_pgas expar_rma expar_put_f32 shmem_int_put; do
    [ -e "$prefix/share/man/man3/$page.3" ] || fail "$page.3 is missing"
done
for page in oshc++ oshcxx oshrun; do
    grep -qx '\.so man1/oshcc\.1' "$prefix/share/man/man1/$page.1" || fail "$page.1 does not lead to oshcc.1"
done
for page in expar expar-run expar-bench expar-info expar-check expar-demo oshcc; do
    file=$prefix/share/man/man1/$page.1
    grep -qi '^\.SH NAME' "$file" || fail "$page.1 is missing or no man page"
    if command -v mandoc >/dev/null; then
        mandoc -T lint -W warning "$file" || fail "$page.1 is not well-formed"
    fi
done
