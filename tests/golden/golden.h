/* golden.h - reads expected.json of a tiny model in tests/golden/families (make_families.py says
 * what is in it).
 *
 * Thread rule: one thread. */
#ifndef KVA_TESTS_GOLDEN_H
#define KVA_TESTS_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kva_golden {
    uint32_t vocab;
    uint32_t *prompt; /* [prompt_count] token ids */
    uint32_t prompt_count;
    uint32_t *positions; /* [position_count] positions in the prompt that have logits */
    uint32_t position_count;
    float *logits;    /* [position_count, vocab] */
    uint32_t *greedy; /* [greedy_count] what greedy decoding appends to the prompt */
    float *margins;   /* [greedy_count] lead of the best logit over the second */
    uint32_t greedy_count;
};

/* The families, NULL at the end. */
extern const char *const kva_golden_families[];

/* Path of a family's folder, or of a file in it if `file` is not NULL; `out` is returned. */
const char *kva_golden_path(const char *family, const char *file, char *out, size_t size);

/* False, with a line on stdout, if the file is not there or not as described. */
bool kva_golden_load(const char *family, struct kva_golden *ret);
void kva_golden_finish(struct kva_golden *golden);

#endif
