# SPDX-License-Identifier: Apache-2.0
# Makes a man page (mdoc) from a public header. The synopsis comes from its declarations. The description comes from
# comments, types and calls in their order, and from the errors and variables that the comments name.
# Variables:
# - page, header, date
# - from, to: the lines of the header that the page is about
# - section: their heading, "" for a whole header
# - calls: a file with those of the page, as names.awk writes them
# - families: those of the page by families (families.awk)
# - all_calls: a file with those of all pages
# - include: the folder of the headers
# - statuses, variables: files of "NAME<tab>TEXT"; that of statuses has their numbers after it
# - example: a file, "" for none
function escaped(text)
{
    gsub(/\\/, "\\e", text)
    if (text ~ /^[.']/) text = "\\\\&" text
    return text
}

# ---- text ------------------------------------------------------------------------------------------------------------

# As wide as troff's source makes it: characters beyond ASCII are written by their numbers there.
function width(text,    others)
{
    others = gsub(/[\200-\377]+/, "", text)
    return length(text) + 8 * others
}

# Lines of no more than 78 characters, each sentence beginning on one of its own.
function put_wrapped(text,    count, word, i, out)
{
    gsub(/`/, "", text)
    text = " " text
    while (match(text, /[ (]expar_[a-z0-9_]+\(\)/)) text = substr(text, 1, RSTART + RLENGTH - 3) substr(text, RSTART + RLENGTH)
    count = split(text, word, " ")
    for (i = 1; i <= count; i++) {
        if (out != "" && width(out) + 1 + width(word[i]) > 78) {
            print escaped(out)
            out = ""
        }
        out = out (out == "" ? "" : " ") word[i]
        if (word[i] ~ /[^. ][.:]?[.]$/ && i < count && word[i + 1] ~ /^["(`]?[A-Z*]/) {
            print escaped(out)
            out = ""
        }
    }
    if (out != "") print escaped(out)
}

function end_sentence()
{
    if (pending != "") put_wrapped(pending)
    pending = ""
}

# A comment, line by line: an empty line begins a paragraph, an indented one a line of its own.
function put_comment(text, of_declaration, first,    count, line, i, fresh)
{
    count = split(text, line, "\n")
    fresh = first != ""
    for (i = 1; i <= count; i++) {
        if (line[i] ~ /^ *$/) {
            end_sentence()
            fresh = 1
            first = ".Pp"
            continue
        }
        if (fresh) print first
        else if (line[i] ~ /^ / && !of_declaration) {
            end_sentence()
            print ".br"
        }
        fresh = 0
        first = ".Pp"
        sub(/^ +/, "", line[i])
        pending = pending (pending == "" ? "" : " ") line[i]
    }
    end_sentence()
}

# ---- the header ------------------------------------------------------------------------------------------------------

# A comment's line without its marks.
function unmarked(line)
{
    sub(/ *\*\/ *$/, "", line)
    if (line ~ /^\/\*/) sub(/^\/\* ?/, "", line)
    else if (line ~ /^ \*/) sub(/^ \* ?/, "", line)
    else sub(/^   /, "", line)
    return line
}

function flush_item(    i, tellers, told_here)
{
    if (comment == "" && code == "" && !has_calls) return
    if (has_calls) {
        if (code != "") put_code()
        print ".Bl -tag -width Ds\n.It Xo"
        for (i = 1; i <= num_families; i++)
            if (family_line[i] >= code_from && family_line[i] <= code_to) told_here[++tellers] = family_name[i]
        for (i = 1; i <= tellers; i++) print ".Fn " told_here[i] (i < tellers ? " ," : "")
        print ".Xc"
        put_comment(comment, 1, "")
        print ".El"
    } else {
        # Comments of macros that are for the compiler are not for readers either.
        if (comment != "" && (code != "" || !dropped)) put_comment(comment, marks == 1, headed ? "" : ".Pp")
        if (code != "") put_code()
    }
    comment = code = ""
    headed = dropped = has_calls = code_from = code_to = 0
}

function put_code()
{
    sub(/\n+$/, "", code)
    print ".Bd -literal -offset 2n"
    print code
    print ".Ed"
}

function put_heading(line)
{
    flush_item()
    sub(/^\/\* -+ /, "", line)
    sub(/ -*( *\*\/)?$/, "", line)
    if (line == section) return
    print ".Ss " toupper(substr(line, 1, 1)) substr(line, 2)
    headed = 1
}

# Which calls are declared on which lines, and how they are told of.
function read_calls(    line, part)
{
    while ((getline line < all_calls) > 0) {
        split(line, part, "\t")
        header_of[part[3]] = part[1]
    }
    while ((getline line < calls) > 0) {
        split(line, part, "\t")
        names[++num_names] = part[3]
        call_at[part[2]] = 1
    }
    while ((getline line < families) > 0) {
        split(line, part, "\t")
        num_families++
        family_line[num_families] = part[1] + 0
        family_name[num_families] = part[2]
        family_returns[num_families] = part[3]
        family_arguments[num_families] = part[4]
        if (part[2] ~ /TYPENAME/) told["TYPENAME"] = 1
        else if (part[2] ~ /TYPE/) told["TYPE"] = 1
        if (part[2] ~ /SIZE/) told["SIZE"] = 1
    }
}

function put_synopsis(    i, k, count, argument, line, depth, c, one)
{
    print ".Sh SYNOPSIS\n.In " (header ~ /shmem/ ? "shmem.h" : header)
    for (i = 1; i <= num_families; i++) {
        if (family_returns[i] != "") print ".Ft " family_returns[i]
        line = ".Fn " family_name[i]
        one = ""
        depth = 0
        for (k = 1; k <= length(family_arguments[i]) + 1; k++) {
            c = substr(family_arguments[i], k, 1)
            if (c == "" || (c == "," && depth == 0)) {
                sub(/^ /, "", one)
                line = line " \"" one "\""
                one = ""
                continue
            }
            if (c == "(") depth++
            if (c == ")") depth--
            one = one c
        }
        print line
    }
    if ("TYPE" in told) print ".Pp\n.Dv TYPE\nstands for i8, i16, i32, i64, u8, u16, u32, u64, f32 or f64, as NAME lists\nthem, and\n.Em T\nfor its type in C, int8_t to uint64_t, float or double."
    if ("TYPENAME" in told) print ".Pp\n.Dv TYPENAME\nstands for the names of types that NAME lists, and\n.Em TYPE\nfor the type itself."
    if ("SIZE" in told) print ".Pp\n.Dv SIZE\nstands for the bits of an element."
}

BEGIN {
    FS = "\n"
    read_calls()
    # REUSE-IgnoreStart
    print ".\\\" SPDX-License-Identifier: Apache-2.0"
    # REUSE-IgnoreEnd
    print ".\\\" Made from <" header ">."
    print ".Dd " date "\n.Dt " toupper(page) " 3\n.Os\n.Sh NAME"
    # A header may have the name of its call.
    list = page
    for (i = 1; i <= num_names; i++) if (names[i] != page) list = list " ,\n.Nm " names[i]
    print ".Nm " list
}

NR == 1 { next }

# The first comment: its first sentence is what the page is about.
!intro_done {
    intro = intro (intro == "" ? "" : "\n") unmarked($0)
    if (!/\*\/ *$/) next
    intro_done = 1
    brief = intro
    gsub(/\n/, " ", brief)
    whole = brief
    if (match(brief, /[.]( |$)/)) brief = substr(brief, 1, RSTART - 1)
    sub(/ *\([^)]*\)/, "", brief)
    print ".Nd " escaped(section ? "OpenSHMEM 1.5: " section : tolower(substr(brief, 1, 1)) substr(brief, 2))
    put_synopsis()
    print ".Sh DESCRIPTION"
    put_comment(intro, 0, "")
    told_text = intro
    next
}

NR < from || NR > to { next }

# Between #ifdef __cplusplus and what follows there is nothing for readers of C.
/^#ifdef __cplusplus/ { foreign = 1 }
/^#(else|elif|endif)/ { foreign = 0 }
foreign { next }

/^\/\* ---- / { put_heading($0); told_text = told_text " " $0; next }

/^\/\*/ && !in_comment && /^\/\* clang-format/ { next }
/^\/\*/ && !in_comment {
    flush_item()
    marks = 1
    in_comment = 1
}
in_comment {
    if (/^ \*/ && !/^ \*\/ *$/) marks = 0
    told_text = told_text " " $0
    if (!/^ \*\/ *$/) comment = comment (comment == "" ? "" : "\n") unmarked($0)
    if (/\*\/ *$/) in_comment = 0
    next
}

# Lines of a macro that declares, or that initialises, are for the compiler.
in_macro {
    note_line()
    in_macro = /\\$/
    next
}
/^#define +[A-Za-z_0-9]+(\(| .*EXPAR_STRUCT_INIT|_H$)/ || /^#define EXPAR_([A-Z_]*_INIT|API|[A-Z_]*_H)( |$)/ || /^#define .*\\$/ {
    note_line()
    in_macro = /\\$/
    dropped = 1
    next
}
/^#(ifndef|ifdef|include|undef|else|elif|endif|if|error)/ { next }

# Bodies of functions are not for the manual.
/^\{/ { in_body = 1 }
in_body {
    if (/^\}/) in_body = 0
    next
}

/^ *$/ && !in_braces {
    if (has_calls || code == "") flush_item()
    else code = code "\n"
    next
}

{
    note_line()
    if (/^(EXPAR_API|EXPAR_[A-Z_]+\(|static inline)/) in_call = 1
    if (in_call) {
        if (/[;)] *$/) in_call = 0
        next
    }
    if (/EXPAR_STATUS_TABLE/) {
        put_rows()
        next
    }
    if (/\{ *(\/\*.*)?$/) in_braces = 1
    if (/^\}/) in_braces = 0
    told_text = told_text " " $0
    code = code escaped($0) "\n"
}

# The rows of the table of statuses, as the compiler makes them.
function put_rows(    line, part)
{
    while ((getline line < statuses) > 0) {
        split(line, part, "\t")
        code = code "    " part[1] " = " part[3] ", /* " part[2] " */\n"
    }
    close(statuses)
}

function note_line()
{
    if (!code_from) code_from = NR
    code_to = NR
    if (NR in call_at) has_calls = 1
}

# ---- what the comments name ------------------------------------------------------------------------------------------

# The names of a file that the text has, in the file's order: "It" lines, each with its text. Those of `always` too.
function put_named(file, macro, always,    line, part, count)
{
    while ((getline line < file) > 0) {
        split(line, part, "\t")
        if (part[1] == "EXPAR_OK" || (!(part[1] in word) && index(always, " " part[1] " ") == 0)) continue
        if (!count++) print ".Bl -tag -width Ds"
        print ".It " macro " " part[1]
        put_wrapped(toupper(substr(part[2], 1, 1)) substr(part[2], 2) ".")
    }
    if (count) print ".El"
    return count
}

# A comment that says "errors as in expar/team.h" or "as of expar_ep_dispatch" adds those of that header; "but for"
# removes some.
function note_words(text, errors_only,    name)
{
    while (match(text, /[A-Z][A-Z_0-9]+[A-Z0-9]/)) {
        name = substr(text, RSTART, RLENGTH)
        if (!errors_only || name ~ /^EXPAR_ERR_/) word[name] = 1
        text = substr(text, RSTART + RLENGTH)
    }
}

function note_others(text,    source, line, all)
{
    while (match(text, /([Ee]rrors as (in|of)|[Tt]hose of|[Ee]rrors as) expar[\/_][a-z_0-9]+/)) {
        source = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        sub(/^.* /, "", source)
        source = source ~ /\// ? source ".h" : header_of[source]
        all = ""
        if (source != "") while ((getline line < (include "/" source)) > 0) all = all " " line
        note_words(all, 1)
    }
}

function take_away(text,    name)
{
    while (match(text, /but for EXPAR_ERR_[A-Z_]+((, | and )EXPAR_ERR_[A-Z_]+)*/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        while (match(name, /EXPAR_ERR_[A-Z_]+/)) {
            delete word[substr(name, RSTART, RLENGTH)]
            name = substr(name, RSTART + RLENGTH)
        }
    }
}

function put_example(    line)
{
    if (example == "") return
    print ".Sh EXAMPLES\n.Bd -literal -offset 2n"
    while ((getline line < example) > 0)
        if (line !~ /^(\/\* SPDX|#include)/ && (line != "" || begun)) {
            begun = 1
            print escaped(line)
        }
    print ".Ed"
}

END {
    flush_item()
    text = told_text
    gsub(/[ \n]+(\*[ \n]+)?/, " ", text)
    note_words(text, 0)
    note_others(text)
    take_away(text)
    shmem = header ~ /shmem/
    if (!shmem) {
        print ".Sh RETURN VALUES\nA call that gives\n.Vt expar_status\ngives\n.Dv EXPAR_OK ,"
        print "or a status whose cause\n.Fn expar_last_error\ntells.\nOutputs are set on success only."
    } else {
        print ".Sh RETURN VALUES"
        put_wrapped("As the standard has it: most calls give nothing, and what the others give is told with them.")
    }
    print ".Sh ENVIRONMENT"
    waits = shmem || ("EXPAR_ERR_PEER" in word)
    put_named(variables, "Ev", " EXPAR_LOG EXPAR_LOG_FILE " (waits ? "EXPAR_TIMEOUT EXPAR_LATE_LIMIT EXPAR_SPIN " : "") (shmem ? "EXPAR_HEAP_SIZE " : ""))
    put_example()
    print ".Sh ERRORS"
    if (shmem) {
        put_wrapped("A call that cannot be carried out, for a wrong argument or because a PE has died, says on stderr what was wrong and ends the program, but where its text tells of a value for that.")
    } else if (header ~ /status/) {
        put_wrapped("None: no call of these fails. The statuses of the others are those above.")
    } else if (!put_named(statuses, "Dv", "")) {
        put_wrapped("None: no call of these can fail.")
    }
    print ".Sh SEE ALSO\n.Xr expar 1 ,"
    if (shmem) print ".Xr expar-run 1 ,"
    if (header ~ /\/ep/) {
        split("buffer combine dispatch handle output routing", part, " ")
        if (header !~ /\/ep\.h/) print ".Xr expar_ep 3 ,"
        for (i = 1; i <= 6; i++) if (page != "expar_ep_" part[i]) print ".Xr expar_ep_" part[i] " 3 ,"
        print ".Xr expar_event 3 ,\n.Xr expar_tensor 3"
    } else {
        print ".Xr expar_pgas 3"
    }
}
