/* lexer.c - tokens of blocks, expressions and text. */
#include "text/template/lexer.h"

#include "text/template/text.h"

#include <string.h>

void kva_tpl_lexer_init(struct kva_tpl_lexer *lexer, const char *source, size_t length,
                        struct kva_arena *arena, struct kva_err *err)
{
    memset(lexer, 0, sizeof(*lexer));
    lexer->source = source;
    lexer->length = length;
    lexer->line = 1;
    lexer->line_starting = true;
    lexer->arena = arena;
    lexer->err = err;
}

char kva_tpl_lexer_peek(const struct kva_tpl_lexer *lexer, size_t offset)
{
    return offset < lexer->length - lexer->at ? lexer->source[lexer->at + offset] : '\0';
}

char kva_tpl_lexer_at(const struct kva_tpl_lexer *lexer, size_t position)
{
    return position < lexer->length ? lexer->source[position] : '\0';
}

static size_t skip_space(const struct kva_tpl_lexer *lexer, size_t position)
{
    return position + kva_tpl_leading_space(lexer->source + position, lexer->length - position);
}

static void count_lines(struct kva_tpl_lexer *lexer, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        lexer->line += lexer->source[i] == '\n';
}

void kva_tpl_lexer_advance(struct kva_tpl_lexer *lexer, size_t end)
{
    count_lines(lexer, lexer->at, end);
    if (end > lexer->at)
        lexer->line_starting = lexer->source[end - 1] == '\n';
    lexer->at = end;
}

enum kva_status kva_tpl_lexer_fail(struct kva_tpl_lexer *lexer, const char *what)
{
    return kva_fail(lexer->err, KVA_EFORMAT, "chat template, line %u: %s", lexer->line, what);
}

/* If a tag's end (`close` is '%', '}' or '#') starts at `position`, where it ends with the white
 * space that goes with it; 0 otherwise. */
static size_t tag_end(const struct kva_tpl_lexer *lexer, size_t position, char close)
{
    char sign = kva_tpl_lexer_at(lexer, position);
    size_t mark = position + (sign == '-' || (sign == '+' && close != '}'));
    if (kva_tpl_lexer_at(lexer, mark) != close || kva_tpl_lexer_at(lexer, mark + 1) != '}')
        return 0;
    size_t end = mark + 2;
    if (mark > position)
        return sign == '-' ? skip_space(lexer, end) : end;
    if (close != '}' && kva_tpl_lexer_at(lexer, end) == '\n')
        end++;
    return end;
}

/* "{%" [sign] `word` at `position`; returns where the end must follow, 0 if it is something else.
 */
static size_t block_word(const struct kva_tpl_lexer *lexer, size_t position, const char *word,
                         char *ret_sign)
{
    if (kva_tpl_lexer_at(lexer, position) != '{' || kva_tpl_lexer_at(lexer, position + 1) != '%')
        return 0;
    size_t at = position + 2;
    *ret_sign = '\0';
    if (kva_tpl_lexer_at(lexer, at) == '-' || kva_tpl_lexer_at(lexer, at) == '+')
        *ret_sign = lexer->source[at++];
    if (at >= lexer->length)
        return 0;
    at = skip_space(lexer, at);
    size_t word_length = strlen(word);
    if (lexer->length - at < word_length || memcmp(lexer->source + at, word, word_length) != 0)
        return 0;
    return skip_space(lexer, at + word_length);
}

/* The text before a tag, from lexer->at to `end`, without what the tag's sign or lstrip_blocks
 * takes away. */
static size_t strip_before_tag(const struct kva_tpl_lexer *lexer, size_t end, char sign,
                               bool is_variable)
{
    const char *text = lexer->source + lexer->at;
    size_t length = end - lexer->at;
    if (sign == '-')
        return length - kva_tpl_trailing_space(text, length);
    if (sign == '+' || is_variable)
        return length;
    size_t space = kva_tpl_trailing_space(text, length);
    const char *newline = length > 0 ? memrchr(text, '\n', length) : NULL;
    size_t line_start = newline ? (size_t)(newline - text) + 1 : 0;
    if ((line_start > 0 || lexer->line_starting) && space >= length - line_start)
        return line_start;
    return length;
}

/* Text of a token that outlives the source. */
static enum kva_status keep_text(struct kva_tpl_lexer *lexer, const char *text, size_t length,
                                 struct kva_tpl_token *ret)
{
    ret->text = kva_arena_strndup(lexer->arena, text, length);
    ret->length = length;
    return ret->text ? KVA_OK : kva_fail(lexer->err, KVA_ENOMEM, "out of memory");
}

/* Everything up to {% endraw %} is text. lexer->at is behind the begin. */
static enum kva_status lex_raw(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret,
                               bool *ret_found)
{
    for (size_t i = lexer->at; i + 1 < lexer->length; i++) {
        char sign;
        size_t word_end = block_word(lexer, i, "endraw", &sign);
        size_t end = word_end ? tag_end(lexer, word_end, '%') : 0;
        if (!end)
            continue;
        size_t length = strip_before_tag(lexer, i, sign, false);
        ret->type = KVA_TPL_TOKEN_DATA;
        ret->line = lexer->line;
        enum kva_status status = keep_text(lexer, lexer->source + lexer->at, length, ret);
        kva_tpl_lexer_advance(lexer, end);
        *ret_found = length > 0;
        return status;
    }
    return kva_tpl_lexer_fail(lexer, "Missing end of raw directive");
}

static enum kva_status skip_comment(struct kva_tpl_lexer *lexer)
{
    for (size_t i = lexer->at; i < lexer->length; i++) {
        size_t end = tag_end(lexer, i, '#');
        if (end) {
            kva_tpl_lexer_advance(lexer, end);
            return KVA_OK;
        }
    }
    return kva_tpl_lexer_fail(lexer, "Missing end of comment tag");
}

/* Position of the next tag; length if there is none. */
static size_t find_tag(const struct kva_tpl_lexer *lexer)
{
    size_t at = lexer->at;
    while (at + 1 < lexer->length) {
        const char *brace = memchr(lexer->source + at, '{', lexer->length - 1 - at);
        if (!brace)
            break;
        if (brace[1] == '%' || brace[1] == '{' || brace[1] == '#')
            return (size_t)(brace - lexer->source);
        at = (size_t)(brace - lexer->source) + 1;
    }
    return lexer->length;
}

/* Take the begin of the tag at lexer->at. *ret_found: it made a token. */
static enum kva_status lex_begin(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret,
                                 bool *ret_found)
{
    char kind = lexer->source[lexer->at + 1];
    char sign;
    size_t word_end = kind == '%' ? block_word(lexer, lexer->at, "raw", &sign) : 0;
    /* A raw begin knows no '+' and trims no newline. */
    if (word_end && kva_tpl_lexer_at(lexer, word_end) != '+') {
        size_t end = tag_end(lexer, word_end, '%');
        if (end && kva_tpl_lexer_at(lexer, word_end) == '%')
            end = word_end + 2;
        if (end) {
            kva_tpl_lexer_advance(lexer, end);
            return lex_raw(lexer, ret, ret_found);
        }
    }
    char mark = kva_tpl_lexer_peek(lexer, 2);
    kva_tpl_lexer_advance(lexer, lexer->at + 2 + (mark == '-' || mark == '+'));
    if (kind == '#')
        return skip_comment(lexer);
    ret->type = kind == '%' ? KVA_TPL_TOKEN_BLOCK_BEGIN : KVA_TPL_TOKEN_VARIABLE_BEGIN;
    ret->line = lexer->line;
    lexer->state = kind == '%' ? KVA_TPL_LEX_BLOCK : KVA_TPL_LEX_VARIABLE;
    lexer->bracket_count = 0;
    *ret_found = true;
    return KVA_OK;
}

static enum kva_status lex_root(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret,
                                bool *ret_found)
{
    if (lexer->begin_pending) {
        lexer->begin_pending = false;
        return lex_begin(lexer, ret, ret_found);
    }
    if (lexer->at >= lexer->length) {
        ret->type = KVA_TPL_TOKEN_EOF;
        ret->line = lexer->line;
        *ret_found = true;
        return KVA_OK;
    }
    size_t tag = find_tag(lexer);
    size_t length = tag - lexer->at;
    if (tag < lexer->length) {
        char mark = kva_tpl_lexer_at(lexer, tag + 2);
        length = strip_before_tag(lexer, tag, mark, lexer->source[tag + 1] == '{');
        lexer->begin_pending = true;
    }
    ret->type = KVA_TPL_TOKEN_DATA;
    ret->line = lexer->line;
    *ret_found = length > 0;
    enum kva_status status = KVA_OK;
    if (length > 0)
        status = keep_text(lexer, lexer->source + lexer->at, length, ret);
    kva_tpl_lexer_advance(lexer, tag);
    return status;
}

static enum kva_status lex_operator(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = kva_tpl_lexer_peek(lexer, 0);
    ret->type = KVA_TPL_TOKEN_OPERATOR;
    ret->text = lexer->source + lexer->at;
    for (size_t i = 0; i < KVA_COUNT_OF(pairs); i++) {
        if (c == pairs[i][0] && kva_tpl_lexer_peek(lexer, 1) == pairs[i][1]) {
            ret->op = KVA_TPL_PAIR(pairs[i][0], pairs[i][1]);
            ret->length = 2;
            kva_tpl_lexer_advance(lexer, lexer->at + 2);
            return KVA_OK;
        }
    }
    if (c == '\0' || !strchr("+-/*%~[](){}><=.:|,;", c))
        return kva_fail(lexer->err, KVA_EFORMAT, "chat template, line %u: unexpected char '%.*s'",
                        lexer->line, kva_tpl_char_bytes(ret->text), ret->text);
    if (c == '(' || c == '[' || c == '{') {
        if (lexer->bracket_count == KVA_TEMPLATE_PARSE_DEPTH_MAX)
            return kva_fail(lexer->err, KVA_EFORMAT,
                            "chat template, line %u: more than %u open brackets", lexer->line,
                            KVA_TEMPLATE_PARSE_DEPTH_MAX);
        lexer->brackets[lexer->bracket_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (lexer->bracket_count == 0 || lexer->brackets[lexer->bracket_count - 1] != c)
            return kva_fail(lexer->err, KVA_EFORMAT, "chat template, line %u: unexpected '%c'",
                            lexer->line, c);
        lexer->bracket_count--;
    }
    ret->op = (uint16_t)c;
    ret->length = 1;
    kva_tpl_lexer_advance(lexer, lexer->at + 1);
    return KVA_OK;
}

static enum kva_status lex_tag(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret)
{
    char close = lexer->state == KVA_TPL_LEX_BLOCK ? '%' : '}';
    size_t end = 0;
    for (;;) {
        end = lexer->bracket_count == 0 ? tag_end(lexer, lexer->at, close) : 0;
        size_t space = end ? lexer->at : skip_space(lexer, lexer->at);
        if (space == lexer->at)
            break;
        kva_tpl_lexer_advance(lexer, space);
    }
    ret->line = lexer->line;
    if (end) {
        ret->type = close == '%' ? KVA_TPL_TOKEN_BLOCK_END : KVA_TPL_TOKEN_VARIABLE_END;
        lexer->state = KVA_TPL_LEX_ROOT;
        kva_tpl_lexer_advance(lexer, end);
        return KVA_OK;
    }
    if (lexer->at >= lexer->length) {
        ret->type = KVA_TPL_TOKEN_EOF;
        return KVA_OK;
    }
    char c = kva_tpl_lexer_peek(lexer, 0);
    if (c >= '0' && c <= '9')
        return kva_tpl_lex_number(lexer, ret);
    if (c == '\'' || c == '"')
        return kva_tpl_lex_string(lexer, ret);
    size_t word = lexer->at;
    while (word < lexer->length) {
        int bytes;
        if (!kva_tpl_is_word(kva_tpl_char(lexer->source + word, &bytes)))
            break;
        word += (size_t)bytes;
    }
    if (word == lexer->at)
        return lex_operator(lexer, ret);
    ret->type = KVA_TPL_TOKEN_NAME;
    ret->text = lexer->source + lexer->at;
    ret->length = word - lexer->at;
    kva_tpl_lexer_advance(lexer, word);
    return KVA_OK;
}

enum kva_status kva_tpl_lexer_next(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (lexer->state != KVA_TPL_LEX_ROOT)
        return lex_tag(lexer, ret);
    bool found = false;
    while (!found && lexer->state == KVA_TPL_LEX_ROOT) {
        enum kva_status status = lex_root(lexer, ret, &found);
        if (status)
            return status;
    }
    return KVA_OK;
}
