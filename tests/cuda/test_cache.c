/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels on disk: what is stored comes back, what is broken does not, and many writers do no harm. */
#include "cuda/parts.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/expar-cache-XXXXXX";
static const char folder[] = "expar";

static const cuda_source source = {.name = "tests/one.cu", .text = "one"};

static cuda_key key_of(const cuda_source *from, const cuda_macro *macros, size_t count, int32_t nvrtc, int32_t driver)
{
    cuda_options options;
    cuda_key key;
    assert_int_equal(cuda_options_make(90, macros, count, &options), EXPAR_OK);
    assert_int_equal(cuda_key_make(from, &options, nvrtc, driver, &key), EXPAR_OK);
    cuda_options_free(&options);
    return key;
}

static cuda_key some_key(int64_t value)
{
    return key_of(&source, &(cuda_macro){"VALUE", value}, 1, 13000, 13000);
}

/* The one file of the cache; fails when there is another number of them. */
static void only_file(char *path, size_t bytes)
{
    char dir[256];
    snprintf(dir, sizeof dir, "%s/%s", root, folder);
    DIR *open_dir = opendir(dir);
    assert_non_null(open_dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(open_dir)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, bytes, "%s/%.200s", dir, entry->d_name);
        count++;
    }
    closedir(open_dir);
    assert_int_equal(count, 1);
}

static int empty_cache(void **state)
{
    (void)state;
    char dir[256], path[600];
    snprintf(dir, sizeof dir, "%s/%s", root, folder);
    DIR *open_dir = opendir(dir);
    if (!open_dir) return 0;
    for (struct dirent *entry; (entry = readdir(open_dir)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    closedir(open_dir);
    return rmdir(dir);
}

static void assert_cached(const cuda_key *key, const char *expected)
{
    void *data = NULL;
    size_t bytes = 0;
    assert_true(cuda_cache_load(key, &data, &bytes));
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(data, expected, bytes);
    free(data);
}

static void assert_not_cached(const cuda_key *key)
{
    void *data = NULL;
    size_t bytes = 0;
    assert_false(cuda_cache_load(key, &data, &bytes));
    assert_null(data);
}

static void keys_differ_in_all_that_matters(void **state)
{
    (void)state;
    const cuda_source other_text = {.name = "tests/one.cu", .text = "two"};
    const cuda_source other_name = {.name = "tests/two.cu", .text = "one"};
    const cuda_macro a = {"A", 1}, b = {"A", 2};
    const cuda_key keys[] = {
        key_of(&source, &a, 1, 13000, 13000),     key_of(&source, &b, 1, 13000, 13000),
        key_of(&source, NULL, 0, 13000, 13000),   key_of(&other_text, &a, 1, 13000, 13000),
        key_of(&other_name, &a, 1, 13000, 13000), key_of(&source, &a, 1, 12090, 13000),
        key_of(&source, &a, 1, 13000, 12090),
    };
    cuda_key again = key_of(&source, &a, 1, 13000, 13000);
    assert_memory_equal(&keys[0], &again, sizeof again);
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof keys[i]);
}

static void what_is_stored_comes_back(void **state)
{
    (void)state;
    cuda_key key = some_key(1), other = some_key(2);
    assert_not_cached(&key);
    cuda_cache_store(&key, "kernel", 6);
    assert_cached(&key, "kernel");
    assert_not_cached(&other);
}

/* Changes one byte, or cuts the file. */
static void damage(const char *path, off_t at, off_t cut_bytes)
{
    int fd = open(path, O_RDWR);
    char byte = 0;
    assert_true(fd >= 0);
    if (cut_bytes >= 0) {
        assert_int_equal(ftruncate(fd, cut_bytes), 0);
    } else {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte = (char)(byte ^ 0x55);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

static void broken_files_are_replaced(void **state)
{
    (void)state;
    cuda_key key = some_key(3);
    char path[600];
    struct stat facts;
    cuda_cache_store(&key, "some kernel", 11);
    only_file(path, sizeof path);
    assert_int_equal(stat(path, &facts), 0);
    for (off_t at = 0; at < facts.st_size; at++) {
        damage(path, at, -1);
        assert_not_cached(&key);
        cuda_cache_store(&key, "some kernel", 11);
        assert_cached(&key, "some kernel");
        damage(path, 0, at);
        assert_not_cached(&key);
        cuda_cache_store(&key, "some kernel", 11);
    }
    assert_cached(&key, "some kernel");
    only_file(path, sizeof path);
}

static void a_file_of_another_key_does_not_serve(void **state)
{
    (void)state;
    cuda_key a = some_key(4), b = some_key(5);
    char path_a[600], path_b[600], aside[64];
    snprintf(aside, sizeof aside, "%s/aside", root);
    cuda_cache_store(&a, "kernel a", 8);
    only_file(path_a, sizeof path_a);
    assert_int_equal(rename(path_a, aside), 0);
    cuda_cache_store(&b, "kernel b", 8);
    only_file(path_b, sizeof path_b);
    assert_int_equal(rename(aside, path_b), 0);
    assert_not_cached(&b);
}

static void no_place_for_a_cache_is_no_error(void **state)
{
    (void)state;
    cuda_key key = some_key(6);
    setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
    cuda_cache_store(&key, "kernel", 6);
    assert_not_cached(&key);
    setenv("XDG_CACHE_HOME", root, 1);
}

#define WRITERS 4
#define ROUNDS  200

typedef struct writer {
    pthread_t thread;
    cuda_key key;
    bool torn; /* a reader saw something that no writer wrote */
} writer;

static void write_one(const cuda_key *key, int round)
{
    char kernel[4096];
    memset(kernel, 'a' + round % 26, sizeof kernel);
    cuda_cache_store(key, kernel, sizeof kernel);
}

/* Whether there is one, as somebody wrote it. */
static bool read_whole(const cuda_key *key)
{
    void *data;
    size_t bytes;
    if (!cuda_cache_load(key, &data, &bytes)) return false;
    const char *text = data;
    bool whole = bytes == 4096 && memcmp(text, text + 1, bytes - 1) == 0;
    free(data);
    return whole;
}

static void *write_and_read(void *argument)
{
    writer *self = argument;
    for (int i = 0; i < ROUNDS; i++) {
        write_one(&self->key, i);
        if (!read_whole(&self->key)) self->torn = true;
    }
    return NULL;
}

static void writers_and_readers_do_not_meet(void **state)
{
    (void)state;
    writer writers[WRITERS];
    char path[600];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (writer){.key = some_key(7)};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_and_read, &writers[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(writers[i].thread, NULL);
        assert_false(writers[i].torn);
    }
    only_file(path, sizeof path);
}

static void processes_that_are_killed_tear_nothing(void **state)
{
    (void)state;
    const cuda_key key = some_key(8);
    pid_t pids[WRITERS];
    int torn = 0;
    write_one(&key, 0);
    for (int i = 0; i < WRITERS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int round = i; pids[i] == 0; round++)
            write_one(&key, round);
    }
    for (int i = 0; i < WRITERS; i++) {
        for (int round = 0; round < ROUNDS; round++)
            torn += !read_whole(&key);
        if (pids[i] > 0) kill(pids[i], SIGKILL);
        if (pids[i] > 0) waitpid(pids[i], NULL, 0);
        torn += !read_whole(&key);
        torn += pids[i] < 0;
    }
    assert_int_equal(torn, 0);
}

/* ---- what killed processes leave --------------------------------------------------------------------------------- */

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* A file of the cache's folder whose last change was so long ago. */
static void leave_file(const char *name, int64_t seconds)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    const struct timespec then = {.tv_sec = time(NULL) - seconds}, times[] = {then, then};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static bool is_there(const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    return access(path, F_OK) == 0;
}

/* Only by the names that the cache gives, and only after an hour: a younger one may be being written. */
static void what_was_left_is_removed(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t seconds;
        bool stays;
    } files[] = {
        {HEX ".cubin.aZ09bY", 3700, false},
        {HEX ".cubin.000000", 1 << 30, false},
        {HEX ".cubin.bZ09bY", 1800, true},
        {HEX ".cubin.cZ09bY", -3700, true},
        {HEX ".cubin", 1 << 30, true},
        {HEX ".cubin.aZ09b", 1 << 30, true},
        {HEX ".cubin.aZ09bYY", 1 << 30, true},
        {HEX ".cubin.aZ09b-", 1 << 30, true},
        {HEX "0.cubin.aZ09b", 1 << 30, true},
        {"x" HEX ".cubin.aZ09bY", 1 << 30, true},
        {"g123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.cubin.aZ09bY", 1 << 30, true},
        {HEX ".other.aZ09bY", 1 << 30, true},
        {"notes.XXXXXX", 1 << 30, true},
    };
    const cuda_key first = some_key(9), second = some_key(10);
    cuda_cache_store(&first, "kernel", 6);
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
        leave_file(files[i].name, files[i].seconds);
    assert_cached(&first, "kernel");
    assert_true(is_there(files[0].name));
    cuda_cache_store(&second, "another", 7);
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
        if (is_there(files[i].name) != files[i].stays) fail_msg("%s", files[i].name);
    assert_cached(&first, "kernel");
    assert_cached(&second, "another");
}

/* ---- who may write there ----------------------------------------------------------------------------------------- */

static void folder_path(char path[256])
{
    snprintf(path, 256, "%s/%s", root, folder);
}

/* Kernels of a folder that others can write to are not run, and none are put there. */
static void a_folder_that_others_write_to_is_not_used(void **state)
{
    (void)state;
    static const mode_t modes[] = {0770, 0702, 0720, 01777};
    const cuda_key key = some_key(11), other = some_key(12);
    char path[256], only[600];
    folder_path(path);
    cuda_cache_store(&key, "kernel", 6);
    for (size_t i = 0; i < ARRAY_LENGTH(modes); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_not_cached(&key);
        cuda_cache_store(&other, "another", 7);
        only_file(only, sizeof only);
    }
    assert_int_equal(chmod(path, 0755), 0);
    assert_cached(&key, "kernel");
    assert_not_cached(&other);
}

/* The file is replaced by one of this user's. */
static void a_file_that_others_write_to_is_replaced(void **state)
{
    (void)state;
    static const mode_t modes[] = {0620, 0602, 0666};
    const cuda_key key = some_key(13);
    char path[600];
    struct stat facts;
    cuda_cache_store(&key, "kernel", 6);
    only_file(path, sizeof path);
    assert_int_equal(chmod(path, 0644), 0);
    assert_cached(&key, "kernel");
    for (size_t i = 0; i < ARRAY_LENGTH(modes); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_not_cached(&key);
        cuda_cache_store(&key, "kernel", 6);
        assert_cached(&key, "kernel");
        assert_int_equal(stat(path, &facts), 0);
        assert_int_equal(facts.st_mode & 07777, 0600);
    }
}

#define STRANGER 65534

/* Only root can give files away. */
static void what_belongs_to_another_user_is_not_used(void **state)
{
    (void)state;
    const cuda_key key = some_key(14);
    char path[256], file[600];
    if (geteuid() != 0) skip();
    folder_path(path);
    cuda_cache_store(&key, "kernel", 6);
    only_file(file, sizeof file);
    assert_int_equal(chown(file, STRANGER, 0), 0);
    assert_not_cached(&key);
    cuda_cache_store(&key, "kernel", 6);
    assert_cached(&key, "kernel");
    assert_int_equal(chown(path, STRANGER, 0), 0);
    assert_not_cached(&key);
    assert_int_equal(chown(path, 0, 0), 0);
    assert_cached(&key, "kernel");
}

/* Root's folder and files serve a user who cannot write there. */
static void what_belongs_to_root_serves(void **state)
{
    (void)state;
    const cuda_key key = some_key(15);
    char path[256], file[600];
    if (geteuid() != 0) skip();
    folder_path(path);
    cuda_cache_store(&key, "kernel", 6);
    only_file(file, sizeof file);
    assert_int_equal(chmod(root, 0755) | chmod(path, 0755) | chmod(file, 0644), 0);
    assert_int_equal(seteuid(STRANGER), 0);
    void *data = NULL;
    size_t bytes = 0;
    bool loaded = cuda_cache_load(&key, &data, &bytes);
    assert_int_equal(seteuid(0), 0);
    free(data);
    assert_true(loaded);
}

/* A link could lead to any file, and a FIFO would stop the call until somebody writes. */
static void only_regular_files_serve(void **state)
{
    (void)state;
    const cuda_key key = some_key(16);
    char path[600], aside[64];
    snprintf(aside, sizeof aside, "%s/aside", root);
    cuda_cache_store(&key, "kernel", 6);
    only_file(path, sizeof path);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(aside, path), 0);
    assert_not_cached(&key);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_not_cached(&key);
    cuda_cache_store(&key, "kernel", 6);
    assert_cached(&key, "kernel");
    unlink(aside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_differ_in_all_that_matters),
        cmocka_unit_test_teardown(what_is_stored_comes_back, empty_cache),
        cmocka_unit_test_teardown(broken_files_are_replaced, empty_cache),
        cmocka_unit_test_teardown(a_file_of_another_key_does_not_serve, empty_cache),
        cmocka_unit_test(no_place_for_a_cache_is_no_error),
        cmocka_unit_test_teardown(writers_and_readers_do_not_meet, empty_cache),
        cmocka_unit_test_teardown(processes_that_are_killed_tear_nothing, empty_cache),
        cmocka_unit_test_teardown(what_was_left_is_removed, empty_cache),
        cmocka_unit_test_teardown(a_folder_that_others_write_to_is_not_used, empty_cache),
        cmocka_unit_test_teardown(a_file_that_others_write_to_is_replaced, empty_cache),
        cmocka_unit_test_teardown(what_belongs_to_another_user_is_not_used, empty_cache),
        cmocka_unit_test_teardown(what_belongs_to_root_serves, empty_cache),
        cmocka_unit_test_teardown(only_regular_files_serve, empty_cache),
    };
    if (!mkdtemp(root)) return 1;
    setenv("XDG_CACHE_HOME", root, 1);
    setenv("EXPAR_LOG", "error", 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(root);
    return failed;
}
