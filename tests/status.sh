#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command and prints its status in a last line. A test that passes by a pattern (ctest then looks at nothing
# else) asks for the status in its pattern, too.
#   tests/status.sh COMMAND…
[ $# -gt 0 ] || { echo "usage: status.sh COMMAND..." >&2; exit 64; }
"$@" 2>&1
echo "status: $?"
