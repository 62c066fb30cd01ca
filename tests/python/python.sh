#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test of the Python packages with the first Python that has NumPy, and PyTorch if the test's name says deep_ep:
# $PYTHON, that in PATH, Debian's, that of scripts/torch.sh. Without one the test is skipped, or fails where
# EXPAR_REQUIRE_PYTHON is 1 (EXPAR_REQUIRE_TORCH for PyTorch).
# usage: python.sh ROOT TEST [ARGUMENT…]
set -eu
root=$1
test=$2
shift 2
case $test in
    *deep_ep*) modules="numpy torch" required=${EXPAR_REQUIRE_TORCH:-0} get="scripts/torch.sh installs one" ;;
    *) modules="numpy" required=${EXPAR_REQUIRE_PYTHON:-0} get="scripts/setup.sh test installs it" ;;
esac
for python in "${PYTHON:-}" python3 /usr/bin/python3 "${XDG_CACHE_HOME:-${HOME:-}/.cache}/expar/torch/bin/python3"; do
    # shellcheck disable=SC2086 # words on purpose
    if [ -n "$python" ] && "$python" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 9) or not all(map(u.find_spec, sys.argv[1:])))' $modules 2>/dev/null; then
        export PYTHONPATH="$root/python:$root/tests/python:$root/examples/python" PYTHONDONTWRITEBYTECODE=1
        "$python" "$root/tests/python/$test.py" "$@"
        exit
    fi
done
echo "$test: no Python 3.9 or later with $modules; $get" >&2
[ "$required" = 1 ] || exit 77
exit 1
