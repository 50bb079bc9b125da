/* Bodies of the API: parsing, chat templates, tokenisation, the engine requests made of them. */
#include "tests/fuzz/fuzz.h"

#include "tests/server/fixture.h"

#include <stdlib.h>

static struct kva_api_config config;

static void prepare_once(void)
{
    if (config.tokenizer)
        return;
    fixture_api_config(&config, fixture_tokenizer(), fixture_template());
    config.limits.json.values_max = 4096;
}

/* What was accepted must keep what the sampler relies on. */
static void check(const struct kva_api_call *call)
{
    const struct kva_sampling_params *s = &call->sampling;
    if (!(s->temperature >= 0 && s->temperature <= 2) || !(s->top_p > 0 && s->top_p <= 1) ||
        !(s->min_p >= 0 && s->min_p <= 1) || !(s->repetition_penalty > 0) ||
        s->logprobs > (int32_t)KVA_LOGPROBS_MAX || s->prompt_logprobs > (int32_t)KVA_LOGPROBS_MAX)
        abort();
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        const struct kva_request *request = call->requests[i];
        if (call->route == KVA_API_EMBEDDINGS &&
            (request->pooling == KVA_POOLING_NONE || call->embedding.dimensions == 0))
            abort();
        if (request->prompt_tokens == 0 ||
            (uint64_t)request->prompt_tokens + request->output_tokens_max > config.context_max ||
            request->choices == 0)
            abort();
        for (uint32_t j = 0; j < request->prompt_tokens; j++) {
            if (request->prompt[j] >= config.vocab_size)
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct kva_api_identity identity = {.seed = 1};
    prepare_once();
    for (int route = KVA_API_COMPLETION; route <= KVA_API_EMBEDDINGS; route++) {
        struct kva_api_call *call = NULL;
        struct kva_err err = {.status = KVA_OK};
        enum kva_status status = kva_api_parse(&config, (enum kva_api_route)route,
                                               (const char *)data, size, &call, &err);
        if (status != KVA_OK && err.message[0] == '\0')
            abort();
        bool computes = route != KVA_API_TOKENIZE && route != KVA_API_DETOKENIZE &&
                        route != KVA_API_COUNT_TOKENS;
        if (status == KVA_OK && computes &&
            kva_api_prepare(&config, call, &identity, &err) == KVA_OK)
            check(call);
        else if (status == KVA_OK && (route == KVA_API_TOKENIZE || route == KVA_API_COUNT_TOKENS) &&
                 kva_api_tokenize(&config, call, &err) != KVA_OK && err.message[0] == '\0')
            abort();
        kva_api_call_destroy(call);
    }
    return 0;
}
