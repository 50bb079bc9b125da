/* text_file.c - a file of text, and how a text begins. */
#include "base/utf8.h"
#include "cli/cli.h"
#include "text/tokenizer/tokenizer.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX KVA_TOKENIZER_TEXT_BYTES_MAX

static enum kva_status read_open(FILE *file, const char *path, struct kva_buf *text,
                                 struct kva_err *err)
{
    char block[65536];
    size_t length;
    while (!text->failed && (length = fread(block, 1, sizeof(block), file)) > 0)
        kva_buf_append(text, block, length);
    if (ferror(file))
        return kva_fail(err, KVA_EIO, "'%s': %s", path, strerror(errno));
    if (text->failed)
        return kva_fail(err, KVA_ETOOBIG, "'%s' is over %zu bytes, or memory is out", path,
                        FILE_BYTES_MAX);
    if (text->length == 0)
        return kva_fail(err, KVA_EINVAL, "'%s' is empty", path);
    if (memchr(text->data, 0, text->length) || !kva_utf8_valid(text->data, text->length))
        return kva_fail(err, KVA_EFORMAT, "'%s' is no UTF-8 text", path);
    return KVA_OK;
}

static void digest(const struct kva_buf *text, char ret_sha256[65])
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    ret_sha256[0] = '\0';
    if (!EVP_Digest(text->data, text->length, hash, &length, EVP_sha256(), NULL))
        length = 0;
    for (unsigned i = 0; i < length && i < 32; i++)
        snprintf(ret_sha256 + (size_t)2 * i, 3, "%02x", hash[i]);
}

enum kva_status kva_cli_read_text(const char *path, struct kva_buf *text, char ret_sha256[65],
                                  struct kva_err *err)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return kva_fail(err, errno == ENOENT ? KVA_ENOTFOUND : KVA_EIO, "'%s': %s", path,
                        strerror(errno));
    enum kva_status status = read_open(file, path, text, err);
    fclose(file);
    if (!status)
        digest(text, ret_sha256);
    return status;
}

enum kva_status kva_cli_push_bos(const struct kva_tokenizer *tokenizer, struct kva_token_list *list,
                                 struct kva_err *err)
{
    const struct kva_encode_params params = {.add_special = true, .parse_special = true};
    struct kva_token_list special;
    if (!tokenizer)
        return kva_fail(err, KVA_EUNSUPPORTED, "the model has no tokenizer.json");
    kva_token_list_init(&special, 16);
    enum kva_status status = kva_tokenizer_encode(tokenizer, "", 0, &params, &special, err);
    if (!status && special.count > 0 && special.ids[0] == kva_tokenizer_bos(tokenizer))
        status = kva_token_list_push(list, special.ids[0]);
    kva_token_list_finish(&special);
    return status;
}
