/* protobuf.c - fields of a message, one after another. */
#include "text/tokenizer/protobuf.h"

#include <string.h>

struct kva_proto kva_proto_init(const char *data, size_t length)
{
    return (struct kva_proto){.at = data, .end = data ? data + length : NULL};
}

static bool read_varint(struct kva_proto *proto, uint64_t *ret)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && proto->at < proto->end; shift += 7) {
        uint8_t byte = (uint8_t)*proto->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *ret = value;
            return true;
        }
    }
    return false;
}

static bool read_fixed(struct kva_proto *proto, size_t bytes, uint64_t *ret)
{
    if ((size_t)(proto->end - proto->at) < bytes)
        return false;
    *ret = 0;
    for (size_t i = 0; i < bytes; i++)
        *ret |= (uint64_t)(uint8_t)proto->at[i] << (8 * i);
    proto->at += bytes;
    return true;
}

static bool read_bytes(struct kva_proto *proto, struct kva_proto_field *field)
{
    uint64_t length;
    if (!read_varint(proto, &length) || length > (size_t)(proto->end - proto->at))
        return false;
    field->data = proto->at;
    field->length = (size_t)length;
    proto->at += length;
    return true;
}

static bool read_field(struct kva_proto *proto, struct kva_proto_field *field)
{
    uint64_t tag;
    if (!read_varint(proto, &tag) || tag >> 3 == 0 || tag >> 3 > (UINT32_MAX >> 3))
        return false;
    *field = (struct kva_proto_field){.number = (uint32_t)(tag >> 3),
                                      .wire = (enum kva_proto_wire)(tag & 7)};
    switch (field->wire) {
    case KVA_PROTO_VARINT:
        return read_varint(proto, &field->value);
    case KVA_PROTO_FIXED64:
        return read_fixed(proto, 8, &field->value);
    case KVA_PROTO_BYTES:
        return read_bytes(proto, field);
    case KVA_PROTO_FIXED32:
        return read_fixed(proto, 4, &field->value);
    }
    return false; /* groups, which nobody writes any more */
}

bool kva_proto_next(struct kva_proto *proto, struct kva_proto_field *ret_field)
{
    if (proto->malformed || proto->at == proto->end)
        return false;
    proto->malformed = !read_field(proto, ret_field);
    return !proto->malformed;
}

float kva_proto_float(const struct kva_proto_field *field)
{
    uint32_t bits = (uint32_t)field->value;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
