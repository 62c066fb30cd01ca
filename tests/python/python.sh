#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test of the Python package with the first Python that has NumPy: $PYTHON, that in PATH, Debian's. Without one the
# test is skipped, or fails where EXPAR_REQUIRE_PYTHON is 1.
# usage: python.sh ROOT TEST [ARGUMENT…]
set -eu
root=$1
test=$2
shift 2
for python in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$python" ] && "$python" -c 'import numpy, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
        export PYTHONPATH="$root/python:$root/tests/python" PYTHONDONTWRITEBYTECODE=1
        "$python" "$root/tests/python/$test.py" "$@"
        exit
    fi
done
echo "$test: no Python 3.9 or later with NumPy; Debian's is in the package python3-numpy" >&2
[ "${EXPAR_REQUIRE_PYTHON:-0}" = 1 ] || exit 77
exit 1
