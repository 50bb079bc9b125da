/* skew.h - the command `skew`: from a model and a text to the file of the model's skew
 * (engine/model/skew.h), in parts that do one thing each.
 *
 *     skew.c    options and text -> windows -> a calibration -> the file, or a folded checkpoint
 *     report.c  what was looked at on the way, for people and for programs
 *
 * Nothing that is written depends on time or on the number of threads.
 *
 * Thread rule: main thread. */
#ifndef KVA_CLI_SKEW_SKEW_H
#define KVA_CLI_SKEW_SKEW_H

#include "cli/instance.h"
#include "engine/calibrate/calibrate.h"

struct kva_cli_skew {
    const struct kva_config *config;
    struct kva_cli_instance instance;
    const atomic_bool *stopped; /* by a signal */
    char *model_path;           /* what --model names, found */
    char path[1024];            /* of the file */
    bool folded;                /* the folded model is written */
    size_t text_bytes;
    char text_sha256[65];
    uint32_t *ids; /* [windows][window_tokens] */
    uint32_t window_tokens;
    uint32_t window_count;
    uint32_t look_count; /* of windows behind those */
    struct kva_calibration *result;
};

/* What was made of what, in a few lines; with --report tables by layer. */
void kva_cli_skew_table(const struct kva_cli_skew *skew, struct kva_buf *out);
void kva_cli_skew_json(const struct kva_cli_skew *skew, struct kva_buf *out);

#endif
