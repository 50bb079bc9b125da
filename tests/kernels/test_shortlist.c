/* The best of rows of logits, and what is known of the others. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, VOCAB = 5000 };

struct rows {
    struct kva_device *device;
    float *logits;
    struct kva_shortlist out[ROWS];
    struct kva_candidate *listed;
    uint32_t vocab; /* so much of each row */
};

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Rows 0 and 1 as they come, 2 with many equals, 3 with what is not a number, 4 with five logits
 * above -inf, 5 with none, 6 ever larger, 7 ever smaller. */
static void open_rows(struct rows *rows, uint32_t threads, uint32_t level_mask)
{
    struct kva_err err;
    uint64_t state = 7;
    const struct kva_device_params params = {.threads = threads, .cpu_level_mask = level_mask};
    assert_int_equal(kva_device_open_cpu(&params, &rows->device, &err), KVA_OK);
    rows->vocab = VOCAB;
    rows->logits = malloc(sizeof(float) * ROWS * VOCAB);
    rows->listed = malloc(sizeof(*rows->listed) * ROWS * KVA_SHORTLIST_MAX);
    assert_true(rows->logits && rows->listed);
    for (uint32_t i = 0; i < ROWS * VOCAB; i++) {
        uint32_t row = i / VOCAB;
        float x = (float)(next_random(&state) % 20000) / 1000.0f - 10.0f;
        rows->logits[i] = row == 2                   ? rintf(x)
                          : row == 3 && i % 3 == 0   ? NAN
                          : row == 4 && i % 999 != 0 ? -INFINITY
                          : row == 5                 ? (i % 2 ? NAN : -INFINITY)
                          : row == 6                 ? (float)(i % VOCAB) / 1000.0f - 1.0f
                          : row == 7                 ? (float)(VOCAB - i % VOCAB) / 700.0f
                                                     : x;
    }
}

static void close_rows(struct rows *rows)
{
    kva_device_close(rows->device);
    free(rows->logits);
    free(rows->listed);
}

static void run(struct rows *rows, const struct kva_shortlist_want *wants, uint32_t count,
                const uint32_t *watched, uint32_t watched_count, float *watched_logits)
{
    kva_device_ops(rows->device)
        ->shortlist(rows->device, &(struct kva_shortlist_args){.out = rows->out,
                                                               .listed = rows->listed,
                                                               .watched_logits = watched_logits,
                                                               .logits = rows->logits,
                                                               .wants = wants,
                                                               .watched = watched,
                                                               .count = count,
                                                               .watched_count = watched_count,
                                                               .vocab = rows->vocab});
    kva_device_sync(rows->device, KVA_QUEUE_COMPUTE);
}

static int best_first(const void *a, const void *b)
{
    const struct kva_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

/* All tokens, the best first; what is not a number as -inf. */
static struct kva_candidate *sorted(const struct rows *rows, uint32_t row)
{
    struct kva_candidate *all = malloc(sizeof(*all) * rows->vocab);
    assert_non_null(all);
    for (uint32_t i = 0; i < rows->vocab; i++) {
        float x = rows->logits[row * rows->vocab + i];
        all[i] = (struct kva_candidate){isnan(x) ? -INFINITY : x, i};
    }
    qsort(all, rows->vocab, sizeof(*all), best_first);
    return all;
}

static void expect_near(double got, double want, double error)
{
    if (!(fabs(got - want) <= error * fabs(want)) && got != want)
        fail_msg("%.17g, expected %.17g", got, want);
}

static void check_row(const struct rows *rows, uint32_t index,
                      const struct kva_shortlist_want *want)
{
    struct kva_candidate *all = sorted(rows, want->row);
    const struct kva_shortlist *out = &rows->out[index];
    struct kva_candidate *listed = rows->listed + (size_t)index * KVA_SHORTLIST_MAX;
    uint32_t finite = 0;
    double rest = 0, sum = 0;
    while (finite < rows->vocab && all[finite].logit > -INFINITY)
        finite++;
    assert_int_equal(out->count, kva_min_u32(want->best, finite));
    for (uint32_t i = 1; i < out->count; i++)
        assert_true(listed[i].token > listed[i - 1].token);
    qsort(listed, out->count, sizeof(*listed), best_first);
    assert_memory_equal(listed, all, out->count * sizeof(*all));
    for (uint32_t i = out->count; i < finite; i++)
        rest += exp(((double)all[i].logit - (double)all[out->count - 1].logit) /
                    (double)want->temperature);
    for (uint32_t i = 0; i < finite; i++)
        sum += exp((double)all[i].logit);
    /* Exponentials are good to 1e-14, of logits whose distance is divided by the temperature. */
    expect_near(out->rest, want->temperature > 0 ? rest : 0, 1e-12);
    expect_near(out->log_sum, want->log_sum ? log(sum) : 0, 1e-6);
    free(all);
}

static void check_level(uint32_t threads, uint32_t level_mask)
{
    static const uint32_t bests[] = {1, 2, 20, 128, 1000, KVA_SHORTLIST_MAX};
    static const float temperatures[] = {0, 1, 0.3f, 0.001f, 2};
    struct rows rows;
    open_rows(&rows, threads, level_mask);
    for (uint32_t i = 0; i < 30; i++) {
        struct kva_shortlist_want wants[ROWS];
        for (uint32_t row = 0; row < ROWS; row++)
            wants[row] = (struct kva_shortlist_want){.row = ROWS - 1 - row,
                                                     .best = bests[i % 6],
                                                     .temperature = temperatures[i / 6],
                                                     .log_sum = (row + i) % 2 == 0};
        run(&rows, wants, ROWS, NULL, 0, NULL);
        for (uint32_t row = 0; row < ROWS; row++)
            check_row(&rows, row, &wants[row]);
    }
    close_rows(&rows);
}

static void test_shortlist__has_the_best_and_the_sum_of_the_others(void **state KVA_UNUSED)
{
    uint32_t levels = kva_cpu_levels();
    check_level(2, 0);
    for (uint32_t mask = KVA_CPU_REF; mask <= levels; mask = mask << 1 | KVA_CPU_REF) {
        if ((mask & levels) == mask)
            check_level(1, mask);
    }
}

/* Fewer tokens than are wanted, or hardly more, and no whole number of anything. */
static void test_shortlist__takes_any_vocabulary(void **state KVA_UNUSED)
{
    struct rows rows;
    open_rows(&rows, 1, 0);
    for (uint32_t vocab = 1; vocab < 400; vocab += vocab < 70 ? 1 : 37) {
        for (uint32_t best = 1; best < 70; best += 17) {
            const struct kva_shortlist_want want = {.row = 0, .best = best, .temperature = 1};
            rows.vocab = vocab;
            run(&rows, &want, 1, NULL, 0, NULL);
            check_row(&rows, 0, &want);
        }
    }
    close_rows(&rows);
}

static void test_shortlist__tells_about_watched_tokens(void **state KVA_UNUSED)
{
    struct rows rows;
    open_rows(&rows, 2, 0);
    enum { WATCHED = ROWS + 1 };
    const uint32_t watched[WATCHED] = {17, 4999, 0, 17, 300, 301, 302, 0, 4998};
    float got[WATCHED];
    struct kva_shortlist_want wants[ROWS];
    uint32_t first = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        wants[i] = (struct kva_shortlist_want){.row = i,
                                               .best = 4,
                                               .watch_first = first,
                                               .watch_count = i == 0 ? 2 : 1,
                                               .rank = i != 3};
        first += wants[i].watch_count;
    }
    run(&rows, wants, ROWS, watched, WATCHED, got);
    for (uint32_t i = 0; i < ROWS; i++) {
        struct kva_candidate *all = sorted(&rows, i);
        uint32_t rank = 1;
        while (all[rank - 1].token != watched[wants[i].watch_first])
            rank++;
        assert_int_equal(rows.out[i].rank, i == 3 ? 0 : rank);
        for (uint32_t j = 0; j < wants[i].watch_count; j++) {
            uint32_t at = wants[i].watch_first + j;
            assert_memory_equal(&got[at], &rows.logits[i * VOCAB + watched[at]], sizeof(float));
        }
        free(all);
    }
    close_rows(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shortlist__has_the_best_and_the_sum_of_the_others),
        cmocka_unit_test(test_shortlist__takes_any_vocabulary),
        cmocka_unit_test(test_shortlist__tells_about_watched_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
