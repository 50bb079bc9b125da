/* family_models.c - a family's configuration with more layers, and a checkpoint of it. */
#include "tests/cmocka.h"

#include "tests/engine/family_models.h"

#include "base/file.h"
#include "tests/data.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONFIG_BYTES_MAX = 1 << 16 };

static cJSON *read_config(const char *family)
{
    char name[100], path[4096];
    struct kva_buf text;
    struct kva_err err = {.message = ""};
    snprintf(name, sizeof name, "tests/golden/families/%s/config.json", family);
    kva_test_source(name, path, sizeof path);
    kva_buf_init(&text, CONFIG_BYTES_MAX);
    if (kva_file_read(AT_FDCWD, path, &text, &err))
        fail_msg("%s", err.message);
    cJSON *config = cJSON_ParseWithLength(text.data, text.length);
    kva_buf_finish(&text);
    assert_non_null(config);
    return config;
}

static void replace(cJSON *config, const char *name, uint32_t value)
{
    cJSON_ReplaceItemInObject(config, name, cJSON_CreateNumber(value));
}

static char *deepen(const struct family_models *models, const char *family)
{
    cJSON *config = read_config(family), *types = cJSON_GetObjectItem(config, "layer_types");
    const int had = cJSON_GetArraySize(types);
    for (int i = had; types && i < (int)models->layers; i++)
        cJSON_AddItemToArray(types, cJSON_Duplicate(cJSON_GetArrayItem(types, i % had), true));
    replace(config, "num_hidden_layers", models->layers);
    if (models->positions > 0)
        replace(config, "max_position_embeddings", models->positions);
    if (cJSON_IsNumber(cJSON_GetObjectItem(config, "sliding_window")))
        replace(config, "sliding_window", 100);
    char *deep = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    return deep;
}

void family_models_make(const struct family_models *models, char (*paths)[FIXTURE_PATH_BYTES])
{
    for (uint32_t i = 0; i < models->count; i++) {
        char *deep = deepen(models, models->families[i]);
        fixture_make_model(deep, models->seed + i, 0, paths[i]);
        free(deep);
    }
}
