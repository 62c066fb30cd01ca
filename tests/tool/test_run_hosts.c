/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts, and orders for their agents, right and wrong. */
#include "run/hosts.h"
#include <expar/info.h>
#include <expar/status.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void lists_are_read(void **state)
{
    (void)state;
    struct job_hosts hosts;
    char why[HOSTS_WHY];
    int ranks = 6;
    assert_true(hosts_parse("a,user@b,10.0.0.1", &ranks, &hosts, why));
    assert_int_equal(hosts.count, 3);
    assert_string_equal(hosts.list[1].name, "user@b");
    assert_int_equal(hosts.list[1].first, 2);
    assert_int_equal(hosts.list[2].ranks, 2);
    hosts_free(&hosts);
    ranks = 0;
    assert_true(hosts_parse("[fd00::1]:3,b:1", &ranks, &hosts, why));
    assert_int_equal(ranks, 4);
    assert_string_equal(hosts.list[0].name, "fd00::1");
    assert_int_equal(hosts.list[1].first, 3);
    hosts_free(&hosts);
}

static void wrong_lists_are_rejected(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ranks;
        const char *says;
    } cases[] = {
        {"", 2, "'': a host"},
        {"a,,b", 3, "'': a host"},
        {"-oProxyCommand=sh", 1, "'-oProxyCommand=sh'"},
        {"a;b", 1, "'a;b'"},
        {"a b", 1, "'a b'"},
        {"$(id)", 1, "'$(id)'"},
        {"a\033[2J", 1, "'a\\x1b[2J'"},
        {"a:0", 1, "'a:0'"},
        {"a:x", 1, "'a:x'"},
        {"a:65537", 0, "'a:65537'"},
        {"[fd00::1", 1, "'[fd00::1'"},
        {"[fd00::1]x", 1, "'[fd00::1]x'"},
        {"a,b,a", 3, "'a' is there twice"},
        {"a,b", 3, "2 hosts do not divide -n 3"},
        {"a,b", 0, "how many ranks?"},
        {"a:2,b", 4, "either all hosts have a count"},
        {"a:2,b:2", 5, "4 ranks together, and -n has 5"},
        {"a:4000,b:97", 0, "4097 ranks are more than 4096"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_hosts hosts;
        char why[HOSTS_WHY];
        int ranks = cases[i].ranks;
        const bool good = hosts_parse(cases[i].text, &ranks, &hosts, why);
        if (good || !strstr(why, cases[i].says))
            fail_msg("'%s': %s, '%s'; expected '%s'", cases[i].text, good ? "taken" : "rejected", why, cases[i].says);
    }
}

static void command_lines_are_quoted(void **state)
{
    (void)state;
    struct job_host host = {.name = "user@a"};
    struct job_hosts hosts = {.list = &host, .count = 1, .ssh = " ssh  -p 22 ", .expar = "/opt/it's here/expar"};
    char **words = hosts_command(&hosts, 0);
    static const char *const expected[] = {"ssh", "-p", "22", "user@a", "exec '/opt/it'\\''s here/expar' run-agent",
                                           NULL};
    for (size_t i = 0; expected[i]; i++)
        assert_string_equal(words[i], expected[i]);
    assert_null(words[5]);
    hosts_free_words(words);
}

static void orders_arrive_as_they_were_written(void **state)
{
    (void)state;
    char *const arguments[] = {"program", "", "two words", "\xff\n=", NULL};
    const char *const variables[] = {"NAME=a=b", "EMPTY="};
    const struct job ranks = {.num_ranks = 5,
                              .num_nodes = 5,
                              .bind = true,
                              .prefix = true,
                              .argv = arguments,
                              .variables = variables,
                              .num_variables = 2,
                              .log_folder = "logs"};
    struct job_host list[] = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 3, .first = 2}};
    const struct job_hosts hosts = {.list = list, .count = 2, .folder = "/some where", .ranks = &ranks};
    struct order order;
    char why[HOSTS_WHY], *text;
    setenv("EXPAR_RANK", "7", 1);
    setenv("EXPAR_LOG", "info", 1);
    const size_t bytes = order_write(&hosts, 1, "id", &text);
    assert_true(bytes > 0);
    assert_true(order_read(text, bytes, &order, why));
    assert_int_equal(order.job.first_rank, 2);
    assert_int_equal(order.job.num_ranks, 3);
    assert_int_equal(order.job.job_size, 5);
    assert_int_equal(order.job.num_nodes, 5);
    assert_true(order.job.bind && order.job.prefix && order.job.lifeline && !order.job.keep_going);
    assert_string_equal(order.job.unique_id, "id");
    assert_string_equal(order.folder, "/some where");
    assert_string_equal(order.job.log_folder, "logs");
    assert_string_equal(order.who, "expar run: host b");
    for (int i = 0; i < 4; i++)
        assert_string_equal(order.job.argv[i], arguments[i]);
    assert_null(order.job.argv[4]);
    bool log = false;
    for (size_t i = 0; i < order.job.num_variables; i++) {
        assert_int_not_equal(strncmp(order.job.variables[i], "EXPAR_RANK=", 11), 0);
        log = log || strcmp(order.job.variables[i], "EXPAR_LOG=info") == 0;
    }
    assert_true(log);
    assert_string_equal(order.job.variables[order.job.num_variables - 1], "EMPTY=");
    order_free(&order);
    free(text);
    unsetenv("EXPAR_RANK");
    unsetenv("EXPAR_LOG");
}

static void order_reject(const char *words, size_t bytes, const char *says)
{
    char *text = malloc(bytes), why[HOSTS_WHY];
    struct order order;
    memcpy(text, words, bytes);
    if (order_read(text, bytes, &order, why) || !strstr(why, says)) fail_msg("'%s' lacks '%s'", why, says);
    order_free(&order);
    free(text);
}

#define REJECT(words, says) order_reject(words "\0", sizeof(words "\0"), says)

static void wrong_orders_are_rejected(void **state)
{
    (void)state;
    REJECT("version=9.9.9", "has version 9.9.9 of expar");
    REJECT("ranks=0", "'ranks=0'");
    REJECT("ranks=70000", "'ranks=70000'");
    REJECT("bind=2", "'bind=2'");
    REJECT("sudo=\033[1m", "'sudo=\\x1b[1m'");
    order_reject("x", 1, "cut short");
    order_reject("version=1\0arg=x", 15, "cut short");
}

/* Each prefix of an order is too short, and is not read beyond its end. */
static void cut_orders_are_rejected(void **state)
{
    (void)state;
    char whole[256], why[HOSTS_WHY];
    const int bytes = snprintf(whole, sizeof whole, "version=%s%cid=x%cfirst=0%cranks=1%csize=1%cfolder=/%carg=y%c%c",
                               expar_version(), 0, 0, 0, 0, 0, 0, 0, 0);
    for (int cut = 0; cut <= bytes; cut++) {
        char *text = malloc((size_t)cut + 1);
        struct order order;
        memcpy(text, whole, (size_t)cut);
        assert_int_equal(order_read(text, (size_t)cut, &order, why), cut == bytes);
        order_free(&order);
        free(text);
    }
}

static void long_orders_are_not_written(void **state)
{
    (void)state;
    char *word = malloc(ORDER_MOST), *text = NULL;
    memset(word, 'x', ORDER_MOST);
    word[ORDER_MOST - 1] = 0;
    char *const arguments[] = {word, NULL};
    const struct job ranks = {.num_ranks = 1, .argv = arguments};
    struct job_host host = {.name = "a", .ranks = 1};
    const struct job_hosts hosts = {.list = &host, .count = 1, .folder = "/", .ranks = &ranks};
    assert_int_equal(order_write(&hosts, 0, "id", &text), 0);
    assert_null(text);
    free(word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(wrong_lists_are_rejected),
        cmocka_unit_test(command_lines_are_quoted),
        cmocka_unit_test(orders_arrive_as_they_were_written),
        cmocka_unit_test(wrong_orders_are_rejected),
        cmocka_unit_test(cut_orders_are_rejected),
        cmocka_unit_test(long_orders_are_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
