/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels on disk: $XDG_CACHE_HOME/expar or ~/.cache/expar, one file a compilation, named by its key.
 *
 * A file is written under another name and renamed, so that readers, in any process, see all of it or nothing. What
 * processes leave behind that are killed meanwhile is removed by those that write later. A file carries its key and a
 * hash of its content: what does not fit is ignored, compiled again and replaced. */
#include "cuda/parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CACHE_MAGIC     "expar k1"
#define CACHE_MAX_BYTES ((off_t)256 << 20)
#define CACHE_SUFFIX    ".cubin"
#define CACHE_ASIDE     ".XXXXXX" /* of a file that is being written; mkostemp puts letters and digits in */
/* No process writes one for so long; the rename of one that did would fail, and it would do without. */
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
    /* Any of them may be included. */
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

/* The folder; false when there is no place for one. */
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

static bool cache_path(const cuda_key *key, char *path, size_t bytes)
{
    char name[2 * CUDA_KEY_BYTES + 1];
    if (!cache_folder(path, bytes)) return false;
    size_t used = strlen(path);
    sodium_bin2hex(name, sizeof name, key->bytes, sizeof key->bytes);
    int length = snprintf(path + used, bytes - used, "/%s" CACHE_SUFFIX, name);
    return length > 0 && (size_t)length < bytes - used;
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

static bool load_file(int fd, const cuda_key *key, void **data, size_t *bytes)
{
    struct stat facts;
    cache_head head;
    cuda_key content;
    if (fstat(fd, &facts) != 0 || !read_all(fd, &head, sizeof head) || !head_fits(&head, key, facts.st_size))
        return false;
    char *read_data = malloc((size_t)head.bytes + 1);
    if (!read_data) return false;
    if (read_all(fd, read_data, (size_t)head.bytes)) {
        hash_content(read_data, (size_t)head.bytes, &content);
        if (memcmp(content.bytes, head.content.bytes, sizeof content.bytes) == 0) {
            *data = read_data;
            *bytes = (size_t)head.bytes;
            return true;
        }
    }
    free(read_data);
    return false;
}

bool cuda_cache_load(const cuda_key *key, void **data, size_t *bytes)
{
    char path[4096];
    if (!cache_path(key, path, sizeof path)) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool loaded = load_file(fd, key, data, bytes);
    if (!loaded) LOG(LOG_WARN, "%s is broken: compiling again", path);
    close(fd);
    return loaded;
}

/* Makes the folder and those above it. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

static bool has_only(const char *text, size_t length, const char *set)
{
    return strspn(text, set) >= length;
}

/* Whether a file's name is one that store_file writes under. */
static int is_aside(const struct dirent *entry)
{
    const char *name = entry->d_name;
    static const char hex[] = "0123456789abcdef";
    static const char any[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const size_t key = 2 * CUDA_KEY_BYTES, suffix = sizeof CACHE_SUFFIX - 1, aside = sizeof CACHE_ASIDE - 1;
    return strlen(name) == key + suffix + aside && has_only(name, key, hex) &&
           memcmp(name + key, CACHE_SUFFIX ".", suffix + 1) == 0 && has_only(name + key + suffix + 1, aside - 1, any);
}

static void remove_if_old(const char *folder, const char *name)
{
    char path[4096 + 1 + NAME_MAX];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (lstat(path, &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    if (time(NULL) - facts.st_mtime > CACHE_ASIDE_SECONDS) unlink(path);
}

/* Those that were left behind. */
static void remove_old_asides(const char *folder)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_aside, alphasort);
    for (int i = 0; i < count; i++) {
        remove_if_old(folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

static bool store_file(const char *path, const cache_head *head, const void *data, size_t bytes)
{
    char temporary[4096 + sizeof CACHE_ASIDE];
    snprintf(temporary, sizeof temporary, "%s" CACHE_ASIDE, path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return false;
    bool written = write_all(fd, head, sizeof *head) && write_all(fd, data, bytes);
    if (close(fd) != 0) written = false;
    if (written && rename(temporary, path) == 0) return true;
    unlink(temporary);
    return false;
}

void cuda_cache_store(const cuda_key *key, const void *data, size_t bytes)
{
    char path[4096], folder[4096];
    cache_head head = {.magic = CACHE_MAGIC, .key = *key, .bytes = bytes};
    if (!cache_path(key, path, sizeof path) || !cache_folder(folder, sizeof folder)) return;
    hash_content(data, bytes, &head.content);
    make_folders(path);
    remove_old_asides(folder);
    if (!store_file(path, &head, data, bytes)) LOG(LOG_INFO, "cannot write %s: %s", path, strerror(errno));
}
