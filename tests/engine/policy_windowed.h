/* policy_windowed.h - a KV policy of the tests, written from docs/policies.md. */
#ifndef KVA_TESTS_ENGINE_POLICY_WINDOWED_H
#define KVA_TESTS_ENGINE_POLICY_WINDOWED_H

#include "engine/kv/policy.h"

/* Sinks and a window of the newest tokens; everything between them is dropped. */
extern const struct kva_kv_policy policy_windowed;

#endif
