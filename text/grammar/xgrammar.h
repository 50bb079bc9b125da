/* xgrammar.h - the grammar library behind a C face (inside text/grammar).
 *
 * xgrammar is C++: it throws, and it has no limit of time or memory. Every call here is a fence:
 * exceptions become a status, and what the library allocates on the calling thread is counted, so
 * that a call ends with KVA_XG_TIME or KVA_XG_MEMORY soon after a limit is passed, with what it had
 * taken given back. A matcher whose call ended so is in no state to go on.
 *
 * Thread rule: vocabularies and grammars are immutable and may be used by any number of threads at
 * once; a matcher belongs to one thread at a time. */
#ifndef KVA_TEXT_GRAMMAR_XGRAMMAR_H
#define KVA_TEXT_GRAMMAR_XGRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kva_xg_status {
    KVA_XG_OK,
    KVA_XG_REFUSED, /* by the library: why->text says why */
    KVA_XG_TIME,
    KVA_XG_MEMORY,
};

struct kva_xg_why {
    char text[320];
};

struct kva_xg_limits {
    uint64_t time_ns; /* 0: none */
    size_t bytes;     /* that are held at once; 0: none */
};

enum kva_xg_kind {
    KVA_XG_SCHEMA,
    KVA_XG_REGEX,
    KVA_XG_EBNF,
    KVA_XG_TAGS, /* a structural tag, which needs the vocabulary */
};

struct kva_xg_source {
    enum kva_xg_kind kind;
    const char *text;
    size_t length;
    bool strict;             /* SCHEMA: no properties and items but those that it names */
    uint32_t whitespace_max; /* SCHEMA: characters between two tokens of JSON */
    bool xml; /* SCHEMA, of an object: its members as <parameter=NAME>VALUE</parameter>, strings
                 without quotes, other values as JSON */
};

struct kva_xg_vocab;
struct kva_xg_grammar;
struct kva_xg_matcher;

struct kva_xg_token {
    const char *bytes; /* length 0: never generated, but for stop ids */
    size_t length;
};

struct kva_xg_vocab_params {
    const struct kva_xg_token *tokens; /* [token_count] */
    uint32_t token_count;
    uint32_t vocab_size; /* ids up to it have no text */
    const uint32_t *stop_ids;
    uint32_t stop_count;
};

enum kva_xg_status kva_xg_vocab_create(const struct kva_xg_vocab_params *params,
                                       struct kva_xg_vocab **ret, struct kva_xg_why *why);
void kva_xg_vocab_destroy(struct kva_xg_vocab *vocab);

/* Reads a source without a vocabulary: whether the library can make a grammar of it. */
enum kva_xg_status kva_xg_check(const struct kva_xg_source *source,
                                const struct kva_xg_limits *limits, struct kva_xg_why *why);

/* The rules of a source but tags, as EBNF; the caller frees *ret. */
enum kva_xg_status kva_xg_rules(const struct kva_xg_source *source,
                                const struct kva_xg_limits *limits, char **ret,
                                struct kva_xg_why *why);

enum kva_xg_status kva_xg_compile(const struct kva_xg_vocab *vocab,
                                  const struct kva_xg_source *source,
                                  const struct kva_xg_limits *limits, struct kva_xg_grammar **ret,
                                  struct kva_xg_why *why);
void kva_xg_grammar_destroy(struct kva_xg_grammar *grammar);
size_t kva_xg_grammar_bytes(const struct kva_xg_grammar *grammar); /* about */

enum kva_xg_status kva_xg_matcher_create(const struct kva_xg_grammar *grammar,
                                         struct kva_xg_matcher **ret, struct kva_xg_why *why);
void kva_xg_matcher_destroy(struct kva_xg_matcher *matcher);

/* One more token; REFUSED: it may not come here, nothing has changed. */
enum kva_xg_status kva_xg_matcher_accept(struct kva_xg_matcher *matcher, uint32_t token,
                                         const struct kva_xg_limits *limits);
/* The same of bytes. */
enum kva_xg_status kva_xg_matcher_accept_text(struct kva_xg_matcher *matcher, const char *text,
                                              size_t length, const struct kva_xg_limits *limits);
/* Takes the last token, or text, back. */
void kva_xg_matcher_undo(struct kva_xg_matcher *matcher);

/* The tokens that may come next: a bit each, [(vocab_size + 31) / 32] words; the bits above
 * vocab_size mean nothing. REFUSED: a stop id was accepted, nothing comes next. */
enum kva_xg_status kva_xg_matcher_mask(struct kva_xg_matcher *matcher, uint32_t *mask,
                                       const struct kva_xg_limits *limits);

/* The same as the library makes it, with nothing that was kept: for tests. */
enum kva_xg_status kva_xg_matcher_mask_anew(struct kva_xg_matcher *matcher, uint32_t *mask,
                                            const struct kva_xg_limits *limits);

bool kva_xg_matcher_completed(const struct kva_xg_matcher *matcher); /* may end here */
bool kva_xg_matcher_ended(const struct kva_xg_matcher *matcher);     /* a stop id was accepted */

#ifdef __cplusplus
}
#endif

#endif
