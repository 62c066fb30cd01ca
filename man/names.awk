# SPDX-License-Identifier: Apache-2.0
# The public calls of preprocessed headers: "HEADER LINE NAME" for each, where HEADER is expar/….h and LINE that on which its
# declaration, or the macro that declares it, begins.

/^# [0-9]+ "/ {
    line = $2 - 1
    header = $3
    gsub(/"/, "", header)
    public = sub(/^.*\/expar\//, "expar/", header) && header ~ /\.h$/
    next
}

{ line++ }

!public { next }

# A declaration is the attribute of EXPAR_API, a type, a name and a parenthesis; mpi.h has one that is defined there.
{
    if (text == "") begin = line
    text = text $0 " "
    while (match(text, /(visibility *\("default"\)+|static inline) [^(;{]*\(/)) {
        name = substr(text, RSTART, RLENGTH - 1)
        text = substr(text, RSTART + RLENGTH)
        sub(/ +$/, "", name)
        sub(/^.*[ *]/, "", name)
        print header, begin, name
        begin = line
    }
    if (text !~ /(visibility|static inline)/) text = ""
}
