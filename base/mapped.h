/* mapped.h - files that are read through memory, and what becomes of a process when one is cut.
 *
 * Reading a page of a mapping that its file has no more, or that the disk cannot give, raises
 * SIGBUS, which ends a process without a word. Here mappings are watched: their lost part turns
 * into zeros and is remembered as lost, the reader goes on with them, and whoever uses what was
 * read asks first whether it is lost. Faults elsewhere end the process.
 *
 * Thread rule: any thread; the handler runs on the one that faults, which must not block SIGBUS. */
#ifndef KVA_BASE_MAPPED_H
#define KVA_BASE_MAPPED_H

#include "base/err.h"

#include <stdbool.h>

/* What kva_mapped_watch returns where no more can be watched. */
#define KVA_MAPPED_NONE UINT32_MAX
/* Mappings that are watched at a time. */
#define KVA_MAPPED_MAX 2048u

/* Take SIGBUS, once for the process; later calls do nothing. Without it nothing is watched. Fails:
 * KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_mapped_catch(struct kva_err *err);

/* Watch a read-only mapping of whole pages, the last of which may be in part, until unwatched,
 * which comes before it is unmapped. Returns its number; KVA_MAPPED_NONE: there is no room, and a
 * fault in it ends the process. */
uint32_t kva_mapped_watch(const void *map, size_t bytes);

/* KVA_MAPPED_NONE is allowed. */
void kva_mapped_unwatch(uint32_t number);

/* Whether a part of it was lost since it is watched. KVA_MAPPED_NONE is allowed: false. */
bool kva_mapped_is_lost(uint32_t number);

#endif
