# SPDX-License-Identifier: Apache-2.0
# From preprocessed public headers to a C program that prints their structs and enumerations as JSON. It rejects what it
# cannot read: a table with a gap would tell bindings that all is well. Variable: includes, the start of the program.

function refuse(what)
{
    print "table.awk: cannot read " what > "/dev/stderr"
    failed = 1
    exit 1
}

function trimmed(text)
{
    gsub(/[ \t]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    return text
}

# A line of the program that prints a line of the table: FORMAT, followed by the arguments.
function put(format, arguments)
{
    gsub(/"/, "\\\"", format)
    print "    printf(\"" format "\\n\"" (arguments ? ", " arguments : "") ");"
}

function put_member(owner, type, name, last)
{
    type = trimmed(type)
    print "    _Static_assert(__builtin_types_compatible_p(__typeof__(((" owner " *)0)->" name "), __typeof__(" type ")), \"" owner "." name "\");"
    put("      {\"name\": \"" name "\", \"offset\": %zu, \"size\": %zu, \"type\": \"" type "\"}" (last ? "" : ","), "offsetof(" owner ", " name "), sizeof((" owner " *)0)->" name)
}

# One declaration between semicolons: "const int32_t *a", "char name[64]", "uint64_t puts, put_bytes",
# "void (*end)(void *)".
function put_declaration(owner, text, last,    count, part, i, base, name, dims)
{
    text = trimmed(text)
    if (match(text, /\(\*[A-Za-z_0-9]+\)/)) {
        name = substr(text, RSTART + 2, RLENGTH - 3)
        put_member(owner, substr(text, 1, RSTART + 1) substr(text, RSTART + RLENGTH - 1), name, last)
        return
    }
    count = split(text, part, ",")
    for (i = 1; i <= count; i++) {
        part[i] = trimmed(part[i])
        dims = ""
        if (match(part[i], /( ?\[[^]]*\])+$/)) {
            dims = substr(part[i], RSTART)
            part[i] = substr(part[i], 1, RSTART - 1)
        }
        if (!match(part[i], /[A-Za-z_][A-Za-z_0-9]*$/)) refuse(owner ": " text)
        name = substr(part[i], RSTART)
        if (i == 1) {
            base = trimmed(substr(part[i], 1, RSTART - 1))
            if (base !~ /[A-Za-z]/) refuse(owner ": " text)
            put_member(owner, base dims, name, last && i == count)
            sub(/[* ]+$/, "", base)
        } else {
            put_member(owner, trimmed(base " " substr(part[i], 1, RSTART - 1)) dims, name, last && i == count)
        }
    }
}

function put_struct(name, body,    count, part, i)
{
    if (structs++) put("    ]},")
    put("    \"" name "\": {\"size\": %zu, \"alignment\": %zu, \"members\": [", "sizeof(" name "), _Alignof(" name ")")
    count = split(body, part, ";")
    if (trimmed(part[count]) != "") refuse(name ": " part[count])
    for (i = 1; i < count; i++) put_declaration(name, part[i], i == count - 1)
}

function put_enum(name, body,    count, part, i)
{
    if (enums++) put("    }},")
    put("    \"" name "\": {\"size\": %zu, \"values\": {", "sizeof(" name ")")
    sub(/,[ \t]*$/, "", body)
    count = split(body, part, ",")
    for (i = 1; i <= count; i++) {
        sub(/=.*/, "", part[i])
        part[i] = trimmed(part[i])
        if (part[i] !~ /^[A-Za-z_][A-Za-z_0-9]*$/) refuse(name ": " part[i])
        put("      \"" part[i] "\": %lld" (i < count ? "," : ""), "(long long)" part[i])
    }
}

# All definitions of one kind, in the order of the headers.
function put_all(kind,    rest, text, name)
{
    rest = public
    while (match(rest, "typedef " kind " *[A-Za-z_0-9]* *[{][^}]*[}] *[A-Za-z_0-9]+ *;")) {
        text = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        name = text
        sub(/ *;$/, "", name)
        sub(/^.*[} ]/, "", name)
        sub(/^[^{]*[{]/, "", text)
        sub(/[}][^}]*$/, "", text)
        if (text ~ /[{]/) refuse(name ", which has something nested")
        if (kind == "struct")
            put_struct(name, text)
        else
            put_enum(name, text)
    }
}

/^# [0-9]+ "/ { is_public = $3 ~ /\/expar\/[a-z_]+\.h"$/; next }
is_public && !/^#/ { public = public " " $0 }

END {
    if (failed) exit 1
    gsub(/[ \t]+/, " ", public)
    print "/* Made by tools/abi/table.sh. */"
    print includes "\n#include <stddef.h>\n#include <stdio.h>\n\nint main(void)\n{"
    put("{")
    put("  \"version\": \"%d.%d.%d\",", "EXPAR_VERSION_MAJOR, EXPAR_VERSION_MINOR, EXPAR_VERSION_PATCH")
    put("  \"pointer_bytes\": %zu,", "sizeof(void *)")
    put("  \"structs\": {")
    put_all("struct")
    put("    ]}\\n  },")
    put("  \"enums\": {")
    put_all("enum")
    put("    }}\\n  }\\n}")
    print "    return 0;\n}"
    if (structs < 10 || enums < 5) refuse("the headers: found " structs + 0 " structs and " enums + 0 " enumerations")
}
