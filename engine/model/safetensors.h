/* safetensors.h - the table of one safetensors file: which tensor lies where.
 *
 *      0          8              8 + n                                     end of file
 *     [n: u64 le][n bytes of JSON][tensor][tensor]..............[tensor]
 *
 * The JSON maps names to {"dtype", "shape", "data_offsets": [begin, end]}, offsets relative to
 * 8 + n; "__metadata__" is not a tensor. The tensors must cover the rest of the file exactly: a
 * hole, an overlap, a missing or an extra byte is an error, and so is a name that stands twice.
 *
 * Thread rule: immutable once parsed. The file's bytes are borrowed and must outlive the table. */
#ifndef KVA_ENGINE_MODEL_SAFETENSORS_H
#define KVA_ENGINE_MODEL_SAFETENSORS_H

#include "base/arena.h"
#include "base/err.h"
#include "engine/model/limits.h"
#include "kernels/dtype.h"

#include <stdbool.h>

struct kva_safetensors_entry {
    const char *name; /* printable: control characters are refused */
    char dtype[16];   /* as the file spells it, cut and made printable */
    uint32_t rank;
    uint64_t shape[KVA_SAFETENSORS_RANK_MAX];
    uint64_t begin, end; /* bytes from the start of the file */
};

struct kva_safetensors {
    const uint8_t *data; /* the whole file */
    size_t data_bytes;
    struct kva_safetensors_entry *entries; /* [entry_count], sorted by name */
    size_t entry_count;
    struct kva_arena arena;
};

/* Parse and check the table of the file that lies at data. `file` names it in messages. On failure
 * *ret needs no finish. Fails: KVA_EFORMAT, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_safetensors_init(struct kva_safetensors *ret, const void *data,
                                                    size_t data_bytes, const char *file,
                                                    struct kva_err *err);
void kva_safetensors_finish(struct kva_safetensors *table);

/* NULL: there is no such tensor. */
const struct kva_safetensors_entry *kva_safetensors_find(const struct kva_safetensors *table,
                                                         const char *name);

/* The format of an entry, and whether it is one that the kernels take. */
bool kva_safetensors_dtype(const struct kva_safetensors_entry *entry, enum kva_dtype *ret);

/* "[4096, 14336]"; `out` is returned. */
const char *kva_safetensors_show_shape(const struct kva_safetensors_entry *entry, char *out,
                                       size_t size);

#endif
