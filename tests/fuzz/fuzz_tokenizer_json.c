/* Any bytes as tokenizer.json, or up to a NUL as that and beyond as tokenizer_config.json. */
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = " The thing: don't 12 \xE4\xBD\xA0 \xF0\x9F\x98\x80<s> aab  \xFF\n";
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t json_size = zero ? (size_t)(zero - data) : size;
    const char *config = zero ? (const char *)zero + 1 : NULL;
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err;
    enum kva_status status = kva_tokenizer_load_buffers(
        (const char *)data, json_size, config, zero ? size - json_size - 1 : 0, &tokenizer, &err);
    if (status) {
        if (err.status != status || !err.message[0])
            abort();
        return 0;
    }
    struct kva_encode_params params = {.add_special = true, .parse_special = true};
    struct kva_token_list list;
    struct kva_buf out;
    kva_token_list_init(&list, 1u << 20);
    kva_buf_init(&out, 16u << 20);
    status = kva_tokenizer_encode(tokenizer, text, sizeof(text) - 1, &params, &list, &err);
    for (size_t i = 0; i < list.count; i++) {
        if (!kva_tokenizer_token_bytes(tokenizer, list.ids[i], NULL))
            abort();
    }
    if (!status && kva_tokenizer_decode(tokenizer, list.ids, list.count, false, &out))
        abort();
    kva_buf_finish(&out);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    return 0;
}
