/* fuzz_hub_listing.c - a hub's list of files and an index of weights, from any bytes.
 *
 * The first line is what --model says, the part up to a line "----" the list, behind it the index.
 * Whatever is chosen is a safe path. */
#include "tests/fuzz/fuzz.h"

#include "base/buf.h"
#include "hub/listing.h"
#include "hub/name.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_name(const struct kva_hub_name *name)
{
    if (name->kind != KVA_HUB_REPOSITORY)
        return;
    require(kva_hub_name_is_safe(name->repository) && kva_hub_name_is_safe(name->revision));
    require(name->file[0] == '\0' || kva_hub_name_is_safe(name->file));
    const char *slash = strchr(name->repository, '/');
    require(slash && !strchr(slash + 1, '/') && !strstr(name->repository, "--"));
}

static void check_choice(const struct kva_hub_choice *choice)
{
    require(choice->files.count > 0 && kva_hub_name_is_commit(choice->files.commit));
    for (size_t i = 0; i < choice->files.count; i++)
        require(kva_hub_name_is_safe(choice->files.files[i]));
}

static void choose(const struct kva_hub_listing *listing, const char *wanted, const char *index,
                   size_t length)
{
    struct kva_hub_choice choice;
    struct kva_err err = {0};
    if (kva_hub_listing_choose(listing, wanted, "org/name", &choice, &err)) {
        require(err.message[0] != '\0');
        return;
    }
    check_choice(&choice);
    if (kva_hub_choice_add_index(&choice, index, length, &err))
        require(err.message[0] != '\0');
    check_choice(&choice);
    kva_hub_choice_finish(&choice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n----\n";
    char *text = malloc(size + 1);
    struct kva_hub_name name = {0};
    struct kva_hub_listing listing;
    struct kva_err err = {0};
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    char *line_end = memchr(text, '\n', size);
    char *json = line_end ? line_end + 1 : text + size;
    char *split = memmem(json, (size_t)(text + size - json), mark, sizeof(mark) - 1);
    char *index = split ? split + sizeof(mark) - 1 : text + size;
    if (line_end)
        *line_end = '\0';
    if (kva_hub_name_parse(text, &name, &err) == KVA_OK)
        check_name(&name);
    else
        require(err.message[0] != '\0');
    if (kva_hub_listing_parse(json, (size_t)((split ? split : text + size) - json), &listing,
                              &err) == KVA_OK) {
        choose(&listing, name.file, index, (size_t)(text + size - index));
        kva_hub_listing_finish(&listing);
    }
    free(text);
    return 0;
}
