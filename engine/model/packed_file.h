/* packed_file.h - a file that is made of a model's weights and kept beside them, from looking for it
 * to renaming it into its place; or memory where there is to be none. What is in it is packed.c's,
 * or skew.c's.
 *
 * A new file is made under the name PATH.new, which its maker holds locked (flock), so that there
 * is one at a time and what a killed process leaves behind is the next one's to write over. The
 * lock goes with the file when that is renamed.
 *
 * Thread rule: one thread. */
#ifndef KVA_ENGINE_MODEL_INT8_FILE_H
#define KVA_ENGINE_MODEL_INT8_FILE_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

/* In a model's folder, with the name of the format behind it. */
#define KVA_PACKED_FILE_NAME "kvahead."

/* What is kept begins behind it, at a page. */
#define KVA_PACKED_FILE_HEADER_BYTES 4096u

/* What kind of file it is. */
struct kva_packed_file_kind {
    char magic[16];
    uint32_t version;
    const char *what;    /* "packed weights" */
    const char *instead; /* logged with the reason where it cannot be kept: what comes of it. NULL:
                            nothing is logged, `why` has the reason */
};

struct kva_packed_file_header {
    uint64_t shape_sum;   /* of what the layout follows from */
    uint64_t stamp;       /* of the model's files' identity: inodes, sizes, times */
    uint64_t source_sum;  /* of their content */
    uint64_t payload_sum; /* of what is behind the header */
};

struct kva_packed_file {
    const struct kva_packed_file_kind *kind;
    char why[128];       /* why it cannot be kept; "": it can */
    char path[1024];     /* "": there is to be no file */
    int fd;              /* of the new file, locked; -1: none */
    uint64_t looked_ino; /* of the file at `path` when it was opened last; 0: there was none */
    void *map;
    size_t map_bytes;
    uint32_t watch; /* of the map: base/mapped.h; it is for reading */
    bool made;      /* by this process */
    bool shared;    /* the map is the file's, which is at `path` */
};

/* PATH: cache_path/NAME-SUM.FORMAT with the model's name and a sum of where it is; without
 * cache_path, kvahead.FORMAT in the model's folder, or beside a model that is one file and with its
 * name, MODEL.gguf.FORMAT. */
void kva_packed_file_init(struct kva_packed_file *file, const struct kva_packed_file_kind *kind,
                          const char *model_path, const char *cache_path, const char *format);

/* At this path, wherever that is. */
void kva_packed_file_init_at(struct kva_packed_file *file, const struct kva_packed_file_kind *kind,
                             const char *path);

/* No file: what is begun is memory. */
void kva_packed_file_init_none(struct kva_packed_file *file,
                               const struct kva_packed_file_kind *kind);

/* Maps the file for reading. False: there is none, or it cannot be read. */
bool kva_packed_file_open(struct kva_packed_file *file);
void kva_packed_file_unmap(struct kva_packed_file *file);

/* The header of the mapped file. Returns what is wrong with it; NULL: nothing. */
const char *kva_packed_file_header_read(const struct kva_packed_file *file,
                                        struct kva_packed_file_header *ret);

/* How long to wait for another process. */
struct kva_packed_file_wait {
    uint32_t max_ms;
    const atomic_bool *cancelled; /* true: no longer; or NULL */
};

/* Get the right to make the file, waiting for whoever has it. False: somebody has made it since it
 * was opened: look again. True too where no file can be made there, or the wait was in vain, which
 * is logged. */
bool kva_packed_file_lock(struct kva_packed_file *file, const struct kva_packed_file_wait *wait);

/* Maps `bytes` of the new file for writing, or memory where there is none or the disk is full,
 * which is logged. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_packed_file_begin(struct kva_packed_file *file, size_t bytes,
                                                     struct kva_err *err);

/* Writes the header and gives the file its name; the map is read-only from then on. */
void kva_packed_file_publish(struct kva_packed_file *file,
                             const struct kva_packed_file_header *header);

/* Lets the lock go. `failed`: the map and an unfinished file go, too. */
void kva_packed_file_finish(struct kva_packed_file *file, bool failed);

#endif
