/* eval.h - the command `eval`: what KV policies cost on the user's own text, in parts that do one
 * thing each.
 *
 *     input.c   a file of text or of prompts -> samples of token ids
 *     eval.c    options -> a run (engine/eval/eval.h), with a bar on standard error
 *     table.c   the result for people; json.c for programs; svg.c as heat maps
 *     stream.c  --stream: one text, past the context, window by window
 *     sparsity.c  --sparsity: of a stream, how few tokens attention needs
 *
 * But for the times of a stream, nothing that is written depends on time or on the number of
 * threads: the same options on the same files give the same bytes at one capability level of the
 * processor.
 *
 * Thread rule: main thread. */
#ifndef KVA_CLI_EVAL_EVAL_H
#define KVA_CLI_EVAL_EVAL_H

#include "cli/instance.h"
#include "engine/eval/eval.h"
#include "engine/eval/sparsity.h"
#include "engine/eval/stream.h"

#define KVA_EVAL_POLICIES_MAX 64u
#define KVA_EVAL_SAMPLES_MAX  65536u
#define KVA_EVAL_SHARES_MAX   32u

struct kva_cli_eval {
    const struct kva_config *config;
    struct kva_cli_instance instance;
    struct kva_cli_instance
        reference; /* with the weights of the files, where the other's are int8 */
    enum kva_dtype kv_dtype;

    struct kva_cli_kv kv;
    char *texts; /* --policies, cut at the commas */
    const char *names[KVA_EVAL_POLICIES_MAX];
    struct kva_kv_spec specs[KVA_EVAL_POLICIES_MAX];
    uint32_t spec_count;

    const char *file_path; /* of the text or the prompts */
    size_t file_bytes;
    char file_sha256[65];
    uint32_t from; /* prompt tokens of a window of the text */
    struct kva_eval_sample *samples;
    uint32_t sample_count;

    struct kva_eval *result;
    struct kva_stream_window *stream;     /* [spec_count][--windows]; NULL: no --stream */
    double percents[KVA_EVAL_SHARES_MAX]; /* --sparsity */
    uint32_t kept[KVA_EVAL_SHARES_MAX];   /* the same in tokens */
    uint32_t percent_count;
    struct kva_sparsity sparsity;
};

/* Reads --text, --prompts or --stream into samples. Fails: KVA_EINVAL, KVA_ENOTFOUND, KVA_EIO,
 * KVA_ETOOBIG, KVA_EFORMAT, KVA_ECONTEXT, KVA_ENOMEM; err names the file, and the line of prompts. */
KVA_MUST_CHECK enum kva_status kva_cli_eval_read(struct kva_cli_eval *eval, struct kva_err *err);
void kva_cli_eval_drop_samples(struct kva_cli_eval *eval);

/* --stream: the text of the one sample through every policy. `progress` once a window. Fails: as
 * kva_eval_stream. */
KVA_MUST_CHECK enum kva_status kva_cli_eval_run_stream(struct kva_cli_eval *eval,
                                                       void (*progress)(void *opaque), void *opaque,
                                                       struct kva_err *err);
void kva_cli_eval_stream_table(const struct kva_cli_eval *eval, struct kva_buf *out);
void kva_cli_eval_stream_json(const struct kva_cli_eval *eval, struct kva_buf *out);

/* --sparsity: what is to be looked at, before the stream; and what was seen. Fails: KVA_EINVAL
 * (names the option), as kva_sparsity_init. */
KVA_MUST_CHECK enum kva_status kva_cli_eval_read_sparsity(struct kva_cli_eval *eval,
                                                          struct kva_err *err);
KVA_MUST_CHECK enum kva_status kva_cli_eval_begin_sparsity(struct kva_cli_eval *eval,
                                                           struct kva_err *err);
void kva_cli_eval_sparsity_table(const struct kva_cli_eval *eval, struct kva_buf *out);
void kva_cli_eval_sparsity_json(const struct kva_cli_eval *eval, struct kva_buf *out);

/* What both documents begin with, and an open object with a policy's name and settings. */
void kva_cli_eval_json_head(const struct kva_cli_eval *eval, struct kva_buf *out);
void kva_cli_eval_json_policy(const struct kva_cli_eval *eval, uint32_t index, struct kva_buf *out);

/* The result in the three forms. */
void kva_cli_eval_table(const struct kva_cli_eval *eval, struct kva_buf *out);
void kva_cli_eval_json(const struct kva_cli_eval *eval, struct kva_buf *out);
void kva_cli_eval_svg(const struct kva_cli_eval *eval, struct kva_buf *out);

#endif
