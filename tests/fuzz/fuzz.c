/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of the fuzzers. */
#include "fuzz.h"
#include "base/shown.h"
#include "boot/wire/wire.h"

#include <expar/log.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 64 }; /* no input opens more */

static bool accepted;
static int file = -1;
static char file_path[32];

/* Lines that show what a peer sent must not steer the terminal either. */
static void check_line(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context;
    (void)level;
    (void)rank;
    (void)place;
    fuzz_must_be_shown(text);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    setenv("EXPAR_LOG", "debug", 1);
    expar_log_set(check_line, NULL);
    fuzz_must(auth_ready() == EXPAR_OK);
    return 0;
}

void fuzz_accept(void)
{
    accepted = true;
}

bool fuzz_was_accepted(void)
{
    const bool was = accepted;
    accepted = false;
    return was;
}

void fuzz_check(bool holds, const char *condition, const char *where, int line)
{
    if (holds) return;
    fprintf(stderr, "%s:%d: expected %s\n", where, line, condition);
    abort();
}

void fuzz_must_be_shown(const char *text)
{
    fuzz_must(text[0] != 0);
    for (const char *at = text; *at; at++) {
        if (!shown_is_control((unsigned char)*at, at > text && (unsigned char)at[-1] == 0xc2)) continue;
        fprintf(stderr, "byte %d of a text is 0x%02x: %s\n", (int)(at - text), (unsigned char)*at, text);
        fuzz_must(!"a control character");
    }
}

int fuzz_count_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < MOST_DESCRIPTORS; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

const char *fuzz_file(const uint8_t *data, size_t bytes)
{
    file = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_must(file >= 0);
    fuzz_must(write(file, data, bytes) == (ssize_t)bytes);
    snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file);
    return file_path;
}

void fuzz_file_close(void)
{
    close(file);
}
