/* functions.c - calls as chats had them before there were tools: `functions` and `function_call`, which
 * become tools and a choice of one, and what the history has of them. */
#include "server/api/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kva_status kva_api_parse_functions(struct kva_api_parser *p, const char *name,
                                        const cJSON *value)
{
    if (!cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an array, not %s.", name,
                              kva_api_type_name(value));
    p->functions = value;
    return KVA_OK;
}

enum kva_status kva_api_parse_function_call(struct kva_api_parser *p, const char *name,
                                            const cJSON *value)
{
    if (!cJSON_IsString(value) && !cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be \"none\", \"auto\" or an object with the name of a "
                              "function, not %s.",
                              name, kva_api_type_name(value));
    p->function_call = value;
    return KVA_OK;
}

enum kva_status kva_api_take_functions(struct kva_api_parser *p)
{
    const char *field = p->functions ? "functions" : "function_call";
    if (!p->functions && !p->function_call)
        return KVA_OK;
    if (p->tools || p->tool_choice)
        return kva_fail_param(p->err, KVA_EINVAL, field,
                              "'%s' is the old form of '%s': a request has one of them.", field,
                              p->functions ? "tools" : "tool_choice");
    struct kva_api_tools *tools = &p->call->tools;
    tools->legacy = true;
    tools->parallel = false;
    p->tools = p->functions;
    p->tool_choice = p->function_call;
    return KVA_OK;
}

/* The members of an assistant's function_call, moved into the first of its tool_calls. */
static bool lift_call(cJSON *message)
{
    cJSON *function = cJSON_DetachItemFromObjectCaseSensitive(message, "function_call");
    cJSON *call = cJSON_CreateObject();
    if (!cJSON_AddStringToObject(call, "id", "call_0") ||
        !cJSON_AddStringToObject(call, "type", "function") ||
        !cJSON_AddItemToObject(call, "function", function)) {
        cJSON_Delete(function);
        cJSON_Delete(call);
        return false;
    }
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    if (!calls)
        calls = cJSON_AddArrayToObject(message, "tool_calls");
    if (calls && cJSON_AddItemToArray(calls, call))
        return true;
    cJSON_Delete(call);
    return false;
}

/* What a function gave is what a tool has given. */
static bool lift_result(cJSON *message)
{
    cJSON *role = cJSON_CreateString("tool");
    if (!role || !cJSON_ReplaceItemInObjectCaseSensitive(message, "role", role)) {
        cJSON_Delete(role);
        return false;
    }
    return cJSON_HasObjectItem(message, "tool_call_id") ||
           cJSON_AddStringToObject(message, "tool_call_id", "call_0");
}

enum kva_status kva_api_lift_message(struct kva_api_parser *p, cJSON *message, const char *place)
{
    const char *role = cJSON_GetObjectItemCaseSensitive(message, "role")->valuestring;
    const cJSON *call = cJSON_GetObjectItemCaseSensitive(message, "function_call");
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    bool lifted = true;
    if (call && (!cJSON_IsObject(call) || calls)) {
        char member[KVA_ERR_PARAM_MAX];
        snprintf(member, sizeof(member), "%.40s.function_call", place);
        return kva_fail_param(p->err, KVA_EINVAL, member,
                              calls ? "'%s' is beside 'tool_calls': a message has one of them."
                                    : "'%s' must be an object with a 'name'.",
                              member);
    } else if (call) {
        cJSON_DeleteItemFromObjectCaseSensitive(message, "tool_calls");
        lifted = lift_call(message);
    }
    if (lifted && strcmp(role, "function") == 0)
        lifted = lift_result(message);
    return lifted ? KVA_OK : kva_fail_param(p->err, KVA_ENOMEM, "messages", "Out of memory.");
}
