/* pieces.h - a vocabulary as a list of typed, scored pieces, which is how GGUF files and
 * SentencePiece's models have it, put into the form of a tokenizer.json.
 *
 * SentencePiece's BPE has no merges: of two neighbours that make a piece those are joined first
 * whose piece scores highest. So its merges are all pairs that make a piece, by its score.
 *
 * Thread rule: as internal.h. Invariant: pieces come from hostile files; every text is UTF-8
 * without a NUL. */
#ifndef KVA_TEXT_TOKENIZER_PIECES_H
#define KVA_TEXT_TOKENIZER_PIECES_H

#include "base/arena.h"
#include "text/tokenizer/internal.h"

/* As both file formats number them. */
enum kva_piece_type {
    KVA_PIECE_NORMAL = 1,
    KVA_PIECE_UNKNOWN = 2,
    KVA_PIECE_CONTROL = 3,
    KVA_PIECE_USER_DEFINED = 4,
    KVA_PIECE_UNUSED = 5,
    KVA_PIECE_BYTE = 6,
};

struct kva_piece {
    char *text; /* NUL-terminated, in `texts` */
    uint32_t length;
    uint8_t type; /* enum kva_piece_type */
    bool merged;  /* a merge makes it, or goes on from it, whatever its type */
    float score;
};

struct kva_pieces {
    struct kva_tok_place place; /* of complaints */
    struct kva_arena texts;
    struct kva_piece *items; /* [count], by id */
    uint32_t count;
    int64_t unk; /* -1: none */
};

/* `count` empty pieces; their texts come to `text_bytes` at most. `place` is copied. Fails:
 * KVA_ETOOBIG, KVA_ENOMEM. Finishing what was zeroed only is allowed. */
KVA_MUST_CHECK enum kva_status kva_pieces_init(struct kva_pieces *pieces,
                                               const struct kva_tok_place *place, uint64_t count,
                                               size_t text_bytes);
void kva_pieces_finish(struct kva_pieces *pieces);

/* The text is copied. Fails: KVA_ETOOBIG, KVA_EFORMAT, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_pieces_set_text(struct kva_pieces *pieces, uint32_t id,
                                                   const char *text, size_t length);

/* Its "▁" become the spaces that they stand for. */
void kva_pieces_unmark(struct kva_pieces *pieces, uint32_t id);

/* Marks the pieces of `merges`, an array of "left right". A token that is added may be one that merges
 * make: as where a word of the vocabulary was declared special. Fails: KVA_EFORMAT, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_pieces_mark_merged(struct kva_pieces *pieces,
                                                      const cJSON *merges);

/* Into `model` its "vocab", into `root` its "added_tokens": control tokens are special, user-defined
 * ones are not, and both are found in the text as they are. */
KVA_MUST_CHECK enum kva_status kva_pieces_put(const struct kva_pieces *pieces, cJSON *root,
                                              cJSON *model);

/* Appends the merges that the scores stand for (merges.c). */
KVA_MUST_CHECK enum kva_status kva_pieces_put_merges(const struct kva_pieces *pieces,
                                                     cJSON *merges);

/* ---- building a tree ------------------------------------------------------------------------- */

/* Takes `value`, also on failure; NULL is no memory. */
KVA_MUST_CHECK enum kva_status kva_tok_tree_add(const struct kva_tok_place *place, cJSON *object,
                                                const char *name, cJSON *value);
/* Parses `json`, which may be NULL: nothing is added. */
KVA_MUST_CHECK enum kva_status kva_tok_tree_add_text(const struct kva_tok_place *place,
                                                     cJSON *object, const char *name,
                                                     const char *json);
KVA_MUST_CHECK enum kva_status kva_tok_tree_append(const struct kva_tok_place *place, cJSON *array,
                                                   const char *text);

/* How SentencePiece treats spaces: normalizer, pre-tokenizer and decoder, in `root`. */
struct kva_space_rules {
    bool prefix;       /* a text begins with a space */
    bool prefix_first; /* the first chunk only; else what follows an added token too */
    bool collapse;     /* spaces at both ends go, others become one */
};
KVA_MUST_CHECK enum kva_status kva_tok_tree_add_spaces(const struct kva_tok_place *place,
                                                       cJSON *root,
                                                       const struct kva_space_rules *rules);

/* Components as text. */
#define KVA_TREE_NFC "{\"type\":\"NFC\"}"
#define KVA_TREE_BYTES(add_prefix_space, use_regex)                                                \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" add_prefix_space ",\"use_regex\":" use_regex "}"
#define KVA_TREE_SPLIT(regex)                                                                      \
    "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" regex "\"}}"
#define KVA_TREE_SEQUENCE(members) "{\"type\":\"Sequence\",\"pretokenizers\":[" members "]}"

/* Of Llama 3 and what followed it, which differ in how many digits go together. */
#define KVA_TREE_WORDS(digits)                                                                     \
    KVA_TREE_SEQUENCE(KVA_TREE_SPLIT(                                                              \
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits             \
        "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"                           \
        "\\\\s+(?!\\\\S)|\\\\s+") "," KVA_TREE_BYTES("false", "false"))

#endif
