#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command and says in a last line with which status it ended. A test that passes by a pattern (ctest then looks at
# nothing else) asks for the status in its pattern, too.
#   tests/status.sh COMMAND…
[ $# -gt 0 ] || { echo "usage: status.sh COMMAND..." >&2; exit 64; }
"$@" 2>&1
echo "status: $?"
