/* The best of rows of logits. */
#include "kernels/ops.h"
#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 5, VOCAB = 40000 };

static void test_argmax__is_the_lowest_of_the_best(void **state KVA_UNUSED)
{
    static const uint32_t rows[] = {4, 0, 3, 1, 2, 0};
    struct kva_best best[KVA_COUNT_OF(rows)];
    float *logits = malloc(sizeof(float) * ROWS * VOCAB);
    struct kva_device *device;
    struct kva_err err;
    const struct kva_device_params params = {.threads = 2};
    assert_non_null(logits);
    assert_int_equal(kva_device_open_cpu(&params, &device, &err), KVA_OK);
    for (size_t i = 0; i < (size_t)ROWS * VOCAB; i++)
        logits[i] = (float)(i % 977) - 2000.0f;
    logits[17] = logits[39999] = 5.0f;             /* row 0: two of them */
    logits[VOCAB] = NAN, logits[VOCAB + 1] = 7.0f; /* row 1: not a number first */
    for (int i = 0; i < VOCAB; i++) {
        logits[2 * VOCAB + i] = NAN;
        logits[3 * VOCAB + i] = -INFINITY;
    }
    logits[4 * VOCAB + 39999] = INFINITY;
    kva_device_ops(device)->argmax(device, &(struct kva_argmax_args){.out = best,
                                                                     .logits = logits,
                                                                     .rows = rows,
                                                                     .count = KVA_COUNT_OF(rows),
                                                                     .vocab = VOCAB});
    kva_device_sync(device, KVA_QUEUE_COMPUTE);
    static const struct kva_best want[] = {{39999, INFINITY}, {17, 5}, {0, -INFINITY}, {1, 7},
                                           {0, -INFINITY},    {17, 5}};
    for (size_t i = 0; i < KVA_COUNT_OF(rows); i++) {
        assert_int_equal(best[i].token, want[i].token);
        assert_true(best[i].logit >= want[i].logit && best[i].logit <= want[i].logit);
    }
    kva_device_close(device);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_argmax__is_the_lowest_of_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
