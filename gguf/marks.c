/* marks.c - the list of tokens that are known by their text. */
#include "gguf/marks.h"

#include "base/kva.h"

#include <string.h>

static const struct {
    const char *text;
    bool ends;
} marks[] = {
    {"<|endoftext|>", true}, {"<|end_of_text|>", true}, {"<|im_end|>", true},
    {"<|eot_id|>", true},    {"<|eom_id|>", true},      {"<|end|>", true},
    {"<end_of_turn>", true}, {"<|endofturn|>", true},   {"<start_of_turn>", false},
    {"<|im_start|>", false},
};

static size_t find(const char *text, size_t length)
{
    size_t i = 0;
    while (i < KVA_COUNT_OF(marks) &&
           (strlen(marks[i].text) != length || memcmp(marks[i].text, text, length) != 0))
        i++;
    return i;
}

bool kva_gguf_mark_ends_text(const char *text, size_t length)
{
    size_t at = find(text, length);
    return at < KVA_COUNT_OF(marks) && marks[at].ends;
}

bool kva_gguf_mark_is(const char *text, size_t length)
{
    return find(text, length) < KVA_COUNT_OF(marks);
}
