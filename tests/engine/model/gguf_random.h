/* gguf_random.h - a model of one layer in GGUF whose matrices are random blocks of any format.
 *
 * Everything here asserts, so it is only called from tests. Thread rule: one thread. */
#ifndef KVA_TESTS_GGUF_RANDOM_H
#define KVA_TESTS_GGUF_RANDOM_H

#include "tests/gguf/writer.h"

/* The widths are blocks of all formats. */
enum {
    GGUF_RANDOM_HIDDEN = 256,
    GGUF_RANDOM_INNER = 512,
    GGUF_RANDOM_VOCAB = 96,
    GGUF_RANDOM_HEADS = 4,
    GGUF_RANDOM_HEAD_DIM = 64,
    GGUF_RANDOM_KV_HEADS = 2,
    GGUF_RANDOM_CONTEXT = 128,
};

#define GGUF_RANDOM_MATRICES 8

struct gguf_random_matrix {
    const char *name;
    uint32_t rows, cols;
};

/* The embedding, which is the output matrix too, then q, k, v, o, gate, up and down. */
extern const struct gguf_random_matrix gguf_random_matrices[GGUF_RANDOM_MATRICES];

/* GGUF's numbers of all formats that are decoded. */
#define GGUF_RANDOM_FORMATS 10
extern const uint32_t gguf_random_formats[GGUF_RANDOM_FORMATS];

/* Begins the writer and puts the whole model into it. */
void gguf_random_put(struct gguf_writer *writer, const char *architecture, uint32_t format_id);

#endif
