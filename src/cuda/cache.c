/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels on disk: $XDG_CACHE_HOME/expar or ~/.cache/expar, one file for each compilation, named by its key.
 *
 * A file is written under another name and renamed, so that readers, in any process, see all of it or nothing. Files
 * left over from killed processes are removed by processes that write later. A file carries its key and a hash of its
 * content. If they do not fit, the file is ignored, compiled again and replaced.
 *
 * The hash is no protection against a user who can write files. So the folder and each file must belong to this user or
 * to root, and be writable by no other user. The folder is opened first, then checked, and files are found through its
 * descriptor. So a user who can exchange folders above it gains nothing. */
#include "cuda/parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CACHE_MAGIC     "expar k1"
#define CACHE_MAX_BYTES ((off_t)256 << 20)
#define CACHE_SUFFIX    ".cubin"
#define CACHE_ASIDE     ".XXXXXX" /* suffix of a file that is being written: letters and digits replace each X */
/* No process needs that long to write a file. If one did, its rename would fail, and it would do without the file. */
#define CACHE_ASIDE_SECONDS 3600

typedef struct cache_head {
    char magic[8];
    cuda_key key, content;
    uint64_t bytes;
} cache_head;

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void add_text(crypto_generichash_state *state, const char *text)
{
    crypto_generichash_update(state, (const unsigned char *)text, strlen(text) + 1);
}

expar_status cuda_key_make(const cuda_source *source, const cuda_options *options, int32_t nvrtc_version,
                           int32_t driver_version, cuda_key *out)
{
    crypto_generichash_state state;
    const int32_t versions[] = {nvrtc_version, driver_version};
    if (sodium_init() < 0) return error_set(EXPAR_ERR_SYSTEM, "libsodium cannot be initialised");
    crypto_generichash_init(&state, NULL, 0, sizeof out->bytes);
    crypto_generichash_update(&state, (const unsigned char *)versions, sizeof versions);
    add_text(&state, source->name);
    add_text(&state, source->text);
    for (int i = 0; i < options->count; i++)
        add_text(&state, options->items[i]);
    /* A kernel may include any of them. */
    for (size_t i = 0; i < cuda_num_sources; i++)
        add_text(&state, cuda_sources[i].text);
    for (size_t i = 0; source->table != cuda_sources && i < source->table_count; i++)
        add_text(&state, source->table[i].text);
    crypto_generichash_final(&state, out->bytes, sizeof out->bytes);
    return EXPAR_OK;
}

static void hash_content(const void *data, size_t bytes, cuda_key *out)
{
    crypto_generichash(out->bytes, sizeof out->bytes, data, bytes, NULL, 0);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Gives the folder; false if there is no place for one. */
static bool cache_folder(char *path, size_t bytes)
{
    const char *cache = env_foreign("XDG_CACHE_HOME"), *home = env_foreign("HOME");
    int length = -1;
    /* Relative paths are to be ignored (XDG base directory specification). */
    if (cache && cache[0] == '/')
        length = snprintf(path, bytes, "%s/expar", cache);
    else if (home && home[0] == '/')
        length = snprintf(path, bytes, "%s/.cache/expar", home);
    return length > 0 && (size_t)length < bytes;
}

/* A file's name in the folder. */
#define CACHE_NAME_BYTES (2 * CUDA_KEY_BYTES + sizeof CACHE_SUFFIX)

static void cache_name(const cuda_key *key, char name[CACHE_NAME_BYTES])
{
    char hex[2 * CUDA_KEY_BYTES + 1];
    sodium_bin2hex(hex, sizeof hex, key->bytes, sizeof key->bytes);
    snprintf(name, CACHE_NAME_BYTES, "%s" CACHE_SUFFIX, hex);
}

/* Returns NULL, or why the file or folder cannot be trusted. A list of access rights (ACL) shows in the group's
   bits. */
static const char *distrust(const struct stat *facts)
{
    if (facts->st_uid != geteuid() && facts->st_uid != 0) return "it belongs to another user";
    if (facts->st_mode & (S_IWGRP | S_IWOTH)) return "others than its owner may write to it (chmod go-w)";
    return NULL;
}

/* Every kernel asks for the folder, but only one log line for each process says what is wrong with it. */
static void tell_folder(const char *folder, const struct stat *facts, const char *reason)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&told)) return;
    LOG(LOG_WARN, "%s (owner %u, mode %04o) is not used for compiled kernels: %s", folder, (unsigned)facts->st_uid,
        (unsigned)facts->st_mode & 07777, reason);
}

/* Returns a descriptor of the folder. -1: it does not exist, or cannot be trusted, which has been logged. */
static int open_folder(const char *folder)
{
    struct stat facts;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    const char *reason = fstat(fd, &facts) == 0 ? distrust(&facts) : strerror(errno);
    if (!reason) return fd;
    tell_folder(folder, &facts, reason);
    close(fd);
    return -1;
}

static bool read_all(int fd, void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = read(fd, (char *)data + done, bytes - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        done += (size_t)count;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = write(fd, (const char *)data + done, bytes - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        done += (size_t)count;
    }
    return true;
}

static bool head_fits(const cache_head *head, const cuda_key *key, off_t file_bytes)
{
    return memcmp(head->magic, CACHE_MAGIC, sizeof head->magic) == 0 &&
           memcmp(head->key.bytes, key->bytes, sizeof key->bytes) == 0 && file_bytes <= CACHE_MAX_BYTES &&
           head->bytes == (uint64_t)file_bytes - sizeof *head;
}

/* Returns NULL, or why the file cannot be used. */
static const char *load_file(int fd, const cuda_key *key, void **data, size_t *bytes)
{
    static const char broken[] = "it is broken";
    struct stat facts;
    cache_head head;
    cuda_key content;
    if (fstat(fd, &facts) != 0) return strerror(errno);
    if (!S_ISREG(facts.st_mode)) return "it is not a regular file";
    const char *reason = distrust(&facts);
    if (reason) return reason;
    if (!read_all(fd, &head, sizeof head) || !head_fits(&head, key, facts.st_size)) return broken;
    char *read_data = malloc((size_t)head.bytes + 1);
    if (!read_data) return "no memory for it";
    if (read_all(fd, read_data, (size_t)head.bytes)) {
        hash_content(read_data, (size_t)head.bytes, &content);
        if (memcmp(content.bytes, head.content.bytes, sizeof content.bytes) == 0) {
            *data = read_data;
            *bytes = (size_t)head.bytes;
            return NULL;
        }
    }
    free(read_data);
    return broken;
}

bool cuda_cache_load(const cuda_key *key, void **data, size_t *bytes)
{
    char folder[4096], name[CACHE_NAME_BYTES];
    if (!cache_folder(folder, sizeof folder)) return false;
    int dir = open_folder(folder);
    if (dir < 0) return false;
    cache_name(key, name);
    /* A FIFO or a device must not block the call; a link is rejected (ELOOP). */
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const char *reason = fd >= 0 ? load_file(fd, key, data, bytes) : strerror(errno);
    bool loaded = fd >= 0 && !reason;
    if (!loaded && (fd >= 0 || errno != ENOENT))
        LOG(LOG_WARN, "%s/%s is ignored, compiling again: %s", folder, name, reason);
    if (fd >= 0) close(fd);
    close(dir);
    return loaded;
}

/* Makes the folder and its parents. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

static bool has_only(const char *text, size_t length, const char *set)
{
    return strspn(text, set) >= length;
}

/* Returns whether a file's name is one under which store_file writes. */
static int is_aside(const struct dirent *entry)
{
    const char *name = entry->d_name;
    static const char hex[] = "0123456789abcdef";
    static const char any[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const size_t key = 2 * CUDA_KEY_BYTES, suffix = sizeof CACHE_SUFFIX - 1, aside = sizeof CACHE_ASIDE - 1;
    return strlen(name) == key + suffix + aside && has_only(name, key, hex) &&
           memcmp(name + key, CACHE_SUFFIX ".", suffix + 1) == 0 && has_only(name + key + suffix + 1, aside - 1, any);
}

static void remove_if_old(int dir, const char *name)
{
    struct stat facts;
    if (fstatat(dir, name, &facts, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(facts.st_mode)) return;
    if (time(NULL) - facts.st_mtime > CACHE_ASIDE_SECONDS) unlinkat(dir, name, 0);
}

/* Removes those that were left over. */
static void remove_old_asides(int dir)
{
    struct dirent **entries = NULL;
    int count = scandirat(dir, ".", &entries, is_aside, alphasort);
    for (int i = 0; i < count; i++) {
        remove_if_old(dir, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

/* Does what mkostemp does, for a folder's descriptor. */
static int open_aside(int dir, const char *name, char aside[CACHE_NAME_BYTES + sizeof CACHE_ASIDE])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    for (int tries = 0; tries < 100; tries++) {
        int length = snprintf(aside, CACHE_NAME_BYTES + sizeof CACHE_ASIDE, "%s" CACHE_ASIDE, name);
        for (char *at = aside + length; at[-1] == 'X'; at--)
            at[-1] = letters[randombytes_uniform(sizeof letters - 1)];
        int fd = openat(dir, aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static bool store_file(int dir, const char *name, const cache_head *head, const void *data, size_t bytes)
{
    char aside[CACHE_NAME_BYTES + sizeof CACHE_ASIDE];
    int fd = open_aside(dir, name, aside);
    if (fd < 0) return false;
    bool written = write_all(fd, head, sizeof *head) && write_all(fd, data, bytes);
    if (close(fd) != 0) written = false;
    if (written && renameat(dir, aside, dir, name) == 0) return true;
    unlinkat(dir, aside, 0);
    return false;
}

void cuda_cache_store(const cuda_key *key, const void *data, size_t bytes)
{
    char folder[4096], name[CACHE_NAME_BYTES];
    cache_head head = {.magic = CACHE_MAGIC, .key = *key, .bytes = bytes};
    if (!cache_folder(folder, sizeof folder)) return;
    make_folders(folder);
    int dir = open_folder(folder);
    if (dir < 0) return;
    hash_content(data, bytes, &head.content);
    cache_name(key, name);
    remove_old_asides(dir);
    if (!store_file(dir, name, &head, data, bytes))
        LOG(LOG_INFO, "cannot write %s/%s: %s", folder, name, strerror(errno));
    close(dir);
}
