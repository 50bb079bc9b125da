/* machine.c - what the machine's processors, memory and limits mean for a server. */
#include "cli/doctor/doctor.h"

#include <stdio.h>

/* Less memory than this serves no model of any use. */
#define MEMORY_MIN ((uint64_t)1 << 30)

#define GIB(bytes) ((double)(bytes) / (1u << 30))

/* --- processors ------------------------------------------------------------------------------ */

static void judge_cores(const struct kva_machine *machine, const struct kva_config *config,
                        struct kva_findings *findings)
{
    char limits[128] = "";
    double quota = machine->cgroup.cores;
    if (quota > 0)
        snprintf(limits, sizeof(limits), ", and a quota of %.2f from a control group", quota);
    kva_findings_add(findings, KVA_VERDICT_OK, "cores", NULL, "%u of %u%s", machine->cores_usable,
                     machine->cores, limits);
    uint64_t threads = config->threads ? config->threads : machine->cores_usable;
    if (config->threads > machine->cores_usable)
        kva_findings_add(findings, KVA_VERDICT_WARN, "threads", "Leave --threads out.",
                         "--threads %llu are more than the cores: they wait for each other in "
                         "every operator",
                         (unsigned long long)config->threads);
    else if (quota > 0 && (double)threads > quota)
        kva_findings_add(findings, KVA_VERDICT_WARN, "threads",
                         "Give the group whole cores, or --threads as many as it has.",
                         "%llu threads share %.2f cores' time: the kernel stops all of them once "
                         "it is used up, until the next period",
                         (unsigned long long)threads, quota);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void judge_memory(const struct kva_machine *machine, struct kva_findings *findings)
{
    uint64_t room = kva_machine_room(machine);
    char limit[128] = "";
    if (machine->cgroup.memory_limit != UINT64_MAX)
        snprintf(limit, sizeof(limit), ", within a control group's limit of %.1f GiB",
                 GIB(machine->cgroup.memory_limit));
    kva_findings_add(findings, room < MEMORY_MIN ? KVA_VERDICT_WARN : KVA_VERDICT_OK, "memory",
                     room < MEMORY_MIN ? "Free some, or raise the limit." : NULL,
                     "%.1f GiB can be taken of %.1f%s", GIB(room), GIB(machine->memory), limit);
    if (machine->overcommit_never && machine->commit_room < room)
        kva_findings_add(findings, KVA_VERDICT_WARN, "overcommit",
                         "sysctl vm.overcommit_memory=0, or tiers that fit.",
                         "the kernel promises only memory that is there "
                         "(vm.overcommit_memory=2), %.1f GiB more: tiers, which are asked for "
                         "whole, may be refused",
                         GIB(machine->commit_room));
    if (machine->swap_used > machine->memory / 16)
        kva_findings_add(findings, KVA_VERDICT_WARN, "swap",
                         "Free memory, or turn swapping off for this service "
                         "(MemorySwapMax=0).",
                         "%.1f GiB of this machine's memory are swapped out: KV that is, stops "
                         "every step that needs it",
                         GIB(machine->swap_used));
}

static void judge_huge_pages(const struct kva_machine *machine, struct kva_findings *findings)
{
    static const char *const words[] = {
        [KVA_HUGE_PAGES_MADVISE] = "for who asks for them, as the server does",
        [KVA_HUGE_PAGES_ALWAYS] = "for everything",
    };
    if (machine->huge_pages == KVA_HUGE_PAGES_NEVER)
        kva_findings_add(findings, KVA_VERDICT_WARN, "huge pages",
                         "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                         "turned off: attention over long contexts is slower, since every 4 KiB "
                         "of KV want an address of their own");
    else if (machine->huge_pages == KVA_HUGE_PAGES_UNKNOWN)
        kva_findings_add(findings, KVA_VERDICT_NOTE, "huge pages", NULL,
                         "the system does not say whether there are any");
    else
        kva_findings_add(findings, KVA_VERDICT_OK, "huge pages", NULL, "%s",
                         words[machine->huge_pages]);
}

static void judge_nodes(const struct kva_machine *machine, struct kva_findings *findings)
{
    if (machine->memory_nodes > 1)
        kva_findings_add(findings, KVA_VERDICT_WARN, "memory nodes",
                         "One server per node, each bound to it: numactl --cpunodebind=N "
                         "--membind=N kvahead serve ...",
                         "%u (NUMA): threads that read another node's memory have a fraction of "
                         "its speed, and the server does not place KV by node",
                         machine->memory_nodes);
}

void kva_doctor_judge_machine(const struct kva_machine *machine, const struct kva_config *config,
                              struct kva_findings *findings)
{
    judge_cores(machine, config, findings);
    judge_memory(machine, findings);
    judge_huge_pages(machine, findings);
    judge_nodes(machine, findings);
}

void kva_doctor_judge_tiers(const struct kva_machine *machine, uint64_t tiers, bool gpu,
                            struct kva_findings *findings)
{
    const char *options = gpu ? "the host tier is" : "the tiers are";
    uint64_t room = kva_machine_room(machine);
    struct kva_err err;
    if (kva_machine_check_tiers(room, tiers, gpu, &err))
        kva_findings_add(findings, KVA_VERDICT_FAIL, "tiers",
                         "Lower --device-memory and --host-memory: the tiers, the weights and an "
                         "eighth for everything else have to fit.",
                         "%s", err.message);
    else if (tiers > room / 8 * 7)
        kva_findings_add(findings, KVA_VERDICT_WARN, "tiers",
                         "Leave an eighth for requests, grammars and weights.",
                         "%s %.1f GiB of %.1f that can be taken", options, GIB(tiers), GIB(room));
}
