/* bench_grammar.c - what making a grammar costs, and its masks, by processor time:
 *
 *     bench_grammar MODEL_OR_TOKENIZER_FOLDER EOS_ID SCHEMA.json TEXT.json
 *
 * The schema may be a structural tag (KVA_GRAMMAR_TAGS) as well. The text, which it lets pass, is
 * tokenised and followed twice; each token's time is that of taking it and making the next mask. The
 * first time some masks are new, the second time all of them are kept. */
#include "base/buf.h"
#include "tests/median.h"
#include "text/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int fail(const struct kva_err *err)
{
    fprintf(stderr, "%s\n", err->message);
    return 1;
}

static char *read_all(const char *path, size_t *ret_length)
{
    FILE *file = fopen(path, "rb");
    char *data = malloc(1 << 20);
    *ret_length = file && data ? fread(data, 1, 1 << 20, file) : 0;
    if (file)
        fclose(file);
    return data;
}

static int follow(const char *name, const struct kva_grammar *grammar,
                  const struct kva_token_list *list, uint32_t vocab_size)
{
    uint32_t *mask = calloc(kva_grammar_mask_words(vocab_size), sizeof(*mask));
    double *times = calloc(list->count, sizeof(*times));
    struct kva_grammar_matcher *matcher = NULL;
    struct kva_err err;
    if (!mask || !times || kva_grammar_matcher_create(grammar, &matcher, &err))
        return 1;
    enum kva_status status = kva_grammar_matcher_mask(matcher, mask, NULL);
    size_t count = 0;
    for (; count < list->count && !status; count++) {
        double begun = cpu_seconds();
        status = kva_grammar_matcher_take(matcher, (uint32_t)list->ids[count], NULL);
        if (!status)
            status = kva_grammar_matcher_mask(matcher, mask, NULL);
        times[count] = cpu_seconds() - begun;
    }
    if (status)
        fprintf(stderr, "the text leaves the schema at token %zu\n", count);
    kva_test_sort(times, count);
    printf("%s, %zu tokens: p50 %.1f us, p99 %.1f us, worst %.1f us\n", name, count,
           times[count / 2] * 1e6, times[count * 99 / 100] * 1e6, times[count - 1] * 1e6);
    kva_grammar_matcher_destroy(matcher);
    free(mask);
    free(times);
    return status != KVA_OK;
}

int main(int argc, char **argv)
{
    struct kva_err err;
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_grammar_vocab *vocab = NULL;
    struct kva_grammar *grammar = NULL;
    if (argc != 5) {
        fprintf(stderr, "usage: bench_grammar FOLDER EOS_ID SCHEMA.json TEXT.json\n");
        return 2;
    }
    if (kva_tokenizer_load(argv[1], &tokenizer, &err))
        return fail(&err);
    const uint32_t eos = (uint32_t)strtoul(argv[2], NULL, 10);
    uint32_t vocab_size = kva_tokenizer_vocab_size(tokenizer);
    const struct kva_grammar_vocab_params params = {tokenizer, vocab_size, &eos, 1, NULL, 0};
    double begun = cpu_seconds();
    if (kva_grammar_vocab_create(&params, &vocab, &err))
        return fail(&err);
    printf("vocabulary of %u: %.1f ms\n", vocab_size, (cpu_seconds() - begun) * 1e3);
    struct kva_grammar_source source = {.kind = KVA_GRAMMAR_SCHEMA, .strict = true};
    source.text = read_all(argv[3], &source.length);
    if (strstr(source.text, "\"structural_tag\""))
        source.kind = KVA_GRAMMAR_TAGS;
    const struct kva_grammar_limits limits = {0, 0, 0};
    begun = cpu_seconds();
    if (kva_grammar_create(vocab, &source, &limits, &grammar, &err))
        return fail(&err);
    printf("grammar: %.1f ms, %.1f MiB\n", (cpu_seconds() - begun) * 1e3,
           (double)kva_grammar_bytes(grammar) / (1 << 20));
    struct kva_token_list list;
    size_t length;
    char *text = read_all(argv[4], &length);
    kva_token_list_init(&list, 1 << 20);
    if (kva_tokenizer_encode(tokenizer, text, length, NULL, &list, &err))
        return fail(&err);
    int result =
        follow("new", grammar, &list, vocab_size) | follow("again", grammar, &list, vocab_size);
    free(text);
    free((char *)source.text);
    kva_token_list_finish(&list);
    kva_grammar_destroy(grammar);
    kva_grammar_vocab_destroy(vocab);
    kva_tokenizer_destroy(tokenizer);
    return result;
}
