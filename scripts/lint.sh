#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Static checks: commit subjects, rules of writing, layout, shell scripts, kernels, cppcheck, clang-tidy. They need a
# configured build for its compile commands.
# usage: lint.sh BUILD_DIR [shallow]
# shallow: clang's analyzer follows calls only into the smallest functions, which takes a twelfth of the time. As for
# cppcheck, it has the files of the last 80 commits, since each takes a second. The nights and `make lint` follow all
# calls, and check all files.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-}
if [ ! -f "$build/compile_commands.json" ]; then
    echo "lint: BUILD_DIR is '$build': a configured build is expected; usage: lint.sh BUILD_DIR [shallow]" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'wait; rm -rf "$work"' EXIT
mode=${2:-deep}
depth=(--extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=mode="$mode")
jobs=$(nproc)

sources() {
    find src include tools bench examples tests -name '*.[ch]' -o -name '*.cpp' | sort
}

step() {
    echo "lint: $1"
}

# Checks the commits that are not on main yet; those on main stay as they are. An unpacked archive has none.
subjects() {
    local base
    for base in origin/main main; do
        git rev-parse -q --verify "$base^{commit}" >/dev/null 2>&1 || continue
        scripts/check_prose.py --since "$base"
        return
    done
}

# The compilers of kernels run beside the steps up to "kernels", most of which use one core.
nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || true)
kernels=
if [ -n "$nvcc" ]; then
    scripts/check_kernels.sh "$nvcc" >"$work/kernels" 2>&1 &
    kernels=$!
elif [ "${EXPAR_REQUIRE_KERNELS:-}" = 1 ]; then
    echo "lint: EXPAR_REQUIRE_KERNELS=1 asks for every kernel to be compiled, and nvcc is not there" >&2
    exit 1
fi

step "commit subjects"
subjects

step "rules of writing"
scripts/check_prose.py

# REUSE.toml covers data and pages. Sources name their licence themselves. An older reuse does not know REUSE.toml.
step "licences"
if find . -type d \( -name build -o -name '.?*' \) -prune -o -type f -regextype egrep \
    -regex '.*([.](c|h|cu|cpp|py|sh|awk|cmake|map|pml)|CMakeLists[.]txt)' -exec grep -L SPDX-License-Identifier {} + |
    grep .; then
    echo "lint: these files have no SPDX-License-Identifier" >&2
    exit 1
fi
if reuse --version 2>/dev/null | grep -qE '(^|version )([4-9]|[1-9][0-9])[.]'; then reuse lint --quiet; fi

step "clang-format"
sources | xargs clang-format --dry-run -Werror

step "comments"
tests/layers/check_comments.sh .

step "shellcheck"
shellcheck -x .ci/run scripts/*.sh tests/*.sh tests/*/*.sh tools/openshmem/*

step "mypy"
mypy --config-file python/mypy.ini --no-error-summary python/expar python/deep_ep python/expar_deep_ep

# The programs of the pages for users are checked as users would check them. PyTorch has no types here.
step "mypy: programs of the documentation"
mkdir "$work/programs"
python3 -B docs/site/programs.py . "$work/programs"
MYPYPATH=python mypy --config-file python/mypy.ini --strict --no-error-summary "$work/programs"
MYPYPATH=man:docs/site mypy --strict --no-error-summary man/headers.py man/make.py docs/site/[bps]*.py docs/site/c_pages.py docs/site/commands.py

step "man pages"
# Pages that only lead to another page have nothing to check.
if command -v mandoc >/dev/null; then
    find man "$build/man3" -name '*.[13]' -size +60c -exec mandoc -T lint -W warning {} +
fi

step "what the tools see of the library"
# Headers in addition to include/expar. Each of them says that tools include it.
if grep -rnE '#include "(base|boot|cuda|ep|exec|group|link|mem|net|openshmem|pgas|proto|shmem)/' bench tools examples |
    grep -vE '"(base/job_flags|base/knobs|base/portable|base/shown|cuda/cuda|ep/normal/tools|ep/low_latency/tools|group/tools|exec/cpu/core/encode|proto/codec/codec|proto/serving|exec/cuda/core/stamps|exec/cuda/kernels/core/tools|mem/available|mem/device|shmem/kernel_ways)\.h"'; then
    echo "lint: these headers of src/ are not for the tools" >&2
    exit 1
fi

step "kernels"
if [ -n "$kernels" ]; then
    got=0
    wait "$kernels" || got=$?
    cat "$work/kernels"
    [ "$got" = 0 ]
fi

# checked: the C files for cppcheck. An unpacked archive has no commits, so it has all.
checked() {
    if [ "$mode" = shallow ] && git rev-parse -q --verify HEAD~80 >/dev/null 2>&1; then
        git log -80 --name-only --format= -- src tools/expar bench examples | sort -u
    else
        find src tools/expar bench examples -type f
    fi | grep '[.]c$' | while read -r file; do
        if [ -f "$file" ]; then echo "$file"; fi
    done
}

step "cppcheck"
checked >"$work/checked"
if [ -s "$work/checked" ]; then
    cppcheck --quiet -j "$jobs" --std=c11 --enable=warning,performance,portability --inline-suppr \
        --error-exitcode=1 --suppressions-list=scripts/cppcheck.txt --library=posix -D_GNU_SOURCE -D__x86_64__ \
        -I include -I src -I . --file-list="$work/checked"
fi

step "clang-tidy"
# Warnings and code-generation options of gcc alone (CMakeLists.txt) would be errors for clang.
sed -E 's/ -mmem(set|cpy)-strategy=[^ ]*//g' "$build/compile_commands.json" >"$work/compile_commands.json"
# bench/mpi/sum.c is left out: clang 14 has no _Float16 on x86-64.
find src tools bench examples -name '*.c' ! -path bench/mpi/sum.c | sort |
    xargs -P "$jobs" -n 4 clang-tidy -p "$work" --quiet --extra-arg=-Wno-unknown-warning-option "${depth[@]}" \
        --warnings-as-errors='*' 2>&1 |
    { grep -v 'warnings\? generated\|^Suppressed\|^Use -header-filter' || true; }
