/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, the text of the last error, the version, and visibility of public symbols. */
#ifndef EXPAR_STATUS_H
#define EXPAR_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define EXPAR_API __attribute__((visibility("default")))

/* The version that these headers belong to; the build takes its own from here. As one number it grows with every
 * version, for #if: major · 10000 + minor · 100 + patch. Until 1.0 a program runs with the major and minor version that
 * it was built with (the soname has both); expar_version() tells that of the library that runs. */
#define EXPAR_VERSION_MAJOR 0
#define EXPAR_VERSION_MINOR 1
#define EXPAR_VERSION_PATCH 0
#define EXPAR_VERSION_CODE  (EXPAR_VERSION_MAJOR * 10000 + EXPAR_VERSION_MINOR * 100 + EXPAR_VERSION_PATCH)

/* Initialises option structs in the …_INIT macros: all members are 0 except the size. C++17 has no designated
 * initialisers. */
#ifdef __cplusplus
#define EXPAR_STRUCT_INIT(type)                                                                                        \
    ([] {                                                                                                              \
        type made{};                                                                                                   \
        made.struct_size = sizeof made;                                                                                \
        return made;                                                                                                   \
    }())
#else
#define EXPAR_STRUCT_INIT(type)                                                                                        \
    {                                                                                                                  \
        .struct_size = sizeof(type)                                                                                    \
    }
#endif

/* One row for each status: name, value, meaning. Values are part of the ABI: never renumbered. */
#define EXPAR_STATUS_TABLE(X)                                                                                          \
    X(OK, 0, "success")                                                                                                \
    X(ERR_NULL, 1, "a required pointer is NULL")                                                                       \
    X(ERR_ARGUMENT, 2, "an argument has a value that is not allowed")                                                  \
    X(ERR_DTYPE, 3, "a tensor has the wrong data type")                                                                \
    X(ERR_SHAPE, 4, "a tensor has the wrong number of dimensions or extents")                                          \
    X(ERR_STRIDE, 5, "a tensor has strides that are not supported")                                                    \
    X(ERR_ALIGNMENT, 6, "an address is not aligned as required")                                                       \
    X(ERR_DEVICE, 7, "a tensor lies on the wrong device")                                                              \
    X(ERR_INDEX, 8, "an expert index is out of range")                                                                 \
    X(ERR_RANGE, 9, "a rank, size or offset is out of range")                                                          \
    X(ERR_LIMIT, 10, "more than this buffer was created for")                                                          \
    X(ERR_BUFFER_SIZE, 11, "a caller's buffer is too small")                                                           \
    X(ERR_HANDLE, 12, "a handle was destroyed, or belongs to another buffer")                                          \
    X(ERR_MISMATCH, 13, "ranks called with arguments that do not fit together")                                        \
    X(ERR_REMOTE, 14, "another rank rejected its arguments, so the call was not carried out")                          \
    X(ERR_BUSY, 15, "another call on the same object is still running")                                                \
    X(ERR_STATE, 16, "the object is not in a state that allows this call")                                             \
    X(ERR_ADDRESS, 17, "an address is not in the symmetric heap")                                                      \
    X(ERR_MEMORY, 18, "out of memory")                                                                                 \
    X(ERR_SYSTEM, 19, "an operating system call failed")                                                               \
    X(ERR_BOOTSTRAP, 20, "the group could not be formed")                                                              \
    X(ERR_AUTH, 21, "a peer does not know the secret of this group")                                                   \
    X(ERR_VERSION, 22, "a peer speaks another version of the protocol")                                                \
    X(ERR_PEER, 23, "a peer died, left, fell silent, or will not come")                                                \
    X(ERR_ABORTED, 24, "the group was aborted")                                                                        \
    X(ERR_UNSUPPORTED, 25, "not supported by this build or on this machine")                                           \
    X(ERR_DROPPED, 26, "rows beyond the worst-case size were dropped")                                                 \
    X(ERR_CUDA, 27, "a call of the CUDA driver or of its compiler failed")                                             \
    X(ERR_INTERRUPTED, 28, "the program ended the wait (expar_interrupt_set)")

typedef enum expar_status {
#define EXPAR_STATUS_ENUM(name, value, text) EXPAR_##name = value,
    EXPAR_STATUS_TABLE(EXPAR_STATUS_ENUM)
#undef EXPAR_STATUS_ENUM
} expar_status;

/* The name of a status, "EXPAR_ERR_NULL"; "EXPAR_ERR_?" for a value not in the table. Never NULL.
   Static storage. Any thread. */
EXPAR_API const char *expar_status_string(expar_status status);

/* One line saying what the status means, "a required pointer is NULL"; "unknown status" for a value not in the table.
   Never NULL. Static storage. Any thread. */
EXPAR_API const char *expar_status_text(expar_status status);

/* Returns the error of the last failing call of this thread: the call, the rank if it is known, the argument, its
   value, and the expectation. It is "" if no call has failed in this thread yet. The library owns the text, which lasts
   until the next failing call of the same thread. Never NULL. */
EXPAR_API const char *expar_last_error(void);

/* The version of the library that runs, "0.1.0". Static storage. Any thread. */
EXPAR_API const char *expar_version(void);

#ifdef __cplusplus
}
#endif
#endif
