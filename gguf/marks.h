/* marks.h - tokens whose text alone says what they are, whichever type a file gives them: old
 * converters wrote the marks of Gemma's turns as normal pieces.
 *
 * Thread rule: none; no state. */
#ifndef KVA_GGUF_MARKS_H
#define KVA_GGUF_MARKS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether models are trained to end a text with it, be it the file's EOS or not. */
bool kva_gguf_mark_ends_text(const char *text, size_t length);

/* Whether it is one of these, or begins a turn: a control token, never letters. */
bool kva_gguf_mark_is(const char *text, size_t length);

#endif
