# SPDX-License-Identifier: Apache-2.0
# Writes the calls of a page, as names.awk writes them, by families. Calls that differ only in a type or a size are one
# line, named by TYPE, TYPENAME or SIZE. Prints LINE NAME RETURN ARGUMENTS, with tabs between. Variable: typed: a file
# of such lines, from which generic names are derived. They are macros, and take the arguments of the functions that
# they choose.

function family_of(name,    head, tail)
{
    if (name ~ /^expar_/ && match(name, /_(i8|i16|i32|i64|u8|u16|u32|u64|f32|f64)$/)) {
        suffix = substr(name, RSTART + 1)
        return substr(name, 1, RSTART) "TYPE"
    }
    if (match(name, "^shmem_(ctx_)?(" typenames ")_")) {
        head = match(name, /^shmem_ctx_/) ? "shmem_ctx_" : "shmem_"
        tail = substr(name, length(head) + 1)
        match(tail, /^[a-z0-9]+/)
        suffix = substr(tail, 1, RLENGTH)
        return head "TYPENAME" substr(tail, RLENGTH + 1)
    }
    if (match(name, /^shmem_[a-z_]*(8|16|32|64|128)/) && name !~ /(int|float)(8|16|32|64)/) {
        match(name, /(8|16|32|64|128)/)
        suffix = substr(name, RSTART, RLENGTH)
        return substr(name, 1, RSTART - 1) "SIZE" substr(name, RSTART + RLENGTH)
    }
    suffix = ""
    return name
}

# Text with every whole word `from` made `to`.
function replaced(text, from, to,    out, at, before, after)
{
    while ((at = index(text, from)) > 0) {
        before = at > 1 ? substr(text, at - 1, 1) : " "
        after = substr(text, at + length(from), 1)
        out = out substr(text, 1, at - 1) (before ~ /[A-Za-z_0-9]/ || after ~ /[A-Za-z_0-9]/ ? from : to)
        text = substr(text, at + length(from))
    }
    return out text
}

BEGIN {
    FS = "\t"
    while (typed != "" && (getline line < typed) > 0) {
        split(line, part, "\t")
        if (!sub(/^shmem_TYPENAME_/, "shmem_", part[2])) continue
        typed_returns[part[2]] = part[3]
        typed_arguments[part[2]] = part[4]
    }
    typenames = "ulonglong|longlong|longdouble|ptrdiff|complexd|complexf|uint64|uint32|uint16|uint8|int64|int32|int16|int8|uchar|ushort|uint|ulong|schar|double|float|short|long|char|size|int"
    # Types whose names stand for nothing else among the arguments, the first of them that a family has.
    rank["f64"] = 1; word["f64"] = "double"
    rank["u64"] = 2; word["u64"] = "uint64_t"
    rank["double"] = 1; word["double"] = "double"
    rank["uint64"] = 2; word["uint64"] = "uint64_t"
    rank["ulonglong"] = 3; word["ulonglong"] = "unsigned long long"
    rank["longlong"] = 4; word["longlong"] = "long long"
    rank["64"] = 1
}

{
    family = family_of($3)
    members[family]++
    if (!(family in first)) {
        order[++count] = family
        first[family] = $2
        single[family] = $3
    }
    here = suffix in rank ? rank[suffix] : 9
    if (!(family in best) || here < best[family]) {
        best[family] = here
        returns[family] = $4
        arguments[family] = $5
        by[family] = suffix
    }
}

END {
    for (i = 1; i <= count; i++) {
        family = order[i]
        name = members[family] > 1 ? family : single[family]
        kind = family ~ /TYPENAME/ ? "TYPE" : "T"
        if (members[family] > 1 && by[family] in word) {
            returns[family] = replaced(returns[family], word[by[family]], kind)
            arguments[family] = replaced(arguments[family], word[by[family]], kind)
        }
        if (returns[family] == "" && name in typed_returns) {
            returns[family] = typed_returns[name]
            arguments[family] = typed_arguments[name]
        }
        print first[family] "\t" name "\t" returns[family] "\t" (arguments[family] != "" ? arguments[family] : returns[family] != "" ? "void" : "...")
    }
}
