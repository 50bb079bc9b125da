/* choices.c - rules for one text of several. */
#include "base/buf.h"
#include "text/grammar/grammar.h"

static void put_text(struct kva_buf *out, const struct kva_grammar_choice *choice)
{
    kva_buf_putc(out, '"');
    for (size_t i = 0; i < choice->length; i++) {
        unsigned char c = (unsigned char)choice->text[i];
        if (c == '"' || c == '\\')
            kva_buf_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            kva_buf_printf(out, "\\u%04x", c);
        else
            kva_buf_putc(out, (char)c);
    }
    kva_buf_putc(out, '"');
}

void kva_grammar_put_choices(struct kva_buf *out, const struct kva_grammar_choice *choices,
                             uint32_t count)
{
    kva_buf_puts(out, "root ::= ");
    for (uint32_t i = 0; i < count; i++) {
        kva_buf_puts(out, i > 0 ? " | " : "");
        put_text(out, &choices[i]);
    }
    kva_buf_putc(out, '\n');
}
