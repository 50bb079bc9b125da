/* utf8.h - the shape of UTF-8 sequences. Tables of Unicode properties are utf8proc's business. */
#ifndef KVA_BASE_UTF8_H
#define KVA_BASE_UTF8_H

#include "base/kva.h"

#include <stdbool.h>

/* Length 1..4 of the well-formed sequence at text (Unicode 15, table 3-7: no overlong forms, no
 * surrogates, nothing above U+10FFFF). 0: not well formed; *ret_bad (may be NULL) is then the
 * length of the maximal bad prefix, at least 1, that one U+FFFD replaces. -1: a well-formed start
 * that `length` cuts off. */
int kva_utf8_sequence(const char *text, size_t length, size_t *ret_bad);

/* Bytes at the end of text that start a sequence which is not complete yet: 0..3. */
size_t kva_utf8_incomplete_tail(const char *text, size_t length);

bool kva_utf8_valid(const char *text, size_t length);

/* Code point of the well-formed sequence of `size` bytes. */
uint32_t kva_utf8_decode(const char *text, int size);

/* Writes 1..4 bytes, returns how many; code must be a scalar value. */
int kva_utf8_encode(uint32_t code, char out[4]);

#endif
