/* file.h - a GGUF file, mapped for reading its metadata: whoever wants its tensors maps all parts
 * of a split file (engine/model/files.h).
 *
 * Thread rule: opened by one thread; immutable afterwards. */
#ifndef KVA_GGUF_FILE_H
#define KVA_GGUF_FILE_H

#include "gguf/gguf.h"

struct kva_gguf_file {
    struct kva_gguf gguf;
    void *map;
    size_t map_bytes;
    uint32_t watch; /* of the map: base/mapped.h */
    char name[256]; /* the last part of the path, for messages */
};

/* Whether --model names a GGUF file rather than a folder. */
bool kva_gguf_is_path(const char *path);

/* Fails: KVA_ENOTFOUND, KVA_EIO, and as kva_gguf_init does. */
KVA_MUST_CHECK enum kva_status kva_gguf_file_open(const char *path, struct kva_gguf_file **ret,
                                                  struct kva_err *err);
/* NULL is allowed. */
void kva_gguf_file_close(struct kva_gguf_file *file);

#endif
