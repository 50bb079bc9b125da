#include "tests/cmocka.h"

#include "engine/kv/store/tier.h"

#include <string.h>

static struct kva_device *open_device(void)
{
    struct kva_device *device;
    struct kva_err err;
    assert_int_equal(kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &device, &err),
                     KVA_OK);
    return device;
}

static void test_tier__items_never_overlap_and_all_come_back(void **state KVA_UNUSED)
{
    enum { CHUNK = 4096, CHUNKS = 10, SIZES = 6, LIVE_MAX = 200, ROUNDS = 40000 };
    static const size_t sizes[SIZES] = {4096, 1024, 384, 640, 2700, 9000};
    struct kva_device *device = open_device();
    struct kva_tier *tier;
    struct kva_err err;
    assert_int_equal(kva_tier_create(device, CHUNK * CHUNKS + 100, CHUNK, &tier, &err), KVA_OK);
    assert_int_equal(kva_tier_budget_bytes(tier), CHUNK * CHUNKS);
    struct {
        unsigned char *data;
        size_t size;
        unsigned char mark;
    } live[LIVE_MAX];
    uint32_t count = 0;
    uint32_t refused = 0;
    uint64_t rng = 12345;
    unsigned char *base = kva_tier_alloc(tier, CHUNK * CHUNKS);
    assert_non_null(base);
    kva_tier_free(tier, base, CHUNK * CHUNKS);
    for (int round = 0; round < ROUNDS; round++) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t dice = (uint32_t)(rng >> 33);
        if (dice % 2 && count < LIVE_MAX) {
            size_t size = sizes[dice / 2 % SIZES];
            unsigned char *data = kva_tier_alloc(tier, size);
            if (!data) {
                refused++;
                continue;
            }
            live[count].data = data;
            live[count].size = size;
            live[count].mark = (unsigned char)round;
            memset(data, (unsigned char)round, size);
            count++;
        } else if (count > 0) {
            uint32_t at = dice / 2 % count;
            for (size_t i = 0; i < live[at].size; i++) {
                if (live[at].data[i] != live[at].mark)
                    fail_msg("round %d: byte %zu of an item was overwritten", round, i);
            }
            kva_tier_free(tier, live[at].data, live[at].size);
            live[at] = live[--count];
        }
        assert_true(kva_tier_used_bytes(tier) <= kva_tier_budget_bytes(tier));
        bool overlapped[CHUNKS] = {false};
        uint64_t chunks = 0;
        for (uint32_t i = 0; i < count; i++) {
            size_t first = (size_t)(live[i].data - base);
            for (size_t at = first / CHUNK; at <= (first + live[i].size - 1) / CHUNK; at++)
                overlapped[at] = true;
        }
        for (int i = 0; i < CHUNKS; i++)
            chunks += overlapped[i];
        assert_int_equal(kva_tier_used_bytes(tier), chunks * CHUNK);
    }
    assert_true(refused > 0);
    while (count > 0) {
        count--;
        kva_tier_free(tier, live[count].data, live[count].size);
    }
    assert_int_equal(kva_tier_used_bytes(tier), 0);
    kva_tier_destroy(tier);
    kva_device_close(device);
}

static void test_tier__footprint_is_what_an_empty_tier_takes(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    struct kva_tier *tier;
    struct kva_err err;
    assert_int_equal(kva_tier_create(device, 64 * 4096, 4096, &tier, &err), KVA_OK);
    static const size_t sizes[] = {1000, 4096, 4097, 13000};
    for (uint32_t round = 0; round < 36; round++) {
        void *items[60];
        size_t size = sizes[round % KVA_COUNT_OF(sizes)];
        uint32_t count = 1 + round / 4 * (size > 4096 ? 1 : 6);
        uint64_t want = kva_tier_footprint(tier, size, count);
        for (uint32_t i = 0; i < count; i++)
            assert_non_null(items[i] = kva_tier_alloc(tier, size));
        uint64_t bytes = kva_tier_used_bytes(tier);
        assert_true(bytes <= want);
        if (size <= 4096) /* without a gap */
            assert_int_equal(bytes, kva_align_up(count * size, 4096));
        for (uint32_t i = 0; i < count; i++)
            kva_tier_free(tier, items[i], size);
        assert_int_equal(kva_tier_used_bytes(tier), 0);
    }
    kva_tier_destroy(tier);
    kva_device_close(device);
}

/* Two sizes that bridge chunks and one that does not grow in turns: what each loses is less than an
 * item per run. */
static void test_tier__sizes_that_grow_together_lose_little(void **state KVA_UNUSED)
{
    enum { CHUNK = 256 * 24, LOW = 24 * 24, HOT = 700, ROUNDS = 300 };
    struct kva_device *device = open_device();
    struct kva_tier *tier;
    struct kva_err err;
    assert_int_equal(kva_tier_create(device, CHUNK * 1000, CHUNK, &tier, &err), KVA_OK);
    uint64_t bytes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 5; i++, bytes += LOW)
            assert_non_null(kva_tier_alloc(tier, LOW));
        if (round % 100 == 0) {
            assert_non_null(kva_tier_alloc(tier, CHUNK));
            bytes += CHUNK;
        }
        if (round % 50 == 0) {
            assert_non_null(kva_tier_alloc(tier, HOT));
            bytes += HOT;
        }
    }
    assert_true(kva_tier_used_bytes(tier) <= bytes + bytes / 100 + CHUNK);
    kva_tier_destroy(tier);
    kva_device_close(device);
}

static void test_tier__any_number_of_sizes_can_follow_each_other(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    struct kva_tier *tier;
    struct kva_err err;
    assert_int_equal(kva_tier_create(device, 8 * 4096, 4096, &tier, &err), KVA_OK);
    void *kept = kva_tier_alloc(tier, 640);
    memset(kept, 7, 640);
    for (size_t size = 1; size < 8192; size += 13) {
        void *item = kva_tier_alloc(tier, size);
        assert_non_null(item);
        memset(item, 1, size);
        kva_tier_free(tier, item, size);
    }
    assert_int_equal(((unsigned char *)kept)[639], 7);
    kva_tier_free(tier, kept, 640);
    assert_int_equal(kva_tier_used_bytes(tier), 0);
    kva_tier_destroy(tier);
    kva_device_close(device);
}

static void test_tier__any_number_of_sizes_can_be_taken_at_once(void **state KVA_UNUSED)
{
    enum { CHUNK = 4096, CHUNKS = 300, FIRST = 700 };
    struct kva_device *device = open_device();
    struct kva_tier *tier;
    struct kva_err err;
    unsigned char *items[CHUNKS];
    assert_int_equal(kva_tier_create(device, CHUNKS * CHUNK, CHUNK, &tier, &err), KVA_OK);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < CHUNKS; i++) {
            const size_t size = FIRST + 7 * i + round;
            if (!kva_tier_prepare(tier, size) || !(items[i] = kva_tier_alloc(tier, size)))
                fail_msg("there is no room for size %u of those that are taken", i);
            memset(items[i], (unsigned char)i, size);
        }
        assert_int_equal(kva_tier_used_bytes(tier), CHUNKS * CHUNK);
        assert_null(kva_tier_alloc(tier, FIRST + 7 * CHUNKS));
        for (uint32_t i = 0; i < CHUNKS; i++) {
            const size_t size = FIRST + 7 * i + round;
            assert_int_equal(items[i][0], (unsigned char)i);
            assert_int_equal(items[i][size - 1], (unsigned char)i);
            kva_tier_free(tier, items[i], size);
        }
        assert_int_equal(kva_tier_used_bytes(tier), 0);
    }
    kva_tier_destroy(tier);
    kva_device_close(device);
}

static void test_tier__a_budget_under_one_chunk_is_refused(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    struct kva_tier *tier;
    struct kva_err err;
    assert_int_equal(kva_tier_create(device, 4095, 4096, &tier, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "4095"));
    assert_non_null(strstr(err.message, "4096"));
    kva_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tier__items_never_overlap_and_all_come_back),
        cmocka_unit_test(test_tier__footprint_is_what_an_empty_tier_takes),
        cmocka_unit_test(test_tier__sizes_that_grow_together_lose_little),
        cmocka_unit_test(test_tier__any_number_of_sizes_can_follow_each_other),
        cmocka_unit_test(test_tier__any_number_of_sizes_can_be_taken_at_once),
        cmocka_unit_test(test_tier__a_budget_under_one_chunk_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
