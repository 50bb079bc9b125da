/* Dictionaries that keep their order; see value.h. */
#include "text/template/run.h"

#include <math.h>
#include <string.h>

/* Up to this many entries a linear search is faster than hashing. */
#define LINEAR_MAX 8

/* Bound on the nesting of tuples used as keys. */
#define KEY_DEPTH_MAX 16

enum kva_status kva_tpl_dict_new(struct kva_tpl_run *run, enum kva_tpl_type type,
                                 struct kva_tpl_value *ret)
{
    struct kva_tpl_dict *dict = kva_tpl_alloc(run, 1, sizeof(*dict));
    if (!dict)
        return run->err->status;
    *ret = (struct kva_tpl_value){.type = (uint8_t)type, .as.dict = dict};
    return KVA_OK;
}

static bool has_hash(const struct kva_tpl_value *value, int depth)
{
    switch (value->type) {
    case KVA_TPL_LIST:
    case KVA_TPL_DICT:
    case KVA_TPL_VIEW:
        return false;
    case KVA_TPL_TUPLE:
        if (depth >= KEY_DEPTH_MAX)
            return false;
        for (size_t i = 0; i < value->as.list->count; i++) {
            if (!has_hash(&value->as.list->items[i], depth + 1))
                return false;
        }
        return true;
    default:
        return true;
    }
}

bool kva_tpl_has_hash(const struct kva_tpl_value *value)
{
    return has_hash(value, 0);
}

static uint32_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(x >> 32);
}

static uint32_t hash_bytes(const char *data, size_t length)
{
    uint64_t hash = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)data[i]) * 0x100000001B3ull;
    return mix(hash);
}

/* Equal values have equal hashes: 1, 1.0 and True too. */
static uint32_t hash_value(const struct kva_tpl_value *value)
{
    switch (value->type) {
    case KVA_TPL_BOOL:
    case KVA_TPL_INT:
        return mix((uint64_t)kva_tpl_as_integer(value));
    case KVA_TPL_FLOAT: {
        double number = value->as.number;
        if (fabs(number) < 9.0e18 && floor(number) == number)
            return mix((uint64_t)(int64_t)number);
        uint64_t bits;
        memcpy(&bits, &number, sizeof(bits));
        return mix(bits);
    }
    case KVA_TPL_STRING:
        return hash_bytes(value->as.string->data, value->as.string->length);
    case KVA_TPL_TUPLE: {
        uint64_t hash = 17;
        for (size_t i = 0; i < value->as.list->count; i++)
            hash = hash * 31 + hash_value(&value->as.list->items[i]);
        return mix(hash);
    }
    default:
        return mix(value->type);
    }
}

static enum kva_status same_key(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                                const struct kva_tpl_value *b, bool *ret)
{
    if (a->type == KVA_TPL_STRING && b->type == KVA_TPL_STRING) {
        *ret = a->as.string->length == b->as.string->length &&
               memcmp(a->as.string->data, b->as.string->data, a->as.string->length) == 0;
        return KVA_OK;
    }
    return kva_tpl_equal(run, a, b, ret);
}

/* Index of the entry with `key`, UINT32_MAX if there is none. */
static enum kva_status find(struct kva_tpl_run *run, const struct kva_tpl_dict *dict,
                            const struct kva_tpl_value *key, uint32_t *ret)
{
    *ret = UINT32_MAX;
    if (!kva_tpl_has_hash(key))
        return kva_tpl_fail(run, "unhashable type: '%s'", kva_tpl_type_name(key));
    bool same = false;
    if (dict->slot_count == 0) {
        for (uint32_t i = 0; i < dict->count && !same; i++) {
            KVA_TPL_TRY(same_key(run, &dict->entries[i].key, key, &same));
            if (same)
                *ret = i;
        }
        return KVA_OK;
    }
    uint32_t mask = dict->slot_count - 1;
    for (uint32_t at = hash_value(key) & mask; dict->slots[at] && !same; at = (at + 1) & mask) {
        uint32_t index = dict->slots[at] - 1;
        /* A request that piles up collisions pays for them. */
        KVA_TPL_TRY(kva_tpl_charge(run, 1));
        KVA_TPL_TRY(same_key(run, &dict->entries[index].key, key, &same));
        if (same)
            *ret = index;
    }
    return KVA_OK;
}

static void add_slot(struct kva_tpl_dict *dict, uint32_t index)
{
    uint32_t mask = dict->slot_count - 1;
    uint32_t at = hash_value(&dict->entries[index].key) & mask;
    while (dict->slots[at])
        at = (at + 1) & mask;
    dict->slots[at] = index + 1;
}

/* Room for one more entry, and slots at most half full. */
static enum kva_status grow(struct kva_tpl_run *run, struct kva_tpl_dict *dict)
{
    if (dict->count == UINT32_MAX / 8)
        return kva_tpl_fail(run, "a dictionary of more than %u entries", UINT32_MAX / 8);
    if (dict->count == dict->capacity) {
        uint32_t capacity = dict->capacity ? dict->capacity * 2 : 4;
        KVA_TPL_TRY(kva_tpl_charge(run, dict->count / 4));
        struct kva_tpl_entry *entries = kva_tpl_alloc(run, capacity, sizeof(*entries));
        if (!entries)
            return run->err->status;
        if (dict->count > 0)
            memcpy(entries, dict->entries, dict->count * sizeof(*entries));
        dict->entries = entries;
        dict->capacity = capacity;
    }
    if (dict->count < LINEAR_MAX || dict->count * 2 < dict->slot_count)
        return KVA_OK;
    uint32_t slot_count = dict->slot_count ? dict->slot_count * 2 : LINEAR_MAX * 4;
    uint32_t *slots = kva_tpl_alloc(run, slot_count, sizeof(*slots));
    if (!slots)
        return run->err->status;
    dict->slots = slots;
    dict->slot_count = slot_count;
    for (uint32_t i = 0; i < dict->count; i++)
        add_slot(dict, i);
    return KVA_OK;
}

enum kva_status kva_tpl_dict_set(struct kva_tpl_run *run, struct kva_tpl_dict *dict,
                                 const struct kva_tpl_value *key, const struct kva_tpl_value *value)
{
    uint32_t index;
    KVA_TPL_TRY(find(run, dict, key, &index));
    if (index != UINT32_MAX) {
        dict->entries[index].value = *value;
        return KVA_OK;
    }
    KVA_TPL_TRY(grow(run, dict));
    dict->entries[dict->count] = (struct kva_tpl_entry){.key = *key, .value = *value};
    dict->count++;
    if (dict->slot_count > 0)
        add_slot(dict, dict->count - 1);
    return KVA_OK;
}

enum kva_status kva_tpl_dict_get(struct kva_tpl_run *run, const struct kva_tpl_dict *dict,
                                 const struct kva_tpl_value *key, const struct kva_tpl_value **ret)
{
    uint32_t index;
    KVA_TPL_TRY(find(run, dict, key, &index));
    *ret = index == UINT32_MAX ? NULL : &dict->entries[index].value;
    return KVA_OK;
}
