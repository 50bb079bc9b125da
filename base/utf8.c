/* utf8.c - decoding, and where a sequence ends. */
#include "base/utf8.h"

/* Continuation bytes wanted after `lead`, and the range allowed for the first of them. */
static int lead_shape(unsigned char lead, unsigned char *ret_low, unsigned char *ret_high)
{
    *ret_low = 0x80;
    *ret_high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF)
        return 1;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0)
            *ret_low = 0xA0;
        if (lead == 0xED)
            *ret_high = 0x9F;
        return 2;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0)
            *ret_low = 0x90;
        if (lead == 0xF4)
            *ret_high = 0x8F;
        return 3;
    }
    return -1;
}

int kva_utf8_sequence(const char *text, size_t length, size_t *ret_bad)
{
    if (length == 0)
        return -1;
    const unsigned char *bytes = (const unsigned char *)text;
    if (bytes[0] < 0x80)
        return 1;
    unsigned char low, high;
    int want = lead_shape(bytes[0], &low, &high);
    if (want < 0) {
        if (ret_bad)
            *ret_bad = 1;
        return 0;
    }
    for (int i = 1; i <= want; i++) {
        if ((size_t)i >= length)
            return -1;
        if (bytes[i] < low || bytes[i] > high) {
            if (ret_bad)
                *ret_bad = (size_t)i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return want + 1;
}

size_t kva_utf8_incomplete_tail(const char *text, size_t length)
{
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char byte = (unsigned char)text[length - back];
        if ((byte & 0xC0) == 0x80)
            continue;
        return kva_utf8_sequence(text + length - back, back, NULL) == -1 ? back : 0;
    }
    return 0;
}

bool kva_utf8_valid(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length) {
        int size = kva_utf8_sequence(text + at, length - at, NULL);
        if (size <= 0)
            return false;
        at += (size_t)size;
    }
    return true;
}

uint32_t kva_utf8_decode(const char *text, int size)
{
    const unsigned char *b = (const unsigned char *)text;
    switch (size) {
    case 1:
        return b[0];
    case 2:
        return (uint32_t)(b[0] & 0x1F) << 6 | (b[1] & 0x3Fu);
    case 3:
        return (uint32_t)(b[0] & 0x0F) << 12 | (uint32_t)(b[1] & 0x3F) << 6 | (b[2] & 0x3Fu);
    default:
        return (uint32_t)(b[0] & 0x07) << 18 | (uint32_t)(b[1] & 0x3F) << 12 |
               (uint32_t)(b[2] & 0x3F) << 6 | (b[3] & 0x3Fu);
    }
}

int kva_utf8_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}
