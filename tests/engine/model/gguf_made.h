/* gguf_made.h - a golden checkpoint written as GGUF files.
 *
 * Everything here asserts, so it is only called from tests. Thread rule: one thread. */
#ifndef KVA_TESTS_GGUF_MADE_H
#define KVA_TESTS_GGUF_MADE_H

#include "engine/model/model.h"
#include "tests/gguf/writer.h"

struct gguf_made {
    const struct kva_model *model;
    const char *architecture;
    struct gguf_writer *writers; /* [parts] */
    uint32_t parts, next;
    bool neighbours; /* Llama's order of rows */
};

/* Begin the writers, and give them the model's tensors and what the family's config.json says. */
void gguf_made_write(struct gguf_made *made, const char *family);

#endif
