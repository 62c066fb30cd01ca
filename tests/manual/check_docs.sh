#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names in backticks exist: files, and words of the code. If a cell of a table names files of src, its other names stand
# in one of them. The picture of the layers shows the headers that the table of tests/layers has, those of higher layers
# above. Names of others, of which nothing is in the tree, stand below as foreign; so do all of NVSHMEM.
# usage: check_docs.sh ROOT PAGE…       the picture is in the page called architecture.md
set -eu
cd "$1"
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find CMakeLists.txt CMakePresets.json Makefile CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md .ci bench cmake docs examples \
    include man python scripts src tests tools -type f |
    sort >"$work/files"
# Programs that pages have in them, by their first line.
find docs -name '*.md' -exec env LC_ALL=C sed -n -E 's,^(/\* |// )([a-z_]+[.]cu?)( \*/)?$,docs/programs/\2,p' {} + >"$work/programs"
# Names of files stand for tests. Files that test this check are left out.
{
    grep -v '[.]md$' "$work/files" | grep -v '^tests/manual/' | xargs cat | LC_ALL=C tr -cs 'A-Za-z0-9_' '\n'
    sed 's|.*/||; s|[.].*||' "$work/files"
} | sort -u >"$work/words"

awk -v files="$work/files" -v programs="$work/programs" -v words="$work/words" '
    function fail(what) { print "docs: " page ":" FNR ": " what; failed = 1 }
    # The file of that path, or of one that ends so; a folder.
    function find_path(path,    i) {
        sub(/\/$/, "", path)
        if (path in is_file || path in is_folder) return path
        for (i = 0; i < count; i++)
            if (length(all[i]) > length(path) && substr(all[i], length(all[i]) - length(path)) == "/" path) return all[i]
        return ""
    }
    function has_word(file, word,    line) {
        if (!(file in text)) {
            text[file] = " "
            while ((getline line < file) > 0) text[file] = text[file] line " "
            close(file)
        }
        return text[file] ~ ("[^A-Za-z0-9_]" word "[^A-Za-z0-9_]")
    }
    function is_path(token) {
        return token ~ /^[A-Za-z0-9_.\/-]+$/ && (token ~ /^[^\/.].*[.](c|h|cu|sh|awk|cmake|md)$/ || token ~ /^(src|tests|bench|tools|include|scripts|man|examples|docs)\//)
    }
    function is_name(token) { return token ~ /^[A-Za-z_][A-Za-z0-9_]*([.][a-z_]+)*$/ }
    # A test may be named by a function of CMake: test_gpu_wrap is test_ep_wrap on GPUs, test_rma_split is test_rma.
    function is_known(word) {
        if (word in known || word ~ /^_|^nvshmemx?_/ || index(foreign, " " word " ")) return 1
        return word ~ /^test_/ && (sub(/^test_gpu_/, "test_ep_", word) || sub(/_[a-z]*$/, "", word)) && word in known
    }
    function check_name(token, cell_has_files,    pieces, piece, k, found) {
        pieces = split(token, piece, ".")
        for (k = 1; k <= pieces; k++)
            if (token ~ /[_.]/ && !is_known(piece[k])) fail("nothing is called " piece[k])
        if (!cell_has_files || pieces > 1) return
        for (k in place)
            if (has_word(place[k], token)) found = 1
        if (!found) fail(token " does not stand in the files of its cell")
    }
    function check_cell(cell, in_table,    parts, part, i, token, file, places) {
        parts = split(cell, part, "`")
        split("", place)
        for (i = 2; i <= parts; i += 2)
            if (is_path(part[i])) {
                checked++
                file = find_path(part[i])
                if (file == "") fail("there is no " part[i])
                else if (!(file in is_folder)) place[++places] = file
            }
        for (i = 2; i <= parts; i += 2) {
            token = part[i]
            sub(/[(][)]$/, "", token)
            sub(/=.*$/, "", token)
            if (is_path(token) || !is_name(token)) continue
            checked++
            check_name(token, in_table && places > 0 && cell ~ /`src\//)
        }
    }
    BEGIN {
        foreign = " LD_PRELOAD default_roce_tos fence sc shmem_wait shmem_int_finc pshmem_ "
        while ((getline line < programs) > 0) {
            all[count++] = line
            is_file[line] = 1
        }
        while ((getline line < files) > 0) {
            all[count++] = line
            is_file[line] = 1
            while (sub(/\/[^\/]*$/, "", line)) is_folder[line] = 1
        }
        while ((getline line < words) > 0) known[line] = 1
    }
    FNR == 1 { page = FILENAME; if (!sub(/^.*\/docs\//, "docs/", page)) sub(/^.*\//, "", page); in_fence = 0 }
    /^ *```/ { in_fence = !in_fence }
    in_fence { next }
    /^\|/ {
        cells = split($0, cell, "|")
        for (c = 2; c < cells; c++) check_cell(cell[c], 1)
        next
    }
    { check_cell($0, 0) }
    END {
        if (checked < 40) fail("found only " checked + 0 " names")
        exit failed
    }' "$@" >&2

# "HEIGHT HEADER" of the table of layers, but for those in parentheses, and the headers of the picture from top to
# bottom.
sed -n "/^table='/,/^'/p" tests/layers/check_layers.sh |
    awk '$1 ~ /^[0-9]+$/ { for (i = 3; i <= NF; i++) if ($i !~ /^[(]/) print $1, $2 "/" $i }' >"$work/table"
for page in "$@"; do
    [ "$(basename "$page")" = architecture.md ] || continue
    awk '/^```/ { fences++ } fences == 1' "$page" | awk '
        { for (i = 1; i <= NF; i++) if ($i ~ /[.]h$/ && $i !~ /[*]/) {
              if ($i ~ /^src\//) { folder = $i; sub(/\/[^\/]*$/, "", folder); sub(/^src\//, "", folder); name = $i; sub(/^src\//, "", name); print name }
              else print folder "/" $i } }' >"$work/picture"
    awk 'function fail(what) { print "docs: picture of the layers: " what; failed = 1 }
         NR == FNR { height[$2] = $1; next }
         {
             if (!($1 in height)) { fail($1 " is not for other layers"); next }
             if (seen && height[$1] + 0 > last + 0) fail($1 " stands too low")
             seen = 1
             last = height[$1]
             shown[$1] = 1
         }
         END {
             for (header in height) if (!(header in shown)) fail(header " is missing")
             exit failed
         }' "$work/table" "$work/picture" >&2
done
