#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles every kernel with nvcc to PTX for compute capability 8.0, the library's also for 10.0, for which some have
# code of their own. It fails on a warning. The build makes machine code for 9.0, where it fails on spilled registers
# and local memory. With EXPAR_TEST_ROUNDS set, as at night, this makes machine code for sm_80, sm_90 and sm_100, and
# fails on those, too. A kernel of src/exec then also fails if it has more static shared memory than the host reserves
# (GPU_STATIC_SHARED_BYTES). The nights also take each set of macros of variants.txt, which otherwise only the run-time
# compiler uses. By day PTX is enough, since the assembler takes three quarters of the time. It needs no GPU.
#
#   scripts/check_kernels.sh [nvcc]
set -eu
nvcc=${1:-nvcc}
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
folder=src/exec/cuda/kernels
codes="80=compute_80 100=compute_100"
found="without warnings"
if [ -n "${EXPAR_TEST_ROUNDS:-}" ]; then
    codes="80=sm_80 90=sm_90 100=sm_100"
    found="without warnings, spills or local memory"
fi
static_bytes=$(awk '$2 == "GPU_STATIC_SHARED_BYTES" { print $3 }' src/exec/cuda/core/gpu.h)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One line a compilation: number, file, macros.
{
    for file in "$folder"/*/*.cu bench/gpu/kernels/*.cu tools/expar/demo/kernels/*.cu tests/cuda/kernels/*.cu; do
        if [ -e "$file" ]; then echo "$file"; fi
    done
    if [ -n "${EXPAR_TEST_ROUNDS:-}" ]; then
        sed "s/#.*//; /^[[:space:]]*\$/d; s,^,$folder/," "$folder/variants.txt"
    fi
} | nl -ba -s' ' >"$work/list"

# Compiles one kernel. $1: number, $2: file, the rest: macros. Errors go to $work/$1.bad.
cat >"$work/one" <<'ONE'
#!/bin/sh
number=$1 file=$2
shift 2
set -- $(for macro; do echo "-D$macro"; done)
log=$WORK/$number.log
case $file:$CODES in
    src/exec/* | *=sm_*) ;;
    *) CODES=${CODES%% *} ;;
esac
"$NVCC" -fatbin -std=c++17 -fmad=false -Werror all-warnings -Xptxas -v -Isrc -Iinclude -I. -Itools/expar \
    $(for code in $CODES; do echo "-gencode arch=compute_${code%=*},code=${code#*=}"; done) \
    "$@" -o "$WORK/$number.fatbin" "$file" >"$log" 2>&1 || echo "nvcc failed" >>"$log"
awk -v what="$file $*" -v most="$STATIC" -v ptx="${CODES##*=compute_*}" '
    /nvcc failed|error|[Ww]arning/ { print what ": " $0; bad = 1 }
    / bytes stack frame/ {
        frames++
        if ($0 !~ /(^|[^0-9])0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/) { print what ": " $0 }
    }
    what ~ /^src\/exec/ && match($0, /[0-9]+ bytes smem/) && substr($0, RSTART) + 0 > most + 0 { print what ": " $0 }
    END { if (!frames && !bad && ptx != "") print what ": nvcc did not tell of stack frames and spills" }' "$log" >"$WORK/$number.bad"
ONE
chmod +x "$work/one"
NVCC=$nvcc CODES=$codes WORK=$work STATIC=${static_bytes:?not in gpu.h} xargs -a "$work/list" -P "$(nproc)" -L 1 "$work/one"

cat "$work"/*.bad >&2
count=$(wc -l <"$work/list")
if [ -n "$(cat "$work"/*.bad)" ]; then exit 1; fi
echo "$count kernel variants compile $found"
