/* dict.c - dictionaries that keep their order; see value.h. */
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

static enum kva_status has_hash(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                int depth, bool *ret)
{
    *ret =
        value->type != KVA_TPL_LIST && value->type != KVA_TPL_DICT && value->type != KVA_TPL_VIEW;
    if (value->type != KVA_TPL_TUPLE)
        return KVA_OK;
    *ret = depth < KEY_DEPTH_MAX;
    /* A tuple that holds the same tuple often is small, and a key of many values. */
    if (*ret)
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, value->as.list->count));
    for (size_t i = 0; *ret && i < value->as.list->count; i++)
        KVA_TPL_TRY(has_hash(run, &value->as.list->items[i], depth + 1, ret));
    return KVA_OK;
}

enum kva_status kva_tpl_has_hash(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                 bool *ret)
{
    return has_hash(run, value, 0, ret);
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
static enum kva_status hash_value(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                  uint32_t *ret)
{
    switch (value->type) {
    case KVA_TPL_BOOL:
    case KVA_TPL_INT:
        *ret = mix((uint64_t)kva_tpl_as_integer(value));
        return KVA_OK;
    case KVA_TPL_FLOAT: {
        double number = value->as.number;
        uint64_t bits;
        memcpy(&bits, &number, sizeof(bits));
        bool whole = fabs(number) < 9.0e18 && floor(number) == number;
        *ret = mix(whole ? (uint64_t)(int64_t)number : bits);
        return KVA_OK;
    }
    case KVA_TPL_STRING:
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, value->as.string->length));
        *ret = hash_bytes(value->as.string->data, value->as.string->length);
        return KVA_OK;
    case KVA_TPL_TUPLE: {
        uint64_t hash = 17;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, value->as.list->count));
        for (size_t i = 0; i < value->as.list->count; i++) {
            uint32_t item;
            KVA_TPL_TRY(hash_value(run, &value->as.list->items[i], &item));
            hash = hash * 31 + item;
        }
        *ret = mix(hash);
        return KVA_OK;
    }
    default:
        *ret = mix(value->type);
        return KVA_OK;
    }
}

/* Index of the entry with `key`, UINT32_MAX if there is none; *ret_hash the key's hash. */
static enum kva_status find(struct kva_tpl_run *run, const struct kva_tpl_dict *dict,
                            const struct kva_tpl_value *key, uint32_t *ret_index,
                            uint32_t *ret_hash)
{
    bool has_hash, same = false;
    uint32_t hash;
    *ret_index = UINT32_MAX;
    KVA_TPL_TRY(kva_tpl_has_hash(run, key, &has_hash));
    if (!has_hash)
        return kva_tpl_fail(run, "unhashable type: '%s'", kva_tpl_type_name(key));
    KVA_TPL_TRY(hash_value(run, key, &hash));
    *ret_hash = hash;
    if (dict->slot_count == 0) {
        for (uint32_t i = 0; i < dict->count && !same; i++) {
            if (dict->entries[i].hash == hash)
                KVA_TPL_TRY(kva_tpl_equal(run, &dict->entries[i].key, key, &same));
            if (same)
                *ret_index = i;
        }
        return KVA_OK;
    }
    uint32_t mask = dict->slot_count - 1;
    for (uint32_t at = hash & mask; dict->slots[at] && !same; at = (at + 1) & mask) {
        uint32_t index = dict->slots[at] - 1;
        /* A request that piles up collisions pays for them. */
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, 1));
        if (dict->entries[index].hash == hash)
            KVA_TPL_TRY(kva_tpl_equal(run, &dict->entries[index].key, key, &same));
        if (same)
            *ret_index = index;
    }
    return KVA_OK;
}

static enum kva_status add_slot(struct kva_tpl_run *run, struct kva_tpl_dict *dict, uint32_t index)
{
    uint32_t mask = dict->slot_count - 1;
    uint32_t at = dict->entries[index].hash & mask;
    while (dict->slots[at]) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, 1));
        at = (at + 1) & mask;
    }
    dict->slots[at] = index + 1;
    return KVA_OK;
}

/* Room for one more entry, and slots at most half full. */
static enum kva_status grow(struct kva_tpl_run *run, struct kva_tpl_dict *dict)
{
    if (dict->count == UINT32_MAX / 8)
        return kva_tpl_fail(run, "a dictionary of more than %u entries", UINT32_MAX / 8);
    if (dict->count == dict->capacity) {
        uint32_t capacity = dict->capacity ? dict->capacity * 2 : 4;
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
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, dict->count));
    for (uint32_t i = 0; i < dict->count; i++)
        KVA_TPL_TRY(add_slot(run, dict, i));
    return KVA_OK;
}

enum kva_status kva_tpl_dict_set(struct kva_tpl_run *run, struct kva_tpl_dict *dict,
                                 const struct kva_tpl_value *key, const struct kva_tpl_value *value)
{
    uint32_t index, hash;
    KVA_TPL_TRY(find(run, dict, key, &index, &hash));
    if (index != UINT32_MAX) {
        dict->entries[index].value = *value;
        return KVA_OK;
    }
    KVA_TPL_TRY(grow(run, dict));
    dict->entries[dict->count] = (struct kva_tpl_entry){.key = *key, .value = *value, .hash = hash};
    dict->count++;
    return dict->slot_count > 0 ? add_slot(run, dict, dict->count - 1) : KVA_OK;
}

enum kva_status kva_tpl_dict_get(struct kva_tpl_run *run, const struct kva_tpl_dict *dict,
                                 const struct kva_tpl_value *key, const struct kva_tpl_value **ret)
{
    uint32_t index, hash;
    KVA_TPL_TRY(find(run, dict, key, &index, &hash));
    *ret = index == UINT32_MAX ? NULL : &dict->entries[index].value;
    return KVA_OK;
}
