/* list.c - what the cache holds. */
#include "hub/hub.h"
#include "hub/wheel.h"

#include <stdlib.h>

static void put(struct kva_buf *out, const char *name, uint64_t bytes, const char *path)
{
    kva_buf_printf(out, "%-44s %10.1f MiB  %s\n", name, (double)bytes / (1 << 20), path);
}

static void put_known(const struct kva_hub_places *places, struct kva_buf *out)
{
    size_t count;
    const struct kva_hub_known *table = kva_hub_known_table(&count);
    for (size_t i = 0; i < count; i++) {
        char *path = NULL;
        if (kva_hub_wheel_path(&table[i], places, &path, NULL))
            continue;
        if (kva_hub_wheel_is_there(&table[i], path))
            put(out, table[i].name, table[i].bytes, path);
        free(path);
    }
}

enum kva_status kva_hub_list(const struct kva_hub_places *places, struct kva_buf *out,
                             struct kva_err *err)
{
    put_known(places, out);
    return out->failed ? kva_fail(err, KVA_ENOMEM, "out of memory for a list of models") : KVA_OK;
}
