/* saved.c - host memory for what parts save of suspended sequences. */
#include "engine/kv/saved.h"

#include "engine/kv/part.h"

#include <stdlib.h>
#include <string.h>

uint32_t kva_kv_saved_pages(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt)
{
    uint64_t bytes = 0;
    for (const struct kva_kv_part *const *part = kva_kv_policy_of(spec)->parts; *part; part++)
        bytes += (*part)->saved_bytes ? (*part)->saved_bytes(kv, spec, prompt) : 0;
    return (uint32_t)kva_div_up(bytes, kv->shape.page_bytes);
}

enum kva_status kva_kv_saved_init(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                  struct kva_err *err)
{
    uint32_t pages = kva_kv_saved_pages(kv, &seq->spec, seq->prompt_tokens);
    if (pages == 0)
        return KVA_OK;
    seq->saved.pages = calloc(pages, sizeof(struct kva_page *));
    if (!seq->saved.pages)
        return kva_fail(err, KVA_ENOMEM, "out of memory for what %u pages save", pages);
    return KVA_OK;
}

void kva_kv_saved_finish(struct kva_kv_seq *seq)
{
    free(seq->saved.pages);
    seq->saved = (struct kva_kv_saved){0};
}

void kva_kv_saved_begin(const struct kva_kv *kv, struct kva_kv_seq *seq)
{
    seq->saved.page_count = kva_kv_saved_pages(kv, &seq->spec, seq->prompt_tokens);
}

void kva_kv_saved_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_kv_saved *s = &seq->saved;
    for (uint32_t i = 0; i < s->page_count && s->taken; i++)
        kva_page_pool_release(kv->pages, s->pages[i]);
    if (!s->taken)
        kva_page_pool_unpromise(kv->pages, s->page_count);
    s->taken = false;
    s->page_count = 0;
}

/* --- content --------------------------------------------------------------------------------- */

/* Where byte `at` is, and how many of `bytes` lie there in one piece. */
static size_t piece_at(const struct kva_kv *kv, const struct kva_kv_saved *s, size_t at,
                       size_t bytes, unsigned char **ret)
{
    size_t page_bytes = kv->shape.page_bytes, within = at % page_bytes;
    *ret = s->pages[at / page_bytes]->host + within;
    return kva_min_size(bytes, page_bytes - within);
}

static void take_pages(struct kva_kv *kv, struct kva_kv_saved *s)
{
    for (uint32_t i = 0; i < s->page_count && !s->taken; i++)
        s->pages[i] = kva_page_pool_take(kv->pages);
    s->taken = true;
}

void kva_kv_saved_put(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at, void *from,
                      size_t bytes)
{
    struct kva_kv_saved *s = &seq->saved;
    take_pages(kv, s);
    for (size_t done = 0, count; done < bytes; done += count) {
        unsigned char *to;
        count = piece_at(kv, s, at + done, bytes - done, &to);
        kva_kv_offload(kv, to, (const unsigned char *)from + done, count);
    }
}

void kva_kv_saved_get(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at, void *to, size_t bytes)
{
    for (size_t done = 0, count; done < bytes; done += count) {
        unsigned char *from;
        count = piece_at(kv, &seq->saved, at + done, bytes - done, &from);
        kva_kv_fetch(kv, seq, (unsigned char *)to + done, from, count);
    }
}

void kva_kv_saved_fill(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at, unsigned char value,
                       size_t bytes)
{
    take_pages(kv, &seq->saved);
    for (size_t done = 0, count; done < bytes; done += count) {
        unsigned char *to;
        count = piece_at(kv, &seq->saved, at + done, bytes - done, &to);
        memset(to, value, count);
    }
}

uint32_t *kva_kv_saved_word(const struct kva_kv *kv, const struct kva_kv_seq *seq, size_t at)
{
    unsigned char *word;
    piece_at(kv, &seq->saved, at, sizeof(uint32_t), &word);
    return (uint32_t *)(void *)word;
}
