/* Who speaks UCX and not the truth. Who does not even speak UCX: test_link_noise.c. */
#include "tests/cmocka.h"

#include "tests/cluster/link/ends.h"
#include "tests/cluster/link/raw.h"

#include "base/clock.h"
#include "cluster/link/hello.h"

#include <stdlib.h>
#include <string.h>

static void run_until_broken(struct raw *raw, struct end *end)
{
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (!raw->broken) {
        raw_progress(raw);
        ends_idle(&end, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
    raw_hang_up(raw);
}

static void run_until_heard(struct raw *raw, struct end *end, uint32_t count)
{
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (raw->count < count) {
        raw_progress(raw);
        ends_idle(&end, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
}

/* --- HELLO ------------------------------------------------------------------------------------- */

static struct kva_hello_key key(void)
{
    const struct kva_link_params params = ends_params();
    return (struct kva_hello_key){params.secret, params.secret_bytes};
}

static struct kva_message hello_of(uint32_t node, uint64_t life, const struct end *to)
{
    struct kva_message message = {.source = node,
                                  .source_life = life,
                                  .target = to->node,
                                  .target_life = to->life,
                                  .sequence = 1};
    memset(message.hello.nonce, 7, sizeof(message.hello.nonce));
    return message;
}

static void say_hello(struct raw *raw, const struct kva_message *message, const uint8_t *nonce,
                      uint64_t sequence)
{
    uint8_t bytes[KVA_HELLO_BYTES];
    assert_int_equal(kva_hello_write(key(), message, nonce, bytes), KVA_OK);
    raw_say(raw, sequence, RAW_HELLO, 0, bytes, sizeof(bytes));
}

/* Up to the point where frames are believed. */
static void introduce(struct raw *raw, struct end *end)
{
    struct kva_message message = hello_of(9, 1, end), answer;
    struct kva_err err;
    raw_connect(raw, end->address);
    say_hello(raw, &message, NULL, 1);
    run_until_heard(raw, end, 1);
    if (kva_hello_read(key(), raw->kept[0], raw->sizes[0], message.hello.nonce, &answer, &err))
        fail_msg("%s", err.message);
    message.sequence = 2;
    say_hello(raw, &message, answer.hello.nonce, 2);
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (!kva_link_is_up(end->link, 9)) {
        raw_progress(raw);
        ends_idle(&end, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
}

static void test_link__a_hello_that_was_overheard_is_of_no_use(void **state KVA_UNUSED)
{
    struct end a, b;
    struct raw spy, thief;
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    raw_open(&spy, true);
    raw_open(&thief, false);

    /* What a says to b is heard by another. */
    struct end false_b = b;
    memcpy(false_b.address, spy.address, sizeof(spy.address));
    end_connect(&a, &false_b);
    run_until_heard(&spy, &a, 1);
    assert_int_equal(spy.sizes[0], KVA_HELLO_BYTES);

    /* He can say it too, and is asked for what he does not know: his own nonce comes back at most. */
    for (int i = 0; i < 3; i++) {
        static const uint8_t zeros[KVA_HELLO_BYTES];
        raw_connect(&thief, b.address);
        raw_say(&thief, 1, RAW_HELLO, 0, spy.kept[0], spy.sizes[0]);
        run_until_heard(&thief, &b, 1);
        const void *next = i == 0   ? (const void *)spy.kept[0]
                           : i == 1 ? (const void *)thief.kept[0]
                                    : zeros;
        raw_say(&thief, 2, RAW_HELLO, 0, next, KVA_HELLO_BYTES);
        run_until_broken(&thief, &b);
    }
    /* b's answer to what a said then is none to what a says now. */
    kva_link_disconnect(a.link, 2);
    run_until_broken(&spy, &a);
    spy.broken = false;
    spy.count = 0;
    end_connect(&a, &false_b);
    run_until_heard(&spy, &a, 1);
    raw_say(&spy, 1, RAW_HELLO, 0, thief.kept[0], KVA_HELLO_BYTES);
    run_until_broken(&spy, &a);
    assert_int_equal(b.ups[1] + a.ups[2], 0);
    raw_close(&spy);
    raw_close(&thief);
    end_close(&a);
    end_close(&b);
}

static void test_link__before_hello_nothing_else_is_heard(void **state KVA_UNUSED)
{
    struct end b;
    struct raw raw;
    unsigned char *bytes = calloc(1, ENDS_DATA_MAX);
    assert_non_null(bytes);
    end_open(&b, 2, 6, NULL);
    raw_open(&raw, false);
    const struct {
        size_t prefix_bytes;
        uint64_t sequence;
        uint32_t type;
        size_t size;
    } cases[] = {
        {28, 1, RAW_DATA, 100},
        {28, 1, RAW_DATA, ENDS_DATA_MAX},
        {28, 1, RAW_HELLO, 0},
        {28, 1, RAW_HELLO, KVA_HELLO_BYTES},
        {28, 2, RAW_HELLO, KVA_HELLO_BYTES},
        {28, 1, RAW_HELLO, 4 << 20},
        {0, 1, RAW_HELLO, 100},
        {27, 1, RAW_HELLO, KVA_HELLO_BYTES},
        {28, 1, 77, KVA_HELLO_BYTES},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        raw_connect(&raw, b.address);
        const struct raw_prefix prefix = {
            .sequence = cases[i].sequence, .type = cases[i].type, .size = cases[i].size};
        raw_say_piece(&raw, cases[i].prefix_bytes, prefix, bytes, cases[i].size);
        run_until_broken(&raw, &b);
        assert_int_equal(raw.count, 0);
    }
    struct kva_message message = hello_of(2, 7, &b); /* it says that it is b itself */
    raw_connect(&raw, b.address);
    say_hello(&raw, &message, NULL, 1);
    run_until_broken(&raw, &b);
    assert_int_equal(raw.count, 0);
    message = hello_of(9, 1, &b); /* a frame between the first HELLO and the second */
    raw_connect(&raw, b.address);
    say_hello(&raw, &message, NULL, 1);
    run_until_heard(&raw, &b, 1);
    raw_say(&raw, 2, RAW_DATA, 0, bytes, 100);
    run_until_broken(&raw, &b);
    assert_int_equal(b.ups[9] + b.ups[2] + b.frames[9], 0);
    raw_close(&raw);
    end_close(&b);
    free(bytes);
}

/* Whoever knows the secret may still be wrong: his own connection ends, and no other. */
static void test_link__a_frame_that_is_none_ends_its_connection_only(void **state KVA_UNUSED)
{
    struct end a, b, *both[] = {&a, &b};
    struct raw raw;
    unsigned char *bytes = calloc(1, ENDS_DATA_MAX + 4096);
    assert_non_null(bytes);
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    raw_open(&raw, false);
    ends_meet(&a, &b);
    const struct {
        size_t prefix_bytes;
        struct raw_prefix prefix;
        size_t size;
        const char *why;
    } cases[] = {
        {28, {3, RAW_DATA, 0, 8, ENDS_DATA_MAX + 9}, 100, "bytes of data"},
        {28, {3, RAW_DATA, 0, 8, UINT64_MAX}, 100, "bytes of data"},
        {28, {3, RAW_DATA, 0, 8, ENDS_DATA_MAX}, ENDS_DATA_MAX, "no frame"}, /* it is announced */
        {28, {3, RAW_DATA, 0, ENDS_HEADER_MAX + 1, 8000}, 8000, "header"},
        {28, {3, RAW_DATA, 0, 101, 100}, 100, "header"},
        {28, {3, RAW_DATA, 0, UINT32_MAX, 100}, 100, "header"},
        {28, {2, RAW_DATA, 0, 8, 100}, 100, "frame 2 came"},
        {28, {0, RAW_DATA, 0, 8, 100}, 100, "frame 0 came"},
        {28, {4, RAW_DATA, 0, 8, 100}, 100, "frame 4 came"},
        {28, {3, RAW_DATA, 0, 8, 100}, 101, "a piece of 101"},
        {28, {3, RAW_DATA, 0, 8, 100}, 0, "a piece of 0"},
        {28, {3, RAW_HELLO, 0, 0, KVA_HELLO_BYTES}, KVA_HELLO_BYTES, "HELLO"},
        {8, {3, RAW_DATA, 0, 8, 100}, 100, "no frame"},
        {27, {3, RAW_DATA, 0, 8, 100}, 100, "no frame"},
        {28, {3, 3, 0, 8, 100}, 100, "HELLO"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        introduce(&raw, &b);
        raw_say_piece(&raw, cases[i].prefix_bytes, cases[i].prefix, bytes, cases[i].size);
        run_until_broken(&raw, &b);
        assert_int_equal(b.ups[9], i + 1);
        assert_int_equal(b.downs[9], i + 1);
        assert_int_equal(b.frames[9], 0);
        assert_non_null(strstr(b.why, cases[i].why));
        end_send(&a, 2, 8, 1000);
        while (b.frames[1] < i + 1)
            ends_idle(both, 2, 1);
    }
    assert_int_equal(b.downs[1] + a.downs[2], 0);
    raw_close(&raw);
    end_close(&a);
    end_close(&b);
    free(bytes);
}

/* Of a frame that has begun nothing else may follow than its rest, of which there is enough. */
static void test_link__pieces_that_do_not_fit_end_their_connection(void **state KVA_UNUSED)
{
    static const unsigned char bytes[2000];
    static const struct raw_prefix first = {3, RAW_DATA, 0, 8, 1500};
    static const struct {
        struct raw_prefix prefix;
        size_t size;
    } cases[] = {
        {{4, RAW_DATA, 0, 8, 1500}, 500}, {{3, RAW_HELLO, 0, 8, 1500}, 500},
        {{3, RAW_DATA, 1, 8, 1500}, 500}, {{3, RAW_DATA, 0, 9, 1500}, 500},
        {{3, RAW_DATA, 0, 8, 1501}, 500}, {{3, RAW_DATA, 0, 8, 1500}, 501},
        {{3, RAW_DATA, 0, 8, 1500}, 0},
    };
    struct end b;
    struct raw raw;
    end_open(&b, 2, 6, NULL);
    raw_open(&raw, false);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        introduce(&raw, &b);
        raw_say_piece(&raw, RAW_PREFIX_BYTES, first, bytes, 1000);
        raw_say_piece(&raw, RAW_PREFIX_BYTES, cases[i].prefix, bytes, cases[i].size);
        run_until_broken(&raw, &b);
        assert_int_equal(b.downs[9], i + 1);
        assert_non_null(strstr(b.why, "does not belong"));
    }
    assert_int_equal(b.frames[9], 0);
    raw_close(&raw);
    end_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__a_hello_that_was_overheard_is_of_no_use),
        cmocka_unit_test(test_link__before_hello_nothing_else_is_heard),
        cmocka_unit_test(test_link__a_frame_that_is_none_ends_its_connection_only),
        cmocka_unit_test(test_link__pieces_that_do_not_fit_end_their_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
