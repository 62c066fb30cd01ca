/* SPDX-License-Identifier: Apache-2.0 */
/* Finds gda-nic in installed trees, which may have been moved, and in build trees. */
#include "net/gda/program.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the folder of the library: lib, lib/ARCHITECTURE, lib64; and from that of a program, bin. */
static const char *const places[] = {"expar/gda-nic", "../expar/gda-nic", "../lib/expar/gda-nic"};

/* Writes the folder of the file that this code was loaded from. Programs may be known by the name with which they were
   started, which has no folder. */
static bool find_folder(char folder[PATH_MAX])
{
    Dl_info info;
    const bool is_whole = dladdr(places, &info) && info.dli_fname && info.dli_fname[0] == '/';
    if (!realpath(is_whole ? info.dli_fname : "/proc/self/exe", folder)) return false;
    char *name = strrchr(folder, '/');
    if (name) *name = '\0';
    return name != NULL;
}

static bool is_program(const char *path)
{
    return access(path, X_OK) == 0;
}

expar_status gda_find_program(char path[PATH_MAX])
{
    char folder[PATH_MAX];
    const char *named = env_string("EXPAR_GDA_NIC_PROGRAM");
    if (named) {
        snprintf(path, PATH_MAX, "%s", named);
        return EXPAR_OK; /* a wrong one is noticed when it is started */
    }
    if (!find_folder(folder)) return error_errno("gda: the folder of the library is not known");
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        const int bytes = snprintf(path, PATH_MAX, "%s/%s", folder, places[i]);
        if (bytes < PATH_MAX && is_program(path)) return EXPAR_OK;
    }
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "gda: EXPAR_GDA_NIC=process: there is no program gda-nic at %s, %s or %s of %s; "
                     "EXPAR_GDA_NIC_PROGRAM names another path",
                     places[0], places[1], places[2], folder);
}
