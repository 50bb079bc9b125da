/* text.h - Python's notions about text, for valid UTF-8: what is white space, what is printable,
 * upper and lower case, positions in code points.
 *
 * Internal to text/template. Thread rule: pure functions. */
#ifndef KVA_TEXT_TEMPLATE_TEXT_H
#define KVA_TEXT_TEMPLATE_TEXT_H

#include "base/buf.h"

/* Bytes of the character at the start of valid text; length > 0. */
int kva_tpl_char_bytes(const char *text);

/* Code point at the start; *ret_bytes (may be NULL) its length. */
uint32_t kva_tpl_char(const char *text, int *ret_bytes);

/* Bytes of the last character of `text`; length > 0. */
size_t kva_tpl_last_char_bytes(const char *text, size_t length);

/* Code points in `length` bytes. */
size_t kva_tpl_char_count(const char *text, size_t length);

/* Byte offset of code point `index`; `length` if there are fewer. */
size_t kva_tpl_char_offset(const char *text, size_t length, size_t index);

/* str.isspace for one character. */
bool kva_tpl_is_space(uint32_t code);

/* str.splitlines breaks here. */
bool kva_tpl_is_line_break(uint32_t code);

/* repr() shows it as it is. */
bool kva_tpl_is_printable(uint32_t code);

/* May stand in an identifier (behind its first character). */
bool kva_tpl_is_word(uint32_t code);

bool kva_tpl_is_alpha(uint32_t code);
bool kva_tpl_is_decimal(uint32_t code);
bool kva_tpl_is_upper(uint32_t code);
bool kva_tpl_is_lower(uint32_t code);

/* Bytes of white space at the start and at the end. */
size_t kva_tpl_leading_space(const char *text, size_t length);
size_t kva_tpl_trailing_space(const char *text, size_t length);

enum kva_tpl_case {
    KVA_TPL_CASE_LOWER,
    KVA_TPL_CASE_UPPER,
    KVA_TPL_CASE_CAPITALIZE, /* str.capitalize */
    KVA_TPL_CASE_TITLE,      /* str.title: words are runs of letters */
    KVA_TPL_CASE_SWAP,
};

/* Append `text` in another case. One character becomes one, except sharp s and the Latin
 * ligatures; a final sigma is not told apart. */
void kva_tpl_put_case(struct kva_buf *buf, const char *text, size_t length, enum kva_tpl_case mode);

/* First position of `needle` at or after `from`, SIZE_MAX if none: for searches that have been paid
 * for with kva_tpl_charge_search. */
size_t kva_tpl_find(const char *text, size_t length, size_t from, const char *needle,
                    size_t needle_length);

#endif
