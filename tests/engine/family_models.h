/* family_models.h - checkpoints of noise of some families, deeper than those in tests/golden. */
#ifndef KVA_TESTS_ENGINE_FAMILY_MODELS_H
#define KVA_TESTS_ENGINE_FAMILY_MODELS_H

#include "tests/engine/fixture.h"

struct family_models {
    const char *const *families; /* [count]: folders of tests/golden/families */
    uint32_t count;
    uint32_t layers;
    uint32_t positions; /* 0: as the family's configuration has them */
    uint64_t seed;      /* of the first */
};

/* Layers of several kinds come in turns; a sliding window becomes 100, past the pages' own. */
void family_models_make(const struct family_models *models, char (*paths)[FIXTURE_PATH_BYTES]);

#endif
