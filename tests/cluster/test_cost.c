/* test_cost.c - Eq. 5 to 7 against numbers worked out by hand, and the shape of Fig. 7. */
#include "tests/cluster/a100.h"
#include "tests/cmocka.h"

#include <math.h>
#include <stdio.h>

/* 2 layers; 10 us up to 8 rows, then 1 us a row; 1 ns a token; a link of 1 MB/s, 3 us each way. */
static struct kva_cost_params simple(void)
{
    return (struct kva_cost_params){
        .layers = 2,
        .point_count = 3,
        .points = {{1, 10e-6}, {8, 10e-6}, {16, 18e-6}},
        .attend_token_s = 1e-9,
        .link_latency_s = 3e-6,
        .link_bytes_per_s = 1e6,
        .query_bytes = 1,
        .partial_bytes = 2,
        .page_bytes = 500,
    };
}

static void assert_near(double seen, double expected)
{
    if (fabs(seen - expected) > 1e-12 + 1e-9 * fabs(expected))
        fail_msg("%.17g, not %.17g", seen, expected);
}

static void test_cost__linear_layers_follow_their_points(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    assert_near(kva_cost_linear_s(&params, 0), 0);
    assert_near(kva_cost_linear_s(&params, 1), 10e-6);
    assert_near(kva_cost_linear_s(&params, 5), 10e-6);
    assert_near(kva_cost_linear_s(&params, 12), 14e-6);
    assert_near(kva_cost_linear_s(&params, 16), 18e-6);
    assert_near(kva_cost_linear_s(&params, 32), 34e-6);
    params.point_count = 1;
    assert_near(kva_cost_linear_s(&params, 100), 10e-6);
}

static void test_cost__a_layer_is_equation_5(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    struct kva_cost_load load = {.batch = 4, .tokens = 6000};
    assert_near(kva_cost_layer_s(&params, &load), 16e-6);
    assert_near(kva_cost_step_s(&params, &load), 32e-6);
    assert_near(kva_cost_tokens_per_s(&params, &load), 4 / 32e-6);
    load.batch = 0;
    assert_near(kva_cost_tokens_per_s(&params, &load), 0);
}

/* 4 rows in 32 us, and 2 us of prompts for each of their tokens. */
static void test_cost__prompts_take_time_of_steps(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    struct kva_cost_load load = {.batch = 4, .tokens = 6000, .prompt_s = 2e-6};
    assert_near(kva_cost_step_s(&params, &load), 40e-6);
    assert_near(kva_cost_tokens_per_s(&params, &load), 4 / 40e-6);
    /* More rows bring more prompts: with nothing else to do, no more tokens than 1 / p. */
    load = (struct kva_cost_load){.batch = 1u << 30, .prompt_s = 1e-3};
    assert_in_range(kva_cost_tokens_per_s(&params, &load), 990, 1000);
    /* A debtor that prefills asks less often. */
    load = (struct kva_cost_load){.batch = 4, .prompt_s = 2e-6};
    assert_near(kva_cost_guest_share(&params, 5000, kva_cost_layer_s(&params, &load)), 5.0 / 14);
}

static void test_cost__a_slower_device_takes_longer_for_all_but_the_link(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    struct kva_cost_load load = {.batch = 12, .tokens = 6000};
    double layer_s = kva_cost_layer_s(&params, &load), move_s = kva_cost_move_s(&params, 7);
    kva_cost_scale(&params, 1.5);
    assert_near(kva_cost_layer_s(&params, &load), 1.5 * layer_s);
    assert_near(kva_cost_move_s(&params, 7), move_s);
}

/* Without a link that takes time, and with less there than here: the paper's debtor. */
static void test_cost__a_debtor_is_equation_6(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    params.link_latency_s = 0;
    params.link_bytes_per_s = 1e18;
    struct kva_cost_load load = {.batch = 1,
                                 .tokens = 50000,
                                 .borrowed_tokens = 20000,
                                 .borrowed_tokens_most = 20000,
                                 .borrowed_rows = 1};
    assert_near(kva_cost_layer_s(&params, &load), 10e-6 + 30e-6);
}

/* Equal layers of 15 us, 5 of them for guests: T + K_c / g. */
static void test_cost__a_creditor_in_step_is_equation_6(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    struct kva_cost_load load = {.batch = 4};
    load.guest_share = kva_cost_guest_share(&params, 5000, 15e-6);
    assert_near(kva_cost_layer_s(&params, &load), 15e-6);
    /* A debtor that steps half as often costs half as much of its time. */
    load.guest_share = kva_cost_guest_share(&params, 5000, 30e-6);
    assert_near(kva_cost_layer_s(&params, &load), 12e-6);
    assert_near(kva_cost_guest_share(&params, 0, 15e-6), 0);
    load.guest_share = 7;
    assert_true(isfinite(kva_cost_layer_s(&params, &load)));
}

/* 2 ways of 3 us, 2 rows of 3 bytes at a byte a microsecond, 4 us of waiting, 9000 tokens there:
 * 25 us beside 1 us here. */
static void test_cost__a_debtor_waits_for_its_slowest_creditor(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    params.guest_wait_s = 4e-6;
    struct kva_cost_load load = {.batch = 2,
                                 .tokens = 13000,
                                 .borrowed_tokens = 12000,
                                 .borrowed_tokens_most = 9000,
                                 .borrowed_rows = 2};
    assert_near(kva_cost_layer_s(&params, &load), 10e-6 + 25e-6);
    load.tokens = 52000; /* 40 us here hide it */
    assert_near(kva_cost_layer_s(&params, &load), 10e-6 + 40e-6);
    assert_near(kva_cost_move_s(&params, 4), 3e-6 + 2000e-6);
}

static void test_cost__more_of_anything_takes_no_less(void **state KVA_UNUSED)
{
    struct kva_cost_params params = a100_llama7b();
    double last = 0;
    for (uint32_t rows = 0; rows < 2000; rows++) {
        double s = kva_cost_linear_s(&params, rows);
        assert_true(s >= last);
        last = s;
    }
    struct kva_cost_load load = {.batch = 8, .tokens = 1000};
    double base = kva_cost_layer_s(&params, &load);
    load.tokens++;
    assert_true(kva_cost_layer_s(&params, &load) > base);
    load.guest_share = 0.1;
    assert_true(kva_cost_layer_s(&params, &load) > base / 0.9);
}

static void test_cost__the_knee_is_where_rows_stop_to_be_free(void **state KVA_UNUSED)
{
    struct kva_cost_params params = simple();
    /* The best is 16 rows in 18 us; 0.5 of it is 0.44 rows a microsecond: 5 rows in 10 us. */
    assert_int_equal(kva_cost_knee_rows(&params, 0.5), 5);
    assert_int_equal(kva_cost_knee_rows(&params, 1), 16);
    params = a100_llama7b();
    uint32_t knee = kva_cost_knee_rows(&params, 0.8);
    assert_in_range(knee, 64, 160);
}

static void refused(struct kva_cost_params params, const char *field)
{
    struct kva_err err = {0};
    assert_int_equal(kva_cost_check(&params, &err), KVA_EINVAL);
    assert_string_equal(err.param, field);
    assert_true(err.message[0] != '\0');
}

static void test_cost__constants_that_cannot_be_are_refused(void **state KVA_UNUSED)
{
    struct kva_cost_params good = simple(), bad = good;
    assert_int_equal(kva_cost_check(&good, NULL), KVA_OK);
    good = a100_llama7b();
    assert_int_equal(kva_cost_check(&good, NULL), KVA_OK);
    bad.layers = 0;
    refused(bad, "layers");
    bad = good, bad.point_count = 0;
    refused(bad, "points");
    bad = good, bad.point_count = KVA_COST_POINTS_MAX + 1;
    refused(bad, "points");
    bad = good, bad.points[1].rows = bad.points[0].rows;
    refused(bad, "points");
    bad = good, bad.points[1].s = bad.points[0].s / 2;
    refused(bad, "points");
    bad = good, bad.points[0].rows = 0;
    refused(bad, "points");
    bad = good, bad.points[0].s = NAN;
    refused(bad, "points");
    bad = good, bad.attend_token_s = 0;
    refused(bad, "attend_token_s");
    bad = good, bad.link_bytes_per_s = NAN;
    refused(bad, "link_bytes_per_s");
    bad = good, bad.link_latency_s = -1;
    refused(bad, "link_latency_s");
    bad = good, bad.guest_wait_s = NAN;
    refused(bad, "link_latency_s");
}

/* Fig. 7: requests of 500 tokens at the creditor, one long request that fills the debtor, where
 * others like them wait. `pages` lent; the creditor has `spare`, then its batch shrinks. */
static double both_tokens_per_s(uint32_t pages, uint32_t spare, double *ret_debtor,
                                double *ret_creditor)
{
    struct kva_cost_params params = a100_llama7b();
    const uint32_t short_pages = 8, short_tokens = 500, page_tokens = 64;
    uint32_t joined = pages / short_pages, left = (A100_PAGES - spare) / short_pages;
    struct kva_cost_load debtor = {
        .batch = 1 + joined,
        .tokens = A100_PAGES * page_tokens + (uint64_t)joined * short_tokens,
        .borrowed_tokens = (uint64_t)pages * page_tokens,
        .borrowed_tokens_most = (uint64_t)pages * page_tokens,
        .borrowed_rows = 1,
    };
    if (pages > spare)
        left -= (pages - spare + short_pages - 1) / short_pages;
    struct kva_cost_load creditor = {.batch = left, .tokens = (uint64_t)left * short_tokens};
    creditor.guest_share =
        kva_cost_guest_share(&params, debtor.borrowed_tokens, kva_cost_layer_s(&params, &debtor));
    *ret_debtor = kva_cost_tokens_per_s(&params, &debtor);
    *ret_creditor = kva_cost_tokens_per_s(&params, &creditor);
    return *ret_debtor + *ret_creditor;
}

static void test_cost__lending_has_a_peak_inside(void **state KVA_UNUSED)
{
    const uint32_t spare = 800, last = 1600;
    double debtor, creditor, before_debtor = 0, before_creditor = INFINITY;
    double first = both_tokens_per_s(0, spare, &debtor, &creditor), best = 0, end = 0;
    uint32_t peak = 0;
    for (uint32_t pages = 0; pages <= last; pages += 8) {
        end = both_tokens_per_s(pages, spare, &debtor, &creditor);
        if (end > best) {
            best = end;
            peak = pages;
        }
        /* Fig. 7 a, b: the debtor gains as long as it does not wait, the creditor loses. */
        assert_true(pages > spare || debtor > before_debtor);
        assert_true(creditor < before_creditor);
        before_debtor = debtor;
        before_creditor = creditor;
    }
    printf("%.0f tokens/s without loan, %.0f with %u pages, %.0f with %u\n", first, best, peak, end,
           last);
    assert_in_range(peak, 8, last - 8);
    assert_true(best > 1.1 * first && end < 0.95 * best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cost__linear_layers_follow_their_points),
        cmocka_unit_test(test_cost__a_layer_is_equation_5),
        cmocka_unit_test(test_cost__prompts_take_time_of_steps),
        cmocka_unit_test(test_cost__a_slower_device_takes_longer_for_all_but_the_link),
        cmocka_unit_test(test_cost__a_debtor_is_equation_6),
        cmocka_unit_test(test_cost__a_creditor_in_step_is_equation_6),
        cmocka_unit_test(test_cost__a_debtor_waits_for_its_slowest_creditor),
        cmocka_unit_test(test_cost__more_of_anything_takes_no_less),
        cmocka_unit_test(test_cost__the_knee_is_where_rows_stop_to_be_free),
        cmocka_unit_test(test_cost__constants_that_cannot_be_are_refused),
        cmocka_unit_test(test_cost__lending_has_a_peak_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
