/* SPDX-License-Identifier: Apache-2.0 */
/* Links. Data is there after its flag and after a fence, sources are free when that is said, words are fetched, and
 * operations of transports are counted. A rank that sends to one that has gone is told so. On mapped memory, by
 * transports alone, also by one that delays and reorders, and over a network. */
#include "link/link.h"
#include "oracle/random.h"
#include "shmem/kind.h"

#include <sys/mman.h>

#define RANKS             4
#define LETTERS           24 /* of a rank to each other in a round */
#define ROUNDS            3
#define MOST_BYTES        9000 /* more than a transport stages */
#define SPARE_SPACE_BYTES (MOST_BYTES + sizeof(uint64_t))

/* In each rank's heap: a letter of each other's, and the flag after it, which for some is at the end of its slot. */
typedef struct mailbox {
    expar_group *group;
    uint64_t letters, flags; /* offsets: [RANKS][LETTERS][SPARE_SPACE_BYTES] and [RANKS][LETTERS] words */
    link_counts counts;
    link_peer peers[RANKS];
    uint8_t *sources; /* [RANKS][LETTERS][SPARE_SPACE_BYTES] */
} mailbox;

static uint64_t place_of(int32_t from, int32_t letter)
{
    return (uint64_t)(from * LETTERS + letter);
}

static uint64_t letter_at(const mailbox *m, int32_t from, int32_t letter)
{
    return m->letters + place_of(from, letter) * SPARE_SPACE_BYTES;
}

/* One in five ends with its flag. */
static bool is_flagged(int32_t letter)
{
    return letter % 5 == 4;
}

static uint64_t flag_at(const mailbox *m, int32_t from, int32_t letter)
{
    if (is_flagged(letter)) return letter_at(m, from, letter) + MOST_BYTES;
    return m->flags + place_of(from, letter) * sizeof(uint64_t);
}

static uint64_t word_of(int32_t round)
{
    return (uint64_t)(round + 1) << 32 | (uint32_t)~round;
}

static bool mailbox_open(mailbox *m, expar_group *group, bool unmapped)
{
    const uint64_t letters = (uint64_t)RANKS * LETTERS, bytes = letters * SPARE_SPACE_BYTES;
    *m = (mailbox){.group = group, .sources = malloc(bytes)};
    if (!CHECK_OK(sym_take(group->sym, "mailbox", bytes + letters * sizeof(uint64_t), 64, &m->letters))) return false;
    m->flags = m->letters + bytes;
    sym_clear(group->sym, m->letters, bytes + letters * sizeof(uint64_t));
    for (int32_t pe = 0; pe < group->size; pe++)
        if (!CHECK_OK(link_open(group->sym, pe, unmapped, &m->counts, &m->peers[pe]))) return false;
    return CHECK_OK(expar_group_barrier(group));
}

static void mailbox_close(mailbox *m)
{
    CHECK_OK(sym_give(m->group->sym, "mailbox", m->letters));
    free(m->sources);
}

/* ---- letters ----------------------------------------------------------------------------------------------------- */

/* Bytes of a letter: small ones, some that no transport stages whole, and some of none. */
static size_t length_of(int32_t letter, int32_t round)
{
    return (size_t)((letter * 977 + round * 311) % 7 == 0 ? 0 : 1 + (letter * 2741 + round * 1237) % (MOST_BYTES - 1));
}

/* Where its bytes begin: those of a letter that ends with its flag are right before that. */
static uint64_t text_at(const mailbox *m, int32_t from, int32_t letter, int32_t round)
{
    return letter_at(m, from, letter) + (is_flagged(letter) ? MOST_BYTES - length_of(letter, round) : 0);
}

static void write_letter(uint8_t *at, int32_t from, int32_t to, int32_t letter, int32_t round)
{
    random_source random = random_start((uint64_t)(((from * RANKS + to) * LETTERS + letter) * ROUNDS + round));
    for (size_t i = 0; i < length_of(letter, round); i++)
        at[i] = (uint8_t)random_bits(&random);
}

/* If a flag may come in pieces only its upper half is read, until it is there. */
static void await_flag(const mailbox *m, int32_t from, int32_t letter, uint64_t word)
{
    sym *self = m->group->sym;
    const _Atomic uint64_t *flag = sym_at(self, self->rank, flag_at(m, from, letter));
    sym_rest rest = sym_rest_begin(self, "a letter");
    expar_status status = EXPAR_OK;
    while (atomic_load_explicit(flag, memory_order_acquire) >> 32 != word >> 32 && status == EXPAR_OK)
        status = sym_rest_turn(&rest);
    sym_rest_end(&rest);
    CHECK_OK(status);
    CHECK(atomic_load_explicit(flag, memory_order_relaxed) == word, "letter %d of rank %d: its flag", letter, from);
}

static void check_letter(const mailbox *m, int32_t from, int32_t letter, int32_t round)
{
    static _Thread_local uint8_t expected[MOST_BYTES];
    const uint8_t *came = sym_at(m->group->sym, m->group->rank, text_at(m, from, letter, round));
    write_letter(expected, from, m->group->rank, letter, round);
    CHECK(memcmp(came, expected, length_of(letter, round)) == 0, "letter %d of rank %d in round %d has other bytes",
          letter, from, round);
}

/* One in three is copied: its source is made another one at once. */
static void send_letter(mailbox *m, int32_t to, int32_t letter, int32_t round, link_batch *batch)
{
    uint8_t *source = m->sources + place_of(to, letter) * SPARE_SPACE_BYTES;
    const size_t length = length_of(letter, round);
    const link_flag flag = {.offset = flag_at(m, m->group->rank, letter), .word = word_of(round)};
    link_data data = {.offset = text_at(m, m->group->rank, letter, round),
                      .source = source,
                      .bytes = length,
                      .copies = letter % 3 == 0};
    write_letter(source, m->group->rank, to, letter, round);
    if (is_flagged(letter)) {
        data.bytes += sizeof flag.word;
        memcpy(source + length, &flag.word, sizeof flag.word);
        CHECK_OK(link_put_flag(&m->peers[to], &data, NULL, batch));
    } else {
        CHECK_OK(link_put_flag(&m->peers[to], &data, &flag, batch));
    }
    if (data.copies) memset(source, 0xa5, SPARE_SPACE_BYTES);
}

static void send_round(mailbox *m, int32_t round)
{
    link_batch batch = {0};
    for (int32_t letter = 0; letter < LETTERS; letter++)
        for (int32_t to = 0; to < m->group->size; to++)
            send_letter(m, to, letter, round, &batch);
    for (int32_t from = 0; from < m->group->size; from++)
        for (int32_t letter = LETTERS - 1; letter >= 0; letter--) {
            await_flag(m, from, letter, word_of(round));
            check_letter(m, from, letter, round);
        }
    CHECK_OK(link_quiet(m->group->sym, &batch));
    CHECK(link_is_quiet(&batch), "something is under way behind a quiet");
    CHECK_OK(expar_group_barrier(m->group)); /* all have read: the next round writes over it */
}

/* Operations of transports: all letters to peers that are not mapped, one message each, or one flag where a letter has
   no bytes. */
static void check_counts(const mailbox *m)
{
    uint64_t messages = 0, flags = 0, bytes = 0;
    for (int32_t to = 0; to < m->group->size; to++)
        for (int32_t round = 0; round < ROUNDS && !m->peers[to].mapped; round++)
            for (int32_t letter = 0; letter < LETTERS; letter++) {
                const size_t length = length_of(letter, round);
                messages += length > 0;
                flags += length == 0;
                bytes += length + sizeof(uint64_t);
            }
    CHECK(m->counts.messages == messages && m->counts.flags == flags && m->counts.bytes == bytes,
          "counted %llu messages, %llu flags, %llu bytes; expected %llu, %llu, %llu",
          (unsigned long long)m->counts.messages, (unsigned long long)m->counts.flags,
          (unsigned long long)m->counts.bytes, (unsigned long long)messages, (unsigned long long)flags,
          (unsigned long long)bytes);
}

static void trial_letters(expar_group *group, bool unmapped)
{
    mailbox m;
    if (!mailbox_open(&m, group, unmapped)) return;
    for (int32_t pe = 0; pe < group->size && unmapped; pe++)
        CHECK(!link_at(&m.peers[pe], 0) == (pe != group->rank), "rank %d is mapped, or this one is not", pe);
    for (int32_t round = 0; round < ROUNDS; round++)
        send_round(&m, round);
    check_counts(&m);
    mailbox_close(&m);
}

static void letters_as_found(expar_group *group, void *shared)
{
    (void)shared;
    trial_letters(group, false);
}

static void letters_unmapped(expar_group *group, void *shared)
{
    (void)shared;
    trial_letters(group, true);
}

static void test_data_is_there_after_its_flag(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, letters_as_found);
}

static void test_transports_alone(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, letters_unmapped);
}

/* ---- fences ------------------------------------------------------------------------------------------------------ */

/* Puts without flags, a fence, and one flag that stands for all of them. */
static void fence_once(mailbox *m, int32_t round)
{
    const int32_t rank = m->group->rank, size = m->group->size;
    const int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    link_batch batch = {0};
    for (int32_t letter = 0; letter < LETTERS; letter++) {
        uint8_t *source = m->sources + place_of(0, letter) * SPARE_SPACE_BYTES;
        const link_data data = {
            .offset = text_at(m, rank, letter, round), .source = source, .bytes = length_of(letter, round)};
        write_letter(source, rank, next, letter, round);
        CHECK_OK(link_put(&m->peers[next], &data, &batch));
    }
    const link_flag flag = {.offset = flag_at(m, rank, 0), .word = word_of(round)};
    CHECK_OK(link_fence(&m->peers[next], &batch));
    CHECK_OK(link_set_flag(&m->peers[next], &flag, &batch));
    await_flag(m, before, 0, word_of(round));
    for (int32_t letter = 0; letter < LETTERS; letter++)
        check_letter(m, before, letter, round);
    CHECK_OK(link_quiet(m->group->sym, &batch));
    CHECK_OK(expar_group_barrier(m->group));
}

static void fence_letters(expar_group *group, void *shared)
{
    (void)shared;
    for (int32_t unmapped = 0; unmapped < 2; unmapped++) {
        mailbox m;
        if (!mailbox_open(&m, group, unmapped)) return;
        for (int32_t round = 0; round < ROUNDS; round++)
            fence_once(&m, round);
        mailbox_close(&m);
    }
}

static void test_a_fence_orders(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, fence_letters);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* The last one has the bytes of a letter; what goes ahead of it is mostly few bytes. */
static size_t piece_bytes(int32_t piece, int32_t round)
{
    return piece == LINK_MOST_PIECES - 1 ? length_of(4, round) : (size_t)(piece * 32 + round * round * 1000);
}

static int32_t letter_of_piece(int32_t piece)
{
    return 4 + 5 * piece; /* is_flagged */
}

static uint8_t piece_byte(int32_t from, int32_t to, int32_t piece, int32_t round, size_t i)
{
    return (uint8_t)(17 * from + 29 * to + 43 * piece + 71 * round + (int32_t)(i % 251));
}

static void send_pieces(mailbox *m, int32_t to, int32_t round, bool ordered, link_batch *batches)
{
    const int32_t rank = m->group->rank;
    const uint64_t word = word_of(round);
    link_piece pieces[LINK_MOST_PIECES];
    for (int32_t p = 0; p < LINK_MOST_PIECES; p++) {
        const size_t bytes = piece_bytes(p, round);
        uint8_t *source = m->sources + place_of(to, p) * SPARE_SPACE_BYTES;
        pieces[p] = (link_piece){.data = {.offset = flag_at(m, rank, letter_of_piece(p)) - bytes,
                                          .source = source,
                                          .bytes = bytes + sizeof word,
                                          .copies = p < LINK_MOST_PIECES - 1,
                                          .ordered = ordered},
                                 .batch = &batches[p]};
        for (size_t i = 0; i < bytes; i++)
            source[i] = piece_byte(rank, to, p, round, i);
        memcpy(source + bytes, &word, sizeof word);
    }
    CHECK_OK(link_put_pieces(&m->peers[to], pieces, LINK_MOST_PIECES));
    for (int32_t p = 0; p < LINK_MOST_PIECES - 1; p++)
        memset(m->sources + place_of(to, p) * SPARE_SPACE_BYTES, 0xa5, SPARE_SPACE_BYTES);
}

static void check_piece(const mailbox *m, int32_t from, int32_t piece, int32_t round)
{
    const size_t bytes = piece_bytes(piece, round);
    size_t wrong = 0;
    await_flag(m, from, letter_of_piece(piece), word_of(round));
    sym_behold(m->group->sym);
    const uint8_t *came = sym_at(m->group->sym, m->group->rank, flag_at(m, from, letter_of_piece(piece)) - bytes);
    for (size_t i = 0; i < bytes; i++)
        wrong += came[i] != piece_byte(from, m->group->rank, piece, round, i);
    CHECK(wrong == 0, "piece %d of rank %d in round %d has %zu other bytes", piece, from, round, wrong);
}

static void trial_pieces(mailbox *m, int32_t round, bool ordered)
{
    link_batch batches[RANKS][LINK_MOST_PIECES] = {0};
    for (int32_t to = 0; to < m->group->size; to++)
        send_pieces(m, to, round, ordered, batches[to]);
    for (int32_t from = 0; from < m->group->size; from++)
        for (int32_t p = LINK_MOST_PIECES - 1; p >= 0; p--)
            check_piece(m, from, p, round);
    for (int32_t to = 0; to < m->group->size; to++)
        for (int32_t p = 0; p < LINK_MOST_PIECES; p++)
            CHECK_OK(link_quiet(m->group->sym, &batches[to][p]));
    CHECK_OK(expar_group_barrier(m->group));
}

static void put_pieces(expar_group *group, void *shared)
{
    (void)shared;
    for (int32_t kind = 0; kind < 4; kind++) {
        mailbox m;
        if (!mailbox_open(&m, group, kind & 1)) return;
        for (int32_t round = 0; round < ROUNDS; round++)
            trial_pieces(&m, round, kind & 2);
        mailbox_close(&m);
    }
}

static void test_pieces_come_with_their_flags(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, put_pieces);
}

/* ---- words that their ranks store themselves --------------------------------------------------------------------- */

/* Each rank's own word of the round, by all others at a time. */
static void fetch_once(mailbox *m, int32_t round)
{
    const int32_t rank = m->group->rank;
    uint64_t words[RANKS] = {0};
    link_batch batch = {0};
    _Atomic uint64_t *own = sym_at(m->group->sym, rank, flag_at(m, rank, 1));
    atomic_store_explicit(own, word_of(round) + (uint64_t)rank, memory_order_release);
    CHECK_OK(expar_group_barrier(m->group));
    for (int32_t pe = 0; pe < m->group->size; pe++)
        CHECK_OK(link_fetch(&m->peers[pe], flag_at(m, pe, 1), &words[pe], &batch));
    CHECK_OK(link_quiet(m->group->sym, &batch));
    for (int32_t pe = 0; pe < m->group->size; pe++)
        CHECK(words[pe] == word_of(round) + (uint64_t)pe, "round %d: the word of rank %d", round, pe);
    CHECK_OK(expar_group_barrier(m->group));
}

static void fetch_words(expar_group *group, void *shared)
{
    (void)shared;
    for (int32_t unmapped = 0; unmapped < 2; unmapped++) {
        mailbox m;
        if (!mailbox_open(&m, group, unmapped)) return;
        for (int32_t round = 0; round < ROUNDS; round++)
            fetch_once(&m, round);
        mailbox_close(&m);
    }
}

static void test_words_are_fetched(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, fetch_words);
}

/* ---- as calls of the program use them ---------------------------------------------------------------------------- */

/* Without a batch: what goes by a ring, where the rank has proxies, and else by transports. */
static link_peer call_link(const mailbox *m, int32_t pe)
{
    link_peer peer;
    CHECK_OK(link_reach(m->group->sym, pe, TRANSPORT_HOST, LINK_DATA | LINK_WORDS, "a call", &peer));
    peer.proxy = sym_proxy_for(m->group->sym, pe);
    return peer;
}

static void call_send(mailbox *m, int32_t to, int32_t round)
{
    const link_peer peer = call_link(m, to);
    uint8_t *source = m->sources + place_of(to, 0) * SPARE_SPACE_BYTES;
    const link_data data = {
        .offset = letter_at(m, m->group->rank, 0), .source = source, .bytes = length_of(1, round) + 8};
    const link_flag flag = {.offset = m->flags, .word = 1 + (uint64_t)m->group->rank, .adds = true};
    memset(source, 1 + m->group->rank * ROUNDS + round, data.bytes);
    CHECK_OK(link_put_flag(&peer, &data, &flag, NULL));
    const link_data more = {
        .offset = letter_at(m, m->group->rank, 1), .source = source, .bytes = data.bytes, .copies = round == 1};
    CHECK_OK(round == 2 ? link_put_now(&peer, &more) : link_put(&peer, &more, NULL));
}

static bool is_all(const uint8_t *at, size_t bytes, int value)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (uint8_t)value) return false;
    return true;
}

/* Data that this rank has sent to `to` is there, and is got back; its words are changed. */
static void call_look(mailbox *m, int32_t to, int32_t round)
{
    const link_peer peer = call_link(m, to);
    const size_t bytes = length_of(1, round) + 8;
    uint8_t *back = m->sources + place_of(to, 1) * SPARE_SPACE_BYTES,
            *again = m->sources + place_of(to, 2) * SPARE_SPACE_BYTES;
    uint64_t old[2] = {0};
    link_change change = {.op = TRANSPORT_ADD,
                          .bytes = sizeof old[0],
                          .operand = 1,
                          .offset = m->flags + (1 + (uint64_t)m->group->rank) * sizeof(uint64_t),
                          .old = &old[0]};
    CHECK_OK(link_get(&peer, back, letter_at(m, m->group->rank, 0), bytes, NULL));
    CHECK_OK(link_get_now(&peer, again, letter_at(m, m->group->rank, 1), bytes));
    CHECK_OK(link_change_word(&peer, &change, NULL));
    CHECK_OK(sym_quiet(m->group->sym));
    change.old = &old[1];
    CHECK_OK(link_change_now(&peer, &change));
    CHECK(old[0] == 2 * (uint64_t)round && old[1] == old[0] + 1, "round %d: a word of rank %d", round, to);
    const int value = 1 + m->group->rank * ROUNDS + round;
    CHECK(is_all(back, bytes, value) && is_all(again, bytes, value), "round %d: what came back from rank %d", round,
          to);
}

static void trial_calls(expar_group *group, void *shared)
{
    mailbox m;
    (void)shared;
    if (!mailbox_open(&m, group, false)) return;
    const uint64_t each = (uint64_t)group->size * ((uint64_t)group->size + 1) / 2;
    const _Atomic uint64_t *sum = sym_at(group->sym, group->rank, m.flags);
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (int32_t to = 0; to < group->size; to++)
            call_send(&m, to, round);
        CHECK_OK(sym_quiet(group->sym));
        CHECK_OK(expar_group_barrier(group));
        CHECK(atomic_load_explicit(sum, memory_order_acquire) == each * (uint64_t)(round + 1),
              "round %d: signals add up", round);
        for (int32_t to = 0; to < group->size; to++)
            call_look(&m, to, round);
        CHECK_OK(expar_group_barrier(group));
    }
    mailbox_close(&m);
}

static void test_calls_of_the_program(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial_calls);
}

/* ---- the gone ---------------------------------------------------------------------------------------------------- */

/* One flag to the peer, and the wait for it. */
static expar_status tell(mailbox *m, int32_t pe, int32_t letter)
{
    link_batch batch = {0};
    const link_data data = {.offset = letter_at(m, 0, letter), .source = m->sources, .bytes = 64};
    const link_flag flag = {.offset = flag_at(m, 0, letter), .word = 1};
    expar_status status = link_put_flag(&m->peers[pe], &data, &flag, &batch);
    if (status == EXPAR_OK) status = link_quiet(m->group->sym, &batch);
    if (status != EXPAR_OK) CHECK_TEXT("rank 1");
    CHECK_OK(link_quiet(m->group->sym, &batch)); /* a failure is told once */
    CHECK(link_is_quiet(&batch), "something is under way behind a quiet");
    return status;
}

/* 1: rank 0 has told rank 2. In memory of all ranks, whatever they are. */
static _Atomic int *told;

/* Over a network it is noticed that rank 1 has gone; on memory of this host nobody sees that. */
static void tell_the_gone(mailbox *m)
{
    const bool network = m->peers[1].data->ops->progress;
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    expar_status status = EXPAR_OK;
    while (network && status == EXPAR_OK && ranks_clock_ms() < end_ms) {
        status = tell(m, 1, 0);
        CHECK_OK(tell(m, 2, 0));
    }
    if (network) CHECK_STATUS(EXPAR_ERR_PEER, status);
    CHECK_OK(tell(m, 2, 1));
    atomic_store(told, 1);
}

/* Its group has failed by then, so it looks without a wait of the library's. It stays until the other one is out of its
   call, which would else find that this one, too, has gone. */
static void stay_until_told(const mailbox *m)
{
    const _Atomic uint64_t *flag = sym_at(m->group->sym, 2, flag_at(m, 0, 1));
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while ((atomic_load(flag) == 0 || atomic_load(told) == 0) && ranks_clock_ms() < end_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(atomic_load(flag) == 1, "rank 0 has told nothing");
}

/* Rank 1 leaves without a word. What rank 0 sends to it from then on fails; what it sends to another one does not. */
static void send_to_the_gone(expar_group *group, void *shared)
{
    mailbox m;
    (void)shared;
    if (mailbox_open(&m, group, true)) {
        memset(m.sources, 1, SPARE_SPACE_BYTES);
        if (group->rank == 0) tell_the_gone(&m);
        if (group->rank == 2) stay_until_told(&m);
    }
    free(m.sources);
    CHECK_OK(expar_group_abandon(group));
}

static void test_the_gone_are_named(void **state)
{
    (void)state;
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(told != MAP_FAILED);
    kind_run((ranks_plan){.ends_itself = true}, 3, send_to_the_gone);
    munmap((void *)told, sizeof *told);
}

int main(int argc, char **argv)
{
    kind_read(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_is_there_after_its_flag),
        cmocka_unit_test(test_transports_alone),
        cmocka_unit_test(test_a_fence_orders),
        cmocka_unit_test(test_pieces_come_with_their_flags),
        cmocka_unit_test(test_words_are_fetched),
        cmocka_unit_test(test_calls_of_the_program),
        cmocka_unit_test(test_the_gone_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
