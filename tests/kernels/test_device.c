/* The CPU device: memory, the copy queue, events, levels, failures. */
#include "tests/cmocka.h"

#include "kernels/ops.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct kva_device *open_device(uint32_t threads, uint32_t delay_max_us)
{
    struct kva_device *device = NULL;
    struct kva_device_params params = {
        .threads = threads, .copy_delay_max_us = delay_max_us, .copy_delay_seed = 99};
    struct kva_err err;
    if (kva_device_open_cpu(&params, &device, &err) != KVA_OK)
        fail_msg("%s", err.message);
    return device;
}

static void *alloc(struct kva_device *device, enum kva_mem mem, size_t bytes)
{
    struct kva_err err;
    void *data = NULL;
    if (kva_device_alloc(device, mem, bytes, &data, &err) != KVA_OK)
        fail_msg("%s", err.message);
    return data;
}

static struct kva_event *new_event(struct kva_device *device)
{
    struct kva_event *event = NULL;
    assert_int_equal(kva_event_create(device, &event, NULL), KVA_OK);
    return event;
}

static void test_device__info_says_what_runs(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(2, 0);
    const struct kva_device_info *info = kva_device_get_info(device);
    assert_int_equal(info->act, KVA_F32);
    assert_int_equal(info->threads, 2);
    assert_true(info->cpu_levels & KVA_CPU_REF);
    assert_int_equal(strncmp(info->name, "cpu: ", 5), 0);
    assert_non_null(strstr(info->name, "2 threads"));
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
    kva_device_close(device);
    kva_device_close(NULL);
}

static void test_device__open_refuses_what_is_not_there(void **state KVA_UNUSED)
{
    struct kva_device *device = NULL;
    struct kva_err err = {0};
    struct kva_device_params levels = {.threads = 1, .cpu_level_mask = 1u << 20};
    assert_int_equal(kva_device_open_cpu(&levels, &device, &err), KVA_EINVAL);
    assert_string_equal(err.param, "cpu_level_mask");
    assert_non_null(strstr(err.message, "0x100000"));
    struct kva_device_params threads = {.threads = 100000};
    assert_int_equal(kva_device_open_cpu(&threads, &device, &err), KVA_EINVAL);
    assert_string_equal(err.param, "threads");
    assert_non_null(strstr(err.message, "100000"));
    assert_null(device);
}

static void test_device__level_mask_is_obeyed(void **state KVA_UNUSED)
{
    struct kva_device *device = NULL;
    struct kva_device_params params = {.threads = 1, .cpu_level_mask = KVA_CPU_REF};
    assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
    assert_int_equal(kva_device_get_info(device)->cpu_levels, KVA_CPU_REF);
    assert_non_null(strstr(kva_device_get_info(device)->name, ", ref"));
    kva_device_close(device);
}

static void test_device__amx_is_there_or_refused_or_emulated(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    const uint32_t native = kva_device_get_info(device)->cpu_levels;
    kva_device_close(device);
    struct kva_err err = {0};
    struct kva_device_params params = {.threads = 1, .cpu_level_mask = KVA_CPU_REF | KVA_CPU_AMX};
    if (native & KVA_CPU_AMX) {
        assert_int_equal(kva_device_open_cpu(&params, &device, &err), KVA_OK);
        assert_non_null(strstr(kva_device_get_info(device)->name, ", amx"));
        kva_device_close(device);
        return;
    }
    assert_int_equal(kva_device_open_cpu(&params, &device, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "'amx'"));
    if (!(native & KVA_CPU_AVX512))
        return;
    /* Something below has said that it executes the instructions: none is executed here. */
    params.cpu_levels_emulated = KVA_CPU_AMX;
    assert_int_equal(kva_device_open_cpu(&params, &device, &err), KVA_OK);
    assert_int_equal(kva_device_get_info(device)->cpu_levels, KVA_CPU_REF | KVA_CPU_AMX);
    assert_non_null(strstr(kva_device_get_info(device)->name, ", amx"));
    kva_device_close(device);
}

/* Pages of an allocation that are physical. */
static size_t resident(void *data, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = kva_div_up(bytes, page), found = 0;
    unsigned char *there = calloc(count, 1);
    assert_non_null(there);
    assert_int_equal(mincore(data, bytes, there), 0);
    for (size_t i = 0; i < count; i++)
        found += there[i] & 1;
    free(there);
    return found;
}

static void
test_device__memory_is_physical_from_the_start_where_it_is_wanted(void **state KVA_UNUSED)
{
    const size_t bytes = (150u << 20) + 4097, pages = kva_div_up(bytes, 4096);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct kva_device_params params = {.threads = threads};
        struct kva_device *device;
        assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
        void *data = alloc(device, KVA_MEM_HOST, bytes);
        assert_int_equal(resident(data, bytes), 0);
        kva_device_free(device, KVA_MEM_HOST, data, bytes);
        kva_device_close(device);
        params.prefault = true;
        assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
        unsigned char *taken = alloc(device, KVA_MEM_HOST, bytes);
        assert_int_equal(resident(taken, bytes), pages);
        assert_int_equal(taken[0] | taken[bytes / 2] | taken[bytes - 1], 0);
        kva_device_free(device, KVA_MEM_HOST, taken, bytes);
        kva_device_close(device);
    }
}

static void test_device__memory_is_zeroed_and_aligned(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    const size_t sizes[] = {1, 63, 4096, 4097, 3u << 20, (9u << 20) + 5};
    for (size_t i = 0; i < KVA_COUNT_OF(sizes); i++) {
        unsigned char *data = alloc(device, i % 2 ? KVA_MEM_HOST : KVA_MEM_DEVICE, sizes[i]);
        assert_int_equal((uintptr_t)data % 64, 0);
        for (size_t j = 0; j < sizes[i]; j += 1021)
            assert_int_equal(data[j], 0);
        assert_int_equal(data[sizes[i] - 1], 0);
        memset(data, 0xFF, sizes[i]);
        kva_device_free(device, KVA_MEM_DEVICE, data, sizes[i]);
    }
    kva_device_free(device, KVA_MEM_HOST, NULL, 0);
    kva_device_close(device);
}

static void test_device__large_memory_is_taken_when_touched(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    const size_t bytes = (size_t)256 << 30;
    unsigned char *data = alloc(device, KVA_MEM_HOST, bytes);
    data[0] = data[bytes - 1] = 1;
    kva_device_free(device, KVA_MEM_HOST, data, bytes);
    kva_device_close(device);
}

static void test_device__alloc_reports_tier_and_bytes(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct kva_err err = {0};
    void *data = &err;
    assert_int_equal(kva_device_alloc(device, KVA_MEM_HOST, SIZE_MAX - 5, &data, &err), KVA_ENOMEM);
    assert_non_null(strstr(err.message, "host"));
    assert_non_null(strstr(err.message, "18446744073709551610"));
    assert_int_equal(kva_device_alloc(device, KVA_MEM_DEVICE, (size_t)1 << 60, &data, &err),
                     KVA_ENOMEM);
    assert_non_null(strstr(err.message, "device"));
    assert_ptr_equal(data, &err);
    kva_device_close(device);
}

static void test_device__weight_refers_to_its_memory(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    uint16_t data[12];
    struct kva_weight weight = {0};
    struct kva_err err;
    assert_int_equal(kva_device_weight(device, data, KVA_BF16, 3, 4, &weight, &err), KVA_OK);
    assert_ptr_equal(weight.data, data);
    assert_int_equal(weight.rows, 3);
    assert_int_equal(weight.cols, 4);
    struct kva_weight same = weight;
    assert_int_equal(kva_device_weight(device, data, KVA_DTYPE_END, 3, 4, &weight, &err),
                     KVA_EINVAL);
    assert_int_equal(kva_device_weight(device, data, KVA_BF16, 0, 4, &weight, &err), KVA_EINVAL);
    assert_int_equal(kva_device_weight(device, NULL, KVA_BF16, 3, 4, &weight, &err), KVA_EINVAL);
    assert_int_equal(kva_device_weight(device, (char *)data + 1, KVA_BF16, 1, 4, &weight, &err),
                     KVA_EINVAL);
    assert_non_null(strstr(err.message, "aligned"));
    assert_memory_equal(&same, &weight, sizeof same);
    kva_device_close(device);
}

static void test_device__failure_is_sticky(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct kva_err err = {0};
    float q[8] = {0}, a[8], m[1], e[1];
    struct kva_attend_args args = {.q = q,
                                   .out = {a, m, e},
                                   .q_stride = 8,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 8,
                                   .kv_dtype = KVA_F32};
    kva_device_ops(device)->attend(device, &args);
    assert_int_equal(kva_device_error(device, &err), KVA_EDEVICE);
    assert_non_null(strstr(err.message, "attend"));
    /* Nothing runs from then on, and the first failure stays the one that is reported. */
    float x[4] = {1, 2, 3, 4}, out[4] = {9, 9, 9, 9};
    uint32_t rows[1] = {0};
    struct kva_gather_args gather = {.out = out, .x = x, .rows = rows, .count = 1, .dim = 4};
    kva_device_ops(device)->gather(device, &gather);
    assert_true(out[0] == 9.0f);
    args.kv_dtype = KVA_BF16;
    args.head_dim = 100000;
    kva_device_ops(device)->attend(device, &args);
    struct kva_err again = {0};
    assert_int_equal(kva_device_error(device, &again), KVA_EDEVICE);
    assert_string_equal(err.message, again.message);
    kva_device_close(device);
}

/* --- queues ----------------------------------------------------------------------------------- */

static void test_queue__copies_run_in_order(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(2, 200);
    enum { STEPS = 40, CELLS = 512 };
    uint32_t *cells = alloc(device, KVA_MEM_HOST, (STEPS + 1) * CELLS * sizeof *cells);
    for (uint32_t i = 0; i < CELLS; i++)
        cells[i] = i * 7 + 1;
    /* Each copy takes what the one before it brought. */
    for (uint32_t step = 0; step < STEPS; step++)
        kva_device_copy(device, KVA_QUEUE_COPY, cells + (step + 1) * CELLS, cells + step * CELLS,
                        CELLS * sizeof *cells);
    kva_device_sync(device, KVA_QUEUE_COPY);
    assert_memory_equal(cells + STEPS * CELLS, cells, CELLS * sizeof *cells);
    kva_device_free(device, KVA_MEM_HOST, cells, (STEPS + 1) * CELLS * sizeof *cells);
    kva_device_close(device);
}

static void test_queue__events_order_the_queues(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(2, 300);
    const struct kva_ops *ops = kva_device_ops(device);
    enum { DIM = 4096, STEPS = 60 };
    float *far = alloc(device, KVA_MEM_HOST, DIM * sizeof *far);
    float *near = alloc(device, KVA_MEM_DEVICE, DIM * sizeof *near);
    float *sum = alloc(device, KVA_MEM_DEVICE, DIM * sizeof *sum);
    struct kva_event *fetched = new_event(device), *used = new_event(device);
    struct kva_norm_args norm = {
        .x = near, .out = sum, .rows = 1, .dim = DIM, .kind = KVA_NORM_RMS, .eps = 0.0f};
    float *ones = alloc(device, KVA_MEM_DEVICE, DIM * sizeof *ones);
    for (uint32_t i = 0; i < DIM; i++)
        ones[i] = 1.0f;
    assert_int_equal(kva_device_weight(device, ones, KVA_F32, 1, DIM, &norm.weight, NULL), KVA_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        /* `far` may change: the copy out of it was waited for in the step before. */
        for (uint32_t i = 0; i < DIM; i++)
            far[i] = step % 2 ? -2.0f : 3.0f;
        kva_event_wait(used, KVA_QUEUE_COPY); /* before `near` is overwritten */
        kva_device_copy(device, KVA_QUEUE_COPY, near, far, DIM * sizeof *near);
        kva_event_record(fetched, KVA_QUEUE_COPY);
        kva_event_wait(fetched, KVA_QUEUE_COMPUTE);
        ops->norm(device, &norm);
        kva_event_record(used, KVA_QUEUE_COMPUTE);
        assert_true(sum[0] == (step % 2 ? -1.0f : 1.0f));
        assert_true(sum[DIM - 1] == (step % 2 ? -1.0f : 1.0f));
    }
    kva_event_destroy(fetched);
    kva_event_destroy(used);
    kva_device_free(device, KVA_MEM_HOST, far, DIM * sizeof *far);
    kva_device_free(device, KVA_MEM_DEVICE, near, DIM * sizeof *near);
    kva_device_free(device, KVA_MEM_DEVICE, sum, DIM * sizeof *sum);
    kva_device_free(device, KVA_MEM_DEVICE, ones, DIM * sizeof *ones);
    kva_device_close(device);
}

static void test_queue__delay_shows_a_missing_event(void **state KVA_UNUSED)
{
    /* The delay exists so that this is seen: without an event the data is not there yet. */
    struct kva_device *device = open_device(1, 200000);
    uint32_t early = 0;
    for (int i = 0; i < 8; i++) {
        uint32_t *cells = alloc(device, KVA_MEM_HOST, 2 * sizeof *cells);
        struct kva_event *event = new_event(device);
        cells[0] = 5;
        kva_device_copy(device, KVA_QUEUE_COPY, cells + 1, cells, sizeof *cells);
        kva_event_record(event, KVA_QUEUE_COPY);
        early += !kva_event_done(event);
        kva_event_sync(event);
        assert_true(kva_event_done(event));
        assert_int_equal(cells[1], 5);
        kva_event_destroy(event);
        kva_device_free(device, KVA_MEM_HOST, cells, 2 * sizeof *cells);
    }
    assert_true(early > 0);
    kva_device_close(device);
}

static void test_queue__full_queue_blocks_and_loses_nothing(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    enum { COPIES = 20000 };
    uint32_t *from = alloc(device, KVA_MEM_HOST, COPIES * sizeof *from);
    uint32_t *to = alloc(device, KVA_MEM_DEVICE, COPIES * sizeof *to);
    for (uint32_t i = 0; i < COPIES; i++) {
        from[i] = i ^ 0x5A5A5A5Au;
        kva_device_copy(device, KVA_QUEUE_COPY, to + i, from + i, sizeof *to);
    }
    kva_device_copy(device, KVA_QUEUE_COPY, to, from, 0);
    kva_device_sync(device, KVA_QUEUE_COPY);
    assert_memory_equal(from, to, COPIES * sizeof *from);
    kva_device_free(device, KVA_MEM_HOST, from, COPIES * sizeof *from);
    kva_device_free(device, KVA_MEM_DEVICE, to, COPIES * sizeof *to);
    kva_device_close(device);
}

static void test_queue__close_runs_what_is_left(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 500);
    static uint32_t from[64], to[64];
    memset(to, 0, sizeof to);
    for (uint32_t i = 0; i < 64; i++) {
        from[i] = i + 1;
        kva_device_copy(device, KVA_QUEUE_COPY, to + i, from + i, sizeof *to);
    }
    kva_device_close(device);
    assert_memory_equal(from, to, sizeof to);
}

static void test_queue__compute_copies_are_done_on_return(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(3, 1000);
    const size_t bytes = (3u << 20) + 17;
    unsigned char *from = alloc(device, KVA_MEM_HOST, bytes);
    unsigned char *to = alloc(device, KVA_MEM_DEVICE, bytes);
    for (size_t i = 0; i < bytes; i++)
        from[i] = (unsigned char)(i * 31 >> 3);
    kva_device_copy(device, KVA_QUEUE_COMPUTE, to, from, bytes);
    assert_memory_equal(from, to, bytes);
    kva_device_sync(device, KVA_QUEUE_COMPUTE);
    kva_device_free(device, KVA_MEM_HOST, from, bytes);
    kva_device_free(device, KVA_MEM_DEVICE, to, bytes);
    kva_device_close(device);
}

/* --- events ----------------------------------------------------------------------------------- */

static void test_event__never_recorded_is_done(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct kva_event *event = new_event(device);
    assert_true(kva_event_done(event));
    kva_event_sync(event);
    kva_event_wait(event, KVA_QUEUE_COMPUTE);
    kva_event_wait(event, KVA_QUEUE_COPY);
    kva_event_destroy(event);
    kva_event_destroy(NULL);
    kva_device_close(device);
}

static void test_event__recording_again_moves_it(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 2000);
    struct kva_event *event = new_event(device);
    static uint32_t cells[101];
    memset(cells, 0, sizeof cells);
    cells[0] = 77;
    for (uint32_t i = 0; i < 100; i++) {
        if (i % 10 == 0)
            kva_event_record(event, i % 20 ? KVA_QUEUE_COMPUTE : KVA_QUEUE_COPY);
        if (i < 20)
            kva_device_copy(device, KVA_QUEUE_COPY, cells + i + 1, cells + i, sizeof *cells);
    }
    kva_event_record(event, KVA_QUEUE_COPY);
    kva_event_sync(event);
    assert_int_equal(cells[20], 77);
    assert_true(kva_event_done(event));
    /* Destroying an event whose mark is still in the queue is safe. */
    kva_device_copy(device, KVA_QUEUE_COPY, cells + 21, cells + 20, sizeof *cells);
    kva_event_record(event, KVA_QUEUE_COPY);
    kva_event_destroy(event);
    kva_device_sync(device, KVA_QUEUE_COPY);
    assert_int_equal(cells[21], 77);
    kva_device_close(device);
}

static void test_event__work_aside_waits_as_compute_does(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 5000);
    struct kva_event *copied = new_event(device), *aside = new_event(device);
    static uint32_t cells[2] = {9, 0};
    kva_device_copy(device, KVA_QUEUE_COPY, cells + 1, cells, sizeof *cells);
    kva_event_record(copied, KVA_QUEUE_COPY);
    kva_event_wait(copied, KVA_QUEUE_ASIDE);
    assert_int_equal(cells[1], 9);
    kva_event_record(aside, KVA_QUEUE_ASIDE);
    assert_true(kva_event_done(aside));
    kva_device_sync(device, KVA_QUEUE_ASIDE);
    kva_event_destroy(copied);
    kva_event_destroy(aside);
    kva_device_close(device);
}

struct watcher {
    struct kva_event *event;
    _Atomic uint32_t looks;
};

static void *watch(void *opaque)
{
    struct watcher *watcher = opaque;
    while (!kva_event_done(watcher->event)) {
        atomic_fetch_add(&watcher->looks, 1);
        usleep(50);
    }
    return NULL;
}

static void test_event__any_thread_may_ask(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 5000);
    static uint32_t cells[9];
    cells[0] = 3;
    struct watcher watcher = {.event = new_event(device)};
    for (uint32_t i = 0; i < 8; i++)
        kva_device_copy(device, KVA_QUEUE_COPY, cells + i + 1, cells + i, sizeof *cells);
    kva_event_record(watcher.event, KVA_QUEUE_COPY);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, watch, &watcher), 0);
    pthread_join(thread, NULL);
    assert_int_equal(cells[8], 3); /* done implies that what came before is visible */
    kva_event_destroy(watcher.event);
    kva_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device__info_says_what_runs),
        cmocka_unit_test(test_device__open_refuses_what_is_not_there),
        cmocka_unit_test(test_device__level_mask_is_obeyed),
        cmocka_unit_test(test_device__amx_is_there_or_refused_or_emulated),
        cmocka_unit_test(test_device__memory_is_physical_from_the_start_where_it_is_wanted),
        cmocka_unit_test(test_device__memory_is_zeroed_and_aligned),
        cmocka_unit_test(test_device__large_memory_is_taken_when_touched),
        cmocka_unit_test(test_device__alloc_reports_tier_and_bytes),
        cmocka_unit_test(test_device__weight_refers_to_its_memory),
        cmocka_unit_test(test_device__failure_is_sticky),
        cmocka_unit_test(test_queue__copies_run_in_order),
        cmocka_unit_test(test_queue__events_order_the_queues),
        cmocka_unit_test(test_queue__delay_shows_a_missing_event),
        cmocka_unit_test(test_queue__full_queue_blocks_and_loses_nothing),
        cmocka_unit_test(test_queue__close_runs_what_is_left),
        cmocka_unit_test(test_queue__compute_copies_are_done_on_return),
        cmocka_unit_test(test_event__never_recorded_is_done),
        cmocka_unit_test(test_event__recording_again_moves_it),
        cmocka_unit_test(test_event__work_aside_waits_as_compute_does),
        cmocka_unit_test(test_event__any_thread_may_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
