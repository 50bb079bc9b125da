/* Decoders against what the gguf package makes of the same blocks: every bit. */
#include "gguf/format.h"
#include "tests/cmocka.h"
#include "tests/data.h"

#include <stdlib.h>
#include <string.h>

static uint32_t take(const char **at)
{
    uint32_t value;
    memcpy(&value, *at, sizeof(value));
    *at += sizeof(value);
    return value;
}

static void test_format__equals_reference(void **state)
{
    (void)state;
    char path[1024];
    size_t length = 0;
    unsigned formats = 0;
    char *file =
        kva_test_read(kva_test_source("tests/gguf/data/blocks.bin", path, sizeof(path)), &length);
    assert_non_null(file);
    for (const char *at = file; at < file + length; formats++) {
        const struct kva_gguf_format *format = kva_gguf_format_find(take(&at));
        uint32_t count = take(&at), bytes = take(&at);
        assert_non_null(format);
        assert_non_null(format->decode);
        assert_int_equal(format->block_bytes, bytes);
        size_t values = (size_t)count * format->block_values;
        float *got = malloc(values * sizeof(*got));
        assert_non_null(got);
        format->decode((const uint8_t *)at, count, got);
        at += (size_t)count * bytes;
        for (size_t i = 0; i < values; i++)
            if (memcmp(got + i, at + i * sizeof(float), sizeof(float)) != 0)
                fail_msg("%s: weight %zu is %g", format->name, i, (double)got[i]);
        at += values * sizeof(float);
        free(got);
    }
    assert_int_equal(formats, 10);
    free(file);
}

static void test_format__table_is_whole(void **state)
{
    (void)state;
    struct kva_buf list;
    kva_buf_init(&list, 1024);
    kva_gguf_format_list(&list);
    assert_string_equal(list.data, "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, "
                                   "Q4_K, Q5_K, Q6_K");
    kva_buf_finish(&list);
    for (uint32_t id = 0; id < 64; id++) {
        const struct kva_gguf_format *format = kva_gguf_format_find(id);
        if (format)
            assert_int_equal(KVA_GGUF_BLOCK_VALUES_MAX % format->block_values, 0);
    }
    assert_false(kva_gguf_format_is_supported(kva_gguf_format_find(23)));
    assert_null(kva_gguf_format_find(4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format__equals_reference),
        cmocka_unit_test(test_format__table_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
