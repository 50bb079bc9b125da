/* The files of a folder without tokenizer.json. 'M', and any bytes are tokenizer.model up to the last
 * "\n--\n", and what follows that tokenizer_config.json. 'V', and the parts between NULs are
 * vocab.json, merges.txt, tokenizer_config.json, added_tokens.json, special_tokens_map.json and
 * config.json. */
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static struct kva_tokenizer_files model_files(const char *data, size_t size)
{
    static const char mark[] = "\n--\n";
    const size_t mark_size = sizeof(mark) - 1;
    struct kva_tokenizer_files files = {.model = {data, size}};
    for (size_t at = size; at-- > 0;) {
        if (size - at < mark_size || memcmp(data + at, mark, mark_size) != 0)
            continue;
        files.model.length = at;
        files.config.data = data + at + mark_size;
        files.config.length = size - at - mark_size;
        break;
    }
    return files;
}

static struct kva_tokenizer_files vocab_files(const char *data, size_t size)
{
    struct kva_tokenizer_files files = {.json = {NULL, 0}};
    struct kva_tokenizer_file *const parts[] = {&files.vocab, &files.merges,   &files.config,
                                                &files.added, &files.specials, &files.model_config};
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        const char *zero = size ? memchr(data, 0, size) : NULL;
        size_t length = zero ? (size_t)(zero - data) : size;
        if (length > 0)
            *parts[i] = (struct kva_tokenizer_file){data, length};
        data += zero ? length + 1 : length;
        size -= zero ? length + 1 : length;
    }
    return files;
}

static void use(const struct kva_tokenizer *tokenizer)
{
    static const char text[] =
        " The thing: don't 12 \xE4\xBD\xA0 \xF0\x9F\x98\x80<s>  aab<pad> \xFF\n";
    struct kva_encode_params params = {.add_special = true, .parse_special = true};
    struct kva_token_list list;
    struct kva_buf out;
    struct kva_err err;
    kva_token_list_init(&list, 1u << 20);
    kva_buf_init(&out, 16u << 20);
    enum kva_status status =
        kva_tokenizer_encode(tokenizer, text, sizeof(text) - 1, &params, &list, &err);
    for (size_t i = 0; i < list.count; i++)
        if (!kva_tokenizer_token_bytes(tokenizer, list.ids[i], NULL))
            abort();
    if (!status && kva_tokenizer_decode(tokenizer, list.ids, list.count, false, &out))
        abort();
    kva_buf_finish(&out);
    kva_token_list_finish(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err;
    if (size == 0 || (data[0] != 'M' && data[0] != 'V'))
        return 0;
    const char *rest = (const char *)data + 1;
    struct kva_tokenizer_files files =
        data[0] == 'M' ? model_files(rest, size - 1) : vocab_files(rest, size - 1);
    enum kva_status status = kva_tokenizer_load_files(&files, &tokenizer, &err);
    if (status && (err.status != status || !err.message[0]))
        abort();
    if (!status)
        use(tokenizer);
    kva_tokenizer_destroy(tokenizer);
    return 0;
}
