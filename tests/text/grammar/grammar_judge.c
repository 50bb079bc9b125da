/* grammar_judge.c - which texts a schema's grammar lets pass, for suite.py. Reads lines of
 * {"schema": "...", "texts": ["...", ...]} and writes for each a line: an array of 0 and 1, or
 * {"refused": "why"}. */
#include "base/buf.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/synthetic.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 300u

static struct kva_grammar_vocab *make_vocab(struct kva_tokenizer **tokenizer)
{
    static const uint32_t eos = VOCAB - KVA_SYNTHETIC_EOS;
    struct kva_grammar_vocab *vocab = NULL;
    struct kva_buf json;
    kva_buf_init(&json, 1 << 22);
    kva_tokenizer_put_synthetic(&json, VOCAB);
    if (kva_tokenizer_load_buffers(json.data, json.length, NULL, 0, tokenizer, NULL))
        exit(1);
    kva_buf_finish(&json);
    const struct kva_grammar_vocab_params params = {*tokenizer, VOCAB, &eos, 1, NULL, 0};
    if (kva_grammar_vocab_create(&params, &vocab, NULL))
        exit(1);
    return vocab;
}

static bool passes(const struct kva_grammar *grammar, const char *text)
{
    struct kva_grammar_matcher *matcher = NULL;
    if (kva_grammar_matcher_create(grammar, &matcher, NULL))
        exit(1);
    bool result = kva_grammar_matcher_take_text(matcher, text, strlen(text), NULL) == KVA_OK &&
                  kva_grammar_matcher_complete(matcher);
    kva_grammar_matcher_destroy(matcher);
    return result;
}

static void judge(const struct kva_grammar_vocab *vocab, const cJSON *line)
{
    const char *schema = cJSON_GetObjectItem(line, "schema")->valuestring;
    const struct kva_grammar_source source = {KVA_GRAMMAR_SCHEMA, schema, strlen(schema), false};
    const struct kva_grammar_limits limits = {0, 0, 0};
    struct kva_grammar *grammar = NULL;
    struct kva_buf out;
    struct kva_err err;
    kva_buf_init(&out, 1 << 20);
    if (kva_grammar_create(vocab, &source, &limits, &grammar, &err)) {
        kva_buf_puts(&out, "{\"refused\":");
        kva_buf_json_string(&out, err.message, strlen(err.message));
        kva_buf_putc(&out, '}');
    } else {
        const cJSON *texts = cJSON_GetObjectItem(line, "texts");
        kva_buf_putc(&out, '[');
        for (const cJSON *at = texts->child; at; at = at->next)
            kva_buf_printf(&out, "%d%s", passes(grammar, at->valuestring), at->next ? "," : "");
        kva_buf_putc(&out, ']');
    }
    puts(out.data);
    kva_buf_finish(&out);
    kva_grammar_destroy(grammar);
}

int main(void)
{
    static char text[1 << 20];
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_grammar_vocab *vocab = make_vocab(&tokenizer);
    while (fgets(text, sizeof(text), stdin)) {
        cJSON *line = cJSON_Parse(text);
        if (!line)
            return 1;
        judge(vocab, line);
        cJSON_Delete(line);
    }
    kva_grammar_vocab_destroy(vocab);
    kva_tokenizer_destroy(tokenizer);
    return 0;
}
