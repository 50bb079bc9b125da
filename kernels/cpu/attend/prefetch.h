/* prefetch.h - what attention prefetches while it works on a split: the split that comes next.
 * docs/results/cpu.md, "Kernels", has what was measured. */
#ifndef KVA_KERNELS_CPU_ATTEND_PREFETCH_H
#define KVA_KERNELS_CPU_ATTEND_PREFETCH_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/prefetch.h"

#define AHEAD_PAGES (KVA_ATTEND_SPLIT_TOKENS / KVA_PAGE_TOKENS)

/* Cache lines of the split that comes next, to be prefetched in the order of their addresses, a few
 * at a time all through the work on this one: in bursts they would be dropped. */
struct ahead {
    const char *at;  /* the next line */
    const char *end; /* behind the last of its page */
    size_t step;     /* bytes of a line; 0: nothing is left */
    uint32_t page;
    uint32_t page_count;
    struct {
        const char *first;
        const char *end;
    } pages[AHEAD_PAGES];
};

static struct ahead plan_ahead(const struct kva_cpu_attend_split *split)
{
    struct ahead ahead = {.at = (const char *)split->scores};
    for (uint32_t i = 0; split->next && i < AHEAD_PAGES; i++) {
        const void *const *tokens = split->next + (size_t)i * KVA_PAGE_TOKENS;
        uint32_t first = 0, end = KVA_PAGE_TOKENS;
        while (first < end && !tokens[first])
            first++;
        while (first < end && !tokens[end - 1])
            end--;
        if (first == end)
            continue;
        size_t bytes = kva_align_up((size_t)(end - first) * split->head_dim * 4, KVA_CACHE_LINE);
        ahead.pages[ahead.page_count].first = tokens[first];
        ahead.pages[ahead.page_count++].end = (const char *)tokens[first] + bytes;
    }
    if (ahead.page_count > 0) {
        ahead.at = ahead.pages[0].first;
        ahead.end = ahead.pages[0].end;
        ahead.step = KVA_CACHE_LINE;
    }
    return ahead;
}

/* The next `lines` of them, if there are so many. */
static inline __attribute__((always_inline)) void prefetch(struct ahead *ahead, const int lines)
{
    for (int i = 0; i < lines; i++) {
        kva_prefetch_ahead(ahead->at);
        ahead->at += ahead->step;
        if (__builtin_expect(ahead->at != ahead->end, 1))
            continue;
        ahead->page++;
        if (ahead->page < ahead->page_count) {
            ahead->at = ahead->pages[ahead->page].first;
            ahead->end = ahead->pages[ahead->page].end;
        } else {
            ahead->at -= ahead->step;
            ahead->step = 0;
        }
    }
}

#endif
