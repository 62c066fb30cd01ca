/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers at the rendezvous while a group forms: they are dropped, and the group forms. */
#include "boot/crew.h"
#include "boot/meet/peer.h"
#include "boot/unit.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 4

typedef struct scene {
    expar_unique_id id;
    int start[2]; /* pipe: ranks join when its writing end is closed */
} scene;

static expar_status wait_and_join(int32_t rank, void *context)
{
    const scene *self = context;
    char byte;
    boot *group;
    boot_request request = crew_request(&self->id, rank, SIZE);
    close(self->start[1]);
    BODY_CHECK(rank < 2 || read(self->start[0], &byte, 1) == 0);
    BODY_OK(boot_join_sockets(&request, &group));
    BODY_OK(group->ops->barrier(group));
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* Half of the ranks are inside, the stranger does its worst, then the others come. */
static void form_group_around(void (*stranger)(const expar_unique_id *id))
{
    scene self;
    crew ranks;
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    assert_int_equal(pipe2(self.start, O_CLOEXEC), 0);
    crew_start(&ranks, SIZE, wait_and_join, &self);
    close(self.start[0]);
    stranger(&self.id);
    close(self.start[1]);
    crew_finish(&ranks);
    crew_assert_ok(&ranks);
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
}

static void send_bytes(int fd, const void *data, size_t bytes)
{
    size_t moved = 0;
    assert_int_equal(wire_push(fd, data, bytes, &moved), WIRE_DONE);
}

static int connect_to(const expar_unique_id *id)
{
    int fd = peer_connect(id);
    assert_true(fd >= 0);
    return fd;
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */

static void knock_with_wrong_secret(const expar_unique_id *id)
{
    expar_unique_id other;
    unique_id_parts parts;
    assert_int_equal(unique_id_unpack(id, &parts), EXPAR_OK);
    parts.secret[15] ^= 1;
    unique_id_pack(&parts, &other);
    int fd = connect_to(&other);
    assert_false(peer_prove(fd, &other));
    assert_true(peer_await_close(fd));
    wire_close(&fd);

    /* It learns that when it connects as members do. */
    boot *group = NULL;
    boot_request request = crew_request(&other, 3, SIZE);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_AUTH);
    assert_non_null(strstr(expar_last_error(), "same secret"));
    assert_null(group);
}

static void wrong_secret(void **state)
{
    (void)state;
    form_group_around(knock_with_wrong_secret);
}

static void send_garbage(const expar_unique_id *id)
{
    unsigned char garbage[4096];
    int fd = connect_to(id);
    randombytes_buf(garbage, sizeof garbage);
    send_bytes(fd, garbage, sizeof garbage);
    assert_true(peer_await_close(fd));
    wire_close(&fd);
    fd = connect_to(id);
    send_bytes(fd, "GET / HTTP/1.1\r\nHost: rendezvous\r\nAccept: everything there is to be had\r\n\r\n", 76);
    assert_true(peer_await_close(fd));
    wire_close(&fd);
}

static void garbage(void **state)
{
    (void)state;
    form_group_around(send_garbage);
}

/* A proof sent back to its author is none. */
static void reflect(const expar_unique_id *id)
{
    unsigned char theirs[AUTH_NONCE_BYTES + AUTH_PROOF_BYTES];
    size_t moved = 0;
    int fd = connect_to(id);
    for (size_t part = AUTH_NONCE_BYTES; part <= sizeof theirs; part += AUTH_PROOF_BYTES) {
        size_t from = moved;
        while (wire_pull(fd, theirs, part, &moved) == WIRE_AGAIN)
            assert_true(wire_wait(fd, POLLIN, clock_ns() + PEER_WAIT_NS));
        assert_int_equal(moved, part);
        send_bytes(fd, theirs + from, part - from);
    }
    assert_true(peer_await_close(fd));
    wire_close(&fd);
}

static void reflected_proof(void **state)
{
    (void)state;
    form_group_around(reflect);
}

static void send_half(const expar_unique_id *id)
{
    unsigned char nonce[AUTH_NONCE_BYTES / 2] = {1, 2, 3};
    int half_nonce = connect_to(id);
    send_bytes(half_nonce, nonce, sizeof nonce);
    wire_close(&half_nonce);
    /* Knows the secret, then sends half a greeting and goes. */
    int half_hello = connect_to(id);
    handshake greeting = peer_handshake(2, SIZE);
    wire_header header = {.kind = WIRE_HANDSHAKE, .bytes = sizeof greeting};
    assert_true(peer_prove(half_hello, id));
    send_bytes(half_hello, &header, sizeof header);
    send_bytes(half_hello, &greeting, sizeof greeting / 2);
    wire_close(&half_hello);
}

static void half_a_message(void **state)
{
    (void)state;
    form_group_around(send_half);
}

static void send_lengths(const expar_unique_id *id)
{
    static const uint32_t lengths[] = {HANDSHAKE_LIMIT_BYTES + 1, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++) {
        wire_header header = {.kind = WIRE_HANDSHAKE, .bytes = lengths[i]};
        int fd = connect_to(id);
        assert_true(peer_prove(fd, id));
        send_bytes(fd, &header, sizeof header);
        assert_true(peer_await_close(fd));
        wire_close(&fd);
    }
}

static void lengths_over_the_limit(void **state)
{
    (void)state;
    form_group_around(send_lengths);
}

static void send_out_of_place(const expar_unique_id *id)
{
    static const wire_kind kinds[] = {WIRE_STANDS, WIRE_TABLE, WIRE_REJECTED, (wire_kind)999};
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
        int fd = connect_to(id);
        assert_true(peer_prove(fd, id));
        assert_int_equal(wire_send_frame(fd, kinds[i], "x", 1, clock_ns() + PEER_WAIT_NS), WIRE_DONE);
        assert_true(peer_await_close(fd));
        wire_close(&fd);
    }
}

static void frames_out_of_place(void **state)
{
    (void)state;
    form_group_around(send_out_of_place);
}

static void scan(const expar_unique_id *id)
{
    for (int i = 0; i < 300; i++) {
        int fd = connect_to(id);
        wire_close(&fd);
    }
}

static void port_scan(void **state)
{
    (void)state;
    form_group_around(scan);
}

static int idle[200];
/* The rendezvous is a thread of this process. It holds at most so many connections that are no ranks'. */
enum { MOST_HELD = 128 };

static int count_descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    assert_non_null(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* One that comes after them proves the secret: then all of them have been accepted. */
static void stay_silent(const expar_unique_id *id)
{
    const int before = count_descriptors();
    for (size_t i = 0; i < ARRAY_LENGTH(idle); i++)
        idle[i] = connect_to(id);
    int known = connect_to(id);
    assert_true(peer_prove(known, id));
    assert_in_range(count_descriptors() - before - (int)ARRAY_LENGTH(idle) - 1, 1, MOST_HELD + SIZE);
    wire_close(&known);
}

/* More than are let in: the oldest give way, and ranks still get through. */
static void silent_connections(void **state)
{
    (void)state;
    form_group_around(stay_silent);
    for (size_t i = 0; i < ARRAY_LENGTH(idle); i++)
        wire_close(&idle[i]);
}

/* A silent one is dropped by time alone. */
static void silence_ends(void **state)
{
    (void)state;
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    int stranger = connect_to(&id), known = connect_to(&id);
    assert_true(peer_prove(known, &id));
    assert_true(peer_await_close(stranger));
    assert_true(peer_await_close(known));
    wire_close(&stranger);
    wire_close(&known);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* A peer must not take a server for real that does not know the secret. */
static void false_rendezvous(void **state)
{
    (void)state;
    expar_unique_id real, fake;
    unique_id_parts parts;
    boot *group = NULL;
    assert_int_equal(expar_unique_id_create(&real), EXPAR_OK);
    assert_int_equal(unique_id_unpack(&real, &parts), EXPAR_OK);
    memset(parts.secret, 7, sizeof parts.secret);
    unique_id_pack(&parts, &fake);
    boot_request request = crew_request(&fake, 0, 2);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_AUTH);
    assert_int_equal(expar_unique_id_retire(&real), EXPAR_OK);
    request.id = real;
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_BOOTSTRAP);
    assert_non_null(strstr(expar_last_error(), "nobody serves the unique id at tcp:127.0.0.1:"));
    assert_null(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_secret),
        cmocka_unit_test(garbage),
        cmocka_unit_test(reflected_proof),
        cmocka_unit_test(half_a_message),
        cmocka_unit_test(lengths_over_the_limit),
        cmocka_unit_test(frames_out_of_place),
        cmocka_unit_test(port_scan),
        cmocka_unit_test(silent_connections),
        cmocka_unit_test(silence_ends),
        cmocka_unit_test(false_rendezvous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
