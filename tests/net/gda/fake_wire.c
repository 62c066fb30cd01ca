/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes, for simulated devices. */
#include "fake_wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_MEMBERS 64
#define MOST_ENTRIES 8192

/* Memory that its owner has registered. The owner stores all before `pid` (release). */
typedef struct wire_entry {
    _Atomic int32_t pid; /* 0: withdrawn, or not there yet */
    int32_t fd;
    uint64_t offset; /* in the file */
    nic_memory memory;
} wire_entry;

/* All ranks share this. */
typedef struct wire {
    _Atomic uint32_t next_number;
    /* Each change adds to it; a member stores the value up to which it has seen changes. */
    _Atomic uint32_t changes;
    _Atomic uint32_t num_entries;
    struct {
        _Atomic int32_t pid;
        _Atomic uint32_t seen;
    } members[MOST_MEMBERS];
    wire_entry entries[MOST_ENTRIES];
} wire;

/* Memory of others that this process has mapped. Only the device's thread uses it. */
static void *mapped[MOST_ENTRIES];
static wire *shared;
static nic *runs;
static size_t own_place;
static pthread_t thread;
static _Atomic bool ends;

static void wire_die(const char *why)
{
    fprintf(stderr, "simulated mlx5: %s: errno %d\n", why, errno);
    abort();
}

bool fake_wire_is_on(void)
{
    return getenv("FAKE_WIRE") != NULL;
}

/* Returns the letter of a process's state: Z if it has ended and its parent has not noticed, T if it is stopped. */
static char state_of(int32_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 'X';
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(file);
    return state;
}

static bool is_dead(int32_t pid)
{
    const char state = state_of(pid);
    return state == 'Z' || state == 'X';
}

static void name_file(char path[64])
{
    snprintf(path, 64, "/dev/shm/expar_fake_wire_%d", (int)getppid());
}

/* Removes files of parents that have ended: ranks that were killed have left them. */
static void remove_old_files(void)
{
    static const char start[] = "expar_fake_wire_";
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *d; folder && (d = readdir(folder));) {
        if (strncmp(d->d_name, start, sizeof start - 1) != 0) continue;
        if (!is_dead((int32_t)strtol(d->d_name + sizeof start - 1, NULL, 10))) continue;
        unlinkat(dirfd(folder), d->d_name, 0);
    }
    if (folder) closedir(folder);
}

static void wire_open(void)
{
    char path[64];
    remove_old_files();
    name_file(path);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0) wire_die("no shared file");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) wire_die("the shared file cannot be mapped");
    close(fd);
}

uint32_t fake_wire_number(void)
{
    if (!shared) wire_open();
    return 0x1000 + atomic_fetch_add(&shared->next_number, 1);
}

/* ---- memory of others -------------------------------------------------------------------------------------------- */

static void import_entry(size_t i, int32_t pid)
{
    wire_entry *e = &shared->entries[i];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)e->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return; /* its owner is gone */
    nic_memory m = e->memory;
    const uint64_t before = e->offset % 4096; /* a mapping begins with a page */
    uint8_t *base = mmap(NULL, m.bytes + before, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(e->offset - before));
    close(fd);
    if (base == MAP_FAILED) wire_die("memory of another process cannot be mapped");
    mapped[i] = base;
    m.base = base + before;
    if (nic_add_memory(runs, &m) != EXPAR_OK) wire_die(expar_last_error());
}

static void unmap_entry(size_t i)
{
    const wire_entry *e = &shared->entries[i];
    if (mapped[i]) munmap(mapped[i], e->memory.bytes + e->offset % 4096);
    mapped[i] = NULL;
}

static void look_at_changes(void)
{
    const uint32_t changes = atomic_load(&shared->changes);
    if (changes == atomic_load(&shared->members[own_place].seen)) return;
    const uint32_t count = atomic_load(&shared->num_entries);
    for (size_t i = 0; i < count && i < MOST_ENTRIES; i++) {
        const int32_t pid = atomic_load(&shared->entries[i].pid);
        if (pid && pid != getpid() && !mapped[i]) import_entry(i, pid);
        if (pid || !mapped[i]) continue;
        nic_remove_memory(runs, 0, shared->entries[i].memory.key);
        unmap_entry(i);
    }
    atomic_store(&shared->members[own_place].seen, changes);
}

static void *wire_run(void *unused)
{
    (void)unused;
    while (!atomic_load(&ends)) {
        look_at_changes();
        if (nic_turn(runs))
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return NULL;
}

/* ---- this process ------------------------------------------------------------------------------------------------ */

void fake_wire_join(nic *device)
{
    if (!shared) wire_open();
    runs = device;
    atomic_store(&ends, false);
    for (size_t i = 0; i < MOST_MEMBERS; i++) {
        int32_t before = atomic_load(&shared->members[i].pid);
        if (before && !is_dead(before)) continue;
        if (!atomic_compare_exchange_strong(&shared->members[i].pid, &before, getpid())) continue;
        own_place = i;
        atomic_store(&shared->members[i].seen, UINT32_MAX); /* it has seen nothing */
        if (pthread_create(&thread, NULL, wire_run, NULL) != 0) wire_die("no thread");
        return;
    }
    wire_die("too many processes");
}

/* The last process takes the file away. Ranks of the next group start after all of these have ended. */
static void wire_close(void)
{
    char path[64];
    for (size_t i = 0; i < MOST_MEMBERS; i++) {
        const int32_t pid = atomic_load(&shared->members[i].pid);
        if (pid && !is_dead(pid)) return;
    }
    name_file(path);
    unlink(path);
}

void fake_wire_leave(void)
{
    atomic_store(&ends, true);
    pthread_join(thread, NULL);
    atomic_store(&shared->members[own_place].pid, 0);
    for (size_t i = 0; i < MOST_ENTRIES; i++) {
        unmap_entry(i);
    }
    wire_close();
}

/* Finds a descriptor of the file that is mapped at the address. Returns false for other memory. */
static bool find_file(const void *address, int32_t *fd, uint64_t *offset)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long long begin, end, at, inode = 0;
    struct stat s;
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%llx-%llx %*s %llx %*s %llu", &begin, &end, &at, &inode) != 4) continue;
        if ((uintptr_t)address >= begin && (uintptr_t)address < end) break;
        inode = 0;
    }
    if (maps) fclose(maps);
    for (int f = 0; inode && f < 1024; f++) {
        if (fstat(f, &s) != 0 || s.st_ino != inode) continue;
        *fd = f;
        *offset = at + (uintptr_t)address - begin;
        return true;
    }
    return false;
}

/* Waits until all devices have seen the changes so far. */
static void await_members(void)
{
    const uint32_t changes = atomic_fetch_add(&shared->changes, 1) + 1;
    for (size_t i = 0; i < MOST_MEMBERS; i++)
        for (;;) {
            const int32_t pid = atomic_load(&shared->members[i].pid);
            const uint32_t seen = atomic_load(&shared->members[i].seen);
            if (!pid || pid == getpid() || (seen != UINT32_MAX && (int32_t)(seen - changes) >= 0)) break;
            if (is_dead(pid) || state_of(pid) == 'T') break;
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
}

void fake_wire_publish(const nic_memory *memory)
{
    int32_t fd;
    uint64_t offset;
    if (!find_file(memory->base, &fd, &offset)) return; /* no other process reaches it */
    const uint32_t i = atomic_fetch_add(&shared->num_entries, 1);
    if (i >= MOST_ENTRIES) wire_die("too much memory");
    wire_entry *e = &shared->entries[i];
    e->fd = fd;
    e->offset = offset;
    e->memory = *memory;
    atomic_store(&e->pid, getpid());
    await_members();
}

void fake_wire_withdraw(uint32_t key)
{
    const uint32_t count = atomic_load(&shared->num_entries);
    for (size_t i = 0; i < count && i < MOST_ENTRIES; i++) {
        if (atomic_load(&shared->entries[i].pid) != getpid() || shared->entries[i].memory.key != key) continue;
        atomic_store(&shared->entries[i].pid, 0);
        atomic_fetch_add(&shared->changes, 1);
    }
}
