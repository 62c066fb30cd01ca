# SPDX-License-Identifier: Apache-2.0
# Prints which names in comments belong to nothing. Fails when there are such.

BEGIN {
    # Names of others, in formulas, and what the build makes.
    num = split("CUDA_ERROR_INVALID_VALUE CU_STREAM_PER_THREAD __threadfence_system cudaStream_t my_pe sm_90 within_size " \
        "PyCapsule_New PyList_SetItem PyTuple_GetItem Py_None managed_tensor_to_py_object_no_sync dltensor_from_py_object_no_sync " \
        "PyCFunction_NewEx METH_FASTCALL PyLong_AsVoidPtr PyLong_FromVoidPtr PyList_New Py_IncRef Py_DecRef PyErr_Occurred " \
        "PyErr_Clear PyEval_SaveThread PyEval_RestoreThread " \
        "mlx5dv.h log_msg_max " \
        "expar_put_f32 transport_names.h pointer_bytes x_r BY_RANK BY_SLOT EACH_SLOT", words, " ")
    for (w = 1; w <= num; w++) known[words[w]] = 1
}

# A file is known by its name, with as many of its folders before it as one likes, and by its name without the ending.
function know_file(path) {
    for (;;) {
        known[path] = 1
        if (!index(path, "/")) break
        path = substr(path, index(path, "/") + 1)
    }
    sub(/\.[a-z]*$/, "", path)
    known[path] = 1
}

function know_words(text) {
    gsub(/[^A-Za-z0-9_]+/, " ", text)
    num = split(text, words, " ")
    for (w = 1; w <= num; w++) known[words[w]] = 1
}

function note(name) {
    named[++num_names] = name
    place[num_names] = FILENAME ":" FNR
}

# Not the beginning of many names: "shmem_…", "sym_*", and no placeholder: "sum_NAME".
function read_comment(text, left, name, next_one) {
    for (left = text; match(left, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_]\.(cpp|cu|c|h)/); left = substr(left, RSTART + RLENGTH)) {
        name = substr(left, RSTART, RLENGTH)
        sub(/^[.\/]+/, "", name)
        if (substr(left, RSTART + RLENGTH, 1) !~ /[A-Za-z0-9_*]/) note(name)
    }
    for (left = text; match(left, /_*[A-Za-z][A-Za-z0-9]*_[A-Za-z0-9_]*/); left = substr(left, RSTART + RLENGTH)) {
        name = substr(left, RSTART, RLENGTH)
        next_one = substr(left, RSTART + RLENGTH)
        if (next_one !~ /^([*]|…)/ && name !~ /_$|_(NAME|CALL)$/) note(name)
    }
}

function quotes(text) {
    return gsub(/"/, "", text)
}

# Where a comment begins, in no string; 0: nowhere.
function comment_at(line, at, i) {
    for (at = 0; (i = index(substr(line, at + 1), "/*")) != 0;) {
        at += i
        if (quotes(substr(line, 1, at - 1)) % 2 == 0) return at
    }
    return 0
}

FNR == 1 {
    know_file(FILENAME)
    inside = 0
}
FILENAME ~ /\.(txt|cmake)$/ {
    know_words($0)
    next
}
{
    for (line = $0; line != "";) {
        end = inside ? index(line, "*/") : comment_at(line)
        part = end ? substr(line, 1, end - 1) : line
        if (inside)
            read_comment(part)
        else
            know_words(part)
        line = end ? substr(line, end + 2) : ""
        if (end) inside = !inside
    }
}

END {
    for (i = 1; i <= num_names; i++) {
        if (named[i] in known) continue
        print place[i] ": nothing is called " named[i]
        failed = 1
    }
    if (num_names < 1000) {
        print "found only " num_names " names"
        failed = 1
    }
    exit failed
}
