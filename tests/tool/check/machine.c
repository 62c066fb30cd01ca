/* SPDX-License-Identifier: Apache-2.0 */
/* Machines made of small files. */
#include "machine.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

int machine_setup(void **state)
{
    struct machine *machine = calloc(1, sizeof *machine);
    if (!machine) return -1;
    strcpy(machine->folder, "/tmp/expar-machine-XXXXXX");
    if (!mkdtemp(machine->folder)) return -1;
    snprintf(machine->proc, sizeof machine->proc, "%s/proc", machine->folder);
    snprintf(machine->sys, sizeof machine->sys, "%s/sys", machine->folder);
    snprintf(machine->shm, sizeof machine->shm, "%s/shm", machine->folder);
    machine->site = (struct check_site){.proc = machine->proc,
                                        .sys = machine->sys,
                                        .shm = machine->shm,
                                        .nvml = "/nowhere/libnvidia-ml.so",
                                        .ranks = 2,
                                        .ranks_here = 2};
    machine->rows = json_array();
    *state = machine;
    return 0;
}

int machine_teardown(void **state)
{
    struct machine *machine = *state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", machine->folder);
    int code = system(command);
    json_decref(machine->rows);
    free(machine);
    return code;
}

static void make_folders(char *path)
{
    for (char *c = strchr(path + 1, '/'); c; c = strchr(c + 1, '/')) {
        *c = 0;
        if (mkdir(path, 0700) != 0) assert_int_equal(errno, EEXIST);
        *c = '/';
    }
}

void machine_put(const struct machine *machine, const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", machine->folder, path);
    make_folders(whole);
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

void machine_link(const struct machine *machine, const char *path, const char *target)
{
    char whole[512], there[512];
    snprintf(whole, sizeof whole, "%s/%s", machine->folder, path);
    snprintf(there, sizeof there, "%s/%s", machine->folder, target);
    make_folders(whole);
    assert_int_equal(symlink(there, whole), 0);
}

void machine_put_sound(const struct machine *machine)
{
    machine_put(machine, "proc/self/status",
                "Name:\tcheck\nCpus_allowed_list:\t0-1\nMems_allowed:\t1\nMems_allowed_list:\t0\n");
    machine_put(machine, "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n"
                "Max open files            1024                 4096                 files\n"
                "Max locked memory         8388608              8388608              bytes\n");
    machine_put(machine, "proc/sys/kernel/yama/ptrace_scope", "1\n");
    machine_put(machine, "sys/devices/system/cpu/online", "0-1\n");
    machine_put(machine, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    machine_put(machine, "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
    machine_put(machine, "sys/devices/system/node/online", "0\n");
    machine_put(machine, "sys/devices/system/node/node0/cpulist", "0-1\n");
    machine_put(machine, "sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never\n");
    machine_put(machine, "shm/file", "");
}

void machine_forget(struct machine *machine)
{
    json_array_clear(machine->rows);
}

static const json_t *row_of(const json_t *rows, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "name")), name) == 0) return row;
    }
    fail_msg("there is no row '%s'", name);
    return NULL;
}

static void assert_text(const json_t *row, const char *key, const char *part)
{
    const char *text = json_string_value(json_object_get(row, key));
    if (part && !(text && strstr(text, part)))
        fail_msg("%s of '%s': '%s' lacks '%s'", key, json_string_value(json_object_get(row, "name")),
                 text ? text : "null", part);
}

void row_assert(const json_t *rows, const char *name, enum check_status status, const char *value, const char *remedy)
{
    const json_t *row = row_of(rows, name);
    const char *text = json_string_value(json_object_get(row, "status"));
    if (strcmp(text, check_status_text(status)) != 0)
        fail_msg("'%s' is %s instead of %s: %s", name, text, check_status_text(status),
                 json_string_value(json_object_get(row, "value")));
    assert_text(row, "value", value);
    assert_text(row, "remedy", remedy);
    assert_true(json_is_string(json_object_get(row, "expected")));
    if (status >= CHECK_WARNING) assert_true(json_is_string(json_object_get(row, "remedy")));
    if (status == CHECK_OK) assert_true(json_is_null(json_object_get(row, "remedy")));
}
