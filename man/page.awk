# SPDX-License-Identifier: Apache-2.0
# A man page (mdoc) from a public header: its first comment, then comments and declarations in their order.
# Variables: page, header, date; names: a file, a name a line; from, to: the lines of the header that the page is about;
# section: their heading, "" for a whole header.

function escaped(text)
{
    gsub(/\\/, "\\e", text)
    if (text ~ /^[.']/) text = "\\\\&" text
    return text
}

function head(    name, count, i, all)
{
    print ".\\\" SPDX-License-Identifier: Apache-2.0"
    print ".\\\" Made from <" header ">."
    print ".Dd " date
    print ".Dt " toupper(page) " 3\n.Os\n.Sh NAME"
    while ((getline name < names) > 0) all[count++] = name
    print ".Nm " page (count ? " ," : "")
    for (i = 0; i < count; i++) print ".Nm " all[i] (i < count - 1 ? " ," : "")
}

function end_code()
{
    if (in_code) print ".Ed"
    in_code = blanks = 0
}

function put_code(line)
{
    if (line ~ /^ *$/) {
        blanks++
        return
    }
    if (!in_code) print ".Bd -literal -offset 2n"
    for (; in_code && blanks > 0; blanks--) print ""
    in_code = 1
    blanks = 0
    print escaped(line)
}

# A sentence begins on a line of its own.
function put_sentences(line,    at)
{
    while ((at = match(line, /[.] +[^ ]/)) > 0) {
        print escaped(substr(line, 1, at))
        line = substr(line, at + RLENGTH - 1)
    }
    print escaped(line)
}

# Indented lines of a comment begin anew.
function put_text(line)
{
    end_code()
    if (fresh && paragraph != "") print paragraph
    fresh = 0
    if (line ~ /^ +[^ ]/ && !of_declaration) print ".br"
    sub(/^ +/, "", line)
    if (line == "")
        fresh = 1
    else
        put_sentences(line)
}

function put_heading(line)
{
    end_code()
    sub(/^\/\* -+ /, "", line)
    sub(/ -*( *\*\/)?$/, "", line)
    if (line == section) return
    print ".Ss " toupper(substr(line, 1, 1)) substr(line, 2)
    paragraph = ""
}

# One line of a comment, its marks taken away; true on the last one.
function put_comment(line,    last)
{
    last = sub(/ *\*\/ *$/, "", line)
    if (line ~ /^\/\*/) {
        sub(/^\/\* ?/, "", line)
        of_declaration = 1
    } else if (line ~ /^ \*/) {
        sub(/^ \* ?/, "", line)
        of_declaration = 0
    }
    if (line != "" || !last) put_text(line)
    return last
}

function put_declaration(line)
{
    if (line ~ /EXPAR_API/)
        shift = 1
    else if (shift)
        sub(/^          /, "", line)
    if (line ~ /; *\\?$/) shift = 0
    gsub(/EXPAR_API /, "", line)
    gsub(/ *##/, "", line)
    sub(/ *\\$/, "", line)
    put_code(line)
}

BEGIN {
    head()
    paragraph = ".Pp"
}

NR == 1 { next }

# The first comment: its first sentence is what the page is about.
NR >= 2 && !intro_done {
    done = put_intro($0)
    if (done) intro_done = 1
    next
}

function put_intro(line,    last)
{
    last = sub(/ *\*\/ *$/, "", line)
    sub(/^\/\* ?/, "", line)
    sub(/^ \* ?/, "", line)
    if (!described) {
        summary = summary (summary ? " " : "") line
        if (summary ~ /[.]( |$)/ || last) describe(last)
    } else if (line != "" || !last) {
        put_text(line)
    }
    return last
}

function describe(last,    at, brief)
{
    described = 1
    at = match(summary, /[.]( |$)/)
    brief = at ? substr(summary, 1, at - 1) : summary
    sub(/ *\([^)]*\)/, "", brief)
    print ".Nd " escaped(section ? "OpenSHMEM 1.5: " section : tolower(substr(brief, 1, 1)) substr(brief, 2))
    print ".Sh SYNOPSIS\n.In " (header ~ /shmem/ ? "shmem.h" : header)
    print ".Sh DESCRIPTION"
    fresh = 0
    put_sentences(summary)
}

NR < from || NR > to { next }

# Between #ifdef __cplusplus and what follows there is nothing for readers of C.
/^#ifdef __cplusplus/ { foreign = 1 }
/^#(else|elif|endif)/ { foreign = 0 }
foreign || /^\/\* clang-format/ || /^#(ifndef|ifdef|include|undef|else|elif|endif|if)/ { next }
/^#define EXPAR_[A-Z_]*_H$/ || /^ \*\/$/ && !in_comment { next }
/^\/\* ---- / { put_heading($0); next }

/^\/\*/ && !in_comment {
    fresh = 1
    in_comment = !put_comment($0)
    if (!in_comment) paragraph = ".Pp"
    next
}

in_comment {
    in_comment = !put_comment($0)
    if (!in_comment) paragraph = ".Pp"
    next
}

# What a function does is not for the manual.
/^\{/ { in_body = 1 }
in_body {
    if (/^\}/) in_body = 0
    next
}

{ put_declaration($0) }

END {
    end_code()
    if (header !~ /shmem/) {
        print ".Sh RETURN VALUES\nA call that gives\n.Vt expar_status\ngives\n.Dv EXPAR_OK ,"
        print "or a status whose cause\n.Fn expar_last_error\ntells.\nOutputs are set on success only."
    }
    print ".Sh SEE ALSO"
    print header ~ /shmem/ ? ".Xr expar 1 ,\n.Xr expar-run 1 ,\n.Xr expar_pgas 3" : ".Xr expar 1 ,\n.Xr expar_pgas 3"
}
