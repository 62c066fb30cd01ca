#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test of the Python packages with the first Python that has NumPy and PyTorch: $PYTHON, that in PATH, Debian's,
# that of scripts/torch.sh. Where none has PyTorch, one with NumPy does, but for tests whose name says deep_ep; parts of
# the others that need PyTorch are skipped then. Without one the test is skipped. It fails where EXPAR_REQUIRE_PYTHON is
# 1 (EXPAR_REQUIRE_TORCH for PyTorch, with which parts of tests fail, too).
# usage: python.sh ROOT TEST [ARGUMENT…]
set -eu
root=$1
test=$2
shift 2

# The first with these modules, or nothing.
with() {
    for python in "${PYTHON:-}" python3 /usr/bin/python3 "${XDG_CACHE_HOME:-${HOME:-}/.cache}/expar/torch/bin/python3"; do
        if [ -n "$python" ] && "$python" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 9) or not all(map(u.find_spec, sys.argv[1:])))' "$@" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

modules="numpy torch" required=${EXPAR_REQUIRE_TORCH:-0} get="scripts/torch.sh installs one"
python=$(with numpy torch)
case $test in
    *deep_ep*) ;;
    *)
        modules="numpy" required=${EXPAR_REQUIRE_PYTHON:-0} get="scripts/setup.sh test installs it"
        [ -n "$python" ] || python=$(with numpy)
        ;;
esac
if [ -n "$python" ]; then
    export PYTHONPATH="$root/python:$root/tests/python:$root/examples/python" PYTHONDONTWRITEBYTECODE=1
    export PYTHONFAULTHANDLER=1 # a crash then prints the stacks of all threads
    # Ranks are threads enough.
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
    exec "$python" "$root/tests/python/$test.py" "$@"
fi
echo "$test: no Python 3.9 or later with $modules; $get" >&2
[ "$required" = 1 ] || exit 77
exit 1
