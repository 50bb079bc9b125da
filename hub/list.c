/* list.c - what the two caches hold. */
#include "hub/cache.h"
#include "hub/disk.h"
#include "hub/hub.h"
#include "hub/wheel.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES_MAX 4096u

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

static int is_model(const struct dirent *entry)
{
    return strncmp(entry->d_name, KVA_HUB_CACHE_PREFIX, strlen(KVA_HUB_CACHE_PREFIX)) == 0;
}

/* "models--org--name" -> "org/name" */
static void write_name(const char *folder, char *ret, size_t size)
{
    snprintf(ret, size, "%s", folder + strlen(KVA_HUB_CACHE_PREFIX));
    char *at = strstr(ret, "--");
    if (at) {
        *at = '/';
        memmove(at + 1, at + 2, strlen(at + 2) + 1);
    }
}

static void put_repositories(const char *cache_path, struct kva_buf *out)
{
    struct dirent **entries = NULL;
    int count = cache_path ? scandir(cache_path, &entries, is_model, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        char path[PATH_BYTES_MAX], name[256];
        write_name(entries[i]->d_name, name, sizeof(name));
        if (snprintf(path, sizeof(path), "%s/%s", cache_path, entries[i]->d_name) <
            (int)sizeof(path))
            put(out, name, kva_hub_disk_bytes(path), path);
        free(entries[i]);
    }
    free(entries);
}

enum kva_status kva_hub_list(const struct kva_hub_places *places, struct kva_buf *out,
                             struct kva_err *err)
{
    put_known(places, out);
    put_repositories(places->cache_path, out);
    return out->failed ? kva_fail(err, KVA_ENOMEM, "out of memory for a list of models") : KVA_OK;
}
