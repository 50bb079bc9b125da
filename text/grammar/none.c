/* none.c - in the place of grammars where the program was built without the library. */
#include "text/grammar/grammar.h"

bool kva_grammar_available(void)
{
    return false;
}

static enum kva_status unsupported(struct kva_err *err)
{
    return kva_fail(err, KVA_EUNSUPPORTED,
                    "this server was built without xgrammar, which structured output needs");
}

enum kva_status kva_grammar_vocab_create(const struct kva_grammar_vocab_params *params KVA_UNUSED,
                                         struct kva_grammar_vocab **ret KVA_UNUSED,
                                         struct kva_err *err)
{
    return unsupported(err);
}

void kva_grammar_vocab_destroy(struct kva_grammar_vocab *vocab KVA_UNUSED)
{
}

enum kva_status kva_grammar_create(const struct kva_grammar_vocab *vocab KVA_UNUSED,
                                   const struct kva_grammar_source *source KVA_UNUSED,
                                   const struct kva_grammar_limits *limits KVA_UNUSED,
                                   struct kva_grammar **ret KVA_UNUSED, struct kva_err *err)
{
    return unsupported(err);
}

void kva_grammar_destroy(struct kva_grammar *grammar KVA_UNUSED)
{
}

size_t kva_grammar_bytes(const struct kva_grammar *grammar KVA_UNUSED)
{
    return 0;
}

enum kva_status kva_grammar_check_schema(const char *text KVA_UNUSED, size_t length KVA_UNUSED,
                                         struct kva_err *err)
{
    return unsupported(err);
}

enum kva_status kva_grammar_matcher_create(const struct kva_grammar *grammar KVA_UNUSED,
                                           struct kva_grammar_matcher **ret KVA_UNUSED,
                                           struct kva_err *err)
{
    return unsupported(err);
}

void kva_grammar_matcher_destroy(struct kva_grammar_matcher *matcher KVA_UNUSED)
{
}

enum kva_status kva_grammar_matcher_take(struct kva_grammar_matcher *matcher KVA_UNUSED,
                                         uint32_t token KVA_UNUSED,
                                         const struct kva_grammar_work *work KVA_UNUSED)
{
    return KVA_EUNSUPPORTED;
}

enum kva_status kva_grammar_matcher_take_text(struct kva_grammar_matcher *matcher KVA_UNUSED,
                                              const char *text KVA_UNUSED, size_t length KVA_UNUSED,
                                              const struct kva_grammar_work *work KVA_UNUSED)
{
    return KVA_EUNSUPPORTED;
}

void kva_grammar_matcher_undo(struct kva_grammar_matcher *matcher KVA_UNUSED)
{
}

enum kva_status kva_grammar_matcher_mask(struct kva_grammar_matcher *matcher KVA_UNUSED,
                                         uint32_t *mask KVA_UNUSED,
                                         const struct kva_grammar_work *work KVA_UNUSED)
{
    return KVA_EUNSUPPORTED;
}

bool kva_grammar_matcher_complete(const struct kva_grammar_matcher *matcher KVA_UNUSED)
{
    return false;
}
