/* reference.c - where a local `$ref` points. */
#include "text/grammar/reference.h"

#include <stdint.h>
#include <string.h>

cJSON *kva_schema_find_reference(const cJSON *root, const char *reference)
{
    cJSON *at = (cJSON *)(uintptr_t)root;
    if (strcmp(reference, "#") == 0)
        return at;
    if (strncmp(reference, "#/", 2) != 0)
        return NULL;
    for (const char *name = reference + 2; at; name++) {
        char part[256];
        size_t length = strcspn(name, "/");
        if (length == 0 || length >= sizeof(part) || !cJSON_IsObject(at))
            return NULL;
        memcpy(part, name, length);
        part[length] = '\0';
        at = cJSON_GetObjectItemCaseSensitive(at, part);
        name += length;
        if (*name == '\0')
            return at;
    }
    return NULL;
}
