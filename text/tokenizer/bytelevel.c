/* bytelevel.c - the alphabet of byte-level BPE: a printable character for every byte. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

/* The alphabet gives every byte a printable letter: bytes that are printable in Latin-1 stand for
 * themselves, the other 68, in order, are U+0100 and following. */
static bool is_plain(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

uint32_t kva_bytelevel_code(uint8_t byte)
{
    if (is_plain(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xA0)
        return 0x100u + 0x21 + (byte - 0x7Fu);
    return 0x143; /* 0xAD */
}

int kva_bytelevel_byte(uint32_t code)
{
    if (code < 0x100)
        return is_plain(code) ? (int)code : -1;
    if (code <= 0x120)
        return (int)(code - 0x100);
    if (code <= 0x142)
        return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

void kva_bytelevel_spell(struct kva_buf *out, const char *bytes, size_t length)
{
    if (!kva_buf_reserve(out, length * 2))
        return;
    char *to = out->data + out->length;
    for (size_t i = 0; i < length; i++)
        to += kva_utf8_encode(kva_bytelevel_code((uint8_t)bytes[i]), to);
    out->length = (size_t)(to - out->data);
    out->data[out->length] = '\0';
}
