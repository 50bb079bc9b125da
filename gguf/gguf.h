/* gguf.h - a GGUF file: its metadata and the table of its tensors.
 *
 *     "GGUF" [version u32][tensors u64][fields u64]
 *     [field: key, type, value]...   [tensor: name, dimensions, format, offset]...
 *     padding to the alignment       [tensor data]...
 *
 * Versions 2 and 3, little-endian. The file is hostile input: counts, lengths and offsets are
 * checked before they are used, and what was checked is copied or checked again when it is read,
 * because another process may write to the file meanwhile. Tensors lie in the file, aligned, and do
 * not overlap.
 *
 * Thread rule: immutable once parsed; any number of threads may read. The file's bytes are borrowed
 * and must outlive the table. */
#ifndef KVA_GGUF_GGUF_H
#define KVA_GGUF_GGUF_H

#include "base/arena.h"
#include "base/err.h"
#include "gguf/format.h"

#include <stdbool.h>

#define KVA_GGUF_FIELDS_MAX     65536u
#define KVA_GGUF_TENSORS_MAX    131072u
#define KVA_GGUF_KEY_BYTES_MAX  256u
#define KVA_GGUF_NAME_BYTES_MAX 256u
#define KVA_GGUF_RANK_MAX       4u
#define KVA_GGUF_ALIGNMENT_MAX  (1u << 20)

enum kva_gguf_type {
    KVA_GGUF_TYPE_U8,
    KVA_GGUF_TYPE_I8,
    KVA_GGUF_TYPE_U16,
    KVA_GGUF_TYPE_I16,
    KVA_GGUF_TYPE_U32,
    KVA_GGUF_TYPE_I32,
    KVA_GGUF_TYPE_F32,
    KVA_GGUF_TYPE_BOOL,
    KVA_GGUF_TYPE_STRING,
    KVA_GGUF_TYPE_ARRAY,
    KVA_GGUF_TYPE_U64,
    KVA_GGUF_TYPE_I64,
    KVA_GGUF_TYPE_F64,
    KVA_GGUF_TYPE_COUNT,
};

struct kva_gguf_field {
    const char *key;         /* printable ASCII */
    enum kva_gguf_type type; /* of an array: of its elements */
    bool is_array;
    uint64_t count;      /* elements; 1 where it is no array */
    uint64_t begin, end; /* the elements' bytes in the file */
};

struct kva_gguf_tensor {
    const char *name;                     /* printable ASCII */
    const struct kva_gguf_format *format; /* NULL: none that is known */
    uint32_t format_id;
    uint32_t rank;                    /* 1 or more */
    uint64_t dims[KVA_GGUF_RANK_MAX]; /* the fastest first: of a matrix its columns */
    uint64_t begin, end;              /* bytes from the start of the file */
};

struct kva_gguf {
    const char *file; /* names it in messages; borrowed */
    const uint8_t *data;
    size_t data_bytes;
    uint32_t version;
    uint32_t alignment;
    struct kva_gguf_field *fields; /* [field_count], sorted by key */
    size_t field_count;
    struct kva_gguf_tensor *tensors; /* [tensor_count], sorted by name */
    size_t tensor_count;
    struct kva_arena arena;
};

/* Parse and check the file that lies at data. On failure *ret needs no finish. Fails: KVA_EFORMAT,
 * KVA_EUNSUPPORTED (version, byte order), KVA_ENOMEM; err names the file and the place. */
KVA_MUST_CHECK enum kva_status kva_gguf_init(struct kva_gguf *ret, const void *data,
                                             size_t data_bytes, const char *file,
                                             struct kva_err *err);
void kva_gguf_finish(struct kva_gguf *gguf);

/* NULL: there is none. */
const struct kva_gguf_field *kva_gguf_find(const struct kva_gguf *gguf, const char *key);
const struct kva_gguf_tensor *kva_gguf_find_tensor(const struct kva_gguf *gguf, const char *name);

/* Element `index` of a field; false: it is no whole number (number, truth value), or not in range.
 */
bool kva_gguf_whole(const struct kva_gguf *gguf, const struct kva_gguf_field *field, uint64_t index,
                    int64_t *ret);
bool kva_gguf_number(const struct kva_gguf *gguf, const struct kva_gguf_field *field,
                     uint64_t index, double *ret);
bool kva_gguf_bool(const struct kva_gguf *gguf, const struct kva_gguf_field *field, bool *ret);

/* Look-ups by key that leave *ret as it is where the field is absent. Fail with KVA_EFORMAT, err
 * names file, key and what is expected. */
KVA_MUST_CHECK enum kva_status kva_gguf_get_whole(const struct kva_gguf *gguf, const char *key,
                                                  int64_t min, int64_t max, int64_t *ret,
                                                  struct kva_err *err);
KVA_MUST_CHECK enum kva_status kva_gguf_get_bool(const struct kva_gguf *gguf, const char *key,
                                                 bool *ret, struct kva_err *err);
/* The text is UTF-8 without NUL, but not followed by one. */
KVA_MUST_CHECK enum kva_status kva_gguf_get_string(const struct kva_gguf *gguf, const char *key,
                                                   const char **ret, size_t *ret_length,
                                                   struct kva_err *err);

/* The strings of a field, one after the other. */
struct kva_gguf_strings {
    const struct kva_gguf *gguf;
    const struct kva_gguf_field *field;
    uint64_t at;
    uint64_t index;
};

struct kva_gguf_strings kva_gguf_strings(const struct kva_gguf *gguf,
                                         const struct kva_gguf_field *field);
/* False at the end. */
bool kva_gguf_strings_next(struct kva_gguf_strings *strings, const char **ret, size_t *ret_length);

/* "u32", "string"; never NULL. */
const char *kva_gguf_type_name(enum kva_gguf_type type);

/* "[4096, 14336]", as matrices are written: rows first; `out` is returned. */
const char *kva_gguf_show_shape(const struct kva_gguf_tensor *tensor, char *out, size_t size);

#endif
