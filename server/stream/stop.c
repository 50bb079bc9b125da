/* stop.c - matching each stop string as Knuth, Morris and Pratt do. */
#include "server/stream/stop.h"

#include <string.h>

static bool build_failure(const struct kva_api_text *stop, struct kva_arena *arena, uint32_t **ret)
{
    uint32_t *failure = kva_arena_calloc(arena, stop->length, sizeof(*failure));
    if (!failure)
        return false;
    uint32_t state = 0;
    for (size_t i = 1; i < stop->length; i++) {
        while (state > 0 && stop->data[i] != stop->data[state])
            state = failure[state - 1];
        if (stop->data[i] == stop->data[state])
            state++;
        failure[i] = state;
    }
    *ret = failure;
    return true;
}

enum kva_status kva_stop_set_init(struct kva_stop_set *set, const struct kva_api_text *stops,
                                  uint32_t count, struct kva_arena *arena)
{
    *set = (struct kva_stop_set){.stops = stops, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        if (!build_failure(&stops[i], arena, &set->failure[i]))
            return KVA_ENOMEM;
    }
    return KVA_OK;
}

void kva_stop_matcher_init(struct kva_stop_matcher *matcher, const struct kva_stop_set *set)
{
    *matcher = (struct kva_stop_matcher){.set = set, .matched = -1};
    size_t held_max = 4;
    for (uint32_t i = 0; i < set->count; i++)
        held_max = kva_max_size(held_max, set->stops[i].length);
    kva_buf_init(&matcher->held, held_max);
}

void kva_stop_matcher_finish(struct kva_stop_matcher *matcher)
{
    kva_buf_finish(&matcher->held);
}

/* Advance every automaton by one byte; returns the index of the longest stop that it completes. */
static int advance(struct kva_stop_matcher *matcher, char c)
{
    const struct kva_stop_set *set = matcher->set;
    int found = -1;
    for (uint32_t i = 0; i < set->count; i++) {
        const struct kva_api_text *stop = &set->stops[i];
        uint32_t state = matcher->state[i];
        while (state > 0 && stop->data[state] != c)
            state = set->failure[i][state - 1];
        if (stop->data[state] == c)
            state++;
        matcher->state[i] = state;
        if (state == stop->length && (found < 0 || stop->length > set->stops[found].length))
            found = (int)i;
    }
    return found;
}

/* Append the first `length` bytes of held + text. */
static void emit(struct kva_stop_matcher *matcher, const char *text, size_t length,
                 struct kva_buf *out)
{
    size_t from_held = kva_min_size(length, matcher->held.length);
    kva_buf_append(out, matcher->held.data, from_held);
    kva_buf_append(out, text, length - from_held);
}

bool kva_stop_matcher_push(struct kva_stop_matcher *matcher, const char *text, size_t length,
                           bool include, struct kva_buf *out)
{
    const struct kva_stop_set *set = matcher->set;
    size_t before = matcher->held.length;
    if (matcher->matched >= 0)
        return true;
    if (matcher->held.failed) {
        /* Text was lost for lack of memory: the answer fails, it does not go on with a hole. */
        kva_buf_fail_with(out, &matcher->held);
        return false;
    }
    if (set->count == 0) {
        kva_buf_append(out, text, length);
        return false;
    }
    for (size_t at = 0; at < length; at++) {
        int found = advance(matcher, text[at]);
        if (found < 0)
            continue;
        size_t end = before + at + 1;
        emit(matcher, text, include ? end : end - set->stops[found].length, out);
        kva_buf_clear(&matcher->held);
        matcher->matched = found;
        return true;
    }
    uint32_t keep = 0;
    for (uint32_t i = 0; i < set->count; i++)
        keep = kva_max_u32(keep, matcher->state[i]);
    size_t total = before + length;
    emit(matcher, text, total - keep, out);
    /* What stays is the end of held + text; `keep` may reach back into what was held before. */
    if (keep <= length) {
        kva_buf_clear(&matcher->held);
        kva_buf_append(&matcher->held, text + (length - keep), keep);
    } else {
        size_t old = keep - length;
        memmove(matcher->held.data, matcher->held.data + (before - old), old);
        matcher->held.length = old;
        matcher->held.data[old] = '\0';
        kva_buf_append(&matcher->held, text, length);
    }
    return false;
}

void kva_stop_matcher_flush(struct kva_stop_matcher *matcher, struct kva_buf *out)
{
    kva_buf_fail_with(out, &matcher->held);
    kva_buf_append(out, matcher->held.data, matcher->held.length);
    kva_buf_clear(&matcher->held);
    memset(matcher->state, 0, sizeof(matcher->state));
}
