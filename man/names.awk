# SPDX-License-Identifier: Apache-2.0
# Prints the public calls of preprocessed headers, one a line, with tabs between: HEADER LINE NAME RETURN ARGUMENTS.
# HEADER is expar/….h, and LINE is where its declaration begins, or the macro that declares it.

/^# [0-9]+ "/ {
    line = $2 - 1
    header = $3
    gsub(/"/, "", header)
    public = sub(/^.*\/expar\//, "expar/", header) && header ~ /\.h$/
    next
}

{ line++ }

!public { next }

# Where the parenthesis that is open before `text` is closed; 0: further on.
function closing(text,    i, depth, c)
{
    depth = 1
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "(") depth++
        if (c == ")" && --depth == 0) return i
    }
    return 0
}

# As a reader would write it.
function tidy(text)
{
    gsub(/[ \t]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    gsub(/\* /, "*", text)
    gsub(/_Bool/, "bool", text)
    gsub(/\[\([^]]*\)\]/, "[]", text) # a length that is a sum of constants; the text names it
    return text
}

# A declaration is the attribute of EXPAR_API, a type, a name, and arguments; mpi.h has one that is defined there.
{
    if (text == "") begin = line
    text = text $0 " "
    while (match(text, /(visibility *\("default"\)+|static inline) [^(;{]*\(/)) {
        rest = substr(text, RSTART + RLENGTH)
        end = closing(rest)
        if (!end) break
        name = substr(text, RSTART, RLENGTH - 1)
        sub(/^(visibility *\("default"\)+|static inline) /, "", name)
        sub(/ +$/, "", name)
        returned = name
        sub(/^.*[ *]/, "", name)
        returned = tidy(substr(returned, 1, length(returned) - length(name)))
        print header "\t" begin "\t" name "\t" returned "\t" tidy(substr(rest, 1, end - 1))
        text = substr(rest, end + 1)
        begin = line
    }
    if (text !~ /(visibility|static inline)/) text = ""
}
