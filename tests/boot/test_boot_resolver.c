/* SPDX-License-Identifier: Apache-2.0 */
/* Names of hosts, with a simulated resolver: one that does not answer delays no caller beyond the deadline, or beyond
 * the program's interrupt. */
#include "base/interrupt.h"
#include "boot/unit.h"
#include "boot/wire/wire.h"
#include <expar/interrupt.h>

#include <netdb.h>
#include <semaphore.h>
#include <string.h>

static sem_t asked, answers, answered;

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    const bool held = strcmp(host, "held.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST);
    if (strcmp(host, "none.test") == 0) return EAI_NONAME;
    if (held) sem_post(&asked);
    while (held && sem_wait(&answers) != 0) {
    }
    if (held) sem_post(&answered);
    return __real_getaddrinfo(held ? "127.0.0.1" : host, port, hints, found);
}

/* Lets the resolver that was asked answer; the next one that is asked takes no answer of this one's. */
static void answer(void)
{
    sem_post(&answers);
    assert_int_equal(sem_wait(&answered), 0);
    assert_int_equal(sem_wait(&asked), 0);
}

/* Once the resolver has been asked. */
static int stop_when_asked(void *context)
{
    int waiting = 0;
    (void)context;
    return sem_getvalue(&asked, &waiting) == 0 && waiting > 0;
}

static void a_program_gives_up(void **state)
{
    (void)state;
    address where;
    expar_interrupt_set(stop_when_asked, NULL);
    interrupt_begin();
    expar_status status = address_parse("tcp:held.test:80", INT64_MAX, &where);
    assert_int_equal(interrupt_take(status, "joining"), EXPAR_ERR_INTERRUPTED);
    expar_interrupt_set(NULL, NULL);
    answer();
}

static void the_deadline_passes(void **state)
{
    (void)state;
    address where;
    assert_int_equal(address_parse("tcp:held.test:80", clock_ns() + 1000000, &where), EXPAR_ERR_BOOTSTRAP);
    assert_non_null(strstr(expar_last_error(), "\"held.test\" was not resolved in time"));
    answer();
}

static void a_name_is_resolved(void **state)
{
    (void)state;
    address where;
    char text[ADDRESS_TEXT];
    sem_post(&answers);
    assert_int_equal(address_parse("tcp:held.test:80", INT64_MAX, &where), EXPAR_OK);
    assert_int_equal(sem_wait(&answered), 0);
    assert_int_equal(sem_wait(&asked), 0);
    address_format(&where, text);
    assert_string_equal(text, "tcp:127.0.0.1:80");
    assert_int_equal(address_parse("tcp:none.test:80", INT64_MAX, &where), EXPAR_ERR_BOOTSTRAP);
    assert_non_null(strstr(expar_last_error(), "no address for host \"none.test\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_gives_up),
        cmocka_unit_test(the_deadline_passes),
        cmocka_unit_test(a_name_is_resolved),
    };
    sem_init(&asked, 0, 0);
    sem_init(&answers, 0, 0);
    sem_init(&answered, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
