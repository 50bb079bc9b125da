/* The stop matcher against a search of the whole text, for random texts, stops and cuts. */
#include "tests/cmocka.h"

#include "server/stream/stop.h"

#include <string.h>

static uint64_t rng = 0x5EED;

static uint32_t below(uint32_t bound)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % bound;
}

/* What must come out: the stop that is complete first, the longer of two at the same byte. */
static size_t reference(const char *text, size_t length, const struct kva_api_text *stops,
                        uint32_t count, bool include, int *ret_stop)
{
    for (size_t end = 1; end <= length; end++) {
        int found = -1;
        for (uint32_t i = 0; i < count; i++) {
            if (stops[i].length <= end &&
                memcmp(text + end - stops[i].length, stops[i].data, stops[i].length) == 0 &&
                (found < 0 || stops[i].length > stops[found].length))
                found = (int)i;
        }
        if (found >= 0) {
            *ret_stop = found;
            return include ? end : end - stops[found].length;
        }
    }
    *ret_stop = -1;
    return length;
}

static void test_stop__equals_search_of_the_whole_text_however_it_is_cut(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[64], words[4][12];
        struct kva_api_text stops[4];
        struct kva_stop_set set;
        struct kva_stop_matcher matcher;
        struct kva_arena arena;
        struct kva_buf out;
        uint32_t letters = 2 + below(2);
        size_t length = below(sizeof(text));
        uint32_t count = below(5);
        bool include = below(2);
        for (size_t i = 0; i < length; i++)
            text[i] = (char)('a' + below(letters));
        for (uint32_t i = 0; i < count; i++) {
            stops[i] = (struct kva_api_text){words[i], 1 + below(sizeof(words[i]))};
            for (size_t j = 0; j < stops[i].length; j++)
                words[i][j] = (char)('a' + below(letters));
        }
        kva_arena_init(&arena, 65536);
        kva_buf_init(&out, 4096);
        assert_int_equal(kva_stop_set_init(&set, stops, count, &arena), KVA_OK);
        kva_stop_matcher_init(&matcher, &set);

        int want_stop;
        size_t want = reference(text, length, stops, count, include, &want_stop);
        bool found = false;
        for (size_t at = 0; at < length && !found;) {
            size_t piece = 1 + below(5);
            piece = piece < length - at ? piece : length - at;
            found = kva_stop_matcher_push(&matcher, text + at, piece, include, &out);
            at += piece;
            /* Nothing that a stop may still take away has been given on. */
            assert_true(out.length <= want);
        }
        if (!found)
            kva_stop_matcher_flush(&matcher, &out);
        assert_int_equal(found, want_stop >= 0);
        assert_int_equal(matcher.matched, want_stop);
        assert_int_equal(out.length, want);
        if (want > 0)
            assert_memory_equal(out.data, text, want);
        kva_stop_matcher_finish(&matcher);
        kva_buf_finish(&out);
        kva_arena_finish(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop__equals_search_of_the_whole_text_however_it_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
