/* SPDX-License-Identifier: Apache-2.0 */
/* place: where this process is: the identities of its machine and host, its pid, and the cores that it may use. */
#include "boot/place.h"

#include <fcntl.h>
#include <sched.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Adds the boot id, which is new at each start of a kernel. */
static void add_boot_id(crypto_generichash_state *hash)
{
    unsigned char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t bytes = read(fd, text, sizeof text);
    if (bytes > 0) crypto_generichash_update(hash, text, (unsigned long long)bytes);
    close(fd);
}

static void add_namespace(crypto_generichash_state *hash, const char *path)
{
    struct stat status;
    uint64_t inode = stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
    crypto_generichash_update(hash, (const unsigned char *)&inode, sizeof inode);
}

static void identity_begin(crypto_generichash_state *hash)
{
    crypto_generichash_init(hash, NULL, 0, crypto_generichash_BYTES_MIN);
    add_boot_id(hash);
}

static uint64_t identity_end(crypto_generichash_state *hash)
{
    unsigned char digest[crypto_generichash_BYTES_MIN];
    uint64_t identity = 0;
    crypto_generichash_final(hash, digest, sizeof digest);
    memcpy(&identity, digest, sizeof identity);
    return identity;
}

static uint64_t machine_identity(void)
{
    crypto_generichash_state hash;
    identity_begin(&hash);
    return identity_end(&hash);
}

/* Abstract Unix sockets reach through one network namespace, and pids mean the same in one pid namespace. */
static uint64_t host_identity(void)
{
    crypto_generichash_state hash;
    identity_begin(&hash);
    add_namespace(&hash, "/proc/self/ns/net");
    add_namespace(&hash, "/proc/self/ns/pid");
    return identity_end(&hash);
}

/* The size of the affinity mask is not known: the set grows until the kernel accepts it. */
static int32_t cores_allowed(void)
{
    for (int limit = 1024; limit <= 1 << 16; limit *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)limit);
        size_t bytes = CPU_ALLOC_SIZE((size_t)limit);
        if (!set) return 1;
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    return 1;
}

void place_find(boot_place *place)
{
    cpu_set_t cores;
    *place = (boot_place){
        .host = host_identity(), .machine = machine_identity(), .pid = (int32_t)getpid(), .num_cores = cores_allowed()};
    /* This fails on a machine with more cores than the set holds. */
    bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
    place->numa_node = known ? place_numa_node("/sys", &cores) : -1;
    place_nics("/sys", place->nics);
}

int32_t boot_host_ranks(const boot *self, int32_t rank)
{
    int32_t count = 0;
    for (int32_t r = 0; r < self->size; r++)
        if (self->places[r].host == self->places[rank].host) count++;
    return count;
}

int32_t boot_machine_ranks(const boot *self, int32_t rank)
{
    int32_t count = 0;
    for (int32_t r = 0; r < self->size; r++)
        if (self->places[r].machine == self->places[rank].machine) count++;
    return count;
}
