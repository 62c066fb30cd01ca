/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to it. */
#ifndef EXPAR_PGAS_DEVICE_PARTS_H
#define EXPAR_PGAS_DEVICE_PARTS_H

#include "mem/device.h"
#include "pgas/device/handles.h"
#include "shmem/kernel_ways.h"
#include "shmem/kinds.h"
#include "shmem/rings.h"
#include "shmem/sym.h"
#include <expar/device.h>
#include <semaphore.h>

#define HANDLE_TEXT 384

/* ---- slot.c ------------------------------------------------------------------------------------------------------ */

/* The state of one handle. The process owns it and never frees it: a kernel may have a handle that has ended. The
   members down to report_address stay. A slot that is taken belongs to its group's handles, and their lock guards the
   members below. */
typedef struct handle_slot {
    /* in the process, from 0 */
    uint32_t number;
    /* -1: the CPU */
    int32_t gpu;
    /* ranks for which the state has entries */
    int32_t capacity;
    /* this GPU, which stays open; NULL: the CPU */
    cuda_device *device;
    /* the state, where kernels find it, and its size with the entries */
    cu_address state;
    uint64_t state_bytes;
    /* The host's copy of the state. On the CPU it is the state itself; for a GPU it is pinned, and the driver
       copies parts of it to the state. */
    expar_dev_state *image;
    cu_address image_address;
    expar_dev_report *report;
    cu_address report_address;

    /* Raised when a handle begins, and when it ends. Under the group's lock and the process's, so that either is enough
       to read it. */
    uint32_t generation;
    /* under the process's lock */
    bool taken;
    /* next of the group's */
    struct handle_slot *next;
    expar_device_handle handle;
    /* EXPAR_DEVICE_TRANSPORTS */
    kernel_ways ways;
    /* by which commands reach members of the handle's team that kernels do not map; NULL: there are none */
    const sym_rings *rings;
    /* the group's; used while the handle has not ended */
    sym *symmetric;
    /* Why a command has failed. The first thread whose command has failed writes it under the process's lock, before
       report->lost (release); others read it after that (acquire). */
    char lost_why[HANDLE_TEXT];
    /* NULL: the handle is for the group */
    const expar_team *team;
    const expar_ctx *ctx;
    /* Waits of kernels were ended, for the reason in `why`. Under the process's lock, too. */
    bool ended;
    char why[HANDLE_TEXT];
    /* A lasting wait of a kernel. Only the guard uses them. */
    boot_wait wait;
    bool waits;
    uint64_t awaits;
} handle_slot;

/* Gives a slot for kernels of that GPU (-1: the CPU) and so many ranks. Its image is all zero but for the mark, and is
   not published yet. EXPAR_ERR_LIMIT, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
expar_status slot_take(const char *what, int32_t gpu, int32_t ranks, handle_slot **out);
/* Returns the size of the entries for so many ranks. */
uint64_t slot_entries_bytes(int32_t ranks);
/* Copies [at, at + bytes) of the image to the state. */
expar_status slot_publish(const handle_slot *slot, const void *at, uint64_t bytes);
/* The handle ends: its calls do nothing from now on. The slot may be taken again. */
void slot_end(handle_slot *slot);
/* Says why waits of kernels end, and makes them end. */
void slot_end_waits(handle_slot *slot, expar_status status, const char *why);
/* Records that a command of the handle has failed, if it is the first one. The report's members of that name are given
   without `lost`. Any thread. */
void slot_lose(uint32_t number, uint32_t generation, const expar_dev_report *lost, const char *why);
/* Returns whether a command of the handle has failed. */
bool slot_has_lost(const handle_slot *slot);
/* Holds the process's lock; the slot with that number, or NULL. */
handle_slot *slot_find(uint32_t number);
void slot_done(void);

/* ---- table.c ----------------------------------------------------------------------------------------------------- */

/* Fills the image's heaps and entries as the group's memory is now. */
void table_fill(const expar_group *group, handle_slot *slot);
/* The same, and publishes what has changed. */
expar_status table_renew(const expar_group *group, handle_slot *slot);
/* Says where the words of the team's barrier are. */
void table_fill_sync(const expar_team *team, handle_slot *slot);

/* ---- queues.c ---------------------------------------------------------------------------------------------------- */

/* Fills the image's address of the queues to which kernels write requests, and publishes it if it is new. */
expar_status queues_fill(const sym *self, handle_slot *slot);
/* Returns whether kernels have such queues, which the settings allow. */
bool queues_are_there(const sym *self, const handle_slot *slot);
/* The same, and whether these queues carry data to the rank's memory; words: whether they carry its atomics. */
bool queues_reach(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank, bool words);
/* Returns whether one operation may overtake another one to the same rank. */
bool queues_have_no_order(const sym *self, const handle_slot *slot);
/* Writes the reason for an error with report->failure. */
void queues_say_failure(const handle_slot *slot, char *text, size_t text_bytes);

/* ---- ways.c ------------------------------------------------------------------------------------------------------ */

/* Gives the slot rings, if kernels do not reach some member of the team by mapped memory alone. They go to the state
   that the image holds. */
expar_status ways_open_rings(const expar_team *team, handle_slot *slot);
/* Returns how kernels reach data of the rank, and how atomics do; mapped: they access it by loads and stores. */
expar_dev_way ways_of_data(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank,
                           bool mapped);
expar_dev_way ways_of_atomics(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank,
                              bool mapped);

/* ---- handles.c, guard.c ------------------------------------------------------------------------------------------ */

typedef struct launched launched;
/* All handles of a group. */
typedef struct handles {
    group_attachment attachment;
    expar_group *group;
    pthread_mutex_t lock;
    /* guarded by the lock */
    handle_slot *first;
    /* kernels of expar_launch that may run, and places for later ones */
    launched *launches, *unused;
    /* The guard's thread runs from the first handle on, until the group's end. */
    pthread_t thread;
    bool runs;
    /* One thread at a time waits for the rings. */
    pthread_mutex_t quiet;
    /* Set before `wake` is posted; the guard reads it after that. */
    atomic_bool closing;
    /* Posted when the group fails or ends. */
    sem_t wake;
    sym_listener listener;
} handles;

/* Gives the group's handles, and makes them at the first call. EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM. */
expar_status handles_open(const char *what, expar_group *group, handles **out);
/* Takes over a slot whose state is published. */
void handles_add(handles *all, handle_slot *slot);

/* The group's handles; NULL: there are none. */
handles *handles_of(const expar_group *group);

expar_status guard_start(handles *all);
void guard_stop(handles *all);

/* ---- launched.c -------------------------------------------------------------------------------------------------- */

/* The first two enclose a launch; the device is entered. launched_begin announces it to the rings. false: there are
   none for it, and launched_end is not called. launched_end gets the status of the launch. */
bool launched_begin(handles *all, void *stream);
void launched_end(handles *all, void *stream, expar_status status);
/* Tells the rings of kernels that have ended. Only the guard calls it, with the lock. */
void launched_look(handles *all);
/* Frees all of it; the guard has stopped. */
void launched_free(handles *all);

#endif
