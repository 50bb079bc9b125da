/* grammar.h - what a text must be: JSON of a schema, a regular expression, a grammar.
 *
 * A grammar is made for one vocabulary, once; a matcher follows one text token by token and says
 * which tokens may come next. The work is a library's (xgrammar); what it cannot enforce is refused
 * here and never left out in silence, so that a text which a matcher has let come to its end is
 * what was asked for.
 *
 * Thread rule: vocabularies and grammars are immutable; a matcher belongs to one thread at a time.
 * Grammars are counted references. */
#ifndef KVA_TEXT_GRAMMAR_H
#define KVA_TEXT_GRAMMAR_H

#include "base/err.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>

/* Nesting of brackets in expressions and grammars, and of schemas. */
#define KVA_GRAMMAR_DEPTH_MAX 64u
/* White space between two tokens of JSON: indented JSON of any usual depth, but no endless line. */
#define KVA_GRAMMAR_WHITESPACE_MAX 16u

/* Whether the program was built with the library. */
bool kva_grammar_available(void);

/* --- vocabularies ---------------------------------------------------------------------------- */

struct kva_grammar_vocab;

struct kva_grammar_vocab_params {
    const struct kva_tokenizer *tokenizer; /* only read during the call */
    uint32_t vocab_size;                   /* the model's, which may be wider or narrower */
    const uint32_t *eos_ids;               /* what ends a text */
    uint32_t eos_count;
    const uint32_t *named_ids; /* special tokens that a KVA_GRAMMAR_TAGS may ask for by their ids */
    uint32_t named_count;
};

/* Fails: KVA_EUNSUPPORTED (built without the library; nothing ends the model's texts), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status
kva_grammar_vocab_create(const struct kva_grammar_vocab_params *params,
                         struct kva_grammar_vocab **ret, struct kva_err *err);
/* NULL is allowed. */
void kva_grammar_vocab_destroy(struct kva_grammar_vocab *vocab);

/* --- grammars -------------------------------------------------------------------------------- */

enum kva_grammar_kind {
    KVA_GRAMMAR_SCHEMA, /* JSON Schema, draft 2020-12: docs/api.md says what of it */
    KVA_GRAMMAR_REGEX,  /* the whole text matches */
    KVA_GRAMMAR_EBNF,   /* rules, of which `root` is the text */
    KVA_GRAMMAR_TAGS,   /* a structural tag of the library, as JSON: text with calls in it */
};

/* In a KVA_GRAMMAR_TAGS, the type of a format that is a schema as KVA_GRAMMAR_SCHEMA has it: members
 * `schema`, `strict`, `place` (what errors call it), and `lax`, true where any object will do if the
 * schema cannot be enforced, and `xml`, true where the object is written as XML. */
#define KVA_GRAMMAR_TAGS_SCHEMA "schema"

struct kva_grammar_source {
    enum kva_grammar_kind kind;
    const char *text; /* UTF-8 */
    size_t length;
    bool strict; /* SCHEMA: no properties and items but those that it names */
};

struct kva_grammar_limits {
    uint64_t time_ns; /* of making a grammar; 0: none */
    size_t bytes;     /* that making it holds at once; 0: none */
    size_t text_bytes;
};

struct kva_grammar;

/* Fails: KVA_EINVAL (malformed, or no text can be it), KVA_EUNSUPPORTED (cannot be enforced); err
 * names the place in a schema, and err->param which one of several it is; KVA_ETOOBIG (a limit),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_grammar_create(const struct kva_grammar_vocab *vocab,
                                                  const struct kva_grammar_source *source,
                                                  const struct kva_grammar_limits *limits,
                                                  struct kva_grammar **ret, struct kva_err *err);
/* NULL is allowed. */
void kva_grammar_destroy(struct kva_grammar *grammar);
size_t kva_grammar_bytes(const struct kva_grammar *grammar); /* of memory, about */

/* Everything of kva_grammar_create that needs no library: whether the schema is well-formed and says
 * nothing that could not be enforced. */
KVA_MUST_CHECK enum kva_status kva_grammar_check_schema(const char *text, size_t length,
                                                        struct kva_err *err);

/* Appends rules whose texts are exactly these. */
struct kva_buf;
struct kva_grammar_choice {
    const char *text;
    size_t length;
};
void kva_grammar_put_choices(struct kva_buf *out, const struct kva_grammar_choice *choices,
                             uint32_t count);

/* --- matchers -------------------------------------------------------------------------------- */

struct kva_grammar_matcher;

/* What one call of a matcher may take; beyond, it fails with KVA_ETOOBIG and the matcher can only be
 * destroyed. */
struct kva_grammar_work {
    uint64_t time_ns; /* 0: none */
    size_t bytes;     /* 0: none */
};

/* The grammar must outlive it. */
KVA_MUST_CHECK enum kva_status kva_grammar_matcher_create(const struct kva_grammar *grammar,
                                                          struct kva_grammar_matcher **ret,
                                                          struct kva_err *err);
void kva_grammar_matcher_destroy(struct kva_grammar_matcher *matcher);

/* One more token. Fails: KVA_EINVAL (it may not come here; nothing has changed), KVA_ETOOBIG. */
KVA_MUST_CHECK enum kva_status kva_grammar_matcher_take(struct kva_grammar_matcher *matcher,
                                                        uint32_t token,
                                                        const struct kva_grammar_work *work);
/* The same of text. */
KVA_MUST_CHECK enum kva_status kva_grammar_matcher_take_text(struct kva_grammar_matcher *matcher,
                                                             const char *text, size_t length,
                                                             const struct kva_grammar_work *work);
/* As before the last one that was taken. */
void kva_grammar_matcher_undo(struct kva_grammar_matcher *matcher);

/* Words of a mask: a bit for each token that may come next. Bits from vocab_size on mean nothing. */
static inline uint32_t kva_grammar_mask_words(uint32_t vocab_size)
{
    return vocab_size / 32 + (vocab_size % 32 != 0);
}

/* Fails: KVA_EINVAL (the text has ended), KVA_ETOOBIG. */
KVA_MUST_CHECK enum kva_status kva_grammar_matcher_mask(struct kva_grammar_matcher *matcher,
                                                        uint32_t *mask,
                                                        const struct kva_grammar_work *work);

bool kva_grammar_matcher_complete(const struct kva_grammar_matcher *matcher); /* may end here */

#endif
