/* internal.h - what the files of text/reply share. Not for other modules. */
#ifndef KVA_TEXT_REPLY_INTERNAL_H
#define KVA_TEXT_REPLY_INTERNAL_H

#include "text/reply/reply.h"

#define KVA_REPLY_THINK     "<think>"
#define KVA_REPLY_THINK_END "</think>"
/* Mistral's newer form: name[CALL_ID]id[ARGS]{...}, of which [CALL_ID]id may be absent. */
#define KVA_REPLY_ARGS    "[ARGS]"
#define KVA_REPLY_CALL_ID "[CALL_ID]"

/* Calls in XML. */
#define KVA_REPLY_FUNCTION      "<function="
#define KVA_REPLY_FUNCTION_END  "</function>"
#define KVA_REPLY_PARAMETER     "<parameter="
#define KVA_REPLY_PARAMETER_END "</parameter>"

/* How a style is written. */
struct kva_reply_syntax {
    const char *name;
    const char *marker;    /* before a call; NULL: there is none */
    const char *closing;   /* behind it; NULL: there is none */
    const char *arguments; /* what it calls them */
    const char *before;    /* the object, as models of the style write it */
    const char *after;
    const char *separator; /* of calls; NULL: it has one call only */
    bool array;            /* calls are the items of an array */
    bool xml;              /* they are no JSON: xml.c */
};
extern const struct kva_reply_syntax kva_reply_syntaxes[KVA_REPLY_STYLE_COUNT]; /* style.c */

/* --- tools.c: members of messages ------------------------------------------------------------- */

/* False: out of memory, and `content` is still the caller's. */
bool kva_reply_put_content(cJSON *message, cJSON *content);
bool kva_reply_set_content(cJSON *message, const char *text);         /* NULL: "" */
const char *kva_reply_member(const cJSON *message, const char *name); /* "": it is no string */

static inline bool kva_reply_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* --- call_scan.c: one call, as it comes -------------------------------------------------------- */

enum kva_scan_result {
    KVA_SCAN_MORE, /* nothing is wrong so far */
    KVA_SCAN_DONE,
    KVA_SCAN_BAD, /* this is no call */
};

/* Offsets are into the text that is scanned. 0 as the end of a span: it has not come to it. */
struct kva_call_scan {
    size_t at; /* bytes before it have been looked at */
    size_t from;
    size_t key_from, key_to;
    size_t name_from, name_to;
    size_t arguments_from, arguments_to;
    uint32_t depth; /* of the value */
    int place;      /* enum place of call_scan.c */
    bool doubled;   /* {{...}}, as Qwen2.5-Coder's template shows it by mistake */
    bool bare;      /* it is the arguments alone */
    bool in_string;
    bool escaped;
};

/* A call whose object begins at `from`, behind white space. */
void kva_call_scan_begin(struct kva_call_scan *scan, size_t from, bool bare);
/* Look at what is new in text[0, length). */
enum kva_scan_result kva_call_scan_go(struct kva_call_scan *scan, const char *text, size_t length);

/* --- xml.c: one call in XML, from its <function= on ------------------------------------------- */

struct kva_xml_scan {
    size_t at;     /* looked at before; in the end behind the call */
    bool in_value; /* of a parameter */
};
/* bound: a grammar has made sure that values end, so that the call's end within one is a part of it. */
enum kva_scan_result kva_xml_find_end(const char *text, size_t length, bool bound,
                                      struct kva_xml_scan *scan);
/* False: there is no name, or it has not ended yet. */
#define KVA_XML_NAME_BYTES_MAX 512u /* with what is before it and behind */
bool kva_xml_read_name(const char *text, size_t length, const char **ret, size_t *ret_length);
/* Appends its parameters as an object of JSON, of the types that `schema` (NULL: nothing is known) has.
 * False: it is no call, or memory has run out (out->failed). */
bool kva_xml_put_arguments(const char *text, size_t length, const char *schema,
                           struct kva_buf *out);

#endif
