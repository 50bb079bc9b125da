/* internal.h - what the files of the tokenizer share. Nothing here is for other modules.
 *
 *     text --lossy--> UTF-8 --added tokens--> chunks --normalizer--> chunks --added tokens, the
 *     normalized ones--> chunks --pre-tokenizer--> pieces --BPE--> ids
 *
 * A normalizer or pre-tokenizer of the file is lowered to a flat list of operations when it is
 * loaded; an encoding runs the list depth first, piece by piece, and keeps no list of pieces. */
#ifndef KVA_TEXT_TOKENIZER_INTERNAL_H
#define KVA_TEXT_TOKENIZER_INTERNAL_H

#include "text/tokenizer/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <cjson/cJSON.h>
#include <pcre2.h>

/* ---- loading: places and complaints (json.c) ------------------------------------------------ */

/* Where in a file something stands: "pre_tokenizer.pretokenizers[1]". */
struct kva_tok_place {
    const char *file;
    char text[120];
    struct kva_err *err;
};

struct kva_tok_place kva_tok_place_root(const char *file, struct kva_err *err);
struct kva_tok_place kva_tok_place_member(const struct kva_tok_place *parent, const char *name);
struct kva_tok_place kva_tok_place_index(const struct kva_tok_place *parent, size_t index);

/* "tokenizer.json: decoder: <message>"; returns `status`. */
enum kva_status kva_tok_complain(const struct kva_tok_place *place, enum kva_status status,
                                 const char *format, ...) KVA_PRINTF(3, 4);

/* Checks UTF-8, depth and number of values before cJSON builds anything, then parses. The caller
 * frees with cJSON_Delete. */
KVA_MUST_CHECK enum kva_status kva_tok_json_parse(const struct kva_tok_place *place,
                                                  const char *json, size_t length, size_t bytes_max,
                                                  cJSON **ret_root);

/* Members of an object. A missing member or null gives `missing` where one is taken, an error
 * where none is. `ret_` is untouched on failure. */
KVA_MUST_CHECK enum kva_status kva_tok_json_bool(const struct kva_tok_place *place,
                                                 const cJSON *object, const char *name,
                                                 bool missing, bool *ret_value);
KVA_MUST_CHECK enum kva_status kva_tok_json_string(const struct kva_tok_place *place,
                                                   const cJSON *object, const char *name,
                                                   const char **ret_value);
/* NULL where missing. */
KVA_MUST_CHECK enum kva_status kva_tok_json_string_optional(const struct kva_tok_place *place,
                                                            const cJSON *object, const char *name,
                                                            const char **ret_value);
/* An integer in [0, max]. */
KVA_MUST_CHECK enum kva_status kva_tok_json_uint(const struct kva_tok_place *place,
                                                 const cJSON *item, uint32_t max,
                                                 uint32_t *ret_value);
KVA_MUST_CHECK enum kva_status kva_tok_json_array(const struct kva_tok_place *place,
                                                  const cJSON *object, const char *name,
                                                  const cJSON **ret_array);
/* A member that is absent or null. */
bool kva_tok_json_missing(const cJSON *object, const char *name);

/* Counts down stages and depth of nested Sequences. */
struct kva_tok_json_list {
    const cJSON *items[KVA_TOKENIZER_STAGES_MAX];
    struct kva_tok_place places[KVA_TOKENIZER_STAGES_MAX];
    const char *types[KVA_TOKENIZER_STAGES_MAX];
    uint32_t count;
};

/* Flattens a component that may be a Sequence whose members stand in `member`. */
KVA_MUST_CHECK enum kva_status kva_tok_json_flatten(const struct kva_tok_place *place,
                                                    const cJSON *component, const char *member,
                                                    struct kva_tok_json_list *list);

/* ---- vocabulary (vocab.c) ------------------------------------------------------------------- */

enum {
    KVA_TOK_MODEL = 1,   /* an entry of the BPE model */
    KVA_TOK_ADDED = 2,   /* an added token */
    KVA_TOK_SPECIAL = 4, /* an added token marked special */
    KVA_TOK_BYTE = 8,    /* "<0x0A>", which the decoder turns into a byte */
};

struct kva_vocab_entry {
    uint32_t offset; /* into pool; the entry is followed by a NUL */
    uint32_t length;
    uint32_t bytes_offset; /* into bytes_pool: what it stands for */
    uint16_t bytes_length;
    uint8_t flags; /* 0: no token has this id */
};

struct kva_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
};

struct kva_vocab {
    struct kva_buf pool;
    struct kva_buf bytes_pool;
    struct kva_vocab_entry *entries; /* [capacity], of which [0, size) may be used */
    uint32_t size;
    uint32_t capacity;
    uint32_t count;
    struct kva_vocab_slot *slots; /* open addressing, linear probing */
    uint32_t slot_mask;
    uint64_t seed; /* random: a file cannot aim at collisions */
    uint32_t token_bytes_longest;
};

uint64_t kva_tok_hash(uint64_t seed, const char *text, size_t length);
KVA_MUST_CHECK enum kva_status kva_vocab_init(struct kva_vocab *vocab, size_t entries_max);
void kva_vocab_finish(struct kva_vocab *vocab);
/* Adds, or adds flags to the entry with the same text and id. */
KVA_MUST_CHECK enum kva_status kva_vocab_add(struct kva_vocab *vocab,
                                             const struct kva_tok_place *place, const char *text,
                                             uint32_t id, uint8_t flags);
int32_t kva_vocab_find(const struct kva_vocab *vocab, const char *text, size_t length);
/* The same among entries of the BPE model only. */
int32_t kva_vocab_find_model(const struct kva_vocab *vocab, const char *text, size_t length);

/* ---- patterns (pattern.c, regex.c) ---------------------------------------------------------- */

enum kva_pattern_kind {
    KVA_PATTERN_REGEX,
    KVA_PATTERN_STRING,
    KVA_PATTERN_NUMERIC,
    KVA_PATTERN_PUNCTUATION,
    KVA_PATTERN_WHITESPACE,
};

struct kva_pattern {
    enum kva_pattern_kind kind;
    char *text; /* as in the file */
    size_t length;
    pcre2_code *code; /* KVA_PATTERN_REGEX */
};

/* What matching needs besides the pattern; one for each encoding. */
struct kva_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint64_t deadline_ns; /* of this thread's processor time; 0: not started */
    uint32_t until_check;
    size_t text_bytes;
    struct kva_err *err;
};

void kva_matcher_init(struct kva_matcher *matcher, size_t text_bytes, struct kva_err *err);
void kva_matcher_finish(struct kva_matcher *matcher);

/* Position of a scan over one text. */
struct kva_scan {
    const char *text;
    size_t length;
    size_t at;
    size_t last_end; /* SIZE_MAX: no match yet */
};

/* The next match; *ret_found false at the end. An empty match just after a match is passed over. */
KVA_MUST_CHECK enum kva_status kva_pattern_next(const struct kva_pattern *pattern,
                                                struct kva_matcher *matcher, struct kva_scan *scan,
                                                bool *ret_found, size_t *ret_start,
                                                size_t *ret_end);

KVA_MUST_CHECK enum kva_status kva_pattern_init_regex(struct kva_pattern *pattern,
                                                      const struct kva_tok_place *place,
                                                      const char *text);
KVA_MUST_CHECK enum kva_status kva_pattern_init_string(struct kva_pattern *pattern,
                                                       const struct kva_tok_place *place,
                                                       const char *text);
/* {"Regex": ...} or {"String": ...} in member "pattern". */
KVA_MUST_CHECK enum kva_status kva_pattern_load(struct kva_pattern *pattern,
                                                const struct kva_tok_place *place,
                                                const cJSON *component);
void kva_pattern_finish(struct kva_pattern *pattern);

/* Rewrites an expression in the syntax that the files use (Oniguruma's) into PCRE2's. */
KVA_MUST_CHECK enum kva_status kva_regex_translate(const struct kva_tok_place *place,
                                                   const char *text, struct kva_buf *out);

bool kva_code_is_space(uint32_t code); /* White_Space */
bool kva_code_is_word(uint32_t code);

/* ---- the byte-level alphabet (bytelevel.c) -------------------------------------------------- */

/* The code point that stands for a byte, and back: -1 if it stands for none. */
uint32_t kva_bytelevel_code(uint8_t byte);
int kva_bytelevel_byte(uint32_t code);
/* Appends the spelling of the bytes in the alphabet. */
void kva_bytelevel_spell(struct kva_buf *out, const char *bytes, size_t length);

/* ---- operations ----------------------------------------------------------------------------- */

enum kva_tok_op_kind {
    KVA_OP_NFC,
    KVA_OP_NFD,
    KVA_OP_NFKC,
    KVA_OP_NFKD,
    KVA_OP_LOWERCASE,
    KVA_OP_STRIP,         /* left, right */
    KVA_OP_STRIP_ACCENTS, /* all marks */
    KVA_OP_PREPEND,       /* content, if the text is not empty */
    KVA_OP_REPLACE,       /* pattern by content */
    KVA_OP_BYTE_SPELL,    /* bytes become letters of the byte-level alphabet */
    KVA_OP_SPLIT,         /* pattern, behavior, invert */
    KVA_OP_PREFIX,        /* content, unless the text starts with it; only_first */
};

enum kva_split_behavior {
    KVA_SPLIT_REMOVED,
    KVA_SPLIT_ISOLATED,
    KVA_SPLIT_CONTIGUOUS,
    KVA_SPLIT_MERGED_WITH_PREVIOUS,
    KVA_SPLIT_MERGED_WITH_NEXT,
};

struct kva_tok_op {
    enum kva_tok_op_kind kind;
    enum kva_split_behavior behavior;
    bool invert;
    bool left, right;
    bool only_first;
    struct kva_pattern pattern;
    char *content;
    size_t content_length;
};

struct kva_tok_ops {
    struct kva_tok_op items[3 * KVA_TOKENIZER_STAGES_MAX];
    uint32_t count;
};

void kva_tok_ops_finish(struct kva_tok_ops *ops);
/* A new zeroed operation. There is always room: a stage is lowered to three at most. */
struct kva_tok_op *kva_tok_ops_add(struct kva_tok_ops *ops, enum kva_tok_op_kind kind);
KVA_MUST_CHECK enum kva_status kva_tok_op_set_content(struct kva_tok_op *op,
                                                      const struct kva_tok_place *place,
                                                      const char *content);

/* normalizer.c */
KVA_MUST_CHECK enum kva_status kva_normalizer_load(struct kva_tok_ops *ops,
                                                   const struct kva_tok_place *place,
                                                   const cJSON *component);
/* Runs all of `ops`. *text is replaced by a text in one of the two buffers, or left alone. */
KVA_MUST_CHECK enum kva_status kva_normalize(const struct kva_tok_ops *ops,
                                             struct kva_matcher *matcher, struct kva_buf buffers[2],
                                             const char **text, size_t *length);
/* One operation that makes a text of a text; false if it left it as it is. */
KVA_MUST_CHECK enum kva_status kva_tok_op_run(const struct kva_tok_op *op,
                                              struct kva_matcher *matcher, const char *text,
                                              size_t length, struct kva_buf *out,
                                              bool *ret_changed);
/* unicode.c */
KVA_MUST_CHECK enum kva_status kva_unicode_normalize(enum kva_tok_op_kind form, const char *text,
                                                     size_t length, struct kva_buf *out,
                                                     bool *ret_changed);

/* pretokenizer.c */
KVA_MUST_CHECK enum kva_status kva_pretokenizer_load(struct kva_tok_ops *ops, bool *ret_bytes_mode,
                                                     const struct kva_tok_place *place,
                                                     const cJSON *component);
struct kva_encoder;
KVA_MUST_CHECK enum kva_status kva_pretokenize(struct kva_encoder *encoder, uint32_t op_index,
                                               const char *text, size_t length, bool first);

/* ---- added tokens (added.c) ----------------------------------------------------------------- */

struct kva_added_token {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

struct kva_trie_slot {
    uint32_t key; /* node << 8 | byte; UINT32_MAX: free */
    uint32_t node;
};

/* Node 0 is the root. */
struct kva_trie {
    struct kva_trie_slot *slots;
    uint32_t slot_mask;
    uint32_t node_count;
    int32_t *tokens; /* [node]: index of the token that ends here, or -1 */
    bool starts[256];
};

struct kva_added {
    struct kva_added_token *tokens;
    uint32_t count;
    struct kva_trie raw;        /* matched before normalization */
    struct kva_trie normalized; /* matched after it */
};

struct kva_tokenizer;
KVA_MUST_CHECK enum kva_status kva_added_load(struct kva_tokenizer *tokenizer,
                                              const struct kva_tok_place *place,
                                              const cJSON *array);
void kva_added_finish(struct kva_added *added);
/* Puts tokenizer_config.json's added_tokens_decoder into `root`, the tree of tokenizer.json, as the
 * reference does: a token of the same text gets its properties, one of a new text is added. */
KVA_MUST_CHECK enum kva_status kva_added_override(const struct kva_tok_place *place,
                                                  const cJSON *config, cJSON *root);

struct kva_added_match {
    const struct kva_added_token *token;
    size_t start, end; /* with the spaces that lstrip and rstrip take */
    size_t resume;     /* where the search goes on */
};

/* The next added token at or after `at`; spaces before `floor` belong to somebody else. */
bool kva_added_next(const struct kva_added *added, const struct kva_trie *trie, const char *text,
                    size_t length, size_t at, size_t floor, bool parse_special,
                    struct kva_added_match *ret_match);

/* ---- BPE (bpe_load.c, bpe.c) ---------------------------------------------------------------- */

struct kva_merge_slot {
    uint64_t key;  /* left << 32 | right; UINT64_MAX: free */
    uint32_t rank; /* position in the file: lower is merged first */
    int32_t id;
};

struct kva_bpe {
    struct kva_merge_slot *slots;
    uint64_t slot_mask;
    int32_t *rank_ids; /* [rank]: the merged token */
    uint32_t merge_count;
    bool ignore_merges;
    bool byte_fallback;
    bool fuse_unk;
    bool bytes_mode; /* pieces are raw bytes that stand for letters of the byte-level alphabet */
    int32_t unk;
    char *prefix; /* continuing_subword_prefix, or NULL */
    char *suffix; /* end_of_word_suffix, or NULL */
    int32_t fallback_ids[256];
    int32_t byte_ids[256]; /* bytes mode: the symbol of a byte. Else of an ASCII character. */
    /* Two symbols whose bit is 0 are never inside one merged token, so that a piece can be cut
     * between them. NULL: no cutting. */
    uint64_t *joins;
};

KVA_MUST_CHECK enum kva_status kva_bpe_load(struct kva_tokenizer *tokenizer,
                                            const struct kva_tok_place *place, const cJSON *model);
void kva_bpe_finish(struct kva_bpe *bpe);
const struct kva_merge_slot *kva_bpe_find(const struct kva_bpe *bpe, int32_t left, int32_t right);
bool kva_bpe_may_join(const struct kva_bpe *bpe, int32_t left, int32_t right);
void kva_bpe_set_join(struct kva_bpe *bpe, int32_t left, int32_t right);

/* ---- decoder (decoder.c, detok.c) ----------------------------------------------------------- */

enum kva_decode_kind {
    KVA_DECODE_REPLACE,   /* of a string in one token */
    KVA_DECODE_METASPACE, /* the character is a space, nothing in the first token */
    KVA_DECODE_STRIP,     /* characters at the ends of one token */
};

struct kva_decode_op {
    enum kva_decode_kind kind;
    char *from;
    size_t from_length;
    char *to;
    size_t to_length;
    bool drop_first;
    uint32_t start, stop;
};

struct kva_decoder {
    struct kva_decode_op ops[KVA_TOKENIZER_STAGES_MAX]; /* on each token */
    uint32_t op_count;
    bool first_differs;  /* an operation treats the first token otherwise */
    bool byte_level;     /* tokens are spelled in the byte-level alphabet */
    bool byte_fallback;  /* "<0x0A>" is a byte */
    bool join_spaces;    /* no decoder: tokens are joined with spaces */
    char strip_char[4];  /* of the whole text */
    uint8_t strip_bytes; /* 0: nothing to strip */
    uint32_t strip_start, strip_stop;
};

KVA_MUST_CHECK enum kva_status kva_decoder_load(struct kva_tokenizer *tokenizer,
                                                const struct kva_tok_place *place,
                                                const cJSON *component);
void kva_decoder_finish(struct kva_decoder *decoder);
/* Appends what one token stands for. */
void kva_decoder_token(const struct kva_decoder *decoder, const char *token, size_t length,
                       bool first, struct kva_buf *out);

/* ---- post-processor (post.c) ---------------------------------------------------------------- */

struct kva_post {
    int32_t before[KVA_TOKENIZER_TEMPLATE_MAX];
    int32_t after[KVA_TOKENIZER_TEMPLATE_MAX];
    uint32_t before_count, after_count;
};

KVA_MUST_CHECK enum kva_status kva_post_load(struct kva_tokenizer *tokenizer,
                                             const struct kva_tok_place *place,
                                             const cJSON *component);

/* ---- the whole ------------------------------------------------------------------------------ */

struct kva_tokenizer {
    struct kva_vocab vocab;
    struct kva_tok_ops normalizer;
    struct kva_tok_ops pretokenizer;
    struct kva_added added;
    struct kva_bpe bpe;
    struct kva_decoder decoder;
    struct kva_post post;
    int32_t bos, eos, pad, unk;
};

/* From the tree of a tokenizer.json. */
KVA_MUST_CHECK enum kva_status kva_tokenizer_build(const struct kva_tok_place *place,
                                                   const cJSON *root,
                                                   struct kva_tokenizer **ret_tokenizer);

/* From that and the tree of tokenizer_config.json, which may be NULL. `root` gets what the latter
 * says of added tokens. */
KVA_MUST_CHECK enum kva_status kva_tokenizer_build_with(const struct kva_tok_place *place,
                                                        cJSON *root,
                                                        const struct kva_tok_place *config_place,
                                                        const cJSON *config,
                                                        struct kva_tokenizer **ret_tokenizer);

struct kva_piece_cache_entry {
    uint64_t hash;
    uint8_t length; /* 0: free */
    uint8_t count;
    char text[26];
    int32_t ids[7];
};

struct kva_bpe_node {
    int32_t id;
    uint32_t rank; /* of the pair that starts here, UINT32_MAX: none */
    uint32_t next, previous;
};

/* The state of one encoding. */
struct kva_encoder {
    const struct kva_tokenizer *tokenizer;
    struct kva_matcher matcher;
    struct kva_token_list *list;
    size_t tokens_max;  /* of this text */
    size_t token_count; /* found so far, also beyond the maximum */
    size_t stop_tokens; /* the count that ends it */
    const atomic_bool *cancelled;
    struct kva_encode_work work;
    struct kva_buf op_buffers[3 * KVA_TOKENIZER_STAGES_MAX];
    int32_t *symbols;
    size_t symbol_count, symbol_capacity;
    struct kva_bpe_node *nodes;
    size_t node_capacity;
    uint64_t *queue; /* binary heap of rank << 32 | position */
    size_t queue_count, queue_capacity;
    struct kva_piece_cache_entry *cache; /* NULL: too short a text for one */
    struct kva_buf spelled;              /* a piece in the byte-level alphabet */
};

/* BPE of one piece. */
KVA_MUST_CHECK enum kva_status kva_bpe_encode(struct kva_encoder *encoder, const char *text,
                                              size_t length);
/* Fails where the encoding is to end: KVA_ECANCELLED, KVA_ETOOBIG. */
KVA_MUST_CHECK enum kva_status kva_encoder_check(const struct kva_encoder *encoder);
KVA_MUST_CHECK enum kva_status kva_encoder_emit(struct kva_encoder *encoder, int32_t id);

#endif
