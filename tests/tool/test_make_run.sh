#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `make run` builds the tool and its parts, and nothing else, in a tree without cmocka, too. `make install` builds what
# it installs, since `make run` may be all that came before.
# usage: test_make_run.sh SOURCE_DIR BUILD_DIR
set -eu
source=$1
build=$2
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

# Where the trees were made for another tool than Ninja there is nothing to ask.
[ -f "$build/build.ninja" ] || exit 77

make -n -C "$source" run >"$work/commands"
target=$(sed -n 's/.*cmake --build .*--target \([^ ]*\).*/\1/p' "$work/commands")
[ -n "$target" ] || fail "the build of \`make run\` names no target: it builds everything"
grep -q 'bin/expar demo' "$work/commands" || fail "\`make run\` runs no demo"
grep -q 'setup.sh run$' "$work/commands" || fail "\`make run\` does not set up what it needs alone"

make -n -C "$source" install PREFIX=/nowhere >"$work/install"
sed -n '/cmake --build/,$p' "$work/install" | grep -q 'cmake --install .* --prefix /nowhere$' ||
    fail "\`make install\` does not build what it installs"
# The site comes in addition, after all else.
if grep 'cmake --build' "$work/install" | head -1 | grep -q -e '--target'; then
    fail "\`make install\` builds a part only"
fi

# Names from the root of the sources, or of the build.
ninja -C "$build" -t inputs "$target" | sed "s|^$build/||; s|^$source/||" >"$work/inputs"
grep -q '^src/ep/normal/dispatch\.c$' "$work/inputs" || fail "target $target is not built from the library"
surplus='^(tests|examples|man|src/openshmem|bench/mpi)/|bin/expar-bench-mpi'
if grep -E "$surplus" "$work/inputs" >"$work/surplus"; then
    fail "target $target needs what the demo does not: $(head -5 "$work/surplus" | tr '\n' ' ')"
fi

# Packages of the tests are not there: pkg-config does not know them.
cat >"$work/pkg-config" <<EOF
#!/bin/sh
case " \$* " in *cmocka*) exit 1 ;; esac
exec pkg-config "\$@"
EOF
chmod +x "$work/pkg-config"
cmake -S "$source" -B "$work/build" -G Ninja -DPKG_CONFIG_EXECUTABLE="$work/pkg-config" >"$work/log" 2>&1 ||
    fail "without cmocka CMake fails: $(cat "$work/log")"
grep -q 'no tests are built' "$work/log" || fail "nothing says that there are no tests: $(cat "$work/log")"
ninja -C "$work/build" -n "$target" >/dev/null || fail "without cmocka there is no target $target"
