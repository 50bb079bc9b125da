/* A limit on what a sequence has in host memory: whose place is taken against a plain account of what
 * was chosen, and what must not matter: pages that others have, chunks, suspension, company. On
 * models of three layers, with room in the context for many pages. */
#include "tests/cmocka.h"

#include "engine/kv/parts/pool.h"
#include "tests/data.h"
#include "tests/engine/family_models.h"
#include "tests/engine/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, MODELS = 4, LENGTH_MAX = 640, KV_HEADS_MAX = 4, SLOTS = 192 };

/* Groups of heads and none, rotary positions, partly rotary ones and learned ones. */
static const char *const families[MODELS] = {"llama3_gqa_bf16", "gemma_tied", "neox_parallel",
                                             "opt_relu_tied"};

static char paths[MODELS][FIXTURE_PATH_BYTES];

static int make_models(void **state KVA_UNUSED)
{
    family_models_make(
        &(struct family_models){
            .families = families, .count = MODELS, .layers = LAYERS, .positions = 1024, .seed = 50},
        paths);
    return 0;
}

static int remove_models(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < MODELS; i++)
        fixture_remove_model(paths[i]);
    return 0;
}

/* --- runs ------------------------------------------------------------------------------------ */

struct long_run {
    uint32_t prompt_tokens, outputs, tokens_max;
    uint64_t seed;
    uint32_t quota;         /* 0: all at once */
    uint32_t suspend_every; /* steps; 0: never */
    struct kva_kv_spec kv;
};

struct told {
    uint32_t tokens[LENGTH_MAX];
    float logprobs[LENGTH_MAX];
    uint32_t cached;
    uint64_t victims, evicted, host_bytes;
};

static struct kva_kv_spec limited(uint32_t pool, enum kva_kv_victim victim)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_INFINIGEN);
    spec.alpha = 1;
    spec.cap = KVA_KV_PERCENT | 20;
    spec.partial = 50;
    spec.skew = KVA_SKEW_NONE;
    spec.min_tokens = 0;
    spec.skip_layers = 1;
    spec.pool = pool;
    spec.victim = victim;
    return spec;
}

static struct fixture_params on(size_t model)
{
    return (struct fixture_params){
        .model_path = paths[model], .context_max = 1024, .step_tokens_max = 256};
}

static struct kva_sequence *start(struct fixture *f, const struct long_run *run)
{
    static uint32_t prompt[LENGTH_MAX];
    static struct kva_sampling_params sampling; /* outlives the sequence */
    sampling = trace_sampling();
    fixture_prompt(prompt, run->prompt_tokens, VOCAB, run->seed);
    return fixture_start(
        f, &(struct kva_sequence_params){
               .prompt = prompt,
               .prompt_tokens = run->prompt_tokens,
               .tokens_max = run->tokens_max ? run->tokens_max : run->prompt_tokens + run->outputs,
               .sampling = &sampling,
               .kv = run->kv});
}

/* One step of the sequence alone; whether it brought a token. */
static bool step(struct fixture *f, struct kva_sequence *seq, uint32_t quota, struct told *told,
                 uint32_t output)
{
    struct kva_err err;
    struct kva_step_item item = {.seq = seq, .prefill_tokens = output ? 0 : quota};
    if (output > 0)
        assert_int_equal(f->engine->ops->grow(f->engine->self, seq, &err), KVA_OK);
    assert_int_equal(f->engine->ops->step(f->engine->self, &item, 1, &err), KVA_OK);
    assert_int_equal(item.status, KVA_OK);
    if (item.emitted) {
        told->tokens[output] = item.token.token;
        told->logprobs[output] = item.token.chosen.logprob;
    }
    return item.emitted;
}

static void tell_info(struct fixture *f, struct kva_sequence *seq, struct told *told)
{
    struct kva_sequence_info info;
    f->engine->ops->sequence_info(f->engine->self, seq, &info);
    told->cached = info.cached_tokens;
    told->victims = kva_counts_named(&info.counts, "pool_victims");
    told->evicted = kva_counts_named(&info.counts, "evicted_tokens");
    told->host_bytes = info.bytes.host;
}

static struct told *tell(struct fixture *f, const struct long_run *run)
{
    struct told *told = calloc(1, sizeof *told);
    struct kva_sequence *seq = start(f, run);
    for (uint32_t n = 1, output = 0; output < run->outputs; n++) {
        output += step(f, seq, run->quota ? run->quota : LENGTH_MAX, told, output);
        if (run->suspend_every && n % run->suspend_every == 0)
            trace_suspend(f, seq);
    }
    tell_info(f, seq, told);
    f->engine->ops->destroy(f->engine->self, seq);
    return told;
}

static void expect_all_given_back(struct fixture *f)
{
    struct kva_engine_usage usage;
    f->engine->ops->usage(f->engine->self, &usage);
    assert_int_equal(usage.used.host, usage.cached.host);
    assert_int_equal(usage.used.device, usage.cached.device);
}

static struct told *tell_alone(const struct fixture_params *params, const struct long_run *run)
{
    struct fixture f;
    fixture_open(&f, params);
    struct told *told = tell(&f, run);
    expect_all_given_back(&f);
    fixture_close(&f);
    return told;
}

/* The first that differs; LENGTH_MAX: none. */
static uint32_t first_other(const struct told *a, const struct told *b)
{
    uint32_t i = 0;
    while (i < LENGTH_MAX && a->tokens[i] == b->tokens[i] &&
           memcmp(&a->logprobs[i], &b->logprobs[i], sizeof(float)) == 0)
        i++;
    return i;
}

static void expect_same(const struct told *a, const struct told *b, const char *what)
{
    if (first_other(a, b) < LENGTH_MAX)
        fail_msg("%s: other bits from output %u on", what, first_other(a, b));
}

/* As long as there is room, nothing is different; then something is. */
static void test_pool__with_room_is_no_limit(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < MODELS; m++) {
        const struct fixture_params params = on(m);
        struct long_run run = {
            .prompt_tokens = 150, .outputs = 330, .seed = 3, .kv = limited(0, KVA_VICTIM_COUNTER)};
        struct told *all = tell_alone(&params, &run);
        run.kv.pool = 384;
        run.tokens_max = 640;
        struct told *room = tell_alone(&params, &run);
        expect_same(room, all, families[m]);
        assert_int_equal(room->victims, 0);
        run.kv.pool = 200; /* four pages: the fifth leaves with token 384 */
        struct told *full = tell_alone(&params, &run);
        assert_true(first_other(full, all) < LENGTH_MAX && first_other(full, all) > 384 - 150);
        assert_true(full->victims > 0 && full->evicted == 2 * KVA_PAGE_TOKENS);
        assert_true(full->host_bytes < room->host_bytes);
        free(all);
        free(room);
        free(full);
    }
}

/* --- victims, against a plain account -------------------------------------------------------- */

/* What a slot has, and what is known of it. */
struct slot {
    uint32_t token, count, last;
};

static struct {
    struct fixture *f;
    struct kva_kv_spec spec;
    struct slot slots[LAYERS][KV_HEADS_MAX][SLOTS];
    uint16_t rows[LAYERS][KV_HEADS_MAX][LENGTH_MAX]
                 [2];       /* the beginnings of K and V, to know them */
    uint32_t pages[LAYERS]; /* of the slots' */
    uint64_t checked, halved;
} book;

static bool goes_before(const struct slot *a, const struct slot *b)
{
    if (a->token < book.spec.sinks || b->token < book.spec.sinks)
        return b->token < book.spec.sinks && a->token >= book.spec.sinks;
    if (book.spec.victim == KVA_VICTIM_COUNTER && a->count != b->count)
        return a->count < b->count;
    if (book.spec.victim == KVA_VICTIM_LRU && a->last != b->last)
        return a->last < b->last;
    return a->token < b->token;
}

/* Tokens of a page take the slots of those that go, ascending; of equal ones by the order above. */
static void account_page(struct slot *slots, uint32_t page)
{
    bool goes[SLOTS] = {false};
    for (uint32_t n = 0; n < KVA_PAGE_TOKENS; n++) {
        uint32_t victim = SLOTS;
        for (uint32_t s = 0; s < SLOTS; s++) {
            if (!goes[s] && (victim == SLOTS || goes_before(&slots[s], &slots[victim])))
                victim = s;
        }
        goes[victim] = true;
    }
    for (uint32_t s = 0, token = page * KVA_PAGE_TOKENS; s < SLOTS; s++) {
        if (!goes[s])
            continue;
        slots[s] = (struct slot){token, 0, token};
        token++;
    }
}

static void account_pages(uint32_t layer, uint32_t kv_heads, uint32_t offloaded)
{
    for (; book.pages[layer] < offloaded; book.pages[layer]++) {
        const uint32_t page = book.pages[layer];
        for (uint32_t head = 0; head < kv_heads; head++) {
            struct slot *slots = book.slots[layer][head];
            if (page >= SLOTS / KVA_PAGE_TOKENS)
                account_page(slots, page);
            for (uint32_t i = 0; i < KVA_PAGE_TOKENS && page < SLOTS / KVA_PAGE_TOKENS; i++) {
                const uint32_t token = page * KVA_PAGE_TOKENS + i;
                slots[token] = (struct slot){token, 0, token};
            }
        }
    }
}

static const uint16_t *row_at(const void *block, uint32_t kv_head, uint32_t slot)
{
    const uint32_t d = book.f->model->config.head_dim;
    return (const uint16_t *)block + ((size_t)kv_head * KVA_PAGE_TOKENS + slot) * 2 * d;
}

/* The newest tokens' rows, as they are in the window. */
static void remember(const struct kva_forward_view *view, uint32_t kv_head)
{
    const uint32_t d = book.f->model->config.head_dim;
    const struct kva_kv_rows *rows = view->rows;
    for (uint32_t t = rows->seq->offloaded * KVA_PAGE_TOKENS; t <= rows->position_first; t++) {
        const uint16_t *row =
            row_at(*kva_kv_block_at(rows, t / KVA_PAGE_TOKENS), kv_head, t % KVA_PAGE_TOKENS);
        book.rows[view->layer][kv_head][t][0] = row[0];
        book.rows[view->layer][kv_head][t][1] = row[d];
    }
}

/* What is in host memory is what the account says. */
static void check_slots(const struct kva_forward_view *view, uint32_t kv_head, uint32_t stored)
{
    const uint32_t d = book.f->model->config.head_dim;
    const size_t block = view->layer * kva_kv_block_bytes(book.f->model->config.kv_heads, d);
    for (uint32_t s = 0; s < stored * KVA_PAGE_TOKENS; s++) {
        const uint32_t token = book.slots[view->layer][kv_head][s].token;
        const uint16_t *row = row_at(kva_kv_pool_home(view->rows->seq, s / KVA_PAGE_TOKENS) + block,
                                     kv_head, s % KVA_PAGE_TOKENS);
        const uint16_t *want = book.rows[view->layer][kv_head][token];
        if (row[0] != want[0] || row[d] != want[1])
            fail_msg("layer %u, KV head %u: slot %u does not have token %u", view->layer, kv_head,
                     s, token);
        book.checked++;
    }
}

static void account_uses(const struct kva_forward_view *view, uint32_t kv_head)
{
    const struct kva_kv_range *range = kva_kv_find_range(view->rows, KVA_RANGE_ROWS);
    struct slot *slots = book.slots[view->layer][kv_head];
    bool saturated = false;
    for (uint32_t i = 0; range && i < range->rows->count[kv_head]; i++) {
        const size_t at = (size_t)kv_head * range->rows->slots;
        struct slot *used = &slots[range->rows->tokens[at + range->rows->order[at + i]]];
        used->count++;
        used->last = view->rows->position_first;
        saturated |= used->count >= (uint32_t)KVA_USES_MAX;
    }
    for (uint32_t s = 0; saturated && s < SLOTS; s++)
        slots[s].count /= 2;
    book.halved += saturated;
}

static void check_layer(void *opaque KVA_UNUSED, const struct kva_forward_view *view)
{
    const uint32_t kv_heads = book.f->model->config.kv_heads;
    const uint32_t stored = kva_kv_stored(view->rows->seq);
    kva_device_sync(book.f->device, KVA_QUEUE_COPY);
    account_pages(view->layer, kv_heads, view->rows->seq->offloaded);
    for (uint32_t head = 0; head < kv_heads; head++) {
        remember(view, head);
        check_slots(view, head, stored);
        account_uses(view, head);
    }
}

static void test_pool__victims(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < MODELS * KVA_VICTIM_COUNT; i++) {
        struct fixture f;
        const struct fixture_params params = on(i / KVA_VICTIM_COUNT);
        if (i % FIXTURE_EVERY != 0)
            continue;
        memset(&book, 0, sizeof book);
        fixture_open(&f, &params);
        book.f = &f;
        book.spec = limited(SLOTS, (enum kva_kv_victim)(i % KVA_VICTIM_COUNT));
        book.spec.sinks = i % 2 ? 4 : 0;
        const struct kva_forward_observer observer = {.attended = check_layer};
        kva_model_engine_observe(f.engine, &observer);
        const struct long_run run = {
            .prompt_tokens = 20, .outputs = 590, .seed = 7, .kv = book.spec};
        struct told *told = tell(&f, &run);
        assert_true(told->victims > 0 && book.checked > 0);
        if (book.spec.sinks > 0) /* which are chosen in every step */
            assert_true(book.halved > 0);
        free(told);
        fixture_close(&f);
    }
}

/* --- what must not matter -------------------------------------------------------------------- */

static void test_pool__chunks_suspension_and_delays(void **state KVA_UNUSED)
{
    static const struct {
        uint32_t quota, suspend_every, delay;
    } ways[] = {{29, 0, 300}, {256, 1, 0}, {7, 13, 100}};
    static const struct {
        uint32_t prompt, min_tokens;
    } cases[] = {{100, 0}, {330, 0}, {40, 384}}; /* a long prompt; one that turns long late */
    for (size_t i = 0; i < KVA_VICTIM_COUNT * KVA_COUNT_OF(cases); i++) {
        struct fixture_params params = on(i % MODELS);
        struct long_run run = {.prompt_tokens = cases[i / KVA_VICTIM_COUNT].prompt,
                               .outputs = 480 - cases[i / KVA_VICTIM_COUNT].prompt,
                               .seed = 9,
                               .kv = limited(SLOTS, (enum kva_kv_victim)(i % KVA_VICTIM_COUNT))};
        run.kv.min_tokens = cases[i / KVA_VICTIM_COUNT].min_tokens;
        if (FIXTURE_QUICK && i % 4 != 0)
            continue;
        struct told *want = tell_alone(&params, &run);
        assert_true(want->victims > 0);
        for (size_t w = 0; w < KVA_COUNT_OF(ways); w++) {
            params.step_tokens_max = 64;
            params.copy_delay_max_us = ways[w].delay;
            params.seed = w;
            run.quota = ways[w].quota;
            /* At every step once for each rule. */
            run.suspend_every = ways[w].suspend_every;
            if (run.suspend_every == 1 && i >= KVA_VICTIM_COUNT)
                run.suspend_every = 9;
            struct told *got = tell_alone(&params, &run);
            expect_same(got, want, families[i % MODELS]);
            free(got);
        }
        free(want);
    }
}

/* Two that began alike, from the prefix cache and beside each other: each says what it says alone,
 * and the pages that they share are as they were. */
static void test_pool__shared_pages_are_not_written(void **state KVA_UNUSED)
{
    struct fixture_params params = on(0);
    struct long_run run = {.prompt_tokens = 300, .outputs = 200, .seed = 4};
    struct kva_kv_spec specs[3] = {limited(SLOTS, KVA_VICTIM_COUNTER),
                                   limited(SLOTS, KVA_VICTIM_LRU), trace_variant(FULL)};
    struct told *want[3];
    struct kva_sequence *seqs[3];
    struct fixture f;
    for (uint32_t i = 0; i < 3; i++) {
        run.kv = specs[i];
        want[i] = tell_alone(&params, &run);
    }
    params.prefix_cache = true;
    fixture_open(&f, &params);
    for (uint32_t i = 0; i < 2; i++) {
        run.kv = specs[i];
        seqs[i] = start(&f, &run);
        assert_int_equal(fixture_prefill(&f, seqs[i], 100), want[i]->tokens[0]);
    }
    for (uint32_t t = 1; t < run.outputs; t++) {
        for (uint32_t i = 0; i < 2; i++) {
            struct told told = {0};
            assert_true(step(&f, seqs[i], 0, &told, t));
            assert_int_equal(told.tokens[t], want[i]->tokens[t]);
            assert_true(told.logprobs[t] == want[i]->logprobs[t]);
        }
    }
    /* What is in the cache now is what was computed. */
    for (uint32_t i = 3; i-- > 0;) {
        run.kv = specs[i];
        struct told *again = tell(&f, &run);
        assert_int_equal(again->cached, 256);
        expect_same(again, want[i], "again");
        free(again);
    }
    for (uint32_t i = 0; i < 2; i++)
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    expect_all_given_back(&f);
    fixture_close(&f);
    for (uint32_t i = 0; i < 3; i++)
        free(want[i]);
}

/* Pages that equal the cache's come in their place where those are evicted first, but for those that
 * slots have been made of. */
static void test_pool__slots_do_not_come_into_the_cache(void **state KVA_UNUSED)
{
    const uint64_t page = LAYERS * kva_kv_block_bytes(2, 16);
    struct fixture_params params = on(0);
    struct long_run full = {.prompt_tokens = 200, .outputs = 30, .seed = 4};
    struct long_run slots = full;
    struct fixture f;
    struct told told = {0};
    full.kv = trace_variant(FULL);
    slots.kv = limited(SLOTS, KVA_VICTIM_COUNTER);
    slots.outputs = 250;
    struct told *want = tell_alone(&params, &full);
    params.prefix_cache = true;
    params.host_bytes = 36 * page;
    fixture_open(&f, &params);
    struct kva_sequence *first = start(&f, &full), *second = start(&f, &slots);
    fixture_prefill(&f, first, LENGTH_MAX);
    fixture_prefill(&f, second, LENGTH_MAX);
    for (uint32_t t = 1; t < slots.outputs; t++)
        assert_true(step(&f, second, 0, &told, t));
    tell_info(&f, second, &told);
    assert_int_equal(told.cached, 0);
    assert_true(told.victims > 0);
    f.engine->ops->destroy(f.engine->self, first);
    /* Others take all that there is, and what the first one left is evicted. */
    for (uint64_t seed = 100; seed < 104; seed++) {
        struct long_run other = full;
        other.prompt_tokens = 600;
        other.seed = seed;
        free(tell(&f, &other));
    }
    f.engine->ops->destroy(f.engine->self, second);
    struct told *again = tell(&f, &full);
    assert_int_equal(again->cached, 64);
    expect_same(again, want, "after slots");
    expect_all_given_back(&f);
    fixture_close(&f);
    free(want);
    free(again);
}

/* Host memory does not grow with the answer: in a tier that has no room for more. */
static void test_pool__host_memory_is_bounded(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    struct fixture_params params = on(0);
    struct long_run run = {.prompt_tokens = 60, .outputs = 560, .seed = 5};
    const uint32_t prompt = 1;
    const uint64_t page = LAYERS * kva_kv_block_bytes(2, 16);
    /* Three pages of slots, the first page, a window of two, one before another leaves, the prompt's
     * copy; and the marks. */
    run.kv = limited(SLOTS, KVA_VICTIM_COUNTER);
    struct told *want = tell_alone(&params, &run);
    params.host_bytes = 10 * page;
    fixture_open(&f, &params);
    struct told *told = tell(&f, &run);
    expect_same(told, want, "little memory");
    assert_true(told->host_bytes <= 10 * page);
    expect_all_given_back(&f);
    struct kva_sequence_params more = {
        .prompt = &prompt, .prompt_tokens = 1, .tokens_max = 620, .kv = run.kv};
    assert_int_equal(f.engine->ops->check(f.engine->self, &more, &err), KVA_OK);
    more.kv.pool = 0;
    assert_int_equal(f.engine->ops->check(f.engine->self, &more, &err), KVA_ELIMIT);
    assert_string_equal(err.param, "host");
    fixture_close(&f);
    free(want);
    free(told);
}

/* Until the policy begins all is in host memory, however short the prompt was. */
static void test_pool__what_comes_before_it_begins_is_promised(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    struct fixture_params params = on(0);
    struct long_run run = {.prompt_tokens = 10, .outputs = 600, .seed = 4};
    const uint64_t page = LAYERS * kva_kv_block_bytes(2, 16);
    run.kv = limited(64, KVA_VICTIM_COUNTER);
    run.kv.min_tokens = 512; /* eight pages */
    struct told *want = tell_alone(&params, &run);
    params.host_bytes = 13 * page;
    fixture_open(&f, &params);
    struct told *told = tell(&f, &run);
    expect_same(told, want, "little memory");
    assert_true(told->victims > 0);
    expect_all_given_back(&f);
    fixture_close(&f);
    params.host_bytes = 9 * page; /* those eight and one, but a window is longer */
    fixture_open(&f, &params);
    const uint32_t prompt[10] = {0};
    const struct kva_sequence_params more = {
        .prompt = prompt, .prompt_tokens = 10, .tokens_max = 610, .kv = run.kv};
    assert_int_equal(f.engine->ops->check(f.engine->self, &more, &err), KVA_ELIMIT);
    assert_string_equal(err.param, "host");
    fixture_close(&f);
    free(want);
    free(told);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool__with_room_is_no_limit),
        cmocka_unit_test(test_pool__victims),
        cmocka_unit_test(test_pool__chunks_suspension_and_delays),
        cmocka_unit_test(test_pool__shared_pages_are_not_written),
        cmocka_unit_test(test_pool__slots_do_not_come_into_the_cache),
        cmocka_unit_test(test_pool__host_memory_is_bounded),
        cmocka_unit_test(test_pool__what_comes_before_it_begins_is_promised),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
