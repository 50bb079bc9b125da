/* tokenizer.h - text to token ids and back, from a Hugging Face tokenizer.json, from the older
 * tokenizer.model (SentencePiece) or vocab.json with merges.txt, or from a GGUF file.
 *
 * Implements what such a file describes for BPE models: added tokens, normalizer, pre-tokenizer,
 * byte-level or character BPE with byte fallback, post-processor and decoder. A component that is
 * not implemented is refused when the file is loaded, with its place in the file and its type.
 *
 * Thread rule: a tokenizer is immutable once loaded; any number of threads may use it at once. A
 * token list and a detokeniser belong to one thread at a time.
 * Invariants: the files are hostile input; every id given out is in [0, vocab_size). Encoding takes
 * time linear in the text (a merge queue adds a logarithm), and processor time for the patterns of
 * a hostile file is bounded. */
#ifndef KVA_TEXT_TOKENIZER_H
#define KVA_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "base/kva.h"

#include <stdatomic.h>
#include <stdbool.h>

/* All maxima of this module. */
#define KVA_TOKENIZER_FILE_BYTES_MAX    ((size_t)128 << 20) /* a vocabulary */
#define KVA_TOKENIZER_CONFIG_BYTES_MAX  ((size_t)8 << 20)   /* any of the other files */
#define KVA_TOKENIZER_JSON_VALUES_MAX   ((size_t)8 << 20)   /* values in one of the files */
#define KVA_TOKENIZER_JSON_DEPTH_MAX    64
#define KVA_TOKENIZER_VOCAB_MAX         (1 << 21) /* ids */
#define KVA_TOKENIZER_MERGES_MAX        (1 << 22)
#define KVA_TOKENIZER_TOKEN_BYTES_MAX   65535 /* one entry of the vocabulary */
#define KVA_TOKENIZER_ADDED_BYTES_MAX   1024  /* one added token */
#define KVA_TOKENIZER_STAGES_MAX        32    /* of a normalizer, pre-tokenizer or decoder */
#define KVA_TOKENIZER_PATTERN_BYTES_MAX 16384 /* one regular expression */
#define KVA_TOKENIZER_TEMPLATE_MAX      64    /* pieces that a post-processor adds */
#define KVA_TOKENIZER_TEXT_BYTES_MAX    ((size_t)64 << 20) /* one text, also once normalized */

struct kva_tokenizer;

/* Loads what a model's folder has of a tokenizer, or what a GGUF file has in its place. Fails:
 * KVA_ENOTFOUND (no tokenizer; err says what would be one), KVA_EIO, KVA_ETOOBIG, KVA_EFORMAT (err
 * names the file and the component), KVA_EUNSUPPORTED (a component of a type that is not
 * implemented), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status
kva_tokenizer_load(const char *path, struct kva_tokenizer **ret_tokenizer, struct kva_err *err);

/* Appends to `out` what the folder lacks of a tokenizer, for people; nothing if it has all files of
 * one. */
void kva_tokenizer_folder_lacks(const char *path, struct kva_buf *out);

/* The content of a file; `data` NULL: there is none. */
struct kva_tokenizer_file {
    const char *data;
    size_t length;
};

/* The files of a folder. `json` counts where it is there, else `model`, else `vocab` with `merges`. */
struct kva_tokenizer_files {
    struct kva_tokenizer_file json;         /* tokenizer.json */
    struct kva_tokenizer_file model;        /* tokenizer.model, of SentencePiece */
    struct kva_tokenizer_file vocab;        /* vocab.json */
    struct kva_tokenizer_file merges;       /* merges.txt */
    struct kva_tokenizer_file config;       /* tokenizer_config.json */
    struct kva_tokenizer_file added;        /* added_tokens.json */
    struct kva_tokenizer_file specials;     /* special_tokens_map.json */
    struct kva_tokenizer_file model_config; /* config.json */
};

/* The same from memory, which is only read during the call. */
KVA_MUST_CHECK enum kva_status kva_tokenizer_load_files(const struct kva_tokenizer_files *files,
                                                        struct kva_tokenizer **ret_tokenizer,
                                                        struct kva_err *err);

/* The same of tokenizer.json and tokenizer_config.json, which may be NULL. */
KVA_MUST_CHECK enum kva_status kva_tokenizer_load_buffers(const char *json, size_t json_length,
                                                          const char *config_json,
                                                          size_t config_length,
                                                          struct kva_tokenizer **ret_tokenizer,
                                                          struct kva_err *err);

/* The same of a GGUF file's metadata, which is only read during the call. */
struct kva_gguf;
KVA_MUST_CHECK enum kva_status kva_tokenizer_load_gguf(const struct kva_gguf *gguf,
                                                       struct kva_tokenizer **ret_tokenizer,
                                                       struct kva_err *err);

void kva_tokenizer_destroy(struct kva_tokenizer *tokenizer);

/* ---- the vocabulary ------------------------------------------------------------------------- */

/* The largest id plus one. A model's logits may be wider. */
uint32_t kva_tokenizer_vocab_size(const struct kva_tokenizer *tokenizer);

/* The id of exactly this entry of the vocabulary or added token ("<|eot_id|>"), or -1. */
int32_t kva_tokenizer_lookup(const struct kva_tokenizer *tokenizer, const char *token,
                             size_t length);

/* The entry as the file spells it, UTF-8, NUL-terminated (byte-level alphabets are not undone); it
 * lives as long as the tokenizer. NULL: no token has this id. `ret_length` may be NULL. */
const char *kva_tokenizer_token_string(const struct kva_tokenizer *tokenizer, int32_t id,
                                       size_t *ret_length);

/* The bytes that the token stands for in the middle of a text, not always whole characters; they
 * live as long as the tokenizer. NULL: no token has this id. */
const char *kva_tokenizer_token_bytes(const struct kva_tokenizer *tokenizer, int32_t id,
                                      size_t *ret_length);

/* Whether it is an added token that the file marks special. False for ids that do not exist. */
bool kva_tokenizer_is_special(const struct kva_tokenizer *tokenizer, int32_t id);

/* Ids that tokenizer_config.json names, or -1. */
int32_t kva_tokenizer_bos(const struct kva_tokenizer *tokenizer);
int32_t kva_tokenizer_eos(const struct kva_tokenizer *tokenizer);
int32_t kva_tokenizer_pad(const struct kva_tokenizer *tokenizer);
/* The configuration's, or else the model's own unknown token, or -1. */
int32_t kva_tokenizer_unk(const struct kva_tokenizer *tokenizer);

/* ---- encoding ------------------------------------------------------------------------------- */

/* Ids in order; grows up to `max`. */
struct kva_token_list {
    int32_t *ids;
    size_t count;
    size_t capacity;
    size_t max;
};

void kva_token_list_init(struct kva_token_list *list, size_t max);
void kva_token_list_finish(struct kva_token_list *list);

/* Appends; KVA_ETOOBIG at `max`, KVA_ENOMEM. Neither changes the list. */
KVA_MUST_CHECK enum kva_status kva_token_list_push(struct kva_token_list *list, int32_t id);

/* What an encoding did: for tests that bound work, and for metrics. */
struct kva_encode_work {
    uint64_t pieces;       /* pieces that came out of the pre-tokenizer */
    uint64_t merges;       /* pairs joined */
    uint64_t lookups;      /* pairs looked up in the table of merges */
    uint64_t queue_pushes; /* candidates queued, long pieces only */
    uint64_t cache_hits;   /* pieces answered from the cache of this call */
};

struct kva_encode_params {
    bool add_special;   /* what the post-processor adds: BOS, EOS */
    bool parse_special; /* special tokens written in the text become their ids; without
                                     it they are ordinary text. Added tokens that are not special
                                     are always recognised. */
    size_t tokens_max;  /* 0: only the list's own maximum */
    size_t stop_tokens; /* 0: none; beyond so many the encoding ends where it is, and their
                                     number stays unknown */
    const atomic_bool *cancelled; /* may be NULL; true, from any thread, ends the encoding */
    struct kva_encode_work *work; /* may be NULL; added to */
};

/* Appends the ids of `text` to `list`. Bytes that are not UTF-8 are read as U+FFFD, one for each
 * maximal ill-formed sequence (what a lossy decoder gives). Truncation and padding that a
 * tokenizer.json may ask for are not applied. NULL params: all false and zero.
 *
 * Fails, with the list as it was: KVA_ETOOBIG (the text, or more tokens than allowed: err has the
 * number that the text gives and the limit), KVA_ECANCELLED, KVA_EINVAL (a pattern of the tokenizer exceeds its
 * match limit or processor time on this text), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_tokenizer_encode(const struct kva_tokenizer *tokenizer,
                                                    const char *text, size_t length,
                                                    const struct kva_encode_params *params,
                                                    struct kva_token_list *list,
                                                    struct kva_err *err);

/* ---- decoding ------------------------------------------------------------------------------- */

/* Incremental decoder in the caller's storage. The fields are private. */
struct kva_detok {
    const struct kva_tokenizer *tokenizer;
    size_t held;       /* trailing characters that a Strip may remove */
    uint32_t strip;    /* leading characters that may still be removed */
    bool skip_special; /* special tokens give no text */
    bool started;      /* a token has been seen */
    uint8_t pending_count;
    char pending[4]; /* an incomplete UTF-8 sequence */
};

/* The tokenizer must outlive it. There is nothing to finish. */
void kva_detok_init(struct kva_detok *detok, const struct kva_tokenizer *tokenizer,
                    bool skip_special);

/* After init: what comes goes on with text that is there already, so that its beginning is not one of a
 * text: "▁Paris" is " Paris". */
void kva_detok_continue(struct kva_detok *detok);

/* Appends to `out` the bytes that are certain after this token: always whole characters. Ids that
 * do not exist give nothing. Whatever way a sequence of ids is pushed, the appended bytes together
 * with those of the flush are what kva_tokenizer_decode gives for it. `out` fails as a kva_buf
 * does: check out->failed. */
void kva_detok_push(struct kva_detok *detok, int32_t id, struct kva_buf *out);

/* Ends the text: an incomplete character becomes U+FFFD. The detokeniser is as after init. */
void kva_detok_flush(struct kva_detok *detok, struct kva_buf *out);

/* Appends the text of `count` ids. Ill-formed UTF-8 becomes U+FFFD: one for each maximal ill-formed
 * sequence with a byte-level decoder, one for each byte with byte fallback.
 *
 * A deliberate difference from the reference: there, one bad byte makes U+FFFD of *every* byte of
 * the run of byte-fallback tokens around it, even of characters that were complete; a stream that
 * has shown those cannot take them back, so here they stay. The reference's optional clean-up of
 * spaces before punctuation is not done either: it is not reversible and cannot be streamed.
 *
 * Fails: KVA_ETOOBIG (out's maximum), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_tokenizer_decode(const struct kva_tokenizer *tokenizer,
                                                    const int32_t *ids, size_t count,
                                                    bool skip_special, struct kva_buf *out);

#endif
