/* homes.c - host memory of a sequence whose rows are fetched. */
#include "engine/kv/parts/homes.h"

static size_t pages_bytes(const struct kva_kv_seq *seq)
{
    return seq->pages_max * sizeof(void *);
}

enum kva_status kva_homes_init(struct kva_homes *homes, struct kva_kv *kv,
                               const struct kva_kv_seq *seq, struct kva_err *err)
{
    void *data;
    enum kva_status status =
        kva_device_alloc(kv->device, KVA_MEM_HOST, 2 * sizeof(uint64_t), &data, err);
    if (status)
        return status;
    homes->hits = data;
    status = kva_device_alloc(kv->device, KVA_MEM_HOST, pages_bytes(seq), &data, err);
    if (!status)
        homes->pages = data;
    return status;
}

void kva_homes_finish(struct kva_homes *homes, struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    kva_device_free(kv->device, KVA_MEM_HOST, homes->hits, 2 * sizeof(uint64_t));
    kva_device_free(kv->device, KVA_MEM_HOST, (void *)homes->pages, pages_bytes(seq));
}

void kva_homes_list(struct kva_homes *homes, const struct kva_kv_seq *seq)
{
    for (; homes->page_count < seq->prepared; homes->page_count++) {
        const struct kva_page *page = seq->pages[homes->page_count];
        homes->pages[homes->page_count] = page ? page->host : NULL;
    }
}
