/* fuzz_stop.c - stop strings in a text that arrives in pieces, against a search of the whole text.
 *
 * The first byte says how many stops there are, whether they are part of the output and how long
 * the pieces are; each stop is a byte for its length and its bytes; the rest is the text. */
#include "tests/fuzz/fuzz.h"

#include "server/stream/stop.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* What must come out: the stop that is complete first, the longer of two at the same byte. */
static size_t reference(const char *text, size_t length, const struct kva_api_text *stops,
                        uint32_t count, bool include, int *ret_stop)
{
    *ret_stop = -1;
    for (size_t end = 1; end <= length && *ret_stop < 0; end++) {
        for (uint32_t i = 0; i < count; i++) {
            if (stops[i].length <= end &&
                memcmp(text + end - stops[i].length, stops[i].data, stops[i].length) == 0 &&
                (*ret_stop < 0 || stops[i].length > stops[*ret_stop].length))
                *ret_stop = (int)i;
        }
        if (*ret_stop >= 0)
            return include ? end : end - stops[*ret_stop].length;
    }
    return length;
}

static void run(const struct kva_stop_set *set, const char *text, size_t length, size_t piece,
                bool include)
{
    struct kva_stop_matcher matcher;
    struct kva_buf out;
    int stop;
    size_t want = reference(text, length, set->stops, set->count, include, &stop);
    bool found = false;
    kva_buf_init(&out, length + 4096);
    kva_stop_matcher_init(&matcher, set);
    for (size_t at = 0; at < length && !found; at += piece) {
        size_t bytes = piece < length - at ? piece : length - at;
        found = kva_stop_matcher_push(&matcher, text + at, bytes, include, &out);
        /* Nothing that a stop may still take away has been given on. */
        require(out.length <= want);
    }
    if (!found)
        kva_stop_matcher_flush(&matcher, &out);
    require(found == (stop >= 0) && matcher.matched == stop && out.length == want);
    require(want == 0 || memcmp(out.data, text, want) == 0);
    kva_stop_matcher_finish(&matcher);
    kva_buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kva_api_text stops[KVA_API_STOPS_MAX];
    if (size == 0)
        return 0;
    uint8_t first = data[0];
    const char *text = (const char *)data + 1;
    size_t left = size - 1;
    uint32_t count = 0;
    while (count < (first & 7u) && count < KVA_API_STOPS_MAX && left > 1) {
        size_t length = (uint8_t)*text;
        if (length == 0 || length > left - 1)
            break;
        stops[count++] = (struct kva_api_text){text + 1, length};
        text += 1 + length;
        left -= 1 + length;
    }
    struct kva_arena arena;
    struct kva_stop_set set;
    kva_arena_init(&arena, 65536);
    require(kva_stop_set_init(&set, stops, count, &arena) == KVA_OK);
    bool include = first & 8u;
    run(&set, text, left, 1 + (first >> 4), include);
    run(&set, text, left, 1, include);
    run(&set, text, left, left + 1, include);
    kva_arena_finish(&arena);
    return 0;
}
