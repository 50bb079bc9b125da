/* value.h - what a template computes with: Python's values, as far as chat templates know them.
 *
 * Values are 16 bytes and copied freely; what they point to lives in the arena of the rendering (or
 * of the template, for constants) and is never freed alone. Everything but a namespace and the
 * position of an iterator is immutable once a template can see it, as in Jinja2's immutable
 * sandbox. Strings are valid UTF-8; their length, indices and slices count code points.
 *
 * Internal to text/template. Thread rule: values of a rendering belong to its thread. */
#ifndef KVA_TEXT_TEMPLATE_VALUE_H
#define KVA_TEXT_TEMPLATE_VALUE_H

#include "base/arena.h"
#include "base/kva.h"

#include <stdbool.h>

enum kva_tpl_type {
    KVA_TPL_UNDEFINED,
    KVA_TPL_NONE,
    KVA_TPL_BOOL,
    KVA_TPL_INT,
    KVA_TPL_FLOAT,
    KVA_TPL_STRING,
    KVA_TPL_LIST,
    KVA_TPL_TUPLE,
    KVA_TPL_DICT,
    KVA_TPL_NAMESPACE,
    KVA_TPL_RANGE,
    KVA_TPL_ITERATOR, /* Python's generators and reverse iterators */
    KVA_TPL_VIEW,     /* dict.keys(), .values(), .items() */
    KVA_TPL_LOOP,     /* the variable `loop` */
    KVA_TPL_MACRO,
    KVA_TPL_BUILTIN, /* a global function */
    KVA_TPL_METHOD,  /* a method with its object */
    KVA_TPL_ABSENT,  /* an argument that was not given; templates never see it */
};

/* Spare room behind a string that grew by appending. Whoever ends where the room's use ends may
 * extend it in place: shorter strings that share it do not change. So a template that builds its
 * text piece by piece costs linear, not quadratic, memory. */
struct kva_tpl_room {
    size_t used;
    size_t capacity;
    char data[];
};

struct kva_tpl_str {
    const char *data; /* not NUL-terminated */
    size_t length;    /* bytes */
    struct kva_tpl_room *room;
};

struct kva_tpl_value {
    uint8_t type;
    bool safe; /* a string that `safe` or `escape` marked (Markup) */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const struct kva_tpl_str *string;
        struct kva_tpl_list *list; /* list, tuple */
        struct kva_tpl_dict *dict; /* dict, namespace */
        const struct kva_tpl_range *range;
        struct kva_tpl_iterator *iterator;
        const struct kva_tpl_view *view;
        struct kva_tpl_loop *loop;
        const struct kva_tpl_macro *macro;
        const struct kva_tpl_builtin *builtin;
        const struct kva_tpl_method *method;
        const struct kva_tpl_undefined *undefined;
    } as;
};

struct kva_tpl_list {
    struct kva_tpl_value *items;
    size_t count;
    size_t capacity;
};

struct kva_tpl_entry {
    struct kva_tpl_value key;
    struct kva_tpl_value value;
    uint32_t hash; /* of the key */
};

/* Keeps insertion order. Small ones are searched linearly, larger ones through `slots`: open
 * addressing over entry index + 1, 0 is free. */
struct kva_tpl_dict {
    struct kva_tpl_entry *entries;
    uint32_t *slots;
    uint32_t count;
    uint32_t capacity;
    uint32_t slot_count; /* a power of two, or 0 */
};

struct kva_tpl_range {
    int64_t start, stop, step;
    int64_t count;
};

struct kva_tpl_iterator {
    const struct kva_tpl_list *list;
    size_t position;
    const char *type_name; /* Python's, for messages */
};

enum kva_tpl_view_kind {
    KVA_TPL_VIEW_KEYS,
    KVA_TPL_VIEW_VALUES,
    KVA_TPL_VIEW_ITEMS,
};

struct kva_tpl_view {
    const struct kva_tpl_dict *dict;
    enum kva_tpl_view_kind kind;
};

/* What its use complains about: `hint`, or "'<owner>' has no attribute <name>", or "<name> is
 * undefined". */
struct kva_tpl_undefined {
    const char *hint;
    const char *owner;
    struct kva_tpl_value name;
};

static inline struct kva_tpl_value kva_tpl_none(void)
{
    return (struct kva_tpl_value){.type = KVA_TPL_NONE};
}

static inline struct kva_tpl_value kva_tpl_bool(bool boolean)
{
    return (struct kva_tpl_value){.type = KVA_TPL_BOOL, .as.boolean = boolean};
}

static inline struct kva_tpl_value kva_tpl_int(int64_t integer)
{
    return (struct kva_tpl_value){.type = KVA_TPL_INT, .as.integer = integer};
}

static inline struct kva_tpl_value kva_tpl_float(double number)
{
    return (struct kva_tpl_value){.type = KVA_TPL_FLOAT, .as.number = number};
}

static inline bool kva_tpl_is_sequence(const struct kva_tpl_value *value)
{
    return value->type == KVA_TPL_LIST || value->type == KVA_TPL_TUPLE;
}

/* int, float or bool: Python's numbers. */
static inline bool kva_tpl_is_number(const struct kva_tpl_value *value)
{
    return value->type >= KVA_TPL_BOOL && value->type <= KVA_TPL_FLOAT;
}

/* An int or a bool, which Python counts as one. */
static inline bool kva_tpl_is_integer(const struct kva_tpl_value *value)
{
    return value->type == KVA_TPL_BOOL || value->type == KVA_TPL_INT;
}

static inline int64_t kva_tpl_as_integer(const struct kva_tpl_value *value)
{
    return value->type == KVA_TPL_BOOL ? value->as.boolean : value->as.integer;
}

static inline double kva_tpl_as_number(const struct kva_tpl_value *value)
{
    return value->type == KVA_TPL_FLOAT ? value->as.number : (double)kva_tpl_as_integer(value);
}

/* Python's name of the type, as its error messages spell it. */
const char *kva_tpl_type_name(const struct kva_tpl_value *value);

#endif
