/* Any bytes as text, and as ids: a stream decodes to what the whole decodes to, always UTF-8. */
#include "base/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define VOCAB                                                                                      \
    "\"<unk>\":0,\"t\":1,\"h\":2,\"e\":3,\"th\":4,\"the\":5,\"\xC4\xA0\":6,\"\xC4\xA0the\":7,"     \
    "\"\xE2\x96\x81\":8,\"\xE2\x96\x81the\":9,\"<0xF0>\":10,\"<0x9F>\":11,\"<0x98>\":12,"          \
    "\"<0x80>\":13,\"<0xE4>\":14,\"<0xBD>\":15,\"<0xA0>\":16,\"<0xFF>\":17,\"\xC3\xB0\":18,"       \
    "\"\xC5\x81\":19,\"\xC4\xBA\":20,\"\xC4\xA2\":21,\"a\":22,\"\xC4\xA0\xC4\xA0\":23"
#define REST                                                                                       \
    "\"added_tokens\":[{\"id\":24,\"content\":\"<s>\",\"special\":true},{\"id\":25,\"content\":"   \
    "\"<m>\",\"lstrip\":true,\"rstrip\":true},{\"id\":26,\"content\":\"ae\",\"single_word\":true}" \
    "]}"
#define MERGES "[\"t h\",\"th e\",\"\xC4\xA0 the\",\"\xE2\x96\x81 the\",\"\xC4\xA0 \xC4\xA0\"]"

static const char *const files[] = {
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" VOCAB "},\"merges\":" MERGES "},"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}," REST,
    "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"vocab\":{" VOCAB "},\"merges\":" MERGES "},\"normalizer\":{\"type\":\"Sequence\","
    "\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},\"decoder\":{\"type\":"
    "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":2}]}," REST,
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" VOCAB "},\"merges\":" MERGES "},\"pre_tokenizer\":"
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\"},"
    "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}," REST,
};

static struct kva_tokenizer *tokenizers[KVA_COUNT_OF(files)];

static void check_stream(const struct kva_tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    struct kva_buf whole, streamed;
    struct kva_detok detok;
    kva_buf_init(&whole, 64u << 20);
    kva_buf_init(&streamed, 64u << 20);
    if (kva_tokenizer_decode(tokenizer, ids, count, true, &whole))
        abort();
    kva_detok_init(&detok, tokenizer, true);
    for (size_t i = 0; i < count; i++) {
        size_t before = streamed.length;
        kva_detok_push(&detok, ids[i], &streamed);
        if (streamed.data && !kva_utf8_valid(streamed.data + before, streamed.length - before))
            abort();
    }
    kva_detok_flush(&detok, &streamed);
    if (whole.length != streamed.length ||
        (whole.length > 0 && memcmp(whole.data, streamed.data, whole.length) != 0))
        abort();
    kva_buf_finish(&whole);
    kva_buf_finish(&streamed);
}

static void check_text(const struct kva_tokenizer *tokenizer, const uint8_t *data, size_t size)
{
    struct kva_token_list list;
    struct kva_err err;
    for (int flags = 0; flags < 2; flags++) {
        struct kva_encode_params params = {.parse_special = flags};
        kva_token_list_init(&list, 4 * size + 64);
        if (kva_tokenizer_encode(tokenizer, (const char *)data, size, &params, &list, &err))
            abort();
        check_stream(tokenizer, list.ids, list.count);
        kva_token_list_finish(&list);
    }
    kva_token_list_init(&list, size + 1);
    for (size_t i = 0; i < size; i++) {
        if (kva_token_list_push(&list, (int32_t)(data[i] % 30) - 1))
            abort();
    }
    check_stream(tokenizer, list.ids, list.count);
    kva_token_list_finish(&list);
}

static void finish(void)
{
    for (size_t i = 0; i < KVA_COUNT_OF(files); i++)
        kva_tokenizer_destroy(tokenizers[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < KVA_COUNT_OF(files); i++) {
        if (!tokenizers[i]) {
            if (i == 0)
                atexit(finish);
            if (kva_tokenizer_load_buffers(files[i], strlen(files[i]), NULL, 0, &tokenizers[i],
                                           NULL))
                abort();
        }
        check_text(tokenizers[i], data, size);
    }
    return 0;
}
