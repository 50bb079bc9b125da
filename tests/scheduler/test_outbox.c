#include "tests/cmocka.h"

#include "scheduler/outbox.h"

#include <stdlib.h>
#include <string.h>

/* The nth output of a long sequence of all kinds and sizes. */
static struct kva_output make_output(uint64_t n, struct kva_prompt_logprob *entries)
{
    static float values[11];
    struct kva_output output;
    memset(&output, 0xEE, sizeof(output));
    output.request_id = n;
    output.choice = (uint32_t)n % 5;
    output.time_ns = n * 3;
    output.kind = (enum kva_output_kind)(n % 5);
    switch (output.kind) {
    case KVA_OUTPUT_PROGRESS:
        output.progress.done_tokens = (uint32_t)n;
        output.progress.total_tokens = (uint32_t)n + 1;
        break;
    case KVA_OUTPUT_PROMPT_LOGPROBS:
        output.prompt_logprobs.count = (uint32_t)n % 7;
        output.prompt_logprobs.entries = output.prompt_logprobs.count > 0 ? entries : NULL;
        for (uint32_t i = 0; i < output.prompt_logprobs.count; i++)
            entries[i].actual.token = (uint32_t)n + i;
        break;
    case KVA_OUTPUT_TOKEN:
        output.token.token = (uint32_t)n;
        output.token.top_count = (uint32_t)(n / 5) % (KVA_LOGPROBS_MAX + 1);
        for (uint32_t i = 0; i < output.token.top_count; i++)
            output.token.top[i] = (struct kva_logprob){.token = (uint32_t)n + i, .rank = i};
        break;
    case KVA_OUTPUT_POOLED:
        output.pooled.count = (uint32_t)n % 11;
        output.pooled.values = values;
        for (uint32_t i = 0; i < output.pooled.count; i++)
            values[i] = (float)n + (float)i;
        break;
    case KVA_OUTPUT_END:
        output.end.reason = KVA_FINISH_LENGTH;
        output.end.output_tokens = (uint32_t)n;
        output.end.info.bytes.host = n << 20;
        break;
    }
    return output;
}

static void check_output(void *opaque, const struct kva_output *output)
{
    uint64_t *next = opaque;
    struct kva_prompt_logprob entries[8];
    struct kva_output want = make_output((*next)++, entries);
    assert_int_equal(output->request_id, want.request_id);
    assert_int_equal(output->choice, want.choice);
    assert_int_equal(output->kind, want.kind);
    assert_int_equal(output->time_ns, want.time_ns);
    switch (want.kind) {
    case KVA_OUTPUT_PROGRESS:
        assert_int_equal(output->progress.done_tokens, want.progress.done_tokens);
        assert_int_equal(output->progress.total_tokens, want.progress.total_tokens);
        break;
    case KVA_OUTPUT_PROMPT_LOGPROBS:
        assert_int_equal(output->prompt_logprobs.count, want.prompt_logprobs.count);
        for (uint32_t i = 0; i < want.prompt_logprobs.count; i++)
            assert_int_equal(output->prompt_logprobs.entries[i].actual.token,
                             entries[i].actual.token);
        break;
    case KVA_OUTPUT_TOKEN:
        assert_int_equal(output->token.token, want.token.token);
        assert_int_equal(output->token.top_count, want.token.top_count);
        assert_memory_equal(output->token.top, want.token.top,
                            want.token.top_count * sizeof(want.token.top[0]));
        break;
    case KVA_OUTPUT_POOLED:
        assert_int_equal(output->pooled.count, want.pooled.count);
        if (want.pooled.count > 0)
            assert_memory_equal(output->pooled.values, want.pooled.values,
                                want.pooled.count * sizeof(float));
        break;
    case KVA_OUTPUT_END:
        assert_int_equal(output->end.output_tokens, want.end.output_tokens);
        assert_int_equal(output->end.info.bytes.host, want.end.info.bytes.host);
        break;
    }
    /* A receiver may keep a copy of the whole structure. */
    struct kva_output copy = *output;
    assert_int_equal(copy.request_id, want.request_id);
}

static void test_outbox__hands_over_what_was_put_in_order(void **state KVA_UNUSED)
{
    struct kva_outbox fresh, shared;
    kva_outbox_init(&fresh);
    kva_outbox_init(&shared);
    struct kva_prompt_logprob entries[8] = {{.top_count = 0}};
    uint64_t put = 0, next = 0;
    for (uint32_t round = 0; round < 40; round++) {
        uint64_t batch = round * 13 % 300;
        for (uint64_t i = 0; i < batch; i++, put++) {
            struct kva_output output = make_output(put, entries);
            assert_int_equal(kva_outbox_put(&fresh, &output), KVA_OK);
        }
        kva_outbox_append(&shared, &fresh);
        assert_int_equal(fresh.count, 0);
        assert_int_equal(fresh.bytes, 0);
        if (round % 3 == 0) {
            size_t count = shared.count;
            assert_int_equal(kva_outbox_drain(&shared, check_output, &next), count);
            assert_int_equal(next, put);
            assert_int_equal(shared.bytes, 0);
        }
    }
    kva_outbox_drain(&shared, check_output, &next);
    assert_int_equal(next, put);
    kva_outbox_finish(&fresh);
    kva_outbox_finish(&shared);
}

static void test_outbox__frees_what_nobody_reads(void **state KVA_UNUSED)
{
    struct kva_outbox box;
    kva_outbox_init(&box);
    struct kva_prompt_logprob entries[8] = {{.top_count = 0}};
    for (uint64_t n = 0; n < 1000; n++) {
        struct kva_output output = make_output(n, entries);
        assert_int_equal(kva_outbox_put(&box, &output), KVA_OK);
    }
    assert_true(box.bytes > 1000 * 40);
    kva_outbox_finish(&box);
}

static void note_release(void *opaque)
{
    (*(uint32_t *)opaque)++;
}

static void test_outbox__keeps_an_end_in_borrowed_storage(void **state KVA_UNUSED)
{
    struct kva_outbox box;
    kva_outbox_init(&box);
    void *storage = malloc(kva_outbox_reserve_bytes());
    assert_non_null(storage);
    struct kva_prompt_logprob entries[8];
    uint32_t released = 0;
    uint64_t next = 0;
    for (uint64_t n = 0; n < 10; n++) {
        struct kva_output output = make_output(n, entries);
        if (n == 4)
            kva_outbox_put_end(&box, &output, storage, note_release, &released);
        else
            assert_int_equal(kva_outbox_put(&box, &output), KVA_OK);
    }
    assert_int_equal(kva_outbox_drain(&box, check_output, &next), 10);
    assert_int_equal(next, 10);
    assert_int_equal(released, 1);
    free(storage);
    kva_outbox_finish(&box);
}

/* A token without log-probabilities must not cost what one with twenty does. */
static void test_outbox__packs_tokens(void **state KVA_UNUSED)
{
    struct kva_outbox box;
    kva_outbox_init(&box);
    struct kva_output output;
    memset(&output, 0, sizeof(output));
    output.kind = KVA_OUTPUT_TOKEN;
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(kva_outbox_put(&box, &output), KVA_OK);
    assert_true(box.bytes < 10000 * sizeof(output) / 4);
    kva_outbox_finish(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outbox__hands_over_what_was_put_in_order),
        cmocka_unit_test(test_outbox__frees_what_nobody_reads),
        cmocka_unit_test(test_outbox__keeps_an_end_in_borrowed_storage),
        cmocka_unit_test(test_outbox__packs_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
