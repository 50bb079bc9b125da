/* fuzz_grammar.c - schemas, expressions and rules of any bytes: what becomes a grammar gives masks that
 * lead on, and what does not is refused in words, within the limits. */
#include "tests/fuzz/fuzz.h"

#include "base/buf.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/synthetic.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 300u
#define WORDS ((VOCAB + 31) / 32)
#define STEPS 40u

static void require(bool condition)
{
    if (!condition)
        abort();
}

static struct kva_grammar_vocab *make_vocab(void)
{
    static const uint32_t eos = VOCAB - KVA_SYNTHETIC_EOS;
    static struct kva_tokenizer *tokenizer; /* for the whole process, as the vocabulary */
    struct kva_grammar_vocab *vocab = NULL;
    struct kva_buf json;
    kva_buf_init(&json, 1 << 22);
    kva_tokenizer_put_synthetic(&json, VOCAB);
    require(kva_tokenizer_load_buffers(json.data, json.length, NULL, 0, &tokenizer, NULL) ==
            KVA_OK);
    kva_buf_finish(&json);
    const struct kva_grammar_vocab_params params = {tokenizer, VOCAB, &eos, 1, NULL, 0};
    require(kva_grammar_vocab_create(&params, &vocab, NULL) == KVA_OK);
    return vocab;
}

/* Takes the tokens that the masks allow, the first behind some place each time. */
static void walk(const struct kva_grammar *grammar, uint32_t seed)
{
    const struct kva_grammar_work work = {0, (size_t)64 << 20};
    struct kva_grammar_matcher *matcher = NULL;
    uint32_t mask[WORDS];
    if (kva_grammar_matcher_create(grammar, &matcher, NULL) != KVA_OK)
        return;
    for (uint32_t step = 0; step < STEPS; step++) {
        if (kva_grammar_matcher_mask(matcher, mask, &work) != KVA_OK)
            break;
        uint32_t token = (seed + step * 37) % VOCAB, tries = 0;
        while (tries < VOCAB && !(mask[token / 32] >> token % 32 & 1)) {
            token = (token + 1) % VOCAB;
            tries++;
        }
        if (tries == VOCAB)
            break; /* no text ends here, such as that of a rule which is itself */
        enum kva_status status = kva_grammar_matcher_take(matcher, token, &work);
        require(status == KVA_OK || status == KVA_ETOOBIG);
        if (status)
            break;
    }
    kva_grammar_matcher_destroy(matcher);
}

/* The first byte is the kind, and for a schema whether it is strict. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kva_grammar_vocab *vocab;
    const struct kva_grammar_limits limits = {(uint64_t)2e9, (size_t)128 << 20, 16384};
    if (!vocab)
        vocab = make_vocab();
    if (size == 0)
        return 0;
    const struct kva_grammar_source source = {
        .kind = (enum kva_grammar_kind)(data[0] % 3),
        .text = (const char *)data + 1,
        .length = size - 1,
        .strict = data[0] & 4,
    };
    struct kva_grammar *grammar = NULL;
    struct kva_err err = {.status = KVA_OK};
    enum kva_status status = kva_grammar_create(vocab, &source, &limits, &grammar, &err);
    require(status == KVA_OK || err.message[0] != '\0');
    require((status == KVA_OK) == (grammar != NULL));
    if (grammar)
        walk(grammar, data[0]);
    kva_grammar_destroy(grammar);
    return 0;
}
